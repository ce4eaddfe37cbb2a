"""Choose PGExplainer's hyperparameters on the pool, by the split's grouped cross-validation.

1. `GRID` are 18 settings: three weights of size, three ways to sample, two learning rates.
2. `run` fits every setting on every case of the pool and keeps the AUROC with q, k and v apart.
   Each fit is one small file, written whole or not at all; if it is there, the fit is skipped.
   `--processes` fits so many at a time, the largest graphs first, and after `--minutes` none is
   begun: the same command goes on. `--shard I/N` takes every N-th fit, for several machines.
3. `select` averages the AUROC over the cases of each fold and the folds by their number of groups,
   as the paper does, and prints the settings, the best first, of cases that have every fit. With
   `--write` the table goes into a page, between its lines `BEGIN` and `END`.

A fit sees no labels and nothing of other cases, so there is nothing to train on four folds: the
folds only decide how much each case counts. Only cases of the pool are accepted.

python -m lab.benchmarks.pgexplainer_grid run --out DIR [--processes 1] [--minutes M] [--cases pool]
python -m lab.benchmarks.pgexplainer_grid select --out DIR [--partial] [--write docs/pgexplainer.md]
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product, takewhile
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from graphcircuits import __version__
from graphcircuits.cases import load_case
from graphcircuits.compare.runs import method_seed
from graphcircuits.compare.selection import select_cases
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.io.files import write_atomic
from graphcircuits.io.store import content_hash, read_json, write_json
from graphcircuits.jobs.runner import runner_of
from graphcircuits.methods.pgexplainer import Fit, pgexplainer

SIZES = (0.003, 0.01, 0.03)
SAMPLING = ((0.0, 2.0, 0.5), (0.0, 5.0, 1.0), (0.01, 5.0, 1.0))
"""Weight of the entropy, first and last temperature."""
LEARNING_RATES = (0.002, 0.005)
GRID: tuple[Fit, ...] = tuple(
    Fit(size=size, entropy=entropy, hot=hot, cold=cold, learning_rate=learning_rate)
    for size, (entropy, hot, cold), learning_rate in product(SIZES, SAMPLING, LEARNING_RATES)
)


@dataclass(frozen=True)
class Job:
    """One setting on one case."""

    setting: int
    """Its number in GRID."""
    options: Fit
    case: str
    pairs: int
    seed: int

    def path(self, out: Path) -> Path:
        """Named after all that the result depends on, but for the subject's weights."""
        key = content_hash(__version__, self.case, asdict(self.options), self.pairs, self.seed)
        return out / f"setting-{self.setting:02d}" / f"{self.case}-{key[:12]}.json"

    def run(self) -> dict[str, Any]:
        case = load_case(self.case)
        subject, pairs = case.subject(), case.pairs(self.pairs, seed=self.seed)
        generator = torch.Generator().manual_seed(method_seed(self.case, self.seed))
        start = time.perf_counter()
        scores = pgexplainer(subject, pairs, generator=generator, **asdict(self.options))
        return {
            "case": self.case,
            "fold": case.fold,
            "group": case.group,
            "layers": case.graph.n_layers,
            "setting": self.setting,
            "options": asdict(self.options),
            "pairs": self.pairs,
            "seed": self.seed,
            "auroc": auroc(scores, case.circuit, "qkv"),
            "seconds": time.perf_counter() - start,
        }


def pool_cases(selection: str) -> list[str]:
    """Ids of the pool with a shipped subject; ids of other splits are refused."""
    ids, _ = select_cases(selection)
    outside = [id for id in ids if load_case(id).split != "pool"]
    if outside:
        raise ValueError(f"settings are chosen on the pool alone; not in it: {', '.join(outside)}.")
    return ids


def jobs(cases: Sequence[str], pairs: int, seed: int, steps: int | None = None) -> list[Job]:
    """Every setting on every case, the largest graphs first."""
    by_size = sorted(cases, key=lambda id: -load_case(id).graph.n_edges)
    grid = GRID if steps is None else [replace(options, steps=steps) for options in GRID]
    return [Job(n, options, id, pairs, seed) for id in by_size for n, options in enumerate(grid)]


def shard_of(all_jobs: Sequence[Job], shard: str) -> Sequence[Job]:
    """The jobs of shard `I/N`, I from 0."""
    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise ValueError(f"shard must be I/N with I from 0 to N - 1, got {shard!r}.")
    return all_jobs[int(part) :: int(parts)]


def run(
    todo: Sequence[Job], out: Path, *, processes: int = 1, minutes: float | None = None
) -> Iterator[dict[str, Any]]:
    """Run the jobs whose file is missing, and yield what each found; none begins after so long."""
    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    missing = (job for job in todo if not job.path(out).exists())
    in_time = takewhile(lambda _: time.monotonic() < until, missing)
    yield from runner_of(processes).run(partial(_kept, out=out), in_time)


def _kept(job: Job, out: Path) -> Iterator[dict[str, Any]]:
    """Run a job and write its file."""
    record = job.run()
    write_json(job.path(out), record)
    yield record


