"""Edges that end in one reader, and the loss as a function of what that reader reads.

L(u): the reader reads u at one position and the clean input elsewhere; other readers of its layer
read the clean run; its component computes, and everything later follows (`rerun`), many
alternatives of u at once. u is the residual stream before the reader's norm, for every reader, so
that a norm is part of L.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.resume import rerun
from graphcircuits.methods.prepare import for_scoring, prepare
from graphcircuits.subject.transformer import Run, Transformer
from graphcircuits.task.pairs import Pairs


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedRead:
    """Edges into one reader, and the loss as a function of what it reads at one position.

    The axis `place` follows `positions`; `chosen` follows `edges`.
    """

    subject: Transformer
    pairs: Pairs
    reader: str
    edges: tuple[str, ...]
    positions: tuple[int, ...]
    scale: float = 1.0
    """The share of the message changes that is applied."""

    @classmethod
    def of(
        cls,
        subject: Transformer,
        pairs: Pairs,
        reader: str,
        *,
        edges: Sequence[str] | None = None,
        positions: Sequence[int] | None = None,
    ) -> "SharedRead":
        """Some edges into a reader such as `m1` or `a1.h0<q>` (all if None), at some positions."""
        graph = subject.graph
        if reader not in graph.reader_names:
            near = get_close_matches(reader, graph.reader_names, n=3, cutoff=0.4)
            raise ValueError(
                f"unknown reader {reader!r} (near: {', '.join(near) or 'none'}) in a graph of "
                f"{graph.n_layers} layers x {graph.n_heads} heads."
            )
        if edges is None:
            reads = int(graph.reads[graph.reader_names.index(reader)])
            edges = [f"{writer}->{reader}" for writer in graph.writer_names[:reads]]
        graph.edge_indices(edges)
        check_edges(edges)
        elsewhere = [edge for edge in edges if edge.partition("->")[2] != reader]
        if elsewhere:
            raise ValueError(f"edges must end in {reader}, got {', '.join(elsewhere)}.")
        length = pairs.clean.shape[1]
        positions = range(length) if positions is None else positions
        if not positions or min(positions) < 0 or max(positions) >= length:
            raise ValueError(f"positions must be some of 0..{length - 1}, got {[*positions]}.")
        return cls(
            subject=for_scoring(subject, widen=False),
            pairs=prepare(subject, pairs),
            reader=reader,
            edges=tuple(edges),
            positions=tuple(positions),
        )

    @cached_property
    def reader_number(self) -> int:
        return self.subject.graph.reader_names.index(self.reader)

    @cached_property
    def kinks(self) -> tuple[str, ...]:
        """Why the loss is not a smooth function of the read input; empty where it is.

        A loss function of the user's own is taken to be smooth.
        """
        config, graph = self.subject.config, self.subject.graph
        layer = int(graph.reader_layer[self.reader_number])
        kind = graph.reader_kinds[self.reader_number]
        first = layer + (config.parallel and kind in "qkv")
        mlps = [f"m{later}" for later in range(first, config.n_layers)]
        reasons = []
        if config.activation == "relu" and mlps:
            reasons.append(f"relu in {', '.join(mlps)}")
        if self.pairs.loss_name == "l1":
            reasons.append("an l1 loss")
        return tuple(reasons)

    @cached_property
    def _base(self) -> Run:
        with torch.no_grad():
            return self.subject.run(self.pairs.clean)

    @cached_property
    def _stream(self) -> Float[Tensor, "batch pos d_model"]:
        return self._base.streams[self.subject.graph.reader_stream[self.reader_number]]

    @cached_property
    def inputs(self) -> Float[Tensor, "place batch d_model"]:
        """What the reader reads in the clean run."""
        chosen = self._stream[:, list(self.positions)]
        return rearrange(chosen, "batch place d_model -> place batch d_model")

    @cached_property
    def changes(self) -> Float[Tensor, "chosen place batch d_model"]:
        """Corrupted minus clean message of each edge, times `scale`."""
        graph = self.subject.graph
        writers = graph.edge_writers[graph.edge_indices(self.edges)].tolist()
        with torch.no_grad():
            corrupted = self.subject.run(self.pairs.corrupted).writers
        change = (corrupted - self._base.writers)[:, list(self.positions)][:, :, writers]
        return self.scale * rearrange(change, "batch place chosen d -> chosen place batch d")

    def losses(
        self, inputs: Float[Tensor, "*alternative place batch d_model"]
    ) -> Float[Tensor, "*alternative place batch"]:
        """L(u): the losses when the reader reads `inputs`, at one position and in turn at each."""
        pos = torch.arange(self._stream.shape[1], device=inputs.device)
        here = pos == torch.tensor(self.positions, device=inputs.device)[:, None]
        change = (inputs - self.inputs)[..., None, :].where(here[:, None, :, None], 0.0)
        logits = rerun(self._base, self.reader_number, change.contiguous().flatten(0, -4))
        return self.pairs.loss(logits).unflatten(0, inputs.shape[:-2])


def check_edges(edges: Sequence[str]) -> None:
    """Refuse fewer than two edges, and repeated ones."""
    if len(set(edges)) < 2 or len(set(edges)) < len(edges):
        raise ValueError(
            f"an interaction needs two or more different edges, got {', '.join(edges) or 'none'}."
        )
