"""What a method says about a subject: one score an edge, views of it, and the files people use.

1. `Result` holds the scores in the graph's edge order, larger meaning more likely in the circuit,
   and what they were computed for.
2. `top`, `circuit` and `head_level` are views, `show` a picture; ties are broken by edge order.
3. `save` and `load` use the JSON that EAP-IG and the MIB leaderboard read and write, with our
   fields under one key of our own, or safetensors; `save` also writes CSV and Graphviz.

EAP-IG gives every head its own keys and values. A graph with grouped ones is written with the
group's score at each of its heads, and read back from that.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.store import (
    FORMAT,
    StoreError,
    check_version,
    load_artifact,
    load_config,
    origin,
    read_json,
    save_artifact,
    write_atomic,
    write_json,
)
from graphcircuits.viewer.circuit import circuit_page

SUFFIXES = (".json", ".safetensors", ".csv", ".dot")
"""What a result can be saved as."""
_ABOUT = ("subject", "task", "method", "options", "seed", "seconds", "notes")
_SCORES = (float, int, type(None))
_DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """Scores of all edges of a graph, and where they come from."""

    graph: ComponentGraph
    scores: Float[Tensor, " edge"]
    """In edge order, larger meaning more likely in the circuit. Kept as a copy on the CPU."""
    subject: str = ""
    task: str = ""
    method: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's options: text, numbers, booleans, None, lists and mappings of them."""
    seed: int | None = None
    seconds: float | None = None
    """Wall-clock time of the method."""
    d_model: int | None = None
    """Width of the subject, which EAP-IG wants to know."""
    chosen: Circuit | None = None
    """A circuit that was already picked; files mark its edges `in_graph`."""
    notes: Sequence[str] = ()
    """What a reader of the scores should know, such as why the method was chosen."""

    def __post_init__(self) -> None:
        scores = self.scores.detach().to("cpu", copy=True)
        if scores.shape != (self.graph.n_edges,):
            raise ValueError(
                f"scores must be one number for each of {self.graph.n_edges} edges, "
                f"got shape {tuple(scores.shape)}."
            )
        bad = (~scores.isfinite()).nonzero().flatten().tolist()
        if bad:
            edges = [f"{self.graph.edge_name(edge)} ({scores[edge].item()})" for edge in bad[:3]]
            raise ValueError(
                f"scores must be finite, {len(bad)} of {len(scores)} are not: {', '.join(edges)}"
                f"{', ...' if len(bad) > 3 else ''}; look for a division by zero or an overflow."
            )
        if self.chosen is not None and self.chosen.graph != self.graph:
            raise ValueError(
                f"the chosen circuit is of {self.chosen.graph}, the scores of {self.graph}; "
                "bring it over with chosen.on(graph)."
            )
        try:
            options = json.loads(json.dumps(dict(self.options), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise TypeError(f"options must be JSON values, got {self.options}: {error}.") from error
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "options", options)
        if not isinstance(self.notes, list | tuple) or any(type(x) is not str for x in self.notes):
            raise TypeError(f"notes must be a list of texts, got {self.notes!r}.")
        object.__setattr__(self, "notes", tuple(self.notes))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        names = ("graph", "d_model", "chosen", *_ABOUT)
        return torch.equal(self.scores, other.scores) and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    # Views

    def ranking(self) -> Int[Tensor, " edge"]:
        """Edges from the largest score to the smallest."""
        return self.scores.sort(descending=True, stable=True).indices

    def top(self, k: int = 10) -> list[tuple[str, float]]:
        """The k best edges, at most all, with their scores."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}.")
        best = self.ranking()[:k]
        names = self.graph.names_of(best)
        return list(zip(names, self.scores[best].tolist(), strict=True))

    def circuit(
        self,
        *,
        edges: int | None = None,
        threshold: float | None = None,
        fraction: float | None = None,
        prune: bool = False,
    ) -> Circuit:
        """The best edges: this many, those that score at least so much, or this part of all.

        Give exactly one of the three. `prune` then drops edges on no path from input to logits.
        A fraction is rounded down to whole edges.
        """
        choices = {"edges": edges, "threshold": threshold, "fraction": fraction}
        given = [name for name, value in choices.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of edges, threshold and fraction, "
                f"got {' and '.join(given) or 'none'}."
            )
        if threshold is not None:
            if math.isnan(threshold):
                raise ValueError("threshold must be a number, got NaN.")
            mask = self.scores >= threshold
        else:
            if fraction is not None:
                if not 0 <= fraction <= 1:
                    raise ValueError(f"fraction must be in 0..1, got {fraction}.")
                # 0.29 * 100 falls short of 29 by a rounding error.
                edges = math.floor(fraction * self.graph.n_edges + 1e-9)
            assert edges is not None
            if not 0 <= edges <= self.graph.n_edges:
                raise ValueError(f"edges must be in 0..{self.graph.n_edges}, got {edges}.")
            mask = self._best(edges)
        circuit = Circuit.from_mask(self.graph, mask)
        return circuit.pruned() if prune else circuit

    def _best(self, edges: int) -> Bool[Tensor, " edge"]:
        """The first edges of the ranking; selecting them is ten times faster than sorting all."""
        if edges == 0:
            return torch.zeros_like(self.scores, dtype=torch.bool)
        cut = self.scores.kthvalue(len(self.scores) - edges + 1).values
        mask = self.scores > cut
        tied = (self.scores == cut).nonzero().flatten()
        mask[tied[: edges - int(mask.count_nonzero())]] = True
        return mask

    def head_level(self) -> dict[str, float]:
        """The best of q, k and v for each pair of components; `input->logits` is left out."""
        scores = self.graph.promote(self.scores).tolist()
        return dict(zip(self.graph.head_edges, scores, strict=True))

    def to_csv(self) -> str:
        """Edges from best to worst, with rank, ends and score."""
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["rank", "edge", "source", "dest", "score"])
        for rank, (name, score) in enumerate(self.top(self.graph.n_edges), start=1):
            writer.writerow([rank, name, *name.split("->"), repr(score)])
        return buffer.getvalue()

    def to_dot(self, circuit: Circuit | None = None) -> str:
        """Graphviz source of a circuit, the chosen one or else all edges; better edges thicker."""
        graph = self.graph
        if circuit is None:
            circuit = self.circuit(fraction=1.0) if self.chosen is None else self.chosen
        circuit = circuit.on(graph)
        scores = self.scores[circuit.mask]
        low, high = (scores.min().item(), scores.max().item()) if len(scores) else (0.0, 0.0)
        lines = [f'  "{name}" [shape=box];' for name in _components(graph, circuit)]
        for (name, writer, dests), score in zip(circuit.links(), scores.tolist(), strict=True):
            width = 0.5 + 3.5 * (score - low) / (high - low or 1.0)
            label = f'label="{name[-2]}", ' if name.endswith(">") else ""
            style = f'{label}penwidth={width:.2f}, tooltip="{name}: {score:.4g}"'
            lines += [f'  "{writer}" -> "{dest}" [{style}];' for dest in dests]
        return "\n".join(["digraph circuit {", *lines, "}"]) + "\n"

    def show(self, path: str | Path, *, circuit: Circuit | None = None) -> None:
        """Write a picture of a circuit as one HTML page that opens from disk.

        By default of the chosen circuit or, if none is, of the 20 best edges.
        """
        if circuit is None:
            best = self.circuit(edges=min(20, self.graph.n_edges))
            circuit = best if self.chosen is None else self.chosen
        if Path(path).suffix not in (".html", ".htm"):
            raise ValueError(f"a picture is written as .html, got {path}.")
        scores = self.scores[circuit.on(self.graph).mask].tolist()
        page = circuit_page(
            circuit,
            title=f"Circuit of {self.subject or 'a subject'}",
            text=f"{len(circuit)} of {self.graph.n_edges} edges"
            + (f", scored by {self.method}." if self.method else ".")
            + (f" Task: {self.task}" if self.task else "")
            + "".join(f" Note: {note}." for note in self.notes),
            scores=dict(zip(circuit, scores, strict=True)),
        )
        write_atomic(path, page.encode())

    # Files

    def save(self, path: str | Path, *, circuit: Circuit | None = None) -> None:
        """Write `.json` (for EAP-IG and MIB), `.safetensors`, `.csv` or `.dot`, by the suffix.

        The edges of `circuit`, by default the chosen one, are marked `in_graph`.
        """
        circuit = self.chosen if circuit is None else circuit
        suffix = Path(path).suffix
        if suffix not in SUFFIXES:
            raise ValueError(f"a result is saved as .json, .safetensors, .csv or .dot, got {path}.")
        if suffix == ".json":
            write_json(path, self._to_eap_ig(circuit))
        elif suffix == ".safetensors":
            self._save_tensors(path, circuit)
        elif suffix == ".csv":
            write_atomic(path, self.to_csv().encode())
        else:
            write_atomic(path, self.to_dot(circuit).encode())

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Read `.json`, ours or that of EAP-IG and MIB, or `.safetensors`."""
        suffix = Path(path).suffix
        if suffix not in (".json", ".safetensors"):
            raise ValueError(f"a result is read from .json or .safetensors, got {path}.")
        try:
            return _from_eap_ig(path, read_json(path)) if suffix == ".json" else _from_tensors(path)
        except StoreError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"{path}: {error}") from error

    def _about(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ABOUT}

    def _save_tensors(self, path: str | Path, circuit: Circuit | None) -> None:
        tensors = {"scores": self.scores}
        if circuit is not None:
            tensors["chosen"] = circuit.on(self.graph).mask
        about = self._about()
        seed = about.pop("seed")
        meta = about | {"d_model": self.d_model}
        config = self.graph
        save_artifact(path, kind="result", config=config, seed=seed, tensors=tensors, meta=meta)

    def _to_eap_ig(self, circuit: Circuit | None) -> dict[str, Any]:
        graph = self.graph
        full, shared = _ungrouped(graph)
        mask = torch.zeros(graph.n_edges, dtype=torch.bool)
        touched: list[str] = []
        if circuit is not None:
            mask, touched = circuit.on(graph).mask, _components(graph, circuit)
        edges = zip(
            full.edge_names, self.scores[shared].tolist(), mask[shared].tolist(), strict=True
        )
        return {
            "cfg": {
                "n_layers": graph.n_layers,
                "n_heads": graph.n_heads,
                # EAP-IG needs a number here and, for scores of edges, does nothing with it.
                "d_model": self.d_model or 0,
                "parallel_attn_mlp": graph.parallel,
            },
            "nodes": {
                # The logits are in every circuit, says EAP-IG.
                name: {"in_graph": name in touched or name == "logits"}
                for name in (*graph.writer_names, "logits")
            },
            "edges": {name: {"score": s, "in_graph": chosen} for name, s, chosen in edges},
            FORMAT: origin("result")
            | self._about()
            | {
                "n_kv_heads": graph.n_groups,
                "dtype": str(self.scores.dtype).removeprefix("torch."),
                "chosen": circuit is not None,
            },
        }


