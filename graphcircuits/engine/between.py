"""A run between the corrupted and the clean one: every edge is open to the same degree.

Each reader reads share * (the stream of this run) + (1 - share) * (that of the corrupted run): the
masked run in which all masks are `share`, at the cost of a plain one. Share 1 is the clean run, 0
the corrupted one. Where the clean run is right beyond doubt its loss is flat, and where all is
corrupted nothing passes through two components at once; in between gradients see both. The product
of a reader's gradient and the change of a writer in this run is the gradient by the edge's mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.passes import Pass
from graphcircuits.subject.states import LayerStates, Trace
from graphcircuits.subject.transformer import Transformer


@dataclass(frozen=True, eq=False)
class Between(Transformer):
    """A subject whose readers read between two runs."""

    share: float = 1.0
    cut: Sequence[Float[Tensor, "batch pos d_model"]] = ()
    """What readers read in the corrupted run: heads and MLP of each layer, then `logits`."""

    @classmethod
    def of(cls, subject: Transformer, corrupted: Pass, share: float) -> "Between":
        """`corrupted` is a run of the subject on the corrupted prompts."""
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}.")
        cut = [x for layer in corrupted.layers for x in (layer.at_heads, layer.at_mlp)]
        cut.append(corrupted.stream)
        return cls(subject.config, subject.weights, share=share, cut=cut)

    def __post_init__(self) -> None:
        """The subject has been checked when it was made."""

    def _layer(self, stream: Float[Tensor, "*batch pos d_model"], layer: int) -> LayerStates:
        at_heads = self._read(stream, 2 * layer)
        q, k, v, z = self.attention(at_heads, layer)
        with_heads = stream + self._heads_out(z, layer)
        at_mlp = self._read(stream if self.config.parallel else with_heads, 2 * layer + 1)
        pre, gate, hidden = self.mlp(at_mlp, layer)
        out = self._linear(hidden, self.write_weight("W_out", layer), "b_out", layer)
        return LayerStates(at_heads, at_mlp, q, k, v, z, pre, gate, hidden, with_heads + out)

    def trace(
        self, embedded: Float[Tensor, "batch pos d_model"], columns: slice = slice(None)
    ) -> Trace:
        layers, stream = [], embedded
        for layer in range(self.config.n_layers):
            layers.append(self._layer(stream, layer))
            stream = layers[-1].after
        layers[-1] = replace(layers[-1], after=self._read(stream, -1))
        read = self.uncapped(layers[-1].after[:, columns])
        return Trace(layers, read, self.capped(read))

    def _read(
        self, stream: Float[Tensor, "*batch pos d_model"], place: int
    ) -> Float[Tensor, "*batch pos d_model"]:
        return self.cut[place].lerp(stream, self.share)
