"""Every method on every case: run what is missing, keep it, and compare.

1. `select_cases` turns a word (test, pool, deep, all) or ids into cases.
2. `run` goes through cases, seeds and methods. A seed draws the prompts of a case and, mixed with
   the case, seeds the method. Each result is a JSON file of its own, written whole or not at all
   and named after the content of subject, prompts, options, seed and the method's code, so a run
   that was stopped goes on where it was; a file that is damaged, or that says of itself that it is
   another run's, is made again. It holds the scores: other labels or another level need no new run.
3. `Report.rows` summarizes AUROC as the paper does; `Report.write` writes the tables and the plot.

A result that fails is reported and tried again by the next run; the others are kept. A store that
cannot be read or written ends the bench, since all that follows would be lost as well.
"""

import json
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits import __version__
from graphcircuits.circuit import Circuit
from graphcircuits.compare import figures
from graphcircuits.compare.evaluate import LEVELS, auprc, auroc, precision_recall, summarize
from graphcircuits.compare.measure import measure
from graphcircuits.compare.sources import source_hash
from graphcircuits.corpus import case_ids, load_case
from graphcircuits.corpus.case import LABELINGS
from graphcircuits.corpus.recognize import shipped_ids
from graphcircuits.methods import METHODS, find_method, localize, options_of, settle
from graphcircuits.store import StoreError, content_hash, load_artifact, save_artifact, write_atomic
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

