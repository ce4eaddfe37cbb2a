"""What the runs of a bench come to: rows, tables, text and a plot.

Where a circuit is known, every run is compared with the labels, and AUROC is summarized as the
paper does; where none is, `log_area` is in the same way.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import TYPE_CHECKING, Any

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.case import LABELINGS
from graphcircuits.cases.orders import Order
from graphcircuits.compare import figures
from graphcircuits.compare.runs import BenchRun, Failure
from graphcircuits.compare.selection import BenchConfig, Unit
from graphcircuits.drawing.curves import KEEP
from graphcircuits.drawing.library import save_figure
from graphcircuits.evaluation.auroc import auprc, auroc, precision_at_size
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.files import csv_text, write_atomic
from graphcircuits.methods import FLOORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ByCase = Mapping[str, Mapping[int, float]]
"""Values by subject and seed."""
GROUPINGS: Mapping[str, Callable[[Unit, BenchRun], str]] = {
    "architecture": lambda unit, run: unit.order.architecture,
    "tasks in a model": lambda unit, run: str(unit.n_tasks),
    "heads of its tasks": lambda unit, run: unit.heads if unit.has_truth else "all",
    "layers": lambda unit, run: "all" if unit.has_truth else str(run.graph.n_layers),
}
"""The group of a subject. Whether heads are shared is known where a circuit is; by layers the
others are divided, since `--cases deep-pool` and `deep-test` do so where it is."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The runs of a bench, compared with the labels and with each other."""

    config: BenchConfig
    runs: tuple[BenchRun, ...]
    failures: tuple[Failure, ...] = ()
    command: str = ""
    """What makes it again."""

    @classmethod
    def of(
        cls, config: BenchConfig, outcomes: Iterable[BenchRun | Failure], *, command: str = ""
    ) -> "Report":
        """The report of finished runs, in the order of the config."""

        def rank(one: BenchRun | Failure) -> tuple[int, int, int]:
            return (
                config.cases.index(one.case),
                -1 if one.seed is None else config.seeds.index(one.seed),
                -1 if one.method is None else config.methods.index(one.method),
            )

        ordered = sorted(outcomes, key=rank)
        return cls(
            config=config,
            runs=tuple(one for one in ordered if isinstance(one, BenchRun)),
            failures=tuple(one for one in ordered if isinstance(one, Failure)),
            command=command,
        )

    @property
    def title(self) -> str:
        return self.config.title

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
        """Every run with its seconds and the figures of its curve and certificate, and before them
        what is compared with a known circuit.

        `needed` are the best edges that keep KEEP; all edges keep everything.
        """
        graphs = {run.case: run.graph for run in self.runs if self.has_truth}
        truths = {id: self.config.truth(self.units[id], graph) for id, graph in graphs.items()}
        scores = []
        for run in self.runs:
            record: dict[str, float] = {}
            if self.has_truth:
                compared = (run.scores, truths[run.case], self.config.level)
                record = {
                    "auroc": auroc(*compared),
                    "auprc": auprc(*compared),
                    "precision": precision_at_size(*compared),
                }
            curve = run.curve
            needed = float(curve.edges_for(KEEP) or curve.n_edges)
            record |= {"needed": needed, "seconds": run.seconds, "log_area": curve.log_area}
            scores.append((run, record | {"cpr": curve.cpr, "cmd": curve.cmd, **run.certified}))
        return scores

    def by_case(self, name: str, method: str) -> ByCase:
        """A figure of a method's runs by subject and seed."""
        values: dict[str, dict[int, float]] = {}
        for run, record in self.scores:
            if run.method == method and name in record:
                values.setdefault(run.case, {})[run.seed] = record[name]
        return values

    # Tables

    def rows(self) -> list[figures.Row]:
        """One row per method, the best first; methods without any run have none.

        The best has the highest median AUROC, of equal ones the highest mean, or where no circuit
        is known the lowest mean `log_area`.
        """
        wins = self.wins()
        rows = []
        for method in self.config.methods:
            runs = [run for run in self.runs if run.method == method]
            if not runs:
                continue
            peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
            main = self.by_case("auroc" if self.has_truth else "log_area", method)
            needed = self.by_case("needed", method).values()
            rows.append(
                figures.Row(
                    method=method,
                    summary=figures.summarize(main),
                    case_means=means(main),
                    auprc=self._median("auprc", method),
                    precision=self._median("precision", method),
                    needed=geometric_mean([geometric_mean(x.values()) for x in needed]),
                    log_area=mean(means(self.by_case("log_area", method))),
                    cpr=mean(means(self.by_case("cpr", method))),
                    cmd=mean(means(self.by_case("cmd", method))),
                    wins=wins[method],
                    seconds=median(means(self.by_case("seconds", method))),
                    peak_bytes=max(peaks, default=None),
                )
            )
        if not self.has_truth:
            return sorted(rows, key=lambda row: row.log_area)
        good = {row.method: (row.summary.quantiles[2], mean(row.case_means)) for row in rows}
        return sorted(rows, key=lambda row: good[row.method], reverse=True)

    def _median(self, name: str, method: str) -> float | None:
        return median(means(self.by_case(name, method))) if self.has_truth else None

    def wins(self) -> dict[str, float]:
        """On how many subjects a method's `log_area` is the smallest; ties share a subject."""
        areas = {method: self.by_case("log_area", method) for method in self.config.methods}
        wins = dict.fromkeys(areas, 0.0)
        for case in self.units:
            found = {x: mean(each[case].values()) for x, each in areas.items() if case in each}
            first = [method for method, area in found.items() if area == min(found.values())]
            for method in first:
                wins[method] += 1 / len(first)
        return wins

    def certified(self) -> dict[str, dict[str, Any]]:
        """By method, how many circuits have certificates, and the means of these."""
        found = {}
        for row in self.rows():
            values = {name: self.by_case(name, row.method) for name in figures.CERTIFIED}
            if circuits := sum(map(len, values["passes"].values())):
                told = {name: mean(means(value)) for name, value in values.items() if value}
                found[row.method] = {"circuits": circuits, **told}
        return found

    def problems(self) -> list[str]:
        """What failed, and of how many runs a circuit has no certificate, and why."""
        counts = Counter((run.method, run.certified.get("left_out")) for run in self.runs).items()
        left_out = [f"no certificate: {name}, {n}x: {why}" for (name, why), n in counts if why]
        return [*(f"failed: {failure}" for failure in self.failures), *left_out]

    def breakdowns(self) -> list[figures.Breakdown]:
        """Means over the subjects of each group, where there is more than one group."""
        order = [row.method for row in self.rows()]
        breakdowns = []
        for grouping, group_of in GROUPINGS.items():
            groups = {run.case: group_of(self.units[run.case], run) for run in self.runs}
            names = sorted(set(groups.values()))
            if len(names) < 2:
                continue
            for measure in ("auroc", "log_area") if self.has_truth else ("log_area",):
                breakdowns.append(
                    figures.Breakdown(
                        title=f"Mean {figures.NAMES[measure]} by {grouping}",
                        sizes={name: list(groups.values()).count(name) for name in names},
                        means={
                            method: _group_means(self.by_case(measure, method), groups)
                            for method in order
                        },
                    )
                )
        return breakdowns

    def other_labels(self) -> list["Report"]:
        """The same runs by all other labels, on the test cases at head level: the paper's figures
        are about those, and go by labels that are not the complete ones."""
        cases = {Order.parse(id).case for id in self.config.cases}
        same = cases == set(case_ids(split="test")) and self.config.level == "head"
        others = LABELINGS if same and self.has_truth else ()
        configs = [replace(self.config, labels=x) for x in others if x != self.config.labels]
        return [replace(self, config=config) for config in configs]

    def case_csv(self) -> str:
        """One line per run, in the order of the runs; numbers have four digits."""
        about = ["case", "fleet", "architecture", "method", "seed", "layers", "edges"]
        measured = ["auroc", "auprc", "precision", "needed", "log_area", "cpr", "cmd"]
        measured += figures.CERTIFIED if self.config.certify else ()
        named = [figures.COLUMNS.get(name, name) for name in measured]
        lines: list[list[object]] = [[*about, *named, "by", "seconds", "peak_bytes"]]
        for run, record in self.scores:
            order, graph = self.units[run.case].order, run.graph
            which = [run.case, order.fleet, order.architecture, run.method, run.seed]
            numbers = [*(record.get(name, "") for name in measured), run.curve.by, run.seconds]
            digits = [f"{x:.4g}" if isinstance(x, float) else x for x in numbers]
            lines.append([*which, graph.n_layers, graph.n_edges, *digits, run.peak_bytes])
        return csv_text(lines)

    def markdown(self, runs: str | None = None) -> str:
        """The table with its title, what is in it, and how to make it again.

        `runs` is the name of a file with every run, in the same folder.
        """
        rows = self.rows()
        table = markdown_table(figures.header(rows), [figures.cells(row) for row in rows])
        blocks = [f"## {self.title}", table, self._about()]
        blocks += [
            f"AUROC of the same runs under `{other.config.labels}` labels:\n\n"
            + markdown_table(figures.HEADER[:6], [figures.cells(row)[:6] for row in other.rows()])
            for other in self.other_labels()
        ]
        if self.config.certify:
            judged = figures.certified_rows(self.certified())
            table = markdown_table(figures.CERTIFIED_HEADER, judged)
            blocks.append(f"{figures.ABOUT_CERTIFIED}:\n\n{table}")
        blocks += map(figures.breakdown_text, self.breakdowns())
        made = [f"Made with `{self.command}`."] if self.command else []
        made += [] if runs is None else [f"Every run is in [{runs}]({runs})."]
        blocks += [" ".join(made)] if made else []
        failed = "".join(f"- {problem}\n" for problem in self.problems())
        return "\n\n".join(blocks) + "\n" + (f"\n{failed}" if failed else "")

    def _about(self) -> str:
        config = self.config
        one = "case" if config.fleet in ("planted", "language") else "subject"
        seeds = ", ".join(map(str, config.seeds))
        if config.once and len(config.seeds) > 1:
            seeds += f" ({', '.join(config.once)}: {config.seeds[0]} alone)"
        counts = f"{len(config.cases)} {one}s, {config.n_pairs} pairs per {one}, seeds {seeds}"
        spread = (
            f"as minimum, quartiles and maximum over {one}s, seeds averaged within a {one}; after "
            "± the standard deviation over seeds"
        )
        areas = (
            f"Faithfulness of the best edges is by {config.by}, on prompts that the method has not "
            f"seen. Edges {KEEP:g} is how many of them keep {KEEP:g} for good, log area the mean "
            "of 1 - faithfulness over log sizes; over the share of edges, CMD is the area between "
            "faithfulness and 1, CPR that under it"
        )
        if self.has_truth:
            by_rule = ", ".join(self.worked_out)
            labels = f" (worked out, not published: {by_rule})" if by_rule else ""
            return (
                f"Labels `{config.labels}`{labels}, level `{config.level}`, {counts}. "
                f"AUROC {spread}. AUPRC, precision at the true size and seconds are medians over "
                f"{one}s, CPR and CMD means, Edges {KEEP:g} geometric means, memory is the "
                f"largest. {areas}.{self._floors()}"
            )
        return (
            f"No circuit is known; {counts}. {areas}. The table has log area, smaller is better, "
            f"{spread}; then its mean, the geometric mean of Edges {KEEP:g}, mean CPR and CMD, and "
            f"on how many {one}s a method's log area is the smallest, ties shared. Seconds are "
            f"medians over {one}s, memory is the largest."
            f"{self._floors()}"
        )

    def _floors(self) -> str:
        """Which rows are there to be beaten."""
        ran = {run.method for run in self.runs}
        names = ", ".join(f"`{name}`" for name in ("random", *FLOORS) if name in ran)
        return (
            f" Floors, which look at nothing that the subject computes: {names}." if names else ""
        )

    def record(self) -> dict[str, Any]:
        """The figures as JSON values."""
        config, labelled = self.config, self.has_truth
        return {
            "title": self.title,
            "fleet": config.fleet,
            "labels": config.labels if labelled else None,
            "worked_out": self.worked_out,
            "level": config.level if labelled else None,
            "by": config.by,
            "cases": list(config.cases),
            "methods": [asdict(row) for row in self.rows()],
            "breakdowns": [asdict(breakdown) for breakdown in self.breakdowns()],
            "other_labels": {
                other.config.labels: [asdict(row) for row in other.rows()]
                for other in self.other_labels()
            },
            "failures": [asdict(failure) for failure in self.failures],
            **({"certificates": self.certified()} if config.certify else {}),
        }

    # Files

    def write(self, out: str | Path) -> dict[str, Path]:
        """Write table.md, table.csv and cases.csv; the paths by name."""
        out, rows = Path(out), self.rows()
        texts = {
            "table.md": self.markdown(),
            "table.csv": figures.to_csv(rows, self.certified()),
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
        figure = figures.row_figure(self.rows(), title=self.title)
        if path is not None:
            save_figure(figure, path)
        return figure


def means(by_case: ByCase) -> tuple[float, ...]:
    """Over seeds, in the order of the subjects."""
    return tuple(mean(by_seed.values()) for by_seed in by_case.values())


def _group_means(by_case: ByCase, groups: Mapping[str, str]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for case, value in zip(by_case, means(by_case), strict=True):
        values.setdefault(groups[case], []).append(value)
    return {name: mean(some) for name, some in values.items()}
