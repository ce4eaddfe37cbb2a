"""Plain runs with gradients, against the run that keeps everything."""

from dataclasses import replace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.passes import (
    Pass,
    between,
    detached,
    gradient_blocks,
    halves,
    layer_gradients,
    outputs,
    with_gradients,
)
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs
from tests.subjects import ARCHITECTURES, make_subject
from tests.tiers import some


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "gpt-2", "llama", "grouped-keys", "parallel"])
def test_gradients_and_outputs_are_those_of_the_whole_run(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")

    def loss(logits: Float[Tensor, "run column d_vocab_out"]) -> Float[Tensor, "step batch"]:
        return pairs.loss_at_columns(logits)[None]

    run = with_gradients(subject, subject.embed(pairs.clean).detach(), pairs.columns, loss)
    whole = subject.run(pairs.clean, lambda logits: pairs.loss(logits).sum())
    expected = whole.reader_gradients.permute(2, 0, 1, 3)
    torch.testing.assert_close(torch.cat(list(layer_gradients(run))), expected)
    torch.testing.assert_close(torch.cat(list(gradient_blocks(run, len(pairs)))), expected)
    torch.testing.assert_close(run.losses, loss(run.logits))

    with torch.no_grad():
        plain = detached(subject, subject.trace(subject.embed(pairs.clean)))
    layers = ((layer.z, layer.hidden) for layer in plain.layers)
    found = outputs(subject, plain.layers[0].at_heads, layers)
    torch.testing.assert_close(found, whole.writers.permute(2, 0, 1, 3))
    assert not plain.gradients


@pytest.mark.usefixtures("unchecked")
def test_a_batch_is_taken_apart() -> None:
    """`halves` gives the runs that were made in one batch, without gradients."""
    subject = make_subject("grouped-keys")
    pairs = make_pairs(subject, "cross-entropy")
    streams = [subject.embed(x).detach() for x in (pairs.clean, pairs.corrupted)]

    def loss(logits: Float[Tensor, "run column d_vocab_out"]) -> Float[Tensor, "step batch"]:
        return pairs.loss_at_columns(logits.unflatten(0, (-1, len(pairs))))

    alone = [with_gradients(subject, x.clone(), pairs.columns, loss) for x in streams]
    batch = with_gradients(subject, torch.cat(streams), pairs.columns, loss)
    for one, other in zip(halves(batch), alone, strict=True):
        torch.testing.assert_close(one.stream, other.stream)
        torch.testing.assert_close(one.logits, other.logits)
        for layer, expected in zip(one.layers, other.layers, strict=True):
            torch.testing.assert_close(vars(layer), vars(expected))
    assert batch.gradients
    assert not any(half.gradients for half in halves(batch))


# Between two runs

FAST = ("plain", "grouped-keys", "parallel", "gpt-2", "llama", "norms-after", "everything")


def at_the_corrupted_prompts(subject: Transformer, pairs: Pairs) -> Pass:
    with torch.no_grad():
        return detached(subject, subject.trace(subject.embed(pairs.corrupted)))


def run_between(subject: Transformer, pairs: Pairs, share: float) -> Pass:
    """The run of a share, with gradients of each prompt's loss."""

    def loss(logits: Float[Tensor, "run column d_vocab_out"]) -> Float[Tensor, "step batch"]:
        return pairs.loss_at_columns(logits)[None]

    mixed = between(subject, at_the_corrupted_prompts(subject, pairs), share)
    return with_gradients(mixed, subject.embed(pairs.clean).detach(), pairs.columns, loss)


def written(subject: Transformer, run: Pass, first: Tensor) -> Float[Tensor, "writer run pos d"]:
    return outputs(subject, first, ((layer.z, layer.hidden) for layer in run.layers))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", some(ARCHITECTURES, FAST))
def test_it_is_the_masked_run_with_all_masks_alike(architecture: str) -> None:
    """Logits, and per prompt the gradient by each edge's mask: that at the reader times the change
    of the writer."""
    subject = make_subject(architecture)
    pairs, graph = make_pairs(subject, "cross-entropy"), subject.graph
    run = run_between(subject, pairs, 0.6)

    masks = torch.full((graph.n_edges,), 0.6, dtype=torch.float64, requires_grad=True)
    corrupted = subject.run(pairs.corrupted).writers
    logits = masked_logits(subject, pairs.clean, masks, corrupted, columns=pairs.columns)
    torch.testing.assert_close(run.logits, logits.detach())
    losses = pairs.loss_at_columns(logits)
    expected = torch.stack(
        [torch.autograd.grad(loss, masks, retain_graph=True)[0] for loss in losses]
    )

    other = at_the_corrupted_prompts(subject, pairs)
    changes = written(subject, run, subject.embed(pairs.clean))
    changes = changes - written(subject, other, subject.embed(pairs.corrupted))
    gradients = torch.cat(list(layer_gradients(run)))
    products = gradients[graph.edge_readers] * changes[graph.edge_writers]
    torch.testing.assert_close(products.sum((2, 3)).T, expected, rtol=1e-8, atol=1e-12)
    assert expected.abs().max() > 1e-3


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "llama", "neox"])
def test_the_whole_share_is_the_plain_run(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    run = run_between(subject, pairs, 1.0)
    plain = subject.run(pairs.clean, lambda logits: pairs.loss(logits).sum())
    assert torch.equal(run.logits, plain.logits)
    gradients = torch.cat(list(layer_gradients(run)))
    torch.testing.assert_close(gradients, plain.reader_gradients.permute(2, 0, 1, 3))


@pytest.mark.usefixtures("unchecked")
def test_where_nothing_is_corrupted_every_share_is_the_plain_run() -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    same = replace(pairs, corrupted=pairs.clean)
    torch.testing.assert_close(run_between(subject, same, 0.3).logits, subject.logits(pairs.clean))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_other_shares_are_refused(share: float) -> None:
    subject = make_subject()
    run = at_the_corrupted_prompts(subject, make_pairs(subject, "cross-entropy"))
    with pytest.raises(ValueError, match=f"share must be above 0 and at most 1, got {share}"):
        between(subject, run, share)
