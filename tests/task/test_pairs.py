"""Pairs: losses against slow twins, batching over masks, and every refusal by its text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphcircuits import localize
from graphcircuits.cases import load_case
from graphcircuits.engine.losses import LOSSES
from graphcircuits.io.store import content_hash
from graphcircuits.task.pairs import Pairs
from tests.subjects import make_subject

BATCH, POS, CLASSES = 3, 4, 5


def make(loss_name: Any = "kl", seed: int = 0, /, **changes: Any) -> Pairs:
    """Random pairs with this loss, all fields filled as it wants them."""
    generator = torch.Generator().manual_seed(seed)
    scored = torch.rand(BATCH, POS, generator=generator) < 0.5
    scored[:, seed % POS] = True

    def integers(high: int) -> Tensor:
        return torch.randint(0, high, (BATCH, POS), generator=generator)

    numbers = torch.randn(BATCH, POS, CLASSES, generator=generator, dtype=torch.float64)
    targets = {"kl": numbers.softmax(-1), "l1": numbers[..., 0]}.get(loss_name, integers(CLASSES))
    given: dict[str, Any] = {
        "clean": integers(9),
        "corrupted": integers(9),
        "scored": scored,
        "loss_name": loss_name,
        "targets": targets,
        "incorrect": (targets + 1) % CLASSES if loss_name == "logit-diff" else None,
    }
    return Pairs(**(given | changes))


def random_logits(pairs: Pairs, *lead: int, seed: int = 0) -> Tensor:
    outputs = 1 if pairs.loss_name == "l1" else CLASSES
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, BATCH, POS, outputs, generator=generator, dtype=torch.float64)


def slow_loss(pairs: Pairs, logits: Tensor) -> list[float]:
    """Prompt by prompt and position by position, from the definitions."""
    assert pairs.targets is not None
    losses = []
    for b in range(len(pairs)):
        terms = []
        for p in range(pairs.clean.shape[1]):
            if not pairs.scored[b, p]:
                continue
            output, target = logits[b, p], pairs.targets[b, p]
            if pairs.loss_name == "kl":
                model = torch.distributions.Categorical(logits=output)
                goal = torch.distributions.Categorical(probs=target)
                terms.append(torch.distributions.kl_divergence(goal, model).item())
            elif pairs.loss_name == "l1":
                terms.append(abs(output.item() - target.item()))
            elif pairs.loss_name == "cross-entropy":
                terms.append(F.cross_entropy(output[None], target[None]).item())
            else:
                assert pairs.incorrect is not None
                wrong, right = int(pairs.incorrect[b, p]), int(target)
                terms.append(output[wrong].item() - output[right].item())
        losses.append(sum(terms) / len(terms))
    return losses


# The loss


@pytest.mark.parametrize("loss_name", LOSSES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_loss_is_its_slow_twin(loss_name: str, seed: int) -> None:
    pairs = make(loss_name, seed)
    logits = random_logits(pairs, seed=seed)
    expected = torch.tensor(slow_loss(pairs, logits), dtype=torch.float64)
    torch.testing.assert_close(pairs.loss(logits), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss_name", LOSSES)
def test_masks_are_carried_along(loss_name: str) -> None:
    pairs = make(loss_name)
    logits = random_logits(pairs, 2, 3)
    losses = pairs.loss(logits)
    assert losses.shape == (2, 3, BATCH)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(losses[i, j], pairs.loss(logits[i, j]))


@pytest.mark.parametrize("loss_name", LOSSES)
def test_gradient_is_right_and_stays_on_scored_positions(loss_name: str) -> None:
    pairs = make(loss_name, 1)
    logits = random_logits(pairs, 2).requires_grad_()
    assert torch.autograd.gradcheck(pairs.loss, (logits,))
    (gradient,) = torch.autograd.grad(pairs.loss(logits).sum(), logits)
    touched = gradient.abs().sum((0, -1)) > 0
    assert torch.equal(touched, pairs.scored)


@pytest.mark.parametrize("loss_name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_loss_keeps_the_precision_of_the_logits(loss_name: str, dtype: torch.dtype) -> None:
    pairs = make(loss_name)
    losses = pairs.loss(random_logits(pairs).to(dtype))
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("loss_name", LOSSES)
def test_better_runs_have_lower_loss(loss_name: str) -> None:
    pairs = make(loss_name)
    assert pairs.targets is not None
    if loss_name == "kl":
        right = pairs.targets.log()
    elif loss_name == "l1":
        right = pairs.targets[..., None]
    else:
        right = 9.0 * F.one_hot(pairs.targets, CLASSES).double()
    assert bool((pairs.loss(right) <= pairs.loss(random_logits(pairs))).all())
    if loss_name in ("kl", "l1"):
        torch.testing.assert_close(
            pairs.loss(right), torch.zeros(BATCH, dtype=torch.float64), atol=1e-12, rtol=0
        )


def test_unscored_positions_are_not_read() -> None:
    for loss_name in LOSSES:
        pairs = make(loss_name)
        logits = random_logits(pairs)
        spoilt = logits.masked_fill(~pairs.scored[..., None], float("nan"))
        torch.testing.assert_close(pairs.loss(spoilt), pairs.loss(logits))
    classes = make("cross-entropy").targets
    assert classes is not None
    spoilt = classes.masked_fill(~make("cross-entropy").scored, -100)
    logits = random_logits(make("cross-entropy"))
    kept = make("cross-entropy", targets=spoilt).loss(logits)
    torch.testing.assert_close(kept, make("cross-entropy").loss(logits))


@pytest.mark.parametrize("loss_name", LOSSES)
def test_columns_are_all_that_the_loss_reads(loss_name: str) -> None:
    scored = torch.zeros(BATCH, POS, dtype=torch.bool)
    scored[0, 1] = scored[1, 2] = scored[2, 1:3] = True
    pairs = make(loss_name, scored=scored)
    logits = random_logits(pairs, 2)
    assert pairs.columns == slice(1, 3)
    assert torch.equal(pairs.loss_at_columns(logits[..., 1:3, :]), pairs.loss(logits))
    with pytest.raises(ValueError, match=r"must have \(3, 2\) prompts and positions, got \(3, 4\)"):
        pairs.loss_at_columns(logits)
    short = pairs.up_to_last_column()
    assert short.clean.shape == (BATCH, 3)
    assert torch.equal(short.loss(logits[..., :3, :]), pairs.loss(logits))
    assert short.up_to_last_column() is short


def test_a_function_of_ones_own_reads_all_columns() -> None:
    pairs = make(lambda logits, pairs: logits.sum((1, 2)))
    assert pairs.columns == slice(0, POS)
    assert pairs.up_to_last_column() is pairs


def test_kl_allows_classes_that_both_rule_out() -> None:
    targets = torch.zeros(BATCH, POS, CLASSES, dtype=torch.float64)
    targets[..., :2] = 0.5
    logits = torch.zeros(BATCH, POS, CLASSES, dtype=torch.float64)
    logits[..., 4] = -torch.inf
    logits.requires_grad_()
    losses = make("kl", targets=targets).loss(logits)
    # The model spreads over four classes, the target over two of them: log 4 - log 2.
    torch.testing.assert_close(losses, torch.full((BATCH,), 2.0).double().log())
    assert torch.autograd.grad(losses.sum(), logits)[0].isfinite().all()


@pytest.mark.parametrize("loss_name", ["kl", "l1"])
def test_targets_from_the_clean_run(loss_name: str) -> None:
    pairs = make(loss_name, targets=None)
    assert pairs.needs_targets
    logits = random_logits(pairs).requires_grad_()
    message = rf"the {loss_name} targets have not been taken .* call pairs\.with_targets_from\("
    with pytest.raises(ValueError, match=message):
        pairs.loss(logits)
    ready = pairs.with_targets_from(logits)
    assert ready.targets is not None
    assert not ready.needs_targets
    assert not ready.targets.requires_grad
    torch.testing.assert_close(
        ready.loss(logits), torch.zeros(BATCH, dtype=torch.float64), atol=1e-12, rtol=0
    )
    with pytest.raises(ValueError, match="targets of 'cross-entropy' are given, not taken"):
        make("cross-entropy").with_targets_from(random_logits(pairs))


def test_own_function_sees_one_run_at_a_time() -> None:
    def loss(logits: Tensor, pairs: Pairs) -> Tensor:
        assert logits.shape == (BATCH, POS, CLASSES)
        assert pairs.targets is not None
        return logits.sum((1, 2)) + pairs.targets

    extra = torch.arange(float(BATCH), dtype=torch.float64)
    pairs = make(loss, targets=extra)
    logits = random_logits(pairs, 2, 3)
    torch.testing.assert_close(pairs.loss(logits), logits.sum((-1, -2)) + extra)
    assert pairs.loss(logits[0, 0]).shape == (BATCH,)
    assert len(pairs[:2]) == 2
    with pytest.raises(ValueError, match=r"one number per prompt, shape \(3,\), got \(\)"):
        make(lambda logits, pairs: logits.sum()).loss(logits)
    with pytest.raises(ValueError, match=r"targets must have one entry per prompt \(3\), got .*2"):
        make(loss, targets=torch.zeros(2))


def test_one_class_a_prompt_stands_for_all_positions() -> None:
    right, wrong = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 0])
    short = make("logit-diff", targets=right, incorrect=wrong)
    spread = make(
        "logit-diff",
        targets=right[:, None].repeat(1, POS),
        incorrect=wrong[:, None].repeat(1, POS),
    )
    logits = random_logits(short)
    assert torch.equal(short.loss(logits), spread.loss(logits))
    torch.testing.assert_close(short[1:].loss(logits[1:]), short.loss(logits)[1:])


# Parts


@pytest.mark.parametrize("loss_name", LOSSES)
def test_subsets_and_concatenation(loss_name: str) -> None:
    pairs = make(loss_name)
    logits = random_logits(pairs)
    losses = pairs.loss(logits)
    for index in (slice(1, None), [2, 0], (1, 2), torch.tensor([0, 2]), -1, range(2)):
        rows = [index] if isinstance(index, int) else index
        rows = rows if isinstance(rows, slice | Tensor) else list(rows)
        torch.testing.assert_close(pairs[index].loss(logits[rows]), losses[rows])
    chosen = torch.tensor([True, False, True])
    assert len(pairs[chosen]) == 2
    joined = Pairs.concatenate([pairs[:1], pairs[1:]])
    assert content_hash(joined) == content_hash(pairs)


def test_concatenation_refusals() -> None:
    with pytest.raises(ValueError, match="nothing to concatenate; give at least one"):
        Pairs.concatenate([])
    with pytest.raises(ValueError, match="got 'kl' with 4 positions and 'l1' with 4"):
        Pairs.concatenate([make("kl"), make("l1")])
    with pytest.raises(ValueError, match="some parts have targets and some have none"):
        Pairs.concatenate([make("kl"), make("kl", targets=None)])


def test_identical() -> None:
    pairs = make()
    assert not pairs.identical
    assert make(corrupted=pairs.clean, clean=pairs.clean).identical


@pytest.mark.gpu
def test_to_moves_every_tensor() -> None:
    for loss_name in LOSSES:
        pairs, logits = make(loss_name), random_logits(make(loss_name))
        losses = pairs.to("cuda").loss(logits.cuda())
        assert losses.device.type == "cuda"
        torch.testing.assert_close(losses.cpu(), pairs.loss(logits))
    with pytest.raises(ValueError, match="all tensors must be on one device, got cpu, cuda:0"):
        make("kl", scored=make("kl").scored.cuda())


# Refusals


@pytest.mark.parametrize(
    ("loss_name", "changes", "message"),
    [
        ("kl", {"loss_name": "KL"}, r"unknown loss 'KL'; did you mean 'kl'\? \(cross-entropy, kl,"),
        ("kl", {"loss_name": "logit_diff"}, r"'logit_diff'; did you mean 'logit-diff'\? \(cross"),
        ("kl", {"loss_name": "zzz"}, r"unknown loss 'zzz'; \(cross-entropy, .* or a function"),
        ("kl", {"clean": torch.zeros(3, 4)}, "clean must hold whole token ids, got torch.float32"),
        ("kl", {"clean": torch.tensor([[0, 1, 2, -1]] * 3)}, "clean must hold .* from 0, got -1"),
        (
            "kl",
            {"corrupted": torch.ones(3, 5).long()},
            r"corrupted prompts must be as many and as long as clean ones, \(3, 4\), got \(3, 5\)",
        ),
        ("kl", {"clean": torch.ones(12).long()}, r"clean must be prompts x pos.* got \(12,\)"),
        ("kl", {"scored": torch.ones(3, 4)}, r"scored must be True or False .* got torch.float32"),
        (
            "kl",
            {"scored": torch.tensor([[True] * 4, [False] * 4, [False] * 4])},
            "every prompt needs a scored position, prompts 1, 2 have none",
        ),
        ("kl", {"targets": torch.rand(3, 4)}, r"kl must be floats of shape \(3, 4\) and classes"),
        ("kl", {"targets": torch.ones(3, 4, 5)}, "must be distributions: from 0 and summing to 1"),
        (
            "kl",
            {"targets": torch.tensor([1.5, -0.5]).expand(3, 4, 2)},
            "must be distributions: from 0 and summing to 1",
        ),
        ("kl", {"targets": torch.ones(3, 4, 5) / 0}, "prompts 0, 1, 2 hold NaN or inf"),
        ("l1", {"targets": torch.ones(3, 4).long()}, "targets of l1 must be floats of shape"),
        ("l1", {"targets": torch.tensor([0.0, torch.nan, 0.0])}, "finite, prompts 1 hold NaN"),
        ("l1", {"incorrect": torch.ones(3, 4).long()}, "incorrect classes belong to logit-diff"),
        ("cross-entropy", {"targets": None}, "cross-entropy needs targets: a class for each"),
        ("logit-diff", {"incorrect": None}, "logit-diff needs incorrect: a class for each prompt"),
        (
            "cross-entropy",
            {"targets": torch.rand(3, 4)},
            r"must be whole numbers of shape \(3, 4\) or \(3,\), got torch.float32 of shape",
        ),
        ("cross-entropy", {"targets": torch.ones(2).long()}, r"got torch.int64 of shape \(2, 4\)"),
        ("cross-entropy", {"targets": -torch.ones(3).long()}, "must be classes from 0, got -1"),
    ],
)  # fmt: skip
def test_refusals(loss_name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(loss_name, **changes)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"unknown loss 'x'.*clean must hold whole.*scored must be"
    ):
        make("kl", loss_name="x", clean=torch.zeros(3, 4), scored=torch.ones(3, 5))


def test_fields_must_be_tensors() -> None:
    # Past the type checks of the test session, as a user would.
    pairs = object.__new__(Pairs)
    for name in ("corrupted", "scored", "loss_name", "incorrect"):
        object.__setattr__(pairs, name, getattr(make("l1"), name))
    object.__setattr__(pairs, "clean", [[1, 2]])
    object.__setattr__(pairs, "targets", [1.0])
    with pytest.raises(TypeError, match="clean must be a tensor, got list; targets must be a ten"):
        pairs.__post_init__()


@pytest.mark.parametrize(
    ("loss_name", "shape", "message"),
    [
        ("l1", (3, 4, 2), "l1 needs one numerical output per position, got 2 logits"),
        ("kl", (3, 4, 2), "the target distributions have 5 classes, the logits 2"),
        ("cross-entropy", (3, 4, 2), r"targets name class \d, but the logits have only 2 .*0\.\.1"),
        ("logit-diff", (3, 4, 1), r"targets name class \d, but the logits have only 1 classes"),
        ("kl", (2, 4, 5), r"logits must have \(3, 4\) prompts and positions, got \(2, 4\)"),
    ],
)
def test_logits_must_fit(loss_name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(loss_name).loss(torch.zeros(shape))


# Files: the columns are tested in test_files.py


@pytest.mark.parametrize("loss_name", LOSSES)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_file_round_trip(tmp_path: Path, loss_name: str, suffix: str, seed: int) -> None:
    pairs = make(loss_name, seed)
    path = tmp_path / f"pairs{suffix}"
    if (loss_name, suffix) == ("kl", ".csv"):
        with pytest.raises(ValueError, match=r"CSV has no room for distributions; save as \.jsonl"):
            pairs.save(path)
        pairs = make(loss_name, seed, targets=None)
    pairs.save(path)
    loaded = Pairs.load(path)
    assert loaded.loss_name == loss_name
    for name in ("clean", "corrupted", "scored"):
        assert torch.equal(getattr(loaded, name), getattr(pairs, name))
    if pairs.needs_targets:
        assert loaded.needs_targets
    else:
        logits = random_logits(pairs)
        assert torch.equal(loaded.loss(logits), pairs.loss(logits))


def test_missing_targets_survive_a_file(tmp_path: Path) -> None:
    make("l1", targets=None).save(tmp_path / "pairs.csv")
    loaded = Pairs.load(tmp_path / "pairs.csv")
    assert loaded.loss_name == "l1"
    assert loaded.needs_targets


@pytest.mark.parametrize(
    ("header", "cells", "loss_name"),
    [
        ("clean,corrupted,correct_idx,incorrect_idx", "1 2,1 3,0,1", "logit-diff"),
        ("clean,corrupted,correct_idx", "1 2,1 3,0", "cross-entropy"),
        ("clean,corrupted,target", "1 2,1 3,0.5", "l1"),
        ("clean,corrupted", "1 2,1 3", "kl"),
        ("clean,corrupted,correct_idx,loss", "1 2,1 3,0,kl", "kl"),
    ],
)
def test_columns_suggest_the_loss(tmp_path: Path, header: str, cells: str, loss_name: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"{header}\n{cells}\n")
    assert Pairs.load(path).loss_name == loss_name
    # The caller's word counts most; columns that it does not read do no harm.
    assert Pairs.load(path, loss_name="kl").needs_targets


def test_own_function_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("clean,corrupted,correct_idx,incorrect_idx\n1 2,1 3,4,0\n")

    def loss(logits: Tensor, pairs: Pairs) -> Tensor:
        assert pairs.targets is not None
        return logits[:, -1].gather(-1, pairs.targets[:, -1:]).squeeze(-1)

    pairs = Pairs.load(path, loss_name=loss)
    assert pairs.loss(torch.arange(10.0).reshape(1, 2, 5)).tolist() == [9.0]
    with pytest.raises(ValueError, match="a loss function cannot be written to a file"):
        pairs.save(path)


# What they are


def test_pairs_print_in_one_line() -> None:
    pairs = load_case("ib-3").pairs(6)
    assert repr(pairs) == "Pairs(6 pairs of 5 tokens, l1 loss, cpu, case='ib-3')"

    def distance(logits: Tensor, pairs: Pairs) -> Tensor:
        return logits.sum((1, 2))

    own = replace(pairs, loss_name=distance, case=None)
    assert repr(own) == "Pairs(6 pairs of 5 tokens, distance loss, cpu)"


@pytest.mark.usefixtures("unchecked")
def test_a_loss_is_a_name_or_a_function() -> None:
    wrong: Any = 3
    message = "loss_name must be one of cross-entropy, kl, l1, logit-diff, or a function, got 3"
    with pytest.raises(TypeError, match=message):
        replace(load_case("ib-3").pairs(2), loss_name=wrong)


ONES = torch.ones(BATCH, POS, dtype=torch.int64)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clean": None}, "clean must be a tensor, got NoneType"),
        ({"scored": None}, "scored must be a tensor, got NoneType"),
        ({"clean": torch.tensor(3), "targets": torch.ones(BATCH)}, "clean must be prompts x pos"),
        ({"clean": ONES.to("meta")}, "clean must be an ordinary tensor with values, got one that"),
        ({"corrupted": ONES.to_sparse()}, "corrupted must be an ordinary tensor with values"),
        ({"targets": torch.ones(BATCH, POS, 0)}, "distributions over at least one class, got none"),
        ({"targets": torch.full((BATCH, POS, 2), torch.nan)}, "targets must be finite, prompts 0"),
        ({"clean": ONES - 5}, "clean must hold token ids from 0, got -4"),
        ({"clean": ONES.float()}, "clean must hold whole token ids, got torch.float32"),
        ({"clean": ONES[:, :0]}, "clean must be prompts x positions with at least one each"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_pairs_are_refused_in_our_words(changes: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        make(**changes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_small_whole_numbers_are_token_ids(dtype: torch.dtype) -> None:
    usual = make()
    small = make(clean=usual.clean.to(dtype), corrupted=usual.corrupted.to(dtype))
    subject = make_subject(d_vocab=9, d_vocab_out=CLASSES)
    assert torch.equal(subject.logits(small.clean), subject.logits(usual.clean))


def test_a_pair_of_one_token_has_a_circuit() -> None:
    subject = make_subject()
    column = torch.tensor([[2], [3]])
    pairs = Pairs(
        clean=column,
        corrupted=column.flip(0),
        scored=torch.ones_like(column, dtype=torch.bool),
        loss_name="cross-entropy",
        targets=torch.tensor([0, 1]),
    )
    assert localize(subject, pairs, "eap-ig").circuit()
    with pytest.raises(ValueError, match="the targets name class 99, but the logits have only"):
        localize(subject, replace(pairs, targets=torch.full_like(column, 99)), "eap")
    with pytest.raises(ValueError, match="tokens must be in 0"):
        localize(subject, replace(pairs, clean=pairs.clean + 99), "eap")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda logits, pairs: None, "the loss function must return a tensor, got NoneType"),
        (lambda logits, pairs: torch.ones(len(pairs)), "or there is no gradient; got a result"),
    ],
)
def test_losses_of_ones_own_that_cannot_be_used(loss: Any, said: str) -> None:
    pairs = load_case("ib-3").pairs(2)
    with pytest.raises(ValueError, match=said):
        localize(load_case("ib-3").subject(), replace(pairs, loss_name=loss), "eap")
