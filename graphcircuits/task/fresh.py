"""Which prompts are the same, so that what was found on some can be judged on others.

1. `prompt_hashes` names every clean prompt by what it says up to its last scored position: what
   follows may be padding. Results carry these names, so that files know what they were found on.
2. `unseen` leaves out pairs that are among others; `hold_back` sets some pairs apart, all those of
   one clean prompt together.
"""

import hashlib
import random
from collections.abc import Collection

import torch

from graphcircuits.task.pairs import Pairs

HASH_LENGTH = 16
"""Hexadecimal digits of a hash: the chance that two of a million prompts share one is 1 in 10^7."""


def prompt_hashes(pairs: Pairs) -> list[str]:
    """A short hash of each clean prompt."""
    return [
        hashlib.sha256(repr(clean).encode()).hexdigest()[:HASH_LENGTH] for clean, _ in _keys(pairs)
    ]


def shared_prompts(pairs: Pairs, known: Collection[str]) -> int:
    """How many of the pairs have a clean prompt whose hash is known."""
    names = frozenset(known)
    return sum(one in names for one in prompt_hashes(pairs)) if names else 0


def unseen(pairs: Pairs, seen: Pairs) -> Pairs | None:
    """The pairs that are not among those seen; None if there are none."""
    known = set(_keys(seen))
    rows = [row for row, key in enumerate(_keys(pairs)) if key not in known]
    return pairs[rows] if rows else None


def hold_back(pairs: Pairs, share: float, *, seed: int = 0) -> tuple[Pairs, Pairs]:
    """The pairs to work with, and this share of them set apart; in their order on either side.

    Prompts are drawn by the seed; pairs with the same clean prompt stay together.
    """
    if not 0 < share < 1:
        raise ValueError(
            f"the share of pairs to hold back must be above 0 and below 1, got {share}."
        )
    names = prompt_hashes(pairs)
    different = list(dict.fromkeys(names))
    count = round(share * len(different))
    if not 0 < count < len(different):
        raise ValueError(
            f"cannot hold back {share:g} of {len(different)} different prompts: at least one must "
            "be held back and one be left; give more prompts or another share."
        )
    apart = frozenset(random.Random(seed).sample(different, count))
    rows = range(len(names))
    rest = [row for row in rows if names[row] not in apart]
    return pairs[rest], pairs[[row for row in rows if names[row] in apart]]


def _keys(pairs: Pairs) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The prompts up to the last scored position."""
    positions = torch.arange(1, pairs.scored.shape[1] + 1, device=pairs.scored.device)
    ends = (pairs.scored * positions).amax(1).tolist()
    both = zip(pairs.clean.tolist(), pairs.corrupted.tolist(), ends, strict=True)
    return [(tuple(clean[:end]), tuple(corrupted[:end])) for clean, corrupted, end in both]
