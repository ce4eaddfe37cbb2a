"""All forms of interaction of some edges at once, as `graphcircuits interact` prints them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphcircuits.interactions.forms import (
    Effects,
    Integral,
    edge_interactions,
    finite,
    integral,
    local,
)
from graphcircuits.interactions.forms import decay as fit_decay
from graphcircuits.interactions.read import SharedRead
from graphcircuits.methods.exact import exact
from graphcircuits.methods.prepare import Progress
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

STRONGEST = 12
"""Edges that are paired where none are named."""


@dataclass(frozen=True, kw_only=True)
class InteractionReport:
    """The interactions of some edges of a subject, in the forms that apply to them."""

    reader: str | None
    """The reader that all edges share, if there is one; what follows is None if there is none."""
    whole: Effects
    read: SharedRead | None = None
    finite: Tensor | None = None
    local: Tensor | None = None
    """None where it does not apply."""

    @classmethod
    def of(
        cls,
        subject: Transformer,
        pairs: Pairs,
        reader: str | None,
        edges: Sequence[str] | None,
        progress: Progress | None = None,
    ) -> "InteractionReport":
        """Compute them for the edges given, those into a reader, or the strongest of all.

        Args:
            subject: The transformer that is explained.
            pairs: Prompts; numbers are averages over them.
            reader: All edges into it, such as `m1`, where no edges are named.
            edges: By their names; with neither, the `STRONGEST` by their single effects.
            progress: Called with what is done and the total.
        """
        if edges is None and reader is None:
            scores = exact(subject, pairs, progress=progress)
            best = scores.topk(min(STRONGEST, len(scores))).indices.sort().values
            edges = subject.graph.names_of(best.cpu())
        elif edges is None:
            assert reader is not None
            edges = SharedRead.of(subject, pairs, reader).edges
        whole = edge_interactions(subject, pairs, edges, progress=progress)
        first, *others = (edge.partition("->")[2] for edge in edges)
        if any(other != first for other in others):
            return cls(reader=None, whole=whole)
        read = SharedRead.of(subject, pairs, first, edges=edges)
        smooth, exactly = None if read.kinks else local(read), finite(read).interaction
        return cls(reader=first, whole=whole, read=read, finite=exactly, local=smooth)

    @property
    def edges(self) -> tuple[str, ...]:
        return self.whole.edges

    @property
    def labels(self) -> list[str]:
        """Writers alone, where all edges have one reader."""
        return [edge.partition("->")[0] if self.reader else edge for edge in self.edges]

    @property
    def panels(self) -> dict[str, Tensor]:
        """Averages over prompts and positions, by the names of the heat maps."""
        panels = {"whole edges": self.whole.interaction.mean(-1)}
        if self.finite is not None:
            panels["one position, finite"] = self.finite.mean((-1, -2))
        if self.local is not None:
            panels["one position, local"] = self.local.mean((-1, -2))
        return panels

    @property
    def smooth(self) -> bool:
        """Whether the local and integral forms apply."""
        return self.read is not None and not self.read.kinks

    @property
    def remarks(self) -> list[str]:
        """Why forms are missing, in sentences."""
        if self.read is None:
            return ["These edges have several readers; --reader shows the edges into one of them."]
        if self.read.kinks:
            return [
                f"The local and integral forms do not apply: downstream of {self.reader} there is "
                f"{' and '.join(self.read.kinks)}, which has kinks."
            ]
        return []

    def record(
        self, top: int, integrals: int, order: int, *, decay: bool, by_position: bool
    ) -> dict[str, Any]:
        """The report as plain values, the `top` strongest pairs of edges first.

        `integrals` is the number of pairs whose exact integral is computed as well, by a quadrature
        of this `order`; `decay` fits how fast the local form becomes right.
        """
        sizes = self.whole.interaction.abs().mean(-1)
        first, second = torch.triu_indices(len(self.edges), len(self.edges), 1)
        ranked = sizes[first, second].argsort(descending=True).tolist()
        best = [(int(first[rank]), int(second[rank])) for rank in ranked[: max(top, integrals)]]
        record: dict[str, Any] = {
            "reader": self.reader,
            "edges": list(self.edges),
            "kinks": [] if self.read is None else list(self.read.kinks),
            "remarks": self.remarks,
            "interactions": [self._row(one, other) for one, other in best[:top]],
            "matrices": {name: values.tolist() for name, values in self.panels.items()},
        }
        if by_position:
            assert self.finite is not None
            forms = {"finite": self.finite, "local": self.local}
            record["by_position"] = {
                name: None if values is None else values.mean(-1).permute(2, 0, 1).tolist()
                for name, values in forms.items()
            }
        if integrals:
            assert self.read is not None
            chosen = [(self.edges[one], self.edges[other]) for one, other in best[:integrals]]
            record["integrals"] = [*self._integrals(integral(self.read, chosen, order=order))]
        if decay:
            assert self.read is not None
            fit = fit_decay(self.read)
            record["decay"] = {"scales": fit.scales, "errors": fit.errors, "slope": fit.slope}
        return record

    def _row(self, one: int, other: int) -> dict[str, Any]:
        whole = self.whole
        return {
            "edges": [self.edges[one], self.edges[other]],
            "single": [whole.single[one].mean().item(), whole.single[other].mean().item()],
            "joint": whole.joint[one, other].mean().item(),
            "interaction": whole.interaction[one, other].mean().item(),
            "size": whole.interaction[one, other].abs().mean().item(),
            "finite": None if self.finite is None else self.finite[one, other].mean().item(),
            "local": None if self.local is None else self.local[one, other].mean().item(),
        }

    def _integrals(self, computed: Integral) -> Iterator[dict[str, Any]]:
        assert self.finite is not None
        for pair, value, error in zip(computed.pairs, computed.value, computed.error, strict=True):
            one, other = (self.edges.index(edge) for edge in pair)
            yield {
                "edges": list(pair),
                "integral": value.mean().item(),
                "size": value.abs().mean().item(),
                "error": error.mean().item(),
                "finite": self.finite[one, other].mean().item(),
            }