def _components(graph: ComponentGraph, circuit: Circuit) -> list[str]:
    """The components that a circuit touches, in the order of the graph."""
    touched = circuit.components
    return [name for name in (*graph.writer_names, "logits") if name in touched]


def _ungrouped(graph: ComponentGraph) -> tuple[ComponentGraph, Int[Tensor, " edge"]]:
    """The same graph with keys and values for each head, and the edge behind each of its edges."""
    full = ComponentGraph(graph.n_layers, graph.n_heads, parallel=graph.parallel)
    heads = torch.arange(graph.n_heads)
    keys = graph.n_heads + heads // (graph.n_heads // graph.n_groups)
    slots = torch.cat(
        [heads, keys, keys + graph.n_groups, torch.tensor([graph.readers_per_layer - 1])]
    )
    layers = torch.arange(graph.n_layers)[:, None] * graph.readers_per_layer
    readers = torch.cat([(layers + slots).flatten(), torch.tensor([graph.n_readers - 1])])
    return full, graph.offsets[readers][full.edge_dests] + full.edge_sources


# Reading


def _from_tensors(path: str | Path) -> Result:
    artifact = load_artifact(path, "result")
    _expect(path, artifact.meta, {*_ABOUT, "d_model"} - {"seed"})
    _expect(path, artifact.tensors, {"scores"} | artifact.tensors.keys() & {"chosen"})
    graph = load_config(ComponentGraph, artifact.config)
    chosen = artifact.tensors.get("chosen")
    return Result(
        graph=graph,
        scores=artifact.tensors["scores"],
        seed=artifact.seed,
        chosen=None if chosen is None else Circuit.from_mask(graph, chosen),
        **artifact.meta,
    )


