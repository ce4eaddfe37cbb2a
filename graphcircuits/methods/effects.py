"""Effects of edges: what attribution makes of plain runs and the gradients of the loss in them.

1. `with_gradients` runs the subject on prompts, once or for several steps in a row, and takes the
   gradients that tell its readers apart (`engine.passes`); `kept` is what stays of a run.
2. `writer_deltas` are the differences between the writers of two runs.
3. `add_effects` multiplies the two for every edge: (difference of its writer) . (gradient at its
   reader's input), summed over positions.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine import passes
from graphcircuits.engine.passes import Pass, gradient_blocks, kept, outputs
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

__all__ = ["Pass", "add_effects", "kept", "with_gradients", "writer_deltas"]


def with_gradients(
    subject: Transformer,
    streams: Float[Tensor, "run pos d_model"],
    pairs: Pairs,
    weights: Float[Tensor, " step"] | None = None,
) -> Pass:
    """A run on each prompt, once or for several steps in a row, with gradients of its loss.

    `weights` are how much the loss of each step counts; all count alike without them.
    """

    def losses(logits: Float[Tensor, "run column d_vocab_out"]) -> Float[Tensor, "step batch"]:
        found = pairs.loss_at_columns(logits.unflatten(0, (-1, len(pairs))))
        return found if weights is None else found * weights[:, None]

    return passes.with_gradients(subject, streams, pairs.columns, losses)


@torch.no_grad()
def writer_deltas(
    subject: Transformer, clean: Pass, corrupted: Pass
) -> Float[Tensor, "writer batch pos d_model"]:
    """Corrupted minus clean output of every writer, in single precision at least."""
    dtype = torch.promote_types(subject.dtype, torch.float32)
    first = corrupted.layers[0].at_heads.to(dtype) - clean.layers[0].at_heads
    both = zip(clean.layers, corrupted.layers, strict=True)
    return outputs(subject, first, ((b.z - a.z, b.hidden - a.hidden) for a, b in both))


def add_effects(
    found: Float[Tensor, "batch_or_1 edge"],
    graph: ComponentGraph,
    run: Pass,
    deltas: Float[Tensor, "writer batch pos d_model"],
    *,
    first_layer: int,
    writers: tuple[int, int],
) -> None:
    """Add the effects of a range of writers in a run that starts at a layer, summed over steps."""
    low, high = writers
    # One row holds everything that is summed: a prompt, or all of them.
    by_writer = deltas.view(len(deltas), len(found), -1)
    blocks = graph.stream_blocks[2 * first_layer :]
    for block, gradients in zip(blocks, gradient_blocks(run, deltas.shape[1]), strict=True):
        seen = min(high, block.n_writers)
        if seen <= low:
            continue
        readers = gradients.reshape(block.n_readers, len(found), -1).transpose(0, 1)
        products = readers.to(found.dtype) @ by_writer[low:seen].permute(1, 2, 0)
        edges = found[:, block.edges].view(-1, block.n_readers, block.n_writers)
        edges[:, :, low:seen] += products
