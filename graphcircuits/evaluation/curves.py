"""Several results of one subject side by side: how faithful their best edges are on given pairs.

Sizes come in grids: a log-spaced one, by output, which says how many edges it takes to keep a share
of what the subject puts out, and MIB's (Mueller et al. 2025), ten shares of all edges, by the loss
of the task, which CPR and CMD are published on. On a small graph several of MIB's sizes are the
same; the notes say so. An `Evaluation` also says on which share of the prompts the subject is
right: the circuit of a task that it does not do means little.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcircuits.drawing.curves import panels_figure
from graphcircuits.drawing.library import known_suffix, save_figure
from graphcircuits.evaluation.evaluate import (
    CircuitRuns,
    mib_sizes,
    shown,
    size_grids,
    subject_first,
)
from graphcircuits.evaluation.proposal import fresh_seed
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import csv_text, write_atomic, write_json
from graphcircuits.result.curve import CROSSINGS, FaithfulnessCurve
from graphcircuits.result.files import ungrouped
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task import accuracy
from graphcircuits.task.fresh import shared_prompts
from graphcircuits.task.pairs import Pairs
from graphcircuits.viewer.payload import distinct

GRIDS = {
    "log": "log-spaced sizes",
    "mib": "MIB's sizes, parts of all edges",
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
    by: str
    """What faithfulness is measured by, but at MIB's sizes; curves have their own `by`."""
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

    def heading(self, grid: str) -> str:
        """What the curves of a grid are."""
        return f"faithfulness by {self.results[0].curves[grid].by}, {GRIDS[grid]}"

    def rows(self, grid: str) -> tuple[list[str], list[list[str]]]:
        """Header and cells for one grid: a row per size, then figures; a column per result.

        Sizes are those that all results have: near a crossing each has more of its own.
        """
        curves = [result.curves[grid] for result in self.results]
        header = ["part", "edges", *(result.name for result in self.results)]
        # By MIB's count the best edges of all results are equally many.
        n_edges = ungrouped(self.graph)[0].n_edges if grid == "mib" else self.graph.n_edges
        at = [dict(zip(curve.fractions, curve.faithfulness, strict=True)) for curve in curves]
        cells = [
            [
                f"{100 * fraction:.3g}%",
                f"{math.floor(fraction * n_edges + 1e-9):,}",
                *(shown(values[fraction], 3) for values in at),
            ]
            for fraction in curves[0].fractions
            if all(fraction in values for values in at)
        ]
        figures = [_figures(curve, grid) for curve in curves]
        cells += [[name, "", *(one[name] for one in figures)] for name in figures[0]]
        return header, cells

    def circuits(self) -> list[str]:
        """A sentence for each result that comes with a circuit."""
        return [
            f"{result.name}: the {result.circuit[0]:,} edges marked in the file keep "
            f"{shown(result.circuit[1])} of the {self.by}"
            for result in self.results
            if result.circuit is not None
        ]

    def table(self) -> str:
        """One table per grid, and the notes, as Markdown."""
        blocks = []
        for grid in self.grids:
            heading = self.heading(grid)
            table = markdown_table(*self.rows(grid), left=0)
            blocks += [f"{heading[0].upper()}{heading[1:]}:", table]
        sentences = [*self.circuits(), *self.notes]
        blocks += [sentence[0].upper() + sentence[1:] + "." for sentence in sentences]
        return "\n\n".join(blocks) + "\n"

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
            "by": self.by,
            "right": self.right,
            "notes": list(self.notes),
            "results": [_record(result) for result in self.results],
        }

    def to_csv(self) -> str:
        """One line per result, grid and size; the areas stand on each line of their curve."""
        about = ["result", "method", "sizes", "by", "part", "edges", "kept", "faithfulness"]
        needed = [f"edges_for_{share:g}" for share in CROSSINGS]
        lines: list[list[object]] = [[*about, *needed, "log_area", "cpr", "cmd"]]
        for result in self.results:
            for grid, curve in result.curves.items():
                columns = (curve.fractions, curve.sizes, curve.pruned_sizes, curve.faithfulness)
                points = zip(*columns, strict=True)
                known = [*curve.crossings.values(), *curve.areas.values()]
                figures = ["" if figure is None else figure for figure in known]
                which = [result.name, result.method, grid, curve.by]
                lines += [[*which, *point, *figures] for point in points]
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
        known_suffix(path)
        panels = {
            self.heading(grid): {
                result.name: (result.curves[grid].sizes, result.curves[grid].faithfulness)
                for result in self.results
            }
            for grid in self.grids
        }
        title = ", ".join(text for text in (self.subject, self.task) if text)
        save_figure(panels_figure(panels, title=title), path)


def _figures(curve: FaithfulnessCurve, grid: str) -> dict[str, str]:
    """What a table says below the sizes, by the first cell of the row, - where it is not known.

    MIB's ten sizes are too far apart to say how many edges it takes.
    """
    if len(curve.sizes) < 2:
        return {}
    areas = curve.areas
    figures: dict[str, float | None] = {"CPR": areas["cpr"], "CMD": areas["cmd"]}
    if grid != "mib":
        needed = {f"edges for {share}": size for share, size in curve.crossings.items()}
        figures = {**needed, "log area": areas["log_area"], **figures}
    return {
        name: "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        for name, value in figures.items()
    }


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
                "by": curve.by,
                "edges_for": curve.crossings,
                **curve.areas,
                "fractions": list(curve.fractions),
                "sizes": list(curve.sizes),
                "kept": list(curve.pruned_sizes),
                "faithfulness": list(curve.faithfulness),
            }
            for grid, curve in result.curves.items()
        },
    }


