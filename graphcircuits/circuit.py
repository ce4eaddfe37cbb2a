"""Circuits: sets of edges of one component graph.

1. A `Circuit` is a mask over the edge order of its graph. Set algebra, comparison and pruning work
   on the mask, whatever the size of the graph.
2. Names, components and pictures are views of it, made when they are asked for.
3. `save` and `load` are its artifact: JSON with the names, or safetensors with the mask.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from graphcircuits.drawing.figure import circuit_figure
from graphcircuits.drawing.notebook import circuit_html
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.config import load_config
from graphcircuits.io.store import StoreError, load_artifact, save_artifact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

JSON_EDGES, JSON_NODES = 2**28, 2**18
"""The largest graph whose circuits are stored as names; small files must not take much memory."""
_SHOWN = 10
"""How many edges an error or a printed circuit lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Circuit:
    """A set of edges of one graph: a mask over its edge order, with names as a view.

    Circuits of one graph have set algebra: `a | b`, `a & b`, `a - b`, `a ^ b`, `a <= b`.

    Example:
        >>> import graphcircuits as gc
        >>> graph = gc.ComponentGraph(1, 1)
        >>> circuit = gc.Circuit.from_names(graph, ["input->m0", "m0->logits"])
        >>> len(circuit), "input->m0" in circuit
        (2, True)

    See Conmy et al. 2023, Towards Automated Circuit Discovery (arXiv:2304.14997).
    """

    graph: ComponentGraph
    mask: Bool[Tensor, " edge"]
    """True at the edges of the circuit, in edge order; copied to the CPU."""

    def __post_init__(self) -> None:
        mask = torch.from_numpy(self.mask.detach().cpu().numpy().copy())
        if mask.shape != (self.graph.n_edges,):
            raise ValueError(
                f"mask must have shape ({self.graph.n_edges},), got {tuple(mask.shape)}."
            )
        object.__setattr__(self, "mask", mask)

    @classmethod
    def from_mask(cls, graph: ComponentGraph, mask: Bool[Tensor, " edge"]) -> "Circuit":
        """The circuit of the edges at which the mask is true."""
        return cls(graph, mask)

    @classmethod
    def from_names(cls, graph: ComponentGraph, names: Iterable[str]) -> "Circuit":
        """The circuit of the edges of these names; an error lists those that the graph lacks."""
        names = list(dict.fromkeys(names))
        edges = [graph.find_edge(name) for name in names]
        if unknown := sorted(n for n, edge in zip(names, edges, strict=True) if edge is None):
            reasons = [graph.why_unknown(name) for name in unknown[:_SHOWN]]
            if len(unknown) > _SHOWN:
                reasons.append(f"and {len(unknown) - _SHOWN} more")
            raise ValueError(
                f"{len(unknown)} of {len(names)} edges are not in the graph: {' | '.join(reasons)}"
            )
        mask = torch.zeros(graph.n_edges, dtype=torch.bool)
        mask[torch.tensor(edges, dtype=torch.int64)] = True
        return cls(graph, mask)

    @cached_property
    def edges(self) -> frozenset[str]:
        """The names of the edges."""
        return frozenset(self)

    def __repr__(self) -> str:
        count = len(self)
        shown = self.graph.names_of(self.mask.nonzero().flatten()[:_SHOWN])
        more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
        return f"Circuit({self.graph}, {count} edges: {', '.join([*shown, *more]) or 'none'})"

    # A set

    def __len__(self) -> int:
        return int(np.count_nonzero(self.mask.numpy()))

    def __contains__(self, name: object) -> bool:
        edge = self.graph.find_edge(name) if isinstance(name, str) else None
        return edge is not None and bool(self.mask[edge])

    def __iter__(self) -> Iterator[str]:
        """Names in edge order."""
        return iter(self.graph.names_of(self.mask.nonzero().flatten()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Circuit):
            return NotImplemented
        return self.graph == other.graph and torch.equal(self.mask, other.mask)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.graph, self.mask.numpy().tobytes()))

    def __or__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.mask | self._same_graph(other).mask)

    def __and__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.mask & self._same_graph(other).mask)

    def __sub__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.mask & ~self._same_graph(other).mask)

    def __xor__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.mask ^ self._same_graph(other).mask)

    def __le__(self, other: "Circuit") -> bool:
        return not bool((self.mask & ~self._same_graph(other).mask).any())

    def _same_graph(self, other: "Circuit") -> "Circuit":
        if other.graph != self.graph:
            raise ValueError(
                f"circuits live on different graphs: {self.graph} and {other.graph}; "
                "bring one over with .on(graph)."
            )
        return other

    def on(self, graph: ComponentGraph) -> "Circuit":
        """The same names on another graph."""
        return self if graph == self.graph else Circuit.from_names(graph, self)

    # Views

    @property
    def nodes(self) -> tuple[frozenset[str], frozenset[str]]:
        """The endpoints: names of writers, names of readers."""
        writers, readers = self._ends
        graph = self.graph
        return (
            frozenset(graph.writer_names[writer] for writer in writers.unique().tolist()),
            frozenset(graph.reader_names[reader] for reader in readers.unique().tolist()),
        )

    @property
    def components(self) -> frozenset[str]:
        """Components that an edge of the circuit touches."""
        writers, readers = (ends.unique().tolist() for ends in self._ends)
        names = (self.graph.writer_names[writer] for writer in writers)
        return frozenset(names).union(*map(self._components_of, readers))

    def links(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """For every edge, in order: its name, its writer, and the components it arrives at.

        These are all heads of the group for a reader that serves a group.
        """
        writers, readers = self._ends
        components = {reader: self._components_of(reader) for reader in readers.unique().tolist()}
        for name, writer, reader in zip(self, writers.tolist(), readers.tolist(), strict=True):
            yield name, self.graph.writer_names[writer], components[reader]

    @property
    def _ends(self) -> tuple[Int[Tensor, " chosen"], Int[Tensor, " chosen"]]:
        return self.graph.ends(self.mask.nonzero().flatten())

    def _components_of(self, reader: int) -> tuple[str, ...]:
        served = self.graph.components_of(reader)
        return tuple(self.graph.writer_names[writer] for writer in served) or ("logits",)

    def head_level(self) -> frozenset[str]:
        """The head-level edges that hold a circuit edge; `input->logits` is left out."""
        pairs = {f"{writer}->{name}" for _, writer, names in self.links() for name in names}
        return frozenset(pairs - {"input->logits"})

    def pruned(self) -> "Circuit":
        """Without the edges that lie on no path from `input` to `logits`."""
        return Circuit(self.graph, on_paths(self.graph, self.mask))

    def to_networkx(self) -> nx.MultiDiGraph:
        """Nodes with `kind` input, head, mlp or logits; edges with `kind` q, k, v or ''."""
        kinds = {"i": "input", "a": "head", "m": "mlp", "l": "logits"}
        graph = nx.MultiDiGraph()
        for name, writer, components in self.links():
            kind = name[-2] if name.endswith(">") else ""
            for component in components:
                graph.add_node(writer, kind=kinds[writer[0]])
                graph.add_node(component, kind=kinds[component[0]])
                graph.add_edge(writer, component, kind=kind)
        return graph

    def is_isomorphic(self, other: "Circuit") -> bool:
        """Equal up to renaming components of one kind; q, k and v edges are told apart."""
        return nx.is_isomorphic(
            self.to_networkx(),
            other.to_networkx(),
            node_match=nx.isomorphism.categorical_node_match("kind", None),
            edge_match=nx.isomorphism.categorical_multiedge_match("kind", None),
        )

    def to_dot(self) -> str:
        """Graphviz source: components as boxes, edges labelled q, k or v."""
        graph = self.to_networkx()
        lines = [f'  "{node}" [shape=box];' for node in graph.nodes]
        for writer, component, kind in graph.edges(data="kind"):
            label = f' [label="{kind}"]' if kind else ""
            lines.append(f'  "{writer}" -> "{component}"{label};')
        return "\n".join(["digraph circuit {", *lines, "}"]) + "\n"

    def plot(
        self, *, truth: "Circuit | None" = None, title: str = "", ax: "Axes | None" = None
    ) -> "Figure":
        """Draw it for a paper, with `truth` as hits, misses and false alarms; needs matplotlib.

        On `ax`, or on a figure of its own; `plot().savefig("circuit.pdf")` writes it.
        """
        return circuit_figure(
            self.graph,
            self.edge_numbers,
            truth=None if truth is None else truth.on(self.graph).edge_numbers,
            title=title,
            ax=ax,
        )

    @property
    def edge_numbers(self) -> list[int]:
        """The edges by their numbers, in order."""
        return self.mask.nonzero().flatten().tolist()

    def _repr_html_(self) -> str:
        return circuit_html(self.graph, self.edge_numbers)

    # Files

    def save(self, path: str | Path) -> None:
        """Write the names as `.json`, or the mask as `.safetensors`: the one for large circuits."""
        suffix = Path(path).suffix
        if suffix not in (".json", ".safetensors"):
            raise ValueError(f"a circuit is saved as .json or .safetensors, got {path}.")
        if suffix == ".safetensors":
            tensors, meta = {"mask": self.mask}, {}
        else:
            if problem := too_large(self.graph):
                raise ValueError(f"{problem}; save it as .safetensors, got {path}.")
            tensors, meta = {}, {"edges": list(self)}
        config = self.graph
        save_artifact(path, kind="circuit", config=config, seed=None, tensors=tensors, meta=meta)

    @classmethod
    def load(cls, path: str | Path) -> "Circuit":
        """Read what `save` wrote."""
        suffix = Path(path).suffix
        if suffix not in (".json", ".safetensors"):
            raise ValueError(f"a circuit is read from .json or .safetensors, got {path}.")
        artifact = load_artifact(path, "circuit")
        try:
            graph = load_config(ComponentGraph, artifact.config)
            if suffix == ".json":
                names = artifact.meta.get("edges")
                if not isinstance(names, list) or not all(isinstance(x, str) for x in names):
                    raise ValueError("its meta must hold 'edges', a list of names.")
                if problem := too_large(graph):
                    raise ValueError(f"{problem}.")
                return cls.from_names(graph, names)
            mask = artifact.tensors.get("mask")
            if mask is None or mask.dtype != torch.bool:
                raise ValueError("it must hold a tensor 'mask' of booleans.")
            return cls(graph, mask)
        except ValueError as error:
            raise StoreError(f"{path} is not a whole circuit: {error}") from error


def too_large(graph: ComponentGraph) -> str | None:
    if graph.n_edges <= JSON_EDGES and graph.n_nodes <= JSON_NODES:
        return None
    return (
        f"names are stored for graphs of up to {JSON_NODES:,} nodes and {JSON_EDGES:,} edges, "
        f"this one has {graph.n_nodes:,} and {graph.n_edges:,}"
    )


def on_paths(graph: ComponentGraph, mask: Bool[Tensor, " edge"]) -> Bool[Tensor, " edge"]:
    """The edges of a mask that lie on a path from `input` to `logits` inside it.

    Readers of one stream read the same writers, so their edges are a matrix (reader, writer). Going
    through the streams in order says which writers the input reaches; going back says which readers
    are of use, and which of their edges come from a reached writer. By NumPy: PyTorch would wake
    its threads for these short steps.
    """
    edges, blocks = mask.numpy(), graph.stream_blocks
    # The readers of each component that computes from a stream, counted from the first of it.
    slots = {"qkv": graph.head_slots.numpy(), "mlp": np.array([[0]])}
    reached = np.zeros(graph.n_writers, dtype=bool)
    reached[0] = True
    for block in blocks[:-1]:
        arrivals = edges[block.edges].reshape(block.n_readers, -1) & reached[: block.n_writers]
        arrives = np.logical_or.reduce(arrivals, axis=1)
        reached[graph.served(block)] = arrives[slots[block.kind]].any(1)
    useful = np.zeros(graph.n_writers, dtype=bool)
    kept = np.empty_like(edges)
    for block in reversed(blocks):
        readers = np.full((block.n_readers, 1), block.kind == "logits")
        if block.kind != "logits":
            readers[slots[block.kind][useful[graph.served(block)]].flatten()] = True
        arrivals = edges[block.edges].reshape(block.n_readers, -1) & reached[: block.n_writers]
        arrivals &= readers
        useful[: block.n_writers] |= arrivals.any(0)
        kept[block.edges] = arrivals.ravel()
    return torch.from_numpy(kept)
