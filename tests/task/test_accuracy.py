"""The share of right answers: a slow twin, chunks, and the warning."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import (
    OftenWrong,
    has_answers,
    right_answers,
    share_right,
    warn_if_wrong,
    wrong_answers,
)
from graphcircuits.task.pairs import Pairs
from tests.subjects import make_subject, make_tokens
from tests.tiers import some

BATCH, POS, CLASSES = 12, 5, 6


def task(loss_name: Any, *, positions: int = 1, seed: int = 0) -> tuple[Transformer, Pairs]:
    generator = torch.Generator().manual_seed(seed)
    subject = make_subject("llama", d_vocab_out=CLASSES)

    def classes() -> torch.Tensor:
        return torch.randint(CLASSES, (BATCH, POS), generator=generator)

    scored = torch.zeros(BATCH, POS, dtype=torch.bool)
    for row in range(BATCH):
        scored[row, torch.randperm(POS, generator=generator)[:positions]] = True
    targets = classes()
    if loss_name == "kl":
        noise = torch.randn(BATCH, POS, CLASSES, generator=generator)
        targets = noise.softmax(-1)
    wrong = classes() if loss_name == "logit-diff" else None
    pairs = Pairs(
        clean=make_tokens(subject, 1, BATCH, POS),
        corrupted=make_tokens(subject, 2, BATCH, POS),
        scored=scored,
        loss_name=loss_name,
        targets=targets,
        incorrect=wrong,
    )
    return subject, pairs


def slow_share(subject: Transformer, pairs: Pairs) -> float:
    """Prompt by prompt and position by position."""
    right = 0
    for row, prompt in enumerate(pairs.clean):
        logits = subject.logits(prompt[None])[0]
        assert pairs.targets is not None
        verdicts = []
        for place in pairs.scored[row].nonzero().flatten().tolist():
            target, output = pairs.targets[row, place], logits[place].tolist()
            answer = int(target.argmax()) if pairs.loss_name == "kl" else int(target)
            rivals = [other for other in range(CLASSES) if other != answer]
            if pairs.incorrect is not None:
                rivals = [int(pairs.incorrect[row, place])]
            verdicts.append(all(output[answer] > output[other] for other in rivals))
        right += all(verdicts)
    return right / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("positions", some([1, 2], [2]))
@pytest.mark.parametrize("loss_name", ["logit-diff", "cross-entropy", "kl"])
def test_the_share_is_that_of_a_slow_twin(loss_name: str, positions: int) -> None:
    found = []
    for seed in range(2):
        subject, pairs = task(loss_name, positions=positions, seed=seed)
        found.append(share_right(subject, pairs))
        assert found[-1] == pytest.approx(slow_share(subject, pairs), abs=1e-6)
        assert share_right(subject, pairs, memory_limit=1) == pytest.approx(found[-1], abs=1e-6)
    assert sum(found) < 2
    assert sum(found) > 0 or positions > 1


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("loss_name", ["logit-diff", "cross-entropy", "kl"])
def test_wrong_answers_are_those_that_are_not_right(loss_name: str, positions: int) -> None:
    """Given the logits at all positions, each prompt has the opposite answer."""
    subject, pairs = task(loss_name, positions=positions)
    best = subject.logits(pairs.clean).argmax(-1)
    assert pairs.targets is not None
    if loss_name != "kl":
        # Half of the prompts right at every position, whatever the others are.
        half = (torch.arange(BATCH) < BATCH // 2)[:, None]
        pairs = replace(pairs, targets=best.where(half, pairs.targets))
        if pairs.incorrect is not None:
            pairs = replace(pairs, incorrect=(best + 1) % CLASSES)
    wrong = wrong_answers(subject.logits(pairs.clean), pairs)
    assert wrong.dtype == torch.float64
    assert wrong.tolist() == [1.0 - float(one) for one in right_answers(subject, pairs)]
    assert float(wrong.mean()) == pytest.approx(1 - slow_share(subject, pairs))
    assert {*wrong.tolist()} == {0.0, 1.0} or (loss_name, positions) == ("kl", 2)


def test_equal_logits_are_not_right() -> None:
    subject, pairs = task("logit-diff")
    assert pairs.targets is not None
    assert share_right(subject, replace(pairs, incorrect=pairs.targets)) == 0


def test_a_warning_where_it_is_often_wrong() -> None:
    subject, pairs = task("cross-entropy")
    best = subject.logits(pairs.clean).argmax(-1)
    right = replace(pairs, targets=best)
    assert warn_if_wrong(subject, right) == 1.0
    wrong = (best + 1) % CLASSES
    mixed = replace(pairs, targets=best.where(torch.arange(BATCH)[:, None] < 3, wrong))
    text = "the model is right on 25% of 12 prompts only, below 60%; a circuit of a task that it"
    with pytest.warns(OftenWrong, match=text):
        share = warn_if_wrong(subject, mixed)
    assert share == 0.25
    assert warn_if_wrong(subject, mixed, least=0.2) == share


@pytest.mark.parametrize("loss_name", ["kl", "l1", lambda logits, pairs: logits[:, 0, 0]])
def test_what_has_no_answers(loss_name: Any) -> None:
    subject, pairs = task("cross-entropy")
    open_ended = replace(pairs, loss_name=loss_name, targets=None)
    assert not has_answers(open_ended)
    assert warn_if_wrong(subject, open_ended) is None
    name = loss_name if isinstance(loss_name, str) else "an own function"
    with pytest.raises(ValueError, match=f"pairs with the loss {name} name no right answer to be"):
        share_right(subject, open_ended)


def test_answers_of_another_model() -> None:
    subject, pairs = task("cross-entropy")
    far = replace(pairs, targets=torch.full((BATCH, POS), 99))
    with pytest.raises(
        ValueError, match=r"name class 99, but the subject has only 6 classes, 0..5"
    ):
        share_right(subject, far)