def _from_eap_ig(path: str | Path, content: Any) -> Result:
    """All of a file or an error: the values are checked before anything is built."""
    ours = content.get(FORMAT) if isinstance(content, dict) else None
    if ours is not None:
        check_version(path, ours)
        _expect(path, ours, {*origin(""), *_ABOUT, "n_kv_heads", "dtype", "chosen"})
        if ours["dtype"] not in _DTYPES:
            raise StoreError(f"{path}: dtype must be one of {', '.join(_DTYPES)}.")
    parts = ("cfg", "nodes", "edges")
    if not isinstance(content, dict) or any(type(content.get(part)) is not dict for part in parts):
        raise StoreError(f"{path} is not a circuit: it must hold the objects cfg, nodes and edges.")
    cfg: dict[str, Any] = content["cfg"]
    n_layers, n_heads, d_model = (cfg.get(name) for name in ("n_layers", "n_heads", "d_model"))
    if not (isinstance(n_layers, int) and isinstance(n_heads, int) and min(n_layers, n_heads) > 0):
        raise StoreError(f"{path}: cfg must hold n_layers and n_heads, whole numbers from 1.")
    if not isinstance(d_model, int | None):
        raise StoreError(f"{path}: d_model in cfg must be a whole number, got {d_model!r}.")
    if len(content["edges"]) < n_layers * n_heads:
        # Checked ahead, so that absurd sizes do not build an absurd graph.
        raise StoreError(f"{path}: there are too few edges for {n_layers} x {n_heads} heads.")
    graph = ComponentGraph(
        n_layers,
        n_heads,
        n_kv_heads=ours["n_kv_heads"] if ours else None,
        parallel=bool(cfg.get("parallel_attn_mlp", False)),
    )
    full, shared = _ungrouped(graph)
    scores, marked = _edge_values(path, content, full)
    if ours is None:
        chosen = Circuit.from_mask(graph, marked) if marked.any() else None
        return Result(graph=graph, scores=scores, d_model=d_model or None, chosen=chosen)
    grouped = torch.zeros(graph.n_edges, dtype=scores.dtype)
    mask = torch.zeros(graph.n_edges, dtype=torch.bool)
    grouped[shared], mask[shared] = scores, marked
    agree = grouped[shared].isclose(scores, rtol=0, atol=0, equal_nan=True)
    differ = ~agree | (mask[shared] != marked)
    if differ.any():
        name = full.edge_name(int(differ.nonzero()[0]))
        raise StoreError(
            f"{path}: {name} differs from another head of its group, but the header says that "
            f"{graph.n_heads} heads share {graph.n_groups} keys and values."
        )
    return Result(
        graph=graph,
        scores=grouped.to(_DTYPES[ours["dtype"]]),
        d_model=d_model or None,
        chosen=Circuit.from_mask(graph, mask) if ours["chosen"] else None,
        **{name: ours[name] for name in _ABOUT},
    )


