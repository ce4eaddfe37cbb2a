"""Stacks of subjects against runs of each subject alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.engine.relaxed import log_sizes, ranks
from graphcircuits.engine.stack import Stack
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.subjects import SOME, make_subject, make_tokens

Item = tuple[Transformer, Pairs]
EVERY = pytest.mark.parametrize("architecture", SOME)
SMALL: dict[str, Any] = {"n_layers": 1, "n_heads": 2}


def item(
    architecture: str = "plain", seed: int = 0, loss: str = "kl", pos: int = 5, **options: Any
) -> Item:
    """A subject and three pairs, scored at some positions, targets at random."""
    subject = make_subject(architecture, seed, **options)
    generator = torch.Generator().manual_seed(seed + 50)
    clean, corrupted = (make_tokens(subject, seed=2 * seed + i, pos=pos) for i in (1, 2))
    scored = torch.rand(clean.shape, generator=generator) < 0.5
    scored[:, seed % 2 + 1] = True
    outputs = subject.config.d_vocab_out
    classes = torch.randint(outputs, clean.shape, generator=generator)
    targets: dict[str, Tensor] = {
        "kl": torch.randn(*clean.shape, outputs, generator=generator).double().softmax(-1),
        "l1": torch.randn(clean.shape, generator=generator).double(),
        "cross-entropy": classes,
        "logit-diff": classes,
    }
    return subject, Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=scored,
        loss_name=loss,
        targets=targets[loss],
        incorrect=(classes + 1) % outputs if loss == "logit-diff" else None,
    )


def random_masks(items: list[Item], masks: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (len(items), masks, items[0][0].graph.n_edges)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def alone(items: list[Item], masks: Tensor) -> Tensor:
    """The losses of each subject by `masked_logits`."""
    return torch.stack(
        [
            pairs.loss(masked_logits(s, pairs.clean, own, ablated_writers(s, pairs.corrupted)))
            for (s, pairs), own in zip(items, masks, strict=True)
        ]
    )


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@EVERY
def test_losses_and_gradients_are_those_of_each_subject_alone(architecture: str) -> None:
    """Of other lengths and vocabularies, where the architecture allows it."""
    tied = make_subject(architecture).config.tied_unembedding
    other: dict[str, Any] = {"d_vocab": 7, "d_vocab_out": 7 if tied else 4, "n_ctx": 8}
    items = [item(architecture), item(architecture, seed=1, pos=7, **other)]
    masks, same = (random_masks(items).requires_grad_() for _ in range(2))
    found, expected = Stack.of(items).losses(masks), alone(items, same)
    assert_equal(found, expected)
    weights = torch.arange(1.0, found.numel() + 1, dtype=torch.float64).view_as(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    assert masks.grad is not None
    assert same.grad is not None
    assert_equal(masks.grad, same.grad)


MIXED = [
    ("kl", {"pos": 4}),
    ("l1", {"d_vocab_out": 1}),
    ("cross-entropy", {"causal": False, "pos": 3}),
    ("logit-diff", {"d_vocab_out": 6, "causal": False}),
    ("kl", {"causal": False, "d_vocab": 9}),
]


def mixed() -> list[Item]:
    return [item(seed=seed, loss=loss, **(SMALL | own)) for seed, (loss, own) in enumerate(MIXED)]


def test_losses_and_sight_may_differ_within_a_stack() -> None:
    items = mixed()
    masks = random_masks(items)
    stack = Stack.of(items)
    found = stack.losses(masks)
    assert_equal(found, alone(items, masks))
    assert_equal(stack.losses(masks, torch.tensor([2, 0])), found[..., [2, 0]])
    assert_equal(stack.losses(masks, slice(1, 3)), found[..., 1:3])
    assert stack.loss_names == tuple(loss for loss, _ in MIXED)


@pytest.mark.slow
def test_gradients_of_mixed_losses_are_finite_and_their_own() -> None:
    items = mixed()
    masks, same = (random_masks(items).requires_grad_() for _ in range(2))
    Stack.of(items).losses(masks).sum().backward()
    alone(items, same).sum().backward()
    assert masks.grad is not None
    assert same.grad is not None
    assert_equal(masks.grad, same.grad)


def test_departure_is_one_minus_faithfulness_and_its_area_cmd() -> None:
    """Scores tie, and rows of the curve run a few at a time."""
    items = mixed()
    generator = torch.Generator().manual_seed(4)
    n_edges = items[0][0].graph.n_edges
    scores = torch.randint(4, (len(items), n_edges), generator=generator).double()
    stack = Stack.of(items)
    curves = [
        faithfulness_curve(subject, pairs, own, by="loss", crossings=())
        for own, (subject, pairs) in zip(scores, items, strict=True)
    ]
    expected = torch.tensor([curve.cmd for curve in curves], dtype=torch.float64)
    assert_equal(stack.cmd(scores), expected)
    assert_equal(stack.cmd(scores, at_once=3), expected)
    sizes = torch.tensor(log_sizes(n_edges))
    masks = (ranks(scores)[:, None] < sizes[:, None]).double()
    faithful = torch.tensor([curve.faithfulness for curve in curves], dtype=torch.float64)
    assert_equal(1 - stack.departure(masks), faithful)
    own = [0, 5, n_edges]
    alone = faithfulness_curve(*items[1], scores[1], by="loss", sizes=own).cmd
    assert_equal(stack.cmd(scores, own)[1], torch.tensor(alone, dtype=torch.float64))


@pytest.mark.slow
def test_departure_of_some_prompts_is_in_units_of_the_gap_of_all() -> None:
    items = mixed()
    stack, masks = Stack.of(items), random_masks(items)
    by_row = torch.cat([stack.departure(masks, slice(row, row + 1))[None] for row in range(3)])
    assert_equal(by_row.mean(0), stack.departure(masks))


@pytest.mark.slow
def test_a_subset_is_the_stack_of_its_items() -> None:
    items = mixed()
    masks = random_masks(items)
    some = Stack.of(items).subset([3, 0])
    assert len(some) == 2
    assert some.loss_names == ("logit-diff", "kl")
    assert_equal(some.losses(masks[[3, 0]]), alone(items, masks)[[3, 0]])
    assert_equal(some.departure(masks[[3, 0]]), Stack.of(items).departure(masks)[[3, 0]])


def test_one_subject_with_several_tasks_is_held_once() -> None:
    subject, first = item(**SMALL)
    other = item(seed=0, loss="logit-diff", **SMALL)[1]
    items = [(subject, first), (subject, other)]
    masks = random_masks(items)
    stack = Stack.of(items)
    assert stack.shared
    assert stack.weights["W_Q"].shape == subject.weights["W_Q"].shape
    assert_equal(stack.losses(masks), alone(items, masks))
    assert_equal(stack.subset([1]).losses(masks[1:]), alone(items, masks)[1:])


def test_targets_are_taken_from_the_clean_run() -> None:
    subject, pairs = item(**SMALL)
    bare = Pairs(clean=pairs.clean, corrupted=pairs.corrupted, scored=pairs.scored, loss_name="kl")
    ready = bare.with_targets_from(subject.logits(bare.clean))
    masks = random_masks([(subject, bare)])
    assert_equal(Stack.of([(subject, bare)]).losses(masks), alone([(subject, ready)], masks))


def test_nothing_is_recorded_where_no_gradient_is_wanted() -> None:
    items = [item(**SMALL)]
    masks = random_masks(items).requires_grad_()
    with torch.no_grad():
        assert not Stack.of(items).losses(masks).requires_grad


@contextmanager
def no_waiting() -> Iterator[None]:
    """Waiting for a GPU is an error inside, and is not afterwards, whatever happens."""
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_a_gpu_computes_the_same_and_is_not_waited_for() -> None:
    items = mixed()
    masks = random_masks(items)
    stack, on_gpu = Stack.of(items, "cuda"), masks.cuda().requires_grad_()
    rows = torch.tensor([2, 0]).cuda()
    stack.losses(on_gpu)  # tables that are made once
    with no_waiting():
        found = stack.losses(on_gpu)
        stack.departure(on_gpu, rows).abs().mean().backward()
    assert_equal(found.detach().cpu(), alone(items, masks))
    assert on_gpu.grad is not None


def test_bad_stacks_are_refused() -> None:
    subject, pairs = item(**SMALL)
    with pytest.raises(ValueError, match=r"^a stack needs at least one subject, got none\.$"):
        Stack.of([])
    with pytest.raises(
        ValueError, match=r"one architecture and dtype; every subject needs equally many"
    ):
        Stack.of([(subject, pairs), (make_subject(), pairs[:1])])
    own = Pairs(
        clean=pairs.clean,
        corrupted=pairs.corrupted,
        scored=pairs.scored,
        loss_name=lambda logits, _: logits.sum((1, 2)),
    )
    with pytest.raises(ValueError, match="the loss must be one of cross-entropy, kl"):
        Stack.of([(subject, own)])
    same = Pairs(
        clean=pairs.clean,
        corrupted=pairs.clean,
        scored=pairs.scored,
        loss_name="kl",
        targets=pairs.targets,
    )
    with pytest.raises(ValueError, match=r"corrupted runs that differ, .* of subject 1"):
        Stack.of([(subject, pairs), (subject, same)])
    with pytest.raises(ValueError, match=r"of 1 subjects and 13 edges, got shape \(1, 1, 3\)"):
        Stack.of([(subject, pairs)]).losses(torch.zeros(1, 1, 3, dtype=torch.float64))
