"""Several results of one subject side by side: how faithful their best edges are on given pairs.

1. `evaluate` takes the best edges of every result at growing numbers of them, ablates all others,
   and gives an `Evaluation`: one faithfulness curve per result and grid of sizes, and how faithful
   the circuit is that a result comes with.
2. The grids are MIB's, ten parts of all edges, which CPR and CMD are published on, and a log-spaced
   one, which tells circuits of a few edges apart. A small graph makes several of MIB's parts one
   number of edges; the notes say so. Numbers of edges of one's own are a third.
3. An `Evaluation` is a table, JSON, CSV, Markdown or a picture. It also says on which share of the
   prompts the subject is right, since the circuit of a task that it does not do means little.

MIB (Mueller et al. 2025) defines CPR and CMD; `graphcircuits.evaluation.evaluate` computes them.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcircuits.adapters.mib import best_counts
from graphcircuits.evaluation.curve_plot import plot_curves
from graphcircuits.evaluation.evaluate import (
    FRACTIONS,
    FaithfulnessCurve,
    faithfulness,
    log_sizes,
    mib_sizes,
    shown,
)
from graphcircuits.evaluation.text_tables import csv_text
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import write_atomic, write_json
from graphcircuits.result.files import ungrouped
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import (
    LEAST_RIGHT,
    OftenWrong,
    has_answers,
    share_right,
    wrong_text,
)
from graphcircuits.task.fresh import shared_prompts
from graphcircuits.task.pairs import Pairs

GRIDS = {
    "mib": "MIB's sizes, parts of all edges",
    "log": "log-spaced sizes",
    "given": "the sizes that were given",
}
SUFFIXES = (".json", ".csv", ".md")
"""What an evaluation can be saved as."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedResult:
    """How faithful one result is."""

    name: str
    method: str
    curves: Mapping[str, FaithfulnessCurve]
    """By grid, a key of GRIDS."""
    circuit: tuple[int, float] | None
    """Of the circuit that the result comes with: its edges, and how faithful it is."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of one subject on the same pairs."""

    graph: ComponentGraph
    results: tuple[EvaluatedResult, ...]
    n_pairs: int
    right: float | None
    """Share of the prompts on which the subject is right; None where they name no answers."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know."""
    subject: str = ""
    task: str = ""
    seed: int | None = None
    """What drew the pairs, where a seed did."""

    @property
    def grids(self) -> tuple[str, ...]:
        return tuple(self.results[0].curves)

    def rows(self, grid: str) -> tuple[list[str], list[list[str]]]:
        """Header and cells for one grid: a row per size, then CPR and CMD; a column per result."""
        curves = [result.curves[grid] for result in self.results]
        first = curves[0]
        header = ["part", "edges", *(result.name for result in self.results)]
        # By MIB's count, in which the best edges of all results are equally many.
        sizes = mib_sizes(ungrouped(self.graph)[0].n_edges) if grid == "mib" else first.sizes
        cells = [
            [f"{100 * fraction:.3g}%", f"{size:,}", *(shown(c.faithfulness[n], 3) for c in curves)]
            for n, (fraction, size) in enumerate(zip(first.fractions, sizes, strict=True))
        ]
        if len(first.sizes) > 1:
            cells.append(["CPR", "", *(f"{curve.cpr:.3f}" for curve in curves)])
            cells.append(["CMD", "", *(f"{curve.cmd:.3f}" for curve in curves)])
        return header, cells

    def circuits(self) -> list[str]:
        """A sentence for each result that comes with a circuit."""
        return [
            f"{result.name}: the {result.circuit[0]:,} edges marked in the file keep "
            f"{shown(result.circuit[1])} of the behaviour"
            for result in self.results
            if result.circuit is not None
        ]

    def table(self) -> str:
        """One table per grid, and the notes, as Markdown."""
        parts = []
        for grid in self.grids:
            header, cells = self.rows(grid)
            rule = ["---:"] * len(header)
            lines = ["| " + " | ".join(line) + " |" for line in (header, rule, *cells)]
            parts += [f"Faithfulness, {GRIDS[grid]}:", "\n".join(lines)]
        sentences = [*self.circuits(), *self.notes]
        return (
            "\n\n".join(
                [*parts, *(sentence[0].upper() + sentence[1:] + "." for sentence in sentences)]
            )
            + "\n"
        )

    def record(self) -> dict[str, Any]:
        """All of it as JSON values."""
        graph = self.graph
        return {
            "subject": self.subject,
            "task": self.task,
            "layers": graph.n_layers,
            "heads": graph.n_heads,
            "edges": graph.n_edges,
            "pairs": self.n_pairs,
            "seed": self.seed,
            "right": self.right,
            "notes": list(self.notes),
            "results": [_record(result) for result in self.results],
        }

    def to_csv(self) -> str:
        """One line per result, grid and size; the areas stand on each line of their curve."""
        lines: list[list[object]] = [
            ["result", "method", "sizes", "part", "edges", "kept", "faithfulness", "cpr", "cmd"]
        ]
        for result in self.results:
            for grid, curve in result.curves.items():
                points = zip(
                    curve.fractions, curve.sizes, curve.kept, curve.faithfulness, strict=True
                )
                areas = ["" if area is None else area for area in _areas(curve).values()]
                lines += [[result.name, result.method, grid, *point, *areas] for point in points]
        return csv_text(lines)

    def save(self, path: str | Path) -> None:
        """Write `.json`, `.csv` or `.md`, by the suffix."""
        suffix = Path(path).suffix
        if suffix == ".json":
            write_json(path, self.record())
        elif suffix == ".csv":
            write_atomic(path, self.to_csv().encode())
        elif suffix == ".md":
            write_atomic(path, self.table().encode())
        else:
            raise ValueError(f"an evaluation is saved as {', '.join(SUFFIXES)}, got {path}.")

    def plot(self, path: str | Path) -> None:
        """Draw the curves, one panel per grid: `.svg`, `.png` or `.pdf`."""
        panels = {
            GRIDS[grid]: {result.name: result.curves[grid] for result in self.results}
            for grid in self.grids
        }
        title = ", ".join(part for part in (self.subject, self.task) if part)
        plot_curves(path, panels, title=title)