SELECTIONS = ("test", "pool", "deep", "all")
DEEP = 4
"""Layers from which on a case is deep."""
KIND = "bench-run"


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to run and how to read it."""

    cases: tuple[str, ...]
    methods: tuple[str, ...] = tuple(METHODS)
    seeds: tuple[int, ...] = (0,)
    n_pairs: int = 64
    """Prompt pairs of a case."""
    labels: str = "interpbench"
    level: str = "head"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of a method, by its name, that differ from their defaults."""
    device: str = "cpu"
    dtype: str = "float32"
    """That subjects compute in."""

    def __post_init__(self) -> None:
        problems = []
        for name in ("cases", "methods", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                problems.append(f"{name} must be distinct, at least one, got {list(values)}")
        if self.n_pairs < 1:
            problems.append(f"n_pairs must be at least 1, got {self.n_pairs}")
        for name, value, known in (
            ("labels", self.labels, LABELINGS),
            ("level", self.level, LEVELS),
        ):
            if value not in known:
                problems.append(f"{name} must be one of {', '.join(known)}, got {value!r}")
        idle = sorted(self.options.keys() - set(self.methods))
        if idle:
            problems.append(f"options are given for methods that do not run: {', '.join(idle)}")
        if problems:
            raise ValueError("; ".join(problems) + ".")
        for method in self.methods:
            options = options_of(find_method(method))
            unknown = sorted(self.options.get(method, {}).keys() - options.keys())
            if unknown:
                known = ", ".join(options) or "none"
                raise ValueError(f"{method} has no option {', '.join(unknown)}; it has: {known}.")

    @property
    def n_runs(self) -> int:
        return len(self.cases) * len(self.methods) * len(self.seeds)


def select_cases(selection: str) -> tuple[list[str], list[str]]:
    """Ids to run, and ids left out because no subject of theirs is shipped.

    `test` is held out. `pool` is for training. `deep` is every case outside the test split whose
    subject has four layers or more, discarded ones included. `all` is all.
    Anything else is read as ids with commas between; none of those is left out.
    """
    if selection not in SELECTIONS:
        ids = [id.strip() for id in selection.split(",") if id.strip()]
        if not ids:
            raise ValueError(f"cases must be one of {', '.join(SELECTIONS)}, or ids; got none.")
        return [load_case(id).id for id in ids], []
    if selection == "deep":
        cases = [load_case(id) for id in case_ids()]
        ids = [c.id for c in cases if c.split != "test" and c.graph.n_layers >= DEEP]
    else:
        ids = case_ids(split=None if selection == "all" else selection)
    shipped = set(shipped_ids())
    return [id for id in ids if id in shipped], [id for id in ids if id not in shipped]


# Running


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """One method on one case under one seed."""

    case: str
    method: str
    seed: int
    scores: Float[Tensor, " edge"]
    seconds: float
    peak_bytes: int | None
    reused: bool
    """Whether it was found in the store."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that ended in an error; without a method it is the case itself that failed."""

    case: str
    method: str | None = None
    seed: int | None = None
    error: str

    def __str__(self) -> str:
        where = f"{self.case}, {self.method}, seed {self.seed}" if self.method else self.case
        return f"{where}: {self.error}"


class StoreUnusable(OSError):
    """The files of a bench cannot be read or written, so that it has to end."""


def run(
    config: BenchConfig,
    out: str | Path,
    *,
    fresh: bool = False,
    step: Callable[[int, int], None] | None = None,
) -> Iterator[BenchRun | Failure]:
    """Yield the runs, case by case, computing those that are not in the store `out`.

    `fresh` computes all of them, whatever the store holds, and writes them over what is there.
    `step` hears how far the current method is: steps done, steps in all.
    """
    for id in config.cases:
        try:
            case = load_case(id)
            subject, _ = case.subject().to(getattr(torch, config.dtype)), _truth(id, config)
            subject = subject.to(config.device)
            prompts = [case.pairs(config.n_pairs, seed=seed) for seed in config.seeds]
        except Exception as error:  # noqa: BLE001  one case must not cost the others
            yield Failure(case=id, error=_told(error))
            continue
        for seed, pairs in zip(config.seeds, prompts, strict=True):
            for method in config.methods:
                try:
                    yield _run_one(config, Path(out), id, method, seed, subject, pairs, fresh, step)
                except StoreUnusable:
                    raise
                except Exception as error:  # noqa: BLE001  nor one method the others
                    yield Failure(case=id, method=method, seed=seed, error=_told(error))


def _truth(id: str, config: BenchConfig) -> Circuit:
    """The labels of a case, which must leave something to tell apart."""
    circuit = load_case(id).labels(config.labels)
    auroc(torch.zeros(circuit.graph.n_edges), circuit, config.level)
    return circuit


def _told(error: Exception) -> str:
    """The error as one line, with the place it came from if it is not a refusal of ours."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ValueError | OSError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"


def _run_one(
    config: BenchConfig,
    out: Path,
    case: str,
    method: str,
    seed: int,
    subject: Transformer,
    pairs: Pairs,
    fresh: bool,
    step: Callable[[int, int], None] | None,
) -> BenchRun:
    chosen = find_method(method)
    options = settle(chosen, subject, pairs, config.options.get(method, {}), name=method)
    made_by = [source_hash(chosen.run), *chosen.files(options)]
    place = subject.device.type  # what a GPU computes, and how fast, is another result
    key = content_hash(__version__, case, subject, pairs, method, options, seed, place, *made_by)
    path = run_path(out, case, method, seed, key)
    about = {"case": case, "method": method, "options": options, "pairs": len(pairs), "key": key}
    stored = None if fresh else _stored(path, about, seed, subject.graph.n_edges)
    reused = stored is not None
    if stored is None:
        own_seed = method_seed(case, seed)
        measured = measure(
            lambda: localize(subject, pairs, method, seed=own_seed, progress=step, **options),
            subject.device,
        )
        stored = {
            "scores": measured.value.scores.tolist(),
            "seconds": measured.seconds,
            "peak_bytes": measured.peak_bytes,
        }
        try:
            save_artifact(path, kind=KIND, config=about, seed=seed, meta=stored)
        except OSError as error:
            raise StoreUnusable(
                f"{path} cannot be written ({error.strerror or error}); the bench ends here and "
                "keeps what is finished: make room or name another --out, and run it again."
            ) from error
    scores = torch.tensor(stored["scores"], dtype=torch.float64)
    rest = {name: stored[name] for name in ("seconds", "peak_bytes")}
    return BenchRun(case=case, method=method, seed=seed, scores=scores, reused=reused, **rest)


def method_seed(case: str, seed: int) -> int:
    """The method's own seed. Cases must differ in it: graphs of one size would share their luck."""
    return int(content_hash(case, seed)[:12], 16)


def run_path(out: Path, case: str, method: str, seed: int, key: str) -> Path:
    """Where a run is kept."""
    return out / "runs" / method / f"{case}-seed{seed}-{key[:12]}.json"


def _stored(path: Path, about: Mapping[str, Any], seed: int, n_edges: int) -> dict[str, Any] | None:
    """What a run left; None where it must be made: absent, damaged, or that of another run."""
    try:
        found = load_artifact(path, KIND)
    except (FileNotFoundError, StoreError, RecursionError):
        return None
    except OSError as error:
        raise StoreUnusable(
            f"{path} cannot be read ({error.strerror or error}); the bench ends here: make it "
            "readable, remove it, or name another --out."
        ) from error
    # What was written is JSON, in which a tuple is a list.
    same = found.config == json.loads(json.dumps(about)) and found.seed == seed
    return dict(found.meta) if same and _is_whole(found.meta, n_edges) else None


def _is_whole(meta: Mapping[str, Any], n_edges: int) -> bool:
    """Whether there is a number for each edge, a time, and memory where it is known."""
    if meta.keys() != {"scores", "seconds", "peak_bytes"}:
        return False
    scores, rest = meta["scores"], (meta["seconds"], meta["peak_bytes"])
    if not isinstance(scores, list) or len(scores) != n_edges:
        return False
    numbers = [*scores, *(value for value in rest if value is not None)]
    return rest[0] is not None and all(
        type(value) in (int, float) and math.isfinite(value) for value in numbers
    )


# Reading


@dataclass(frozen=True, kw_only=True)
class Report:
    """The runs of a bench, compared with the labels."""

    config: BenchConfig
    title: str
    runs: tuple[BenchRun, ...]
    failures: tuple[Failure, ...] = ()
    command: str = ""
    """What makes it again."""

    def rows(self) -> list[figures.Row]:
        """One row per method, the best median first; methods without any run have none."""
        rows = []
        for method in self.config.methods:
            runs = [(run, found) for run, found in self.scores if run.method == method]
            if not runs:
                continue
            by_case = {
                name: _by_case([(run, found[name]) for run, found in runs])
                for name in ("auroc", "auprc", "precision")
            }
            peaks = [run.peak_bytes for run, _ in runs if run.peak_bytes is not None]
            rows.append(
                figures.Row(
                    method=method,
                    summary=summarize(by_case["auroc"]),
                    case_means=_means(by_case["auroc"]),
                    auprc=median(_means(by_case["auprc"])),
                    precision=median(_means(by_case["precision"])),
                    seconds=median(_means(_by_case([(run, run.seconds) for run, _ in runs]))),
                    peak_bytes=max(peaks, default=None),
                )
            )
        return sorted(rows, key=lambda row: row.summary.quantiles[2], reverse=True)

    def published(self) -> tuple[figures.Published, ...]:
        """The paper's figures, where they are about the same cases at the same level."""
        same = set(self.config.cases) == set(case_ids(split="test")) and self.config.level == "head"
        return figures.PUBLISHED if same else ()

    @cached_property
    def scores(self) -> list[tuple[BenchRun, dict[str, float]]]:
        """Every run with its AUROC, AUPRC and precision at the true size."""
        level = self.config.level
        truths = {id: _truth(id, self.config) for id in {run.case for run in self.runs}}
        found = []
        for run in self.runs:
            given = (run.scores, truths[run.case], level)
            precision, _ = precision_recall(*given)
            record = {"auroc": auroc(*given), "auprc": auprc(*given), "precision": precision}
            found.append((run, record))
        return found

    def case_csv(self) -> str:
        """One line per run, in the order of the runs."""
        names = ["auroc", "auprc", "precision_at_size", "seconds", "peak_bytes"]
        lines: list[list[object]] = [["case", "method", "seed", "layers", "edges", *names]]
        for run, found in self.scores:
            graph = load_case(run.case).graph
            peak = "" if run.peak_bytes is None else run.peak_bytes
            sizes = [graph.n_layers, graph.n_edges]
            lines.append(
                [run.case, run.method, run.seed, *sizes, *found.values(), run.seconds, peak]
            )
        return figures.csv_text(lines)

    def markdown(self) -> str:
        """The table with its title, what is in it, and how to make it again."""
        config = self.config
        text = figures.to_markdown(self.rows(), self.published(), title=f"## {self.title}")
        about = (
            f"Labels `{config.labels}`, level `{config.level}`, {len(config.cases)} cases, "
            f"{config.n_pairs} pairs per case, seeds {', '.join(map(str, config.seeds))}. AUROC as "
            "minimum, quartiles and maximum over cases, seeds averaged within a case; after ± the "
            "standard deviation over seeds. AUPRC, precision at the true size and seconds are "
            "medians over cases, memory is the largest."
        )
        if self.command:
            about += f"\n\nMade with `{self.command}`."
        failed = "".join(f"- failed: {failure}\n" for failure in self.failures)
        return f"{text}\n{about}\n" + (f"\n{failed}" if failed else "")

    def write(self, out: str | Path) -> dict[str, Path]:
        """Write table.md, table.csv, table.tex and cases.csv; the paths by name."""
        out, rows = Path(out), self.rows()
        texts = {
            "table.md": self.markdown(),
            "table.csv": figures.to_csv(rows, self.published()),
            "table.tex": figures.to_latex(rows, self.published(), title=self.title),
            "cases.csv": self.case_csv(),
        }
        for name, text in texts.items():
            write_atomic(out / name, text.encode())
        return {name: out / name for name in texts}

    def plot(self, path: str | Path) -> None:
        """The box plot; needs matplotlib."""
        figures.box_plot(path, self.rows(), self.published(), title=self.title)


def _by_case(values: Sequence[tuple[BenchRun, float]]) -> dict[str, dict[int, float]]:
    by_case: dict[str, dict[int, float]] = {}
    for run, value in values:
        by_case.setdefault(run.case, {})[run.seed] = value
    return by_case


def _means(by_case: Mapping[str, Mapping[int, float]]) -> tuple[float, ...]:
    return tuple(mean(by_seed.values()) for by_seed in by_case.values())
