"""Choose PGExplainer's hyperparameters on the pool, by the split's grouped cross-validation.

1. `GRID` are 18 settings: three weights of size, three ways to sample, two learning rates.
2. `run` fits every setting on every case of the pool and keeps the AUROC with q, k and v apart.
   Each fit is one small file, written whole or not at all; if it is there, the fit is skipped.
   `--shard I/N` takes every N-th fit, the deepest cases dealt first, so that N processes, each with
   its own I, share the work.
3. `select` averages the AUROC over the cases of each fold and the folds by their number of groups,
   as the paper does, and prints the settings, the best first.

A fit sees no labels and nothing of other cases, so there is nothing to train on four folds: the
folds only decide how much each case counts. Only cases of the pool are accepted.

python -m benchmarks.pgexplainer_grid run --out DIR [--cases pool] [--pairs 64] [--shard 0/1]
python -m benchmarks.pgexplainer_grid select --out DIR [--cases pool] [--pairs 64] [--json]
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from graphcircuits import __version__
from graphcircuits.compare.bench import method_seed
from graphcircuits.compare.evaluate import auroc
from graphcircuits.compare.selection import select_cases
from graphcircuits.corpus import load_case
from graphcircuits.methods.pgexplainer import Fit, pgexplainer
from graphcircuits.store import content_hash, read_json, write_json

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


def run(todo: Sequence[Job], out: Path) -> Iterator[dict[str, Any]]:
    """Run the jobs whose file is missing, and yield what each found."""
    for job in todo:
        path = job.path(out)
        if not path.exists():
            record = job.run()
            write_json(path, record)
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


def select(all_jobs: Sequence[Job], out: Path) -> list[dict[str, Any]]:
    """The settings with their scores, the best first, of equal ones the first of the grid."""
    missing = [job for job in all_jobs if not job.path(out).exists()]
    if missing:
        first = missing[0]
        raise ValueError(
            f"{len(missing)} of {len(all_jobs)} fits are missing in {out}, first of all setting "
            f"{first.setting} on {first.case}; run the same command with run instead of select."
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
            "options": records[0]["options"],
        }
        for setting, records in sorted(by_setting.items())
    ]
    return sorted(rows, key=lambda row: -row["score"])


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
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        all_jobs = jobs(pool_cases(given.cases), given.pairs, given.seed, given.steps)
        if given.mode == "run":
            for found in run(shard_of(all_jobs, given.shard), given.out):
                line = (
                    f"setting {found['setting']:2} {found['auroc']:.3f} {found['seconds']:6.1f} s"
                )
                print(json.dumps(found) if given.json else f"{line} {found['case']}", flush=True)
            return 0
        rows = select(all_jobs, given.out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(rows, indent=1))
        return 0
    names = ("size", "entropy", "hot", "cold", "learning_rate")
    print("setting  score   mean  seconds  " + "  ".join(names))
    for row in rows:
        values = "  ".join(f"{row['options'][name]:>{len(name)}g}" for name in names)
        start = f"{row['setting']:7}  {row['score']:.3f}  {row['mean']:.3f}  {row['seconds']:7.1f}"
        print(f"{start}  {values}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