def selection_score(records: Sequence[Mapping[str, Any]]) -> float:
    """The mean AUROC of each fold, weighted by the number of groups that the fold holds."""
    scores: dict[int, list[float]] = {}
    groups: dict[int, set[str]] = {}
    for record in records:
        scores.setdefault(record["fold"], []).append(record["auroc"])
        groups.setdefault(record["fold"], set()).add(record["group"])
    total = sum(len(names) for names in groups.values())
    return sum(len(groups[fold]) * mean(values) for fold, values in scores.items()) / total


def select(all_jobs: Sequence[Job], out: Path, *, partial: bool = False) -> list[dict[str, Any]]:
    """The settings with their scores, the best first, of equal ones the first of the grid.

    `partial` leaves cases out of which a fit is missing, where otherwise that is an error.
    """
    missing = [job for job in all_jobs if not job.path(out).exists()]
    if partial:
        unfinished = {job.case for job in missing}
        all_jobs = [job for job in all_jobs if job.case not in unfinished]
    if missing and not (partial and all_jobs):
        first = missing[0]
        raise ValueError(
            f"{len(missing)} of {len(all_jobs)} fits are missing in {out}, first of all setting "
            f"{first.setting} on {first.case}; run the same command with run instead of select, "
            "or add --partial for the cases that are complete."
        )
    by_setting: dict[int, list[dict[str, Any]]] = {}
    for job in all_jobs:
        by_setting.setdefault(job.setting, []).append(read_json(job.path(out)))
    rows = [
        {
            "setting": setting,
            "score": selection_score(records),
            "mean": mean(record["auroc"] for record in records),
            "seconds": mean(record["seconds"] for record in records),
            "cases": len(records),
            "options": records[0]["options"],
        }
        for setting, records in sorted(by_setting.items())
    ]
    return sorted(rows, key=lambda row: -row["score"])


# --- the page ------------------------------------------------------------------------------------

BEGIN = "<!-- pgexplainer_grid: begin -->"
END = "<!-- pgexplainer_grid: end -->"
VARIED = ("size", "entropy", "hot", "cold", "learning_rate")


def page_text(rows: Sequence[Mapping[str, Any]], pool: int, command: str) -> str:
    """The selection in Markdown: of how many cases, where the default stands, and the table."""
    default = {name: getattr(Fit(), name) for name in VARIED}
    places = [{name: row["options"][name] for name in VARIED} for row in rows]
    place = places.index(default)
    names = [name.replace("_", " ") for name in VARIED]
    lines = [
        f"{len(rows)} settings on {rows[0]['cases']} of {pool} cases of the pool. The default of "
        f"the method is setting {rows[place]['setting']}, number {place + 1} by its score.",
        "",
        f"| Setting | Score | Mean | Seconds | {' | '.join(map(str.capitalize, names))} |",
        "| ---: " * (4 + len(names)) + "|",
    ]
    for row in rows:
        cells = [f"{row['score']:.3f}", f"{row['mean']:.3f}", f"{row['seconds']:.1f}"]
        cells += [f"{row['options'][name]:g}" for name in VARIED]
        lines.append(f"| {row['setting']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Made with `{command}`."])


def with_selection(page: str, text: str) -> str:
    """A page with a text between its two lines."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page needs a line {BEGIN} and, after it, a line {END}.")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("run", "select"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the fits")
    parser.add_argument("--cases", default="pool", help="pool, or ids with commas between")
    parser.add_argument("--pairs", type=int, default=64, help="prompt pairs of a case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="other than the method's own, for a quick trial")
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th fit, from the I-th on")
    parser.add_argument("--processes", type=int, default=1, help="fits at a time")
    parser.add_argument("--minutes", type=float, help="begin no fit after so long")
    parser.add_argument("--partial", action="store_true", help="select among complete cases only")
    parser.add_argument("--write", type=Path, help="page to put the selection into")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        cases = pool_cases(given.cases)
        all_jobs = jobs(cases, given.pairs, given.seed, given.steps)
        if given.mode == "run":
            todo = shard_of(all_jobs, given.shard)
            _show_run(todo, given)
            there = sum(job.path(given.out).exists() for job in todo)
            print(f"{there} of {len(todo)} fits are in {given.out}", file=sys.stderr)
            return 0 if there == len(todo) else 1
        rows = select(all_jobs, given.out, partial=given.partial)
        if given.write is not None:
            command = shlex.join(["python", "-m", "lab.benchmarks.pgexplainer_grid", *sys.argv[1:]])
            page = given.write.read_text("utf-8")
            text = with_selection(page, page_text(rows, len(cases), command))
            write_atomic(given.write, text.encode())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    _show_selection(rows, given.json)
    return 0


def _show_run(todo: Sequence[Job], given: argparse.Namespace) -> None:
    for found in run(todo, given.out, processes=given.processes, minutes=given.minutes):
        line = f"setting {found['setting']:2} {found['auroc']:.3f} {found['seconds']:6.1f} s"
        print(json.dumps(found) if given.json else f"{line} {found['case']}", flush=True)


def _show_selection(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print("setting  score   mean  seconds  " + "  ".join(VARIED))
    for row in rows:
        values = "  ".join(f"{row['options'][name]:>{len(name)}g}" for name in VARIED)
        start = f"{row['setting']:7}  {row['score']:.3f}  {row['mean']:.3f}  {row['seconds']:7.1f}"
        print(f"{start}  {values}")


if __name__ == "__main__":
    raise SystemExit(main())
