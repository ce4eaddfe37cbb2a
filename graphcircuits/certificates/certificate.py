"""What a certificate says: a line for every question, and the edges one by one.

A line has a value, the interval it may lie in on other prompts, what was asked of it and whether it
passed. What was not measured, for want of time or because it cannot be, is named with the reason: a
certificate passes only if every line was measured and passed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.certificates.page import certificate_page
from graphcircuits.circuit import Circuit, too_large
from graphcircuits.evaluation.evaluate import shown
from graphcircuits.evaluation.proposal import LIKELY
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.config import load_config
from graphcircuits.io.files import StoreError, short, write_atomic
from graphcircuits.io.store import Artifact, check_types, load_artifact, save_artifact

NAMES = (
    "sufficient",
    "necessary",
    "minimal",
    "stable",
    "not by chance",
    "unique",
    "complete",
)
"""The questions, in the order in which a reader asks them."""
SUFFIXES = (".json", ".md", ".html")


@dataclass(frozen=True, kw_only=True)
class Line:
    """The answer to one question."""

    name: str
    passed: bool
    value: float
    interval: tuple[float, float] | None
    """Where the value lies in 19 of 20 draws of the prompts, edges or searches; None where no draw
    can say."""
    asked: str
    """What the value has to be."""
    sentence: str
    """What was found."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further figures, as JSON values."""
    seconds: float = 0.0
    """What the answer took."""

    @property
    def figure(self) -> str:
        """The value with its interval."""
        if self.interval is None:
            return shown(self.value)
        return "{} [{}, {}]".format(*map(shown, (self.value, *self.interval)))


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeChances:
    """What is known of every edge of the graph."""

    came_back: Float[Tensor, " edge"]
    """The share of the fresh searches in whose circuit it was."""
    probability: Float[Tensor, " edge"] | None
    """That of being in the circuit, or of coming back in a fresh search; None where unknown."""
    meaning: str
    """What the probability is of, or why there is none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """What was measured of a circuit; `passed` says whether it holds in every respect.

    Example: `gc.certify(subject, pairs, result, fresh=fresh).lines["stable"].interval`

    Reference: docs/certificates.md.
    """

    circuit: Circuit
    lines: Mapping[str, Line]
    """By the NAMES of the questions, those that were measured."""
    missing: Mapping[str, str]
    """Why the others were not."""
    edges: EdgeChances | None
    core: Circuit | None
    """The edges that came back in most searches."""
    rivals: tuple[Circuit, ...]
    """Other circuits that keep as much."""
    subject: str
    task: str
    search: str
    """What searched afresh, in words."""
    notes: tuple[str, ...]
    seed: int
    n_pairs: int
    n_fresh: int
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.missing and all(line.passed for line in self.lines.values())

    def __repr__(self) -> str:
        """Which lines failed and are missing, without the figures."""
        return f"Certificate({len(self.circuit):,} edges, {self.verdict})"

    @property
    def verdict(self) -> str:
        """In a few words."""
        failed = [name for name, line in self.lines.items() if not line.passed]
        parts = [f"fails: {', '.join(failed)}"] if failed else []
        parts += [f"not measured: {', '.join(self.missing)}"] if self.missing else []
        return "; ".join(parts) or "passed"

    def rows(self) -> list[list[str]]:
        """A row for each question: its name, the figure, what was asked, and what was found."""
        rows = []
        for name in NAMES:
            if line := self.lines.get(name):
                said = "passed" if line.passed else "FAILED"
                rows.append([name, said, line.figure, line.asked, line.sentence])
            elif name in self.missing:
                rows.append([name, "missing", "-", "-", self.missing[name]])
        return rows

    def table(self) -> str:
        """As Markdown."""
        title = ": ".join(text for text in (self.subject, self.task) if text)
        size = f"{len(self.circuit):,} of {self.circuit.graph.n_edges:,} edges"
        table = markdown_table(["question", "", "value", "asked", "found"], self.rows(), left=5)
        told = [f"{title or 'A circuit'}, {size}: {self.verdict}.", table]
        return "\n\n".join([*told, *(f"{note}." for note in self.notes)]) + "\n"

    def most_likely(self) -> list[dict[str, Any]]:
        """The edges of the circuit, those that ever came back and all that are likely, the
        likeliest first."""
        if self.edges is None:
            return []
        back, likely = self.edges.came_back, self.edges.probability
        told = self.circuit.mask | (back > 0)
        told = (told if likely is None else told | (likely >= LIKELY)).nonzero().flatten()
        rows = [
            {
                "edge": name,
                "in_circuit": bool(self.circuit.mask[edge]),
                "came_back": round(float(back[edge]), 4),
                "probability": None if likely is None else round(float(likely[edge]), 4),
            }
            for name, edge in zip(self.circuit.graph.names_of(told), told.tolist(), strict=True)
        ]
        # By what is written, so that a file that is read again has the same order.
        return sorted(rows, key=lambda row: (-(row["probability"] or 0.0), -row["came_back"]))

    def record(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "subject": self.subject,
            "task": self.task,
            "circuit": list(self.circuit),
            "lines": {name: asdict(line) for name, line in self.lines.items()},
            "missing": dict(self.missing),
            "search": self.search,
            "meaning": "" if self.edges is None else self.edges.meaning,
            "edges": self.most_likely(),
            "core": None if self.core is None else list(self.core),
            "rivals": [list(rival) for rival in self.rivals],
            "notes": list(self.notes),
            "pairs": self.n_pairs,
            "fresh_pairs": self.n_fresh,
            "seconds": round(self.seconds, 2),
        }

    def save(self, path: str | Path) -> None:
        """Write `.json`, a table as `.md`, or the page as `.html`, by the suffix."""
        suffix = Path(path).suffix
        if suffix not in SUFFIXES:
            raise ValueError(f"a certificate is saved as {', '.join(SUFFIXES)}, got {path}.")
        if suffix == ".json":
            graph, meta = self.circuit.graph, self.record()
            save_artifact(
                path, kind="certificate", config=graph, seed=self.seed, tensors={}, meta=meta
            )
        elif suffix == ".md":
            write_atomic(path, self.table().encode())
        else:
            write_atomic(path, certificate_page(self).encode())

    @classmethod
    def load(cls, path: str | Path) -> "Certificate":
        """Read the JSON that `save` wrote; edges that never came back have no figures there."""
        artifact = load_artifact(path, "certificate")
        check_types(path, artifact.meta, _META, "certificate")
        try:
            return _read(artifact)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StoreError(f"{path} is not a whole certificate: {error}") from error


_META: Mapping[str, tuple[type, ...]] = {
    "passed": (bool,),
    "verdict": (str,),
    "subject": (str,),
    "task": (str,),
    "circuit": (list,),
    "lines": (dict,),
    "missing": (dict,),
    "search": (str,),
    "meaning": (str,),
    "edges": (list,),
    "core": (list, type(None)),
    "rivals": (list,),
    "notes": (list,),
    "pairs": (int,),
    "fresh_pairs": (int,),
    "seconds": (float, int),
}


def _read(artifact: Artifact) -> Certificate:
    graph = load_config(ComponentGraph, artifact.config)
    if problem := too_large(graph):
        raise ValueError(f"{problem}.")
    meta, rows = artifact.meta, artifact.meta["edges"]

    def circuit(names: list[str] | None) -> Circuit | None:
        return None if names is None else Circuit.from_names(graph, names)

    edges = None
    if rows:
        told = graph.edge_indices(row["edge"] for row in rows)
        back, likely = torch.zeros(graph.n_edges), None
        back[told] = torch.tensor([_share(row["came_back"]) for row in rows])
        if rows[0]["probability"] is not None:
            likely = torch.zeros(graph.n_edges)
            likely[told] = torch.tensor([_share(row["probability"]) for row in rows])
        edges = EdgeChances(came_back=back, probability=likely, meaning=str(meta["meaning"]))
    lines = {name: load_config(Line, line) for name, line in meta["lines"].items()}
    if unknown := {*lines, *meta["missing"]} - {*NAMES}:
        raise ValueError(f"no questions are {short(sorted(unknown))}.")
    return Certificate(
        circuit=Circuit.from_names(graph, meta["circuit"]),
        lines=lines,
        missing={name: str(why) for name, why in meta["missing"].items()},
        edges=edges,
        core=circuit(meta["core"]),
        rivals=tuple(Circuit.from_names(graph, names) for names in meta["rivals"]),
        subject=meta["subject"],
        task=meta["task"],
        search=meta["search"],
        notes=tuple(map(str, meta["notes"])),
        seed=artifact.seed or 0,
        n_pairs=meta["pairs"],
        n_fresh=meta["fresh_pairs"],
        seconds=meta["seconds"],
    )


def _share(value: Any) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError(f"shares and probabilities are from 0 to 1, got {short(value)}.")
    return float(value)