def _edge_values(
    path: str | Path, content: dict[str, Any], graph: ComponentGraph
) -> tuple[Float[Tensor, " edge"], Bool[Tensor, " edge"]]:
    """Scores and `in_graph` in our edge order. A file without any scores scores its circuit 1."""
    edges = content["edges"]
    names = graph.edge_names
    unknown = sorted(edges.keys() - set(names))
    missing = [name for name in names if name not in edges]
    if unknown or missing:
        parts = [
            f"{len(group)} {words}: {', '.join(group[:3])}{', ...' if len(group) > 3 else ''}"
            for group, words in ((unknown, "not in the graph"), (missing, "missing"))
            if group
        ]
        raise StoreError(
            f"{path}: the edges are not those of {graph.n_layers} layers x {graph.n_heads} heads"
            f"{', attention and MLP in parallel' if graph.parallel else ''}; {'; '.join(parts)}."
        )
    scores, marked = [], []
    for name in names:
        info = edges[name]
        values = (info.get("score"), info.get("in_graph", False)) if type(info) is dict else ()
        if not values or type(values[0]) not in _SCORES or type(values[1]) is not bool:
            raise StoreError(
                f'{path}: {name} must hold {{"score": number, "in_graph": true or false}}, '
                f"got {info!r}."
            )
        scores.append(values[0])
        marked.append(values[1])
    marked = torch.tensor(marked)
    unscored = scores.count(None)
    if unscored == len(names):
        return marked.double(), marked
    if unscored:
        first = names[scores.index(None)]
        raise StoreError(f"{path}: {unscored} of {len(names)} edges have no score, first {first}.")
    scores = torch.tensor(scores, dtype=torch.float64)
    nodes = content["nodes"].values()
    if not scores.any() and any(isinstance(node, dict) and node.get("score") for node in nodes):
        raise StoreError(f"{path} scores nodes, not edges; a result needs a score for each edge.")
    return scores, marked


def _expect(path: str | Path, found: Mapping[str, Any], expected: set[str]) -> None:
    problems = [f"no {name!r}" for name in sorted(expected - found.keys())]
    problems += [f"unknown key {name!r}" for name in sorted(found.keys() - expected)]
    if problems:
        raise StoreError(f"{path} is not a whole result: {', '.join(problems)}.")