def evaluate(
    subject: Transformer,
    pairs: Pairs,
    results: Result | str | Path | Sequence[Result | str | Path] | Mapping[str, Result],
    *,
    by: str | None = None,
    sizes: str | Sequence[int] = "both",
    ablation: str = "corrupted",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Compare results of one subject: how faithful the best edges of each are.

    Edges on no path from input to logits are dropped first.

    Args:
        subject: The transformer that is explained.
        pairs: Prompt pairs, which should be others than those the results were found on.
        results: Results, files of them, or results by name; without a name they go by their file
            or method.
        by: "output", the subject's own output, or "loss", the loss of the pairs, as in
            `faithfulness`. By default output, and loss at MIB's sizes, whose areas MIB publishes.
        sizes: "log", "mib", "both", or growing numbers of edges, as in `faithfulness_curve`.
        ablation: What cut edges carry, as in `faithfulness`.
        progress: Called with the number of results that are done, and of all.

    Returns:
        An `Evaluation`: a curve for each result and grid of sizes, which `table`, `save` and `plot`
        show, and notes on what a reader should know.

    Example:
        `gc.evaluate(subject, case.pairs(64, seed=1000), ["eap.json", "gcl.json"]).table()`

    Reference:
        Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark", and docs/evaluate.md.
    """
    subject_first("evaluate", subject, "results")
    named, notes = _on_subject(_named(results), subject)
    title, task = subject.name or subject.case or "", pairs.task
    notes = [*_of_others(named, title, task), *notes, *_seen(named, pairs)]
    if sizes in ("mib", "both"):
        notes += _counted(subject.graph)
    right = accuracy.share_right(subject, pairs) if accuracy.has_answers(pairs) else None
    if right is not None and right < accuracy.LEAST_RIGHT:
        wrong = accuracy.wrong_text(right, len(pairs))
        warnings.warn(wrong, accuracy.OftenWrong, stacklevel=2)
        notes.append(wrong.rstrip("."))
    runs = CircuitRuns(subject, pairs, ablation, by=by or "output")
    at_mib = runs if by else CircuitRuns(subject, pairs, ablation, by="loss")
    evaluated = []
    for name, result in named.items():
        curves = {}
        for grid, counts in size_grids(sizes, result).items():
            measured, near = at_mib if grid == "mib" else runs, CROSSINGS if grid == "log" else ()
            curves[grid] = measured.curve(result, counts, grid=grid, crossings=near)
        chosen = result.chosen
        circuit = None if chosen is None else (len(chosen), runs([chosen])[0])
        one = EvaluatedResult(name=name, method=result.method, curves=curves, circuit=circuit)
        evaluated.append(one)
        if progress is not None:
            progress(len(evaluated), len(named))
    return Evaluation(
        graph=subject.graph,
        results=tuple(evaluated),
        n_pairs=len(pairs),
        by=runs.by,
        right=right,
        notes=tuple(notes),
        subject=title,
        task=task,
    )


def _named(
    results: Result | str | Path | Sequence[Result | str | Path] | Mapping[str, Result],
) -> dict[str, Result]:
    """The results under distinct names."""
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
    names = distinct(name for name, _ in named)
    return dict(zip(names, (result for _, result in named), strict=True))


def file_names(files: Sequence[str | Path]) -> list[str]:
    """What to call results by their files: the stem, or all of the path where stems repeat."""
    stems = Counter(Path(file).stem for file in files)
    return [stem if stems[stem := Path(file).stem] == 1 else str(file) for file in files]


def _on_subject(
    named: Mapping[str, Result], subject: Transformer
) -> tuple[dict[str, Result], list[str]]:
    """The results on the graph of the subject, and what was done to bring them there."""
    graph, same, other, notes = subject.graph, {}, [], []
    for name, result in named.items():
        try:
            same[name] = result.on(graph)
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
    return same, notes


def fresh_draw(results: Sequence[Result], seed: int | None = None) -> tuple[int, str]:
    """The seed that draws prompts to evaluate on, and what that means for the results.

    If none is given, it is another than those that drew the prompts of the results.
    """
    seeds = sorted({result.seed for result in results if result.seed is not None})
    used = f"the results were found with {' and '.join(map(str, seeds))}"
    if seed in seeds:
        return seed, f"these pairs may not be fresh: {used}, the seed that was given"
    drawn = fresh_seed(max(seeds, default=0)) if seed is None else seed
    note = f"fresh pairs, of seed {drawn}" if seed is None else f"pairs of seed {drawn}"
    return drawn, f"{note}; {used}" if seeds else note


def _of_others(named: Mapping[str, Result], title: str, task: str) -> list[str]:
    """Results that name another subject or task than the one they are evaluated on."""
    return [
        f"{name} was found for another {noun}: {theirs}"
        for name, result in named.items()
        for noun, theirs, ours in (("subject", result.subject, title), ("task", result.task, task))
        if theirs and ours and theirs != ours
    ]


def _seen(named: Mapping[str, Result], pairs: Pairs) -> list[str]:
    """Which results were found on some of these prompts, as far as they record theirs."""
    counts = {name: shared_prompts(pairs, result.prompt_hashes) for name, result in named.items()}
    return [
        f"{count} of {len(pairs)} prompts were used to find {name}: on those it may look better "
        "than on others"
        for name, count in counts.items()
        if count
    ]


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
    if again:
        notes.append(
            f"MIB's sizes say little here: of {n_edges:,} edges they are "
            f"{', '.join(map(str, sizes))}, so {again} of {len(sizes)} circuits repeat or are "
            "empty; the log-spaced sizes tell results apart"
        )
    return notes
