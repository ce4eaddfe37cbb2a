"""What the runs of a bench come to: tables, text and a plot.

1. `Report.of` puts runs and failures in order, whichever process finished first.
2. `Report.scores` compares every run with the labels (AUROC, AUPRC, precision at the true size),
   where a circuit is known, and takes the areas of its curve (CPR, CMD).
3. `Report.rows` summarizes AUROC as the paper does, and CMD in the same way where no circuit is
   known; `Report.other_labels` does so by other labels on the paper's test cases.
   `Report.breakdowns` divides the subjects by architecture, by tasks in a model and whether
   they share heads, and by layers where no circuit is known.
4. `Report.kinds` divides them by whether another has the same circuit: where several share one, a
   ranking that knows nothing but names of edges does well. `Report.contrasts` says what methods
   have over such floors, with intervals.
5. `Report.write` writes all of it; `Report.plot` draws the rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.case import LABELINGS
from graphcircuits.cases.orders import Order
from graphcircuits.compare import figures
from graphcircuits.compare.bench import BenchConfig, truth
from graphcircuits.compare.runs import BenchRun, Failure
from graphcircuits.compare.selection import Unit
from graphcircuits.drawing.library import known_suffix, save_figure
from graphcircuits.evaluation.evaluate import auprc, auroc, precision_recall, summarize
from graphcircuits.evaluation.intervals import ByCase, Means, bootstrap
from graphcircuits.evaluation.text_tables import csv_text, markdown_table
from graphcircuits.io.files import write_atomic
from graphcircuits.methods import FLOORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPINGS: Mapping[str, Callable[[Unit, BenchRun], str]] = {
    "architecture": lambda unit, run: unit.order.architecture,
    "tasks in a model": lambda unit, run: str(unit.n_tasks),
    "heads of its tasks": lambda unit, run: unit.heads if unit.has_truth else "all",
    "layers": lambda unit, run: "all" if unit.has_truth else str(run.graph.n_layers),
}
"""The group of a subject. Whose the heads are is known where a circuit is; by layers the others are
divided, since `--cases deep-pool` and `deep-test` do so where it is."""
ALONE, SHARED = "one of a kind", "shared"
OVER_FLOORS = (
    ("gcl", "gcl-blind", "What features add to a network that sees the shape of the graph"),
    ("gcl", "edge-frequency", "Features and message passing, beyond the names of edges"),
    ("gcl", "eap-ig", "The same, beyond a search along gradients"),
    ("gcl", "eap-ig+paths", "The same, beyond that search along paths"),
    ("gcl-paper", "gcl-paper-blind", "What features add to the paper's network"),
    ("gcl-paper", "edge-frequency", "The paper's network, beyond the names of edges"),
)
"""What is compared where circuits are known."""
OVER_SEARCHES = (
    ("gcl", "eap-ig", "In all"),
    ("gcl", "eap-ig+paths", "Without what counting along paths gives to any method"),
    ("eap-ig+paths", "eap-ig", "Counting along paths alone"),
)
"""What is compared where they are not."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The runs of a bench, compared with the labels and with each other."""

    config: BenchConfig
    title: str
    runs: tuple[BenchRun, ...]
    failures: tuple[Failure, ...] = ()
    command: str = ""
    """What makes it again."""

    @classmethod
    def of(
        cls,
        config: BenchConfig,
        found: Iterable[BenchRun | Failure],
        *,
        title: str,
        command: str = "",
    ) -> "Report":
        """The report of what a bench found, in the order of the config."""
        cases, seeds, methods = (
            {value: place for place, value in enumerate(values)}
            for values in (config.cases, config.seeds, config.methods)
        )
        ordered = sorted(
            found,
            key=lambda one: (
                cases[one.case],
                -1 if one.seed is None else seeds[one.seed],
                -1 if one.method is None else methods[one.method],
            ),
        )
        return cls(
            config=config,
            title=title,
            runs=tuple(one for one in ordered if isinstance(one, BenchRun)),
            failures=tuple(one for one in ordered if isinstance(one, Failure)),
            command=command,
        )

    @property
    def has_truth(self) -> bool:
        return self.config.fleet != "natural"

    @property
    def worked_out(self) -> list[str]:
        """Subjects whose labels are not those that the paper had, but worked out by rule."""
        if not self.has_truth or self.config.labels != "paper":
            return []
        cases = {id: load_case(Order.parse(id).case) for id in self.config.cases}
        return [id for id, case in cases.items() if case.worked_out is not None]

    @cached_property
    def units(self) -> Mapping[str, Unit]:
        """The subjects that were run."""
        return {run.case: Unit.of(run.case) for run in self.runs}

    @cached_property
    def scores(self) -> list[tuple[BenchRun, dict[str, float]]]:
        """Every run with its CPR and CMD, and before them what is compared with a known circuit."""
        truths = (
            {run.case: truth(self.units[run.case], self.config, run.graph) for run in self.runs}
            if self.has_truth
            else {}
        )
        found = []
        for run in self.runs:
            record: dict[str, float] = {}
            if self.has_truth:
                given = (run.scores, truths[run.case], self.config.level)
                precision, _ = precision_recall(*given)
                record = {"auroc": auroc(*given), "auprc": auprc(*given), "precision": precision}
            found.append((run, record | {"cpr": run.curve.cpr, "cmd": run.curve.cmd}))
        return found

    def by_case(self, name: str, method: str) -> ByCase:
        """A figure of a method's runs by subject and seed."""
        found: dict[str, dict[int, float]] = {}
        for run, record in self.scores:
            if run.method == method:
                found.setdefault(run.case, {})[run.seed] = record[name]
        return found

    # Tables

    def rows(self) -> list[figures.Row]:
        """One row per method, the best first; methods without any run have none.

        The best has the highest median AUROC, of equal ones the highest mean, or where no circuit
        is known the lowest mean CMD.
        """
        wins = self.wins()
        rows = []
        for method in self.config.methods:
            runs = [run for run in self.runs if run.method == method]
            if not runs:
                continue
            peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
            seconds: dict[str, list[float]] = {}
            for run in runs:
                seconds.setdefault(run.case, []).append(run.seconds)
            main = self.by_case("auroc" if self.has_truth else "cmd", method)
            rows.append(
                figures.Row(
                    method=method,
                    summary=summarize(main),
                    case_means=means(main),
                    auprc=self._median("auprc", method),
                    precision=self._median("precision", method),
                    cpr=mean(means(self.by_case("cpr", method))),
                    cmd=mean(means(self.by_case("cmd", method))),
                    wins=wins[method],
                    seconds=median(map(mean, seconds.values())),
                    peak_bytes=max(peaks, default=None),
                )
            )
        if not self.has_truth:
            return sorted(rows, key=lambda row: row.cmd)
        good = {row.method: (row.summary.quantiles[2], mean(row.case_means)) for row in rows}
        return sorted(rows, key=lambda row: good[row.method], reverse=True)

    def _median(self, name: str, method: str) -> float | None:
        return median(means(self.by_case(name, method))) if self.has_truth else None

    def wins(self) -> dict[str, float]:
        """On how many subjects a method's CMD is the smallest; methods that tie share a subject."""
        cmd: dict[str, dict[str, float]] = {case: {} for case in self.units}
        for method in self.config.methods:
            found = self.by_case("cmd", method)
            for case, value in zip(found, means(found), strict=True):
                cmd[case][method] = value
        wins = dict.fromkeys(self.config.methods, 0.0)
        for by_method in cmd.values():
            best = min(by_method.values())
            first = [method for method, value in by_method.items() if value == best]
            for method in first:
                wins[method] += 1 / len(first)
        return wins

    def breakdowns(self) -> list[figures.Breakdown]:
        """Means over the subjects of each group, where there is more than one group."""
        order = [row.method for row in self.rows()]
        found = []
        for grouping, group_of in GROUPINGS.items():
            groups = {run.case: group_of(self.units[run.case], run) for run in self.runs}
            names = sorted(set(groups.values()))
            for measure in ("auroc", "cmd") if self.has_truth else ("cmd",):
                if len(names) > 1:
                    by_method = {method: self.by_case(measure, method) for method in order}
                    found.append(
                        figures.Breakdown(
                            title=f"Mean {measure.upper()} by {grouping}",
                            sizes={name: list(groups.values()).count(name) for name in names},
                            means={
                                method: _group_means(values, groups)
                                for method, values in by_method.items()
                            },
                        )
                    )
        return found

    @cached_property
    def _kind_of(self) -> Mapping[str, str]:
        """Whether a subject's circuit is that of no other, by the names of its edges."""
        graphs = {run.case: run.graph for run in self.runs}
        circuits = {}
        for case, graph in graphs.items():
            mask = truth(self.units[case], self.config, graph).mask
            if self.config.level == "head":
                edges = graph.promote(mask).nonzero().flatten().tolist()
                circuits[case] = frozenset(graph.head_edges[edge] for edge in edges)
            else:
                circuits[case] = frozenset(graph.names_of(mask.nonzero().flatten()))
        counts = Counter(circuits.values())
        return {case: ALONE if counts[circuits[case]] == 1 else SHARED for case in graphs}

    def kinds(self) -> figures.Kinds | None:
        """AUROC apart for circuits that are one of a kind; None where all or none are."""
        if not self.has_truth or len(set(self._kind_of.values())) < 2:
            return None
        values: dict[str, dict[str, tuple[float, ...]]] = {}
        for row in self.rows():
            own = self.by_case("auroc", row.method)
            values[row.method] = {kind: means(self._part(own, kind)) for kind in (ALONE, SHARED)}
        sizes = Counter(self._kind_of.values())
        return figures.Kinds(sizes={kind: sizes[kind] for kind in (ALONE, SHARED)}, values=values)

    def _part(self, by_case: ByCase, kind: str) -> ByCase:
        return {case: values for case, values in by_case.items() if self._kind_of[case] == kind}

    def contrasts(self) -> list[figures.Advantage]:
        """What methods that ran have over floors, in mean AUROC; or over searches, in mean CMD."""
        measure, compared = ("auroc", OVER_FLOORS) if self.has_truth else ("cmd", OVER_SEARCHES)
        ran = {run.method for run in self.runs}
        found = []
        for method, other, words in compared:
            if not {method, other} <= ran:
                continue
            both = [_averaged(self.by_case(measure, name)) for name in (method, other)]
            parts = {f"{self._noun}s": both}
            if self.kinds() is not None:
                for kind in (ALONE, SHARED):
                    parts[kind] = [self._part(each, kind) for each in both]
            statistic = _difference if self.has_truth else less_by
            by_part = {
                f"{len(part[0])} {name}": bootstrap(part, statistic)
                for name, part in parts.items()
                if part[0].keys() & part[1].keys()
            }
            found.append(
                figures.Advantage(words=words, method=method, other=other, by_part=by_part)
            )
        return found

    @property
    def _noun(self) -> str:
        return "case" if self.config.fleet == "planted" else "subject"

    def other_labels(self) -> list["Report"]:
        """The same runs by all other labels, on the test cases at head level: the paper's figures
        are about those, and go by labels that are not the complete ones."""
        cases = {Order.parse(id).case for id in self.config.cases}
        same = cases == set(case_ids(split="test")) and self.config.level == "head"
        others = LABELINGS if same and self.has_truth else ()
        configs = [replace(self.config, labels=x) for x in others if x != self.config.labels]
        return [replace(self, config=config) for config in configs]

    def case_csv(self) -> str:
        """One line per run, in the order of the runs; numbers have six digits."""
        about = ["case", "fleet", "architecture", "method", "seed", "layers", "edges"]
        measured = ["auroc", "auprc", "precision", "cpr", "cmd"]
        named = ["precision_at_size" if name == "precision" else name for name in measured]
        lines: list[list[object]] = [[*about, *named, "seconds", "peak_bytes"]]
        for run, record in self.scores:
            order, graph = self.units[run.case].order, run.graph
            peak = "" if run.peak_bytes is None else run.peak_bytes
            which = [run.case, order.fleet, order.architecture, run.method, run.seed]
            numbers = [*(record.get(name, "") for name in measured), run.seconds]
            digits = [f"{x:.6g}" if isinstance(x, float) else x for x in numbers]
            lines.append([*which, graph.n_layers, graph.n_edges, *digits, peak])
        return csv_text(lines)

    def markdown(self, runs: str | None = None) -> str:
        """The table with its title, what is in it, and how to make it again.

        `runs` is the name of a file with every run, in the same folder.
        """
        text = figures.to_markdown(self.rows(), title=f"## {self.title}")
        parts = [text + "\n" + self._about()]
        if (kinds := self.kinds()) is not None:
            parts.append(figures.kinds_text(kinds))
        if contrasts := self.contrasts():
            what, percent = self._contrast_words(), not self.has_truth
            parts.append(figures.contrasts_text(contrasts, what=what, percent=percent))
        parts += [
            f"AUROC of the same runs under `{other.config.labels}` labels:\n\n"
            + markdown_table(figures.HEADER[:6], [figures.cells(row)[:6] for row in other.rows()])
            for other in self.other_labels()
        ]
        parts += map(figures.breakdown_text, self.breakdowns())
        made = [f"Made with `{self.command}`."] if self.command else []
        made += [] if runs is None else [f"Every run is in [{runs}]({runs})."]
        parts += [" ".join(made)] if made else []
        failed = "".join(f"- failed: {failure}\n" for failure in self.failures)
        return "\n\n".join(parts) + "\n" + (f"\n{failed}" if failed else "")

    def _contrast_words(self) -> str:
        intervals = f"in brackets 95% intervals over {self._noun}s (paired bootstrap)"
        what = "Differences of mean AUROC" if self.has_truth else "By how much less the mean CMD is"
        return f"{what}, seeds averaged, {intervals}"

    def _about(self) -> str:
        config, one = self.config, self._noun
        seeds = ", ".join(map(str, config.seeds))
        if config.once and len(config.seeds) > 1:
            seeds += f" ({', '.join(config.once)}: {config.seeds[0]} alone)"
        counts = f"{len(config.cases)} {one}s, {config.n_pairs} pairs per {one}, seeds {seeds}"
        spread = (
            f"as minimum, quartiles and maximum over {one}s, seeds averaged within a {one}; after "
            "± the standard deviation over seeds"
        )
        areas = (
            "CMD is the area between 1 and the faithfulness of the best edges, CPR that under it, "
            "over log-spaced numbers of edges, on prompts that the method has not seen"
        )
        if self.has_truth:
            by_rule = ", ".join(self.worked_out)
            labels = f" (worked out, not published: {by_rule})" if by_rule else ""
            return (
                f"Labels `{config.labels}`{labels}, level `{config.level}`, {counts}. "
                f"AUROC {spread}. AUPRC, precision at the true size and seconds are medians over "
                f"{one}s, CPR and CMD means, memory is the largest. {areas}.{self._floors()}"
            )
        return (
            f"No circuit is known; {counts}. {areas}. The table has CMD, smaller is better, "
            f"{spread}; then its mean, the mean CPR, and on how many {one}s a method's CMD is the "
            f"smallest, ties shared. Seconds are medians over {one}s, memory is the largest."
            f"{self._floors()}"
        )

    def _floors(self) -> str:
        """Which rows are there to be beaten."""
        ran = {run.method for run in self.runs}
        names = [f"`{name}`" for name in ("random", *FLOORS) if name in ran]
        if not names:
            return ""
        return f" Floors, which look at nothing that the subject computes: {', '.join(names)}."

    # Files

    def write(self, out: str | Path) -> dict[str, Path]:
        """Write table.md, table.csv, table.tex and cases.csv; the paths by name."""
        out, rows = Path(out), self.rows()
        texts = {
            "table.md": self.markdown(),
            "table.csv": figures.to_csv(rows),
            "table.tex": figures.to_latex(rows, title=self.title),
            "cases.csv": self.case_csv(),
        }
        for name, text in texts.items():
            write_atomic(out / name, text.encode())
        return {name: out / name for name in texts}

    def write_page(self, path: Path) -> tuple[Path, Path]:
        """Write the Markdown to a file, and every run beside it; both paths."""
        runs = path.with_name(f"{path.stem}-cases.csv")
        write_atomic(path, self.markdown(runs.name).encode())
        write_atomic(runs, self.case_csv().encode())
        return path, runs

    def plot(self, path: str | Path | None = None) -> "Figure":
        """The box plot, written to a file if one is named: `.svg`, `.png` or `.pdf`.

        It needs matplotlib.
        """
        if path is not None:
            known_suffix(path)
        figure = figures.row_figure(self.rows(), title=self.title)
        if path is not None:
            save_figure(figure, path)
        return figure


def _averaged(by_case: ByCase) -> ByCase:
    """The mean over seeds in place of all of them."""
    return {case: {0: mean(by_seed.values())} for case, by_seed in by_case.items()}


def _difference(of: Sequence[Means]) -> Float[np.ndarray, " draw"]:
    return of[0].mean(1) - of[1].mean(1)


def less_by(of: Sequence[Means]) -> Float[np.ndarray, " draw"]:
    """By what part the mean of the first is below that of the second."""
    return 1 - of[0].mean(1) / of[1].mean(1)


def means(by_case: ByCase) -> tuple[float, ...]:
    """Over seeds, in the order of the subjects."""
    return tuple(mean(by_seed.values()) for by_seed in by_case.values())


def _group_means(by_case: ByCase, groups: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for case, value in zip(by_case, means(by_case), strict=True):
        found.setdefault(groups[case], []).append(value)
    return {name: mean(values) for name, values in found.items()}