def _areas(curve: FaithfulnessCurve) -> dict[str, float | None]:
    """A single size has none."""
    several = len(curve.sizes) > 1
    return {"cpr": curve.cpr if several else None, "cmd": curve.cmd if several else None}


def _record(result: EvaluatedResult) -> dict[str, Any]:
    circuit = None
    if result.circuit is not None:
        circuit = {"edges": result.circuit[0], "faithfulness": result.circuit[1]}
    return {
        "name": result.name,
        "method": result.method,
        "circuit": circuit,
        "curves": {
            grid: {
                **_areas(curve),
                "fractions": list(curve.fractions),
                "sizes": list(curve.sizes),
                "kept": list(curve.kept),
                "faithfulness": list(curve.faithfulness),
            }
            for grid, curve in result.curves.items()
        },
    }


def evaluate(
    results: Result | str | Path | Sequence[Result | str | Path] | Mapping[str, Result],
    subject: Transformer,
    pairs: Pairs,
    *,
    sizes: str | Sequence[int] = "both",
    ablation: str = "corrupted",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """How faithful the best edges of each result are, on pairs that should be fresh.

    Results are values or files, or values by name; without a name they go by their file or method.
    `sizes` is "mib", "log", "both", or numbers of edges. Cut edges carry what `ablation` says.
    Edges on no path from input to logits are dropped first. `progress` is called with (results
    done, results in all).
    """
    named, notes = _on_subject(_named(results), subject)
    notes += _seen(named, pairs)
    grids = _grids(sizes, subject.graph.n_edges)
    if "mib" in grids:
        notes += _counted(subject.graph)
    right = share_right(subject, pairs) if has_answers(pairs) else None
    if right is not None and right < LEAST_RIGHT:
        wrong = wrong_text(right, len(pairs))
        warnings.warn(wrong, OftenWrong, stacklevel=2)
        notes.append(wrong.rstrip("."))
    found = []
    for name, result in named.items():
        found.append(_evaluated(name, result, subject, pairs, grids, ablation))
        if progress is not None:
            progress(len(found), len(named))
    return Evaluation(
        graph=subject.graph,
        results=tuple(found),
        n_pairs=len(pairs),
        right=right,
        notes=tuple(notes),
    )


def _evaluated(
    name: str,
    result: Result,
    subject: Transformer,
    pairs: Pairs,
    grids: Mapping[str, Sequence[int]],
    ablation: str,
) -> EvaluatedResult:
    """All circuits of a result in one go: the grids share several."""
    if "mib" in grids:
        grids = {**grids, "mib": best_counts(result, FRACTIONS)}
    sizes = sorted({size for grid in grids.values() for size in grid})
    circuits = [result.circuit(edges=size, prune=True) for size in sizes]
    chosen = [] if result.chosen is None else [result.chosen]
    values = faithfulness(subject, pairs, [*circuits, *chosen], ablation=ablation)
    kept = dict(zip(sizes, map(len, circuits), strict=True))
    by_size = dict(zip(sizes, values, strict=False))
    n_edges = subject.graph.n_edges
    curves = {
        name: FaithfulnessCurve(
            fractions=FRACTIONS if name == "mib" else tuple(size / n_edges for size in grid),
            sizes=tuple(grid),
            kept=tuple(kept[size] for size in grid),
            faithfulness=tuple(by_size[size] for size in grid),
            pairs=len(pairs),
        )
        for name, grid in grids.items()
    }
    return EvaluatedResult(
        name=name,
        method=result.method,
        curves=curves,
        circuit=None if result.chosen is None else (len(result.chosen), values[-1]),
    )


def _named(
    results: Result | str | Path | Sequence[Result | str | Path] | Mapping[str, Result],
) -> dict[str, Result]:
    """The results under names of their own."""
    if isinstance(results, Mapping):
        named = list(results.items())
    else:
        listed = [results] if isinstance(results, Result | str | Path) else list(results)
        paths = file_names([one for one in listed if not isinstance(one, Result)])
        named = [
            (one.method or f"result {number}", one)
            if isinstance(one, Result)
            else (paths.pop(0), Result.load(one))
            for number, one in enumerate(listed, start=1)
        ]
    if not named:
        raise ValueError("there is nothing to evaluate; give at least one result.")
    counts, used = Counter(name for name, _ in named), Counter()
    found = {}
    for name, result in named:
        used[name] += 1
        found[name if counts[name] == 1 else f"{name} ({used[name]})"] = result
    return found


def file_names(files: Sequence[str | Path]) -> list[str]:
    """What to call results by their files: the stem, or all of the path where stems repeat."""
    stems = Counter(Path(file).stem for file in files)
    return [stem if stems[stem := Path(file).stem] == 1 else str(file) for file in files]


def _on_subject(
    named: Mapping[str, Result], subject: Transformer
) -> tuple[dict[str, Result], list[str]]:
    """The results on the graph of the subject, and what was done to bring them there."""
    graph, found, other, notes = subject.graph, {}, [], []
    for name, result in named.items():
        try:
            found[name] = result.on(graph)
        except ValueError:
            other.append(f"{name} is of {result.graph.in_words}")
            continue
        if result.graph != graph:
            notes.append(
                f"{name} scores keys and values of single heads, which the subject's heads share: "
                "the best of each group counts"
            )
    if other:
        raise ValueError(
            f"results must be of the subject, which has {graph.in_words}; {', '.join(other)}."
        )
    return found, notes


def _seen(named: Mapping[str, Result], pairs: Pairs) -> list[str]:
    """Which results were found on some of these prompts, as far as they know their own."""
    counts = {name: shared_prompts(pairs, result.prompt_hashes) for name, result in named.items()}
    return [
        f"{count} of {len(pairs)} prompts were used to find {name}: on those it may look better "
        "than on others"
        for name, count in counts.items()
        if count
    ]


def _grids(sizes: str | Sequence[int], n_edges: int) -> dict[str, list[int]]:
    known = {"mib": mib_sizes(n_edges), "log": log_sizes(n_edges)}
    if sizes == "both":
        return known
    if isinstance(sizes, str):
        if sizes in known:
            return {sizes: known[sizes]}
        raise ValueError(f"sizes must be mib, log, both or numbers of edges, got {sizes!r}.")
    counts = list(sizes)
    if (
        not counts
        or counts != sorted(set(counts))
        or any(type(count) is not int or not 0 <= count <= n_edges for count in counts)
    ):
        raise ValueError(f"sizes must be growing numbers in 0..{n_edges}, got {counts}.")
    return {"given": counts}


def _counted(graph: ComponentGraph) -> list[str]:
    """What to know about MIB's sizes on this graph."""
    n_edges = ungrouped(graph)[0].n_edges
    sizes, notes = mib_sizes(n_edges), []
    if n_edges != graph.n_edges:
        notes.append(
            f"MIB counts an edge into heads that share keys or values once for each head: "
            f"{n_edges:,} edges where we count {graph.n_edges:,}"
        )
    again = len(sizes) - len(set(sizes)) + (0 in sizes)
    if not again:
        return notes
    return [
        *notes,
        f"MIB's sizes say little here: of {n_edges:,} edges they are "
        f"{', '.join(map(str, sizes))}, so {again} of {len(sizes)} circuits repeat or are empty; "
        "the log-spaced sizes tell results apart",
    ]
