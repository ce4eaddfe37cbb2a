"""Prompts that were seen before, and pairs that are set apart."""

from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.task.fresh import hold_back, prompt_hashes, shared_prompts, unseen
from graphcircuits.task.pairs import Pairs


def pairs_of(*prompts: tuple[list[int], list[int], int], **options: Any) -> Pairs:
    clean, corrupted, last = zip(*prompts, strict=True)
    scored = torch.zeros(len(clean), len(clean[0]), dtype=torch.bool)
    scored[range(len(last)), list(last)] = True
    return Pairs(
        clean=torch.tensor(clean),
        corrupted=torch.tensor(corrupted),
        scored=scored,
        loss_name="kl",
        **options,
    )


SEEN = pairs_of(([1, 2, 0, 0], [1, 3, 0, 0], 1), ([4, 5, 6, 7], [4, 4, 4, 4], 3))
DRAWN = pairs_of(([1, 2, 9], [1, 3, 9], 1), ([1, 2, 9], [1, 4, 9], 1), ([4, 5, 6], [4, 4, 4], 2))


def test_seen_pairs_are_known_whatever_the_padding() -> None:
    left = unseen(DRAWN, SEEN)
    assert left is not None
    assert left.corrupted.tolist() == [[1, 4, 9], [4, 4, 4]]
    assert unseen(DRAWN[:1], SEEN) is None


def test_hashes_are_of_clean_prompts_whatever_the_padding() -> None:
    names = prompt_hashes(SEEN)
    assert all(len(name) == 16 for name in names)
    assert prompt_hashes(DRAWN)[:2] == names[:1] * 2
    assert shared_prompts(DRAWN, names) == 2
    assert shared_prompts(DRAWN, ()) == 0


def test_pairs_that_are_held_back_share_no_prompt_with_the_others() -> None:
    pairs = load_case("ib-3").pairs(64)
    own, apart = hold_back(pairs, 0.25, seed=3)
    assert len(own) + len(apart) == 64
    assert not set(prompt_hashes(own)) & set(prompt_hashes(apart))
    different = len(set(prompt_hashes(pairs)))
    assert len(set(prompt_hashes(apart))) == round(0.25 * different)
    assert torch.equal(own.clean, hold_back(pairs, 0.25, seed=3)[0].clean)


def test_what_cannot_be_held_back() -> None:
    with pytest.raises(ValueError, match=r"cannot hold back 0\.25 of 2 different prompts"):
        hold_back(DRAWN, 0.25)
    with pytest.raises(ValueError, match="must be above 0 and below 1, got 1"):
        hold_back(DRAWN, 1.0)
