"""Plain runs with gradients, against the run that keeps everything."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.passes import (
    gradient_blocks,
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
