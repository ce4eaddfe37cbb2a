"""Do two checkouts give the same scores, bit for bit, and as fast?

python lab/benchmarks/identical.py write scores.safetensors [--cases 40] [--methods eap,gcl]
python lab/benchmarks/identical.py compare before.safetensors after.safetensors

Only public names are called, so that `write` runs in any checkout (PYTHONPATH says which one):
every method of `METHODS` scores every subject of the list in double precision, iterative ones with
few steps. Seconds are written beside the scores. `compare` names each score vector that differs,
with its largest difference relative to its largest score, and how long each method took in both.
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import graphcircuits as gc

GATES = ("edge-pruning", "mattr", "pgexplainer", "sp-edge", "sp-node", "ugs")
STEPS = dict.fromkeys(GATES, 12)
"""Methods that take hundreds of steps, and how many are enough to see a difference."""
NATURAL = ("plain", "gpt2", "llama", "llama-gqa", "neox", "relu", "rms", "rotary")
N_PAIRS = 12


def cases() -> Iterator[tuple[str, str, str | None]]:
    """Case, fleet and architecture of every subject: natural ones first, then several tasks."""
    test = gc.case_ids(split="test")
    data = Path(gc.__file__).parent / "data"
    natural = sorted(path.name.split(".") for path in data.glob("fleets/natural/*.safetensors"))
    planted = {path.stem for path in data.glob("subjects/*.safetensors")}
    for architecture in NATURAL:
        yield next(
            (id, "natural", architecture) for id, _, name, *_ in natural if name == architecture
        )
    for model in gc.multi_ids(split="test")[:4]:
        yield gc.load_multi(model).tasks[0].id, "planted", None
    pool = [id for id in gc.case_ids(split="pool") if id in planted]
    for id in [*test, *pool[::8]]:
        yield id, "planted", None


def write(path: Path, n_cases: int, methods: list[str]) -> None:
    """Scores of the methods on the first subjects of the list, in one file."""
    scores: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    for id, fleet, architecture in islice(cases(), n_cases):
        case = gc.load_case(id)
        subject = case.subject(fleet, architecture).to(torch.float64)
        pairs = case.pairs(N_PAIRS, seed=1)
        for method in methods:
            options: dict[str, Any] = {"steps": STEPS[method]} if method in STEPS else {}
            start = time.perf_counter()
            result = gc.localize(subject, pairs, method=method, **options)
            key = f"{method} {id} {fleet} {architecture or 'plain'}"
            seconds[key] = time.perf_counter() - start
            scores[key] = result.scores.contiguous()
    save_file(scores, path, {"seconds": json.dumps(seconds)})


def read_seconds(path: Path) -> dict[str, float]:
    """Seconds per score vector of a file."""
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["seconds"])


def compare(before: Path, after: Path) -> int:
    """Print what differs, and the seconds of each method; returns how many vectors differ."""
    old, new = load_file(before), load_file(after)
    differ = [key for key in old if key not in new or not torch.equal(old[key], new[key])]
    for key in differ:
        if key not in new or old[key].shape != new[key].shape:
            print(f"{key}: not there, or of another size")
            continue
        gap = (old[key] - new[key]).abs().max() / old[key].abs().max()
        print(f"{key}: differs by {gap:.1e} of the largest score")
    print(f"{len(old) - len(differ)} of {len(old)} score vectors are identical")
    totals = defaultdict(lambda: [0.0, 0.0])
    for column, path in enumerate((before, after)):
        for key, value in read_seconds(path).items():
            totals[key.split()[0]][column] += value
    for method, (was, now) in totals.items():
        print(f"{method:14} {was:8.2f} s before, {now:8.2f} s after, ratio {now / was:.2f}")
    return len(differ)


def main() -> int:
    parser = argparse.ArgumentParser(description="Do two checkouts give the same scores?")
    actions = parser.add_subparsers(dest="action", required=True)
    writing = actions.add_parser("write")
    writing.add_argument("file", type=Path)
    writing.add_argument("--cases", type=int, default=40)
    writing.add_argument("--methods", default=",".join(gc.METHODS))
    comparing = actions.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.action == "compare":
        return 1 if compare(options.before, options.after) else 0
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    write(options.file, options.cases, options.methods.split(","))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
