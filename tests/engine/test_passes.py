"""Plain runs with gradients, against the run that keeps everything."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.passes import (
    gradient_blocks,
    halves,
    joined,
    kept,
    layer_gradients,
    outputs,
    with_gradients,
)
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject


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
        plain = kept(subject, subject.trace(subject.embed(pairs.clean)))
    layers = ((layer.z, layer.hidden) for layer in plain.layers)
    found = outputs(subject, plain.layers[0].at_heads, layers)
    torch.testing.assert_close(found, whole.writers.permute(2, 0, 1, 3))
    assert not plain.gradients


@pytest.mark.usefixtures("unchecked")
def test_runs_in_one_batch_and_apart() -> None:
    """`halves` takes a batch apart, `joined` puts runs together, gradients included."""
    subject = make_subject("grouped-keys")
    pairs = make_pairs(subject, "cross-entropy")
    streams = [subject.embed(x).detach() for x in (pairs.clean, pairs.corrupted)]

    def loss(logits: Float[Tensor, "run column d_vocab_out"]) -> Float[Tensor, "step batch"]:
        return pairs.loss_at_columns(logits.unflatten(0, (-1, len(pairs))))

    alone = [with_gradients(subject, x.clone(), pairs.columns, loss) for x in streams]
    batch = with_gradients(subject, torch.cat(streams), pairs.columns, loss)
    together = joined(alone)
    assert together.subject is subject
    for one, other in [(together, batch), *zip(halves(batch), alone, strict=True)]:
        torch.testing.assert_close(one.stream, other.stream)
        torch.testing.assert_close(one.logits, other.logits)
        for layer, expected in zip(one.layers, other.layers, strict=True):
            torch.testing.assert_close(vars(layer), vars(expected))
    torch.testing.assert_close(together.gradients, batch.gradients)
    assert not any(half.gradients for half in halves(batch))
