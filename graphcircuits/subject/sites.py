"""Where components read and write: the vectors there, and the linear maps to and from the stream.

1. `kinds` numbers what components there are.
2. `Interfaces` holds one vector for every writer and reader at every context, grouped by kind.
3. `Factors` holds the write factor of every writer and the read factor of every reader.

A context is one position of one prompt. Weights multiply from the right (x @ W).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.graph import Block, ComponentGraph
from graphcircuits.subject.transformer import States, Transformer

WRITER_KINDS = ("input", "head", "mlp")
READER_KINDS = ("q", "k", "v", "mlp", "logits")


@lru_cache(maxsize=8)
def kinds(graph: ComponentGraph) -> tuple[Int[Tensor, " writer"], Int[Tensor, " reader"]]:
    """The kind of every writer and reader, as its place in WRITER_KINDS and READER_KINDS."""
    layer = torch.tensor([1] * graph.n_heads + [2])
    writers = torch.cat([torch.tensor([0]), layer.repeat(graph.n_layers)])
    return writers, torch.tensor([READER_KINDS.index(kind) for kind in graph.reader_kinds])


@dataclass(frozen=True, eq=False)
class Interfaces:
    """One vector for every writer and every reader, at every context."""

    input: Float[Tensor, "context d_model"]
    z: Float[Tensor, "context layer head d_head"]
    hidden: Float[Tensor, "context layer d_mlp"]
    q: Float[Tensor, "context layer head d_head"]
    k: Float[Tensor, "context layer kv d_head"]
    v: Float[Tensor, "context layer kv d_head"]
    mlp: Float[Tensor, "context layer d_read"]
    """Before the nonlinearity; twice as wide with a gate, whose vector comes second."""
    logits: Float[Tensor, "context d_vocab_out"]

    def read(self, block: Block) -> Float[Tensor, "context reader width"]:
        """The vectors at a block's readers."""
        if block.kind == "logits":
            return self.logits[:, None]
        vectors = getattr(self, block.kind)[:, block.layer]
        return vectors[:, None] if block.kind == "mlp" else vectors

    def writer(self, graph: ComponentGraph, writer: int) -> Float[Tensor, "context width"]:
        layer, head = divmod(writer - 1, graph.writers_per_layer)
        if writer == 0:
            return self.input
        return self.hidden[:, layer] if head == graph.n_heads else self.z[:, layer, head]

    def components(
        self, graph: ComponentGraph
    ) -> Iterator[tuple[str, Float[Tensor, "context width"]]]:
        """Names and vectors in the order of computation: what a component reads, what it writes."""
        yield "input", self.input
        for block in graph.blocks:
            names = graph.reader_names[block.readers]
            yield from zip(names, self.read(block).unbind(1), strict=True)
            first = 1 + block.layer * graph.writers_per_layer
            # A head writes once its values are read, an MLP once it has read.
            last = {"v": (first, graph.n_heads), "mlp": (first + graph.n_heads, 1)}
            start, count = last.get(block.kind, (0, 0))
            for writer in range(start, start + count):
                yield graph.writer_names[writer], self.writer(graph, writer)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Interfaces":
        return Interfaces(**{name: function(tensor) for name, tensor in vars(self).items()})

    @classmethod
    def of_states(
        cls, states: States, pair: Int[Tensor, " context"], position: Int[Tensor, " context"]
    ) -> "Interfaces":
        """A run's states, or gradients there, at some contexts."""
        mlp = states.pre if states.gate is None else torch.cat([states.pre, states.gate], dim=-1)
        by_layer = {"z": states.z, "hidden": states.hidden, "mlp": mlp}
        by_layer |= {"q": states.q, "k": states.k, "v": states.v}
        whole = {"input": states.input, "logits": states.logits}
        picked = {name: x[:, pair, position].transpose(0, 1) for name, x in by_layer.items()}
        return cls(**picked, **{name: x[pair, position] for name, x in whole.items()})

    @classmethod
    def concatenate(cls, interfaces: list["Interfaces"]) -> "Interfaces":
        return cls(*(torch.cat([getattr(x, f.name) for x in interfaces]) for f in fields(cls)))


@dataclass(frozen=True, eq=False)
class Factors:
    """The linear map at each interface, biases left out; that of `input` is the identity.

    Read factors have the linear part of their norm folded in (`Transformer.through_norm`).
    """

    z: Float[Tensor, "layer head d_head d_model"]
    hidden: Float[Tensor, "layer d_mlp d_model"]
    q: Float[Tensor, "layer head d_model d_head"]
    k: Float[Tensor, "layer kv d_model d_head"]
    v: Float[Tensor, "layer kv d_model d_head"]
    mlp: Float[Tensor, "layer d_model d_read"]
    logits: Float[Tensor, "d_model d_vocab_out"]

    @classmethod
    def of(cls, subject: Transformer) -> "Factors":
        weights, folded = subject.weights, subject.through_norm
        mlp = weights["W_in"]
        if subject.config.gated_mlp:
            mlp = torch.cat([mlp, weights["W_gate"]], dim=-1)
        factors = cls(
            z=subject.write_weight("W_O"),
            hidden=subject.write_weight("W_out"),
            mlp=folded("mlp_norm", mlp),
            logits=folded("final_norm", subject.unembedding) * subject.config.logit_scale,
            **{name: folded("attn_norm", weights[f"W_{name.upper()}"]) for name in "qkv"},
        )
        return factors.map(Tensor.detach)

    def read(self, block: Block) -> Float[Tensor, "#reader d_model width"]:
        """The read factors of a block's readers."""
        if block.kind == "logits":
            return self.logits[None]
        factor = getattr(self, block.kind)[block.layer]
        return factor[None] if block.kind == "mlp" else factor

    def map(self, function: Callable[[Tensor], Tensor]) -> "Factors":
        return Factors(**{name: function(tensor) for name, tensor in vars(self).items()})
