"""Kill -9, and Ctrl-C, at random moments of long commands; what is resumed must equal the unbroken
run.

Each runs once unbroken, in a process of its own. Then it runs in a new folder, is killed at some
moment, and given again as a user would, until it ends; what it left is compared with the unbroken
run, and so on in new folders until there have been enough kills. All must leave the same files, and
the same bytes in them, but for MEASURED: what files say of time and memory, and hashes over it.

    python -m tests.kills --kills 100
"""

import argparse
import csv
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from graphcircuits.cases.build import BuildConfig, build
from graphcircuits.cases.case import Case
from graphcircuits.cases.collection import MANIFEST
from graphcircuits.cases.orders import Order
from graphcircuits.commands.localize import localize
from graphcircuits.commands.output import INTERRUPTED
from graphcircuits.commands.train import train
from graphcircuits.compare.report import Report
from graphcircuits.compare.runs import run
from graphcircuits.compare.selection import BenchConfig
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.jobs.runner import InProcess
from graphcircuits.rasp import Map, tokens
from lab.factory.language.build import make_models
from lab.factory.language.designs import Design
from lab.factory.language.model import LanguageConfig
from lab.factory.making import begin, make
from lab.paper.sweep import Means
from lab.paper.sweep_plan import plan_sweep
from lab.paper.sweep_results import write_results
from lab.paper.sweep_store import SweepStore
from tests.cases.small import begun, quick
from tests.lab.factory.language.texts import write_texts
from tests.lab.paper.sweeps import COMMAND, TINY, content, small, sweep_in

Content = dict[str, object]
"""What a run left, by path."""


def letters(id: str, length: int, function: Callable[[Any], Any]) -> Case:
    program = Map(function, tokens).named("answer")
    return Case(
        id=id,
        name=id,
        task="A map of two letters.",
        program=program,
        causal=True,
        vocab=("a", "b"),
        max_seq_len=length,
    )


SIIT = SiitConfig(
    steps=60, rows=8, cut_rows=8, check_every=5, check_rows=16, lr=2e-2, enough_accuracy=0.97
)
BUILD = BuildConfig(siit=SIIT, inputs=32, interchanges=16, verify_inputs=32, verify_interchanges=16)


def run_build(folder: Path) -> None:
    """Four fleets of one subject each, of which some pass and some do not."""
    cases = [
        letters("swap", 3, lambda x: "b" if x == "a" else "a"),
        letters("long", 18, lambda x: x == "b"),
    ]
    orders = [Order(case.id, "planted", name) for case in cases for name in ("plain", "gpt2")]
    list(build(orders, folder, BUILD, cases=cases, command="tests.kills"))


def run_corpus(folder: Path) -> None:
    """Three shards of two subjects, two of them at once."""
    if not (folder / MANIFEST).exists():
        begun(folder, quick(steps=40, check_every=5))
    list(make(folder, begin(folder), together=2))


def run_bench(folder: Path) -> None:
    methods = ("eap", "eap-ig", "exact")
    config = BenchConfig(cases=("ib-3", "ib-36"), methods=methods, seeds=(0, 1), n_pairs=4)
    Report.of(config, run(config, folder)).write(folder)


TRAIN = """
steps = 40
every = 2
views = 1
pairs = 4
[predictor]
width = 8
layers = 1
"""


def run_train(folder: Path) -> None:
    config = folder / "settings.toml"
    config.write_text(TRAIN)
    kept = folder / "checkpoints"
    train(
        out=folder / "mine.safetensors",
        cases="ib-7,ib-2",
        config=str(config),
        seeds=2,
        checkpoints=kept,
    )


def run_language(folder: Path) -> None:
    """A small model, which learns nothing in so few steps: its report is kept."""
    config = LanguageConfig(steps=6, batch=128, lr=0.01, mib=0.3)
    texts = folder.parent / "texts"
    if not texts.exists():
        write_texts(texts)
    list(make_models([Design.parse("gpt2-1x32-chars")], folder, config, roots=[texts]))


def run_localize(folder: Path) -> None:
    localize(case="ib-3", method="exact", out=folder / "found.json")


def run_sweep(folder: Path) -> None:
    """Two settings and folds, two at once, and two seeds."""
    few = {"steps": 4, "every": 2, "pairs": 2, "batch": 2, "predictor": TINY}
    plan = plan_sweep(small(configurations=["dirgnn-line-none"], grid={"lr": [0.1, 1]}, train=few))
    with SweepStore(folder, COMMAND).held():
        sweep = sweep_in(folder, plan)
        list(sweep.run(InProcess(), Means(stack=2)))
        write_results(sweep)


def all_bytes(folder: Path) -> Content:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


MEASURED = ("seconds", "peak_bytes", "sha256")
"""Fields of files that may differ from one run to the next."""


def but_measured(folder: Path) -> Content:
    """Every file without what was measured; tables and pictures, which show it, only by name."""
    found = all_bytes(folder)
    for name in found:
        path = folder / name
        if path.suffix == ".json":
            found[name] = _unmeasured(json.loads(path.read_text()))
        elif path.suffix == ".csv":
            lines = list(csv.reader(path.read_text().splitlines()))
            places = [place for place, x in enumerate(lines[0]) if x not in MEASURED]
            found[name] = [[line[place] for place in places] for line in lines]
        elif path.suffix in (".md", ".tex", ".svg", ".png"):
            found[name] = b""
    return found


def _unmeasured(value: Any) -> Any:
    if isinstance(value, dict):
        return {x: _unmeasured(inner) for x, inner in value.items() if x not in MEASURED}
    return [_unmeasured(inner) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Work:
    """A command to be killed, and what of its output must be equal."""

    run: Callable[[Path], None]
    read: Callable[[Path], Content]
    signal: int = signal.SIGKILL


WORKS = {
    "build": Work(run_build, all_bytes),
    "corpus": Work(run_corpus, all_bytes),
    "bench": Work(run_bench, but_measured),
    "train": Work(run_train, all_bytes),
    "train, Ctrl-C": Work(run_train, all_bytes, signal.SIGINT),
    "language": Work(run_language, but_measured),
    "localize": Work(run_localize, but_measured),
    "sweep": Work(run_sweep, content),
}


def started(work: Work, folder: Path) -> int:
    """The id of a new process that does the work; it has all modules already."""
    folder.mkdir(parents=True, exist_ok=True)
    process = os.fork()
    if process:
        return process
    errors, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        os.dup2(null, 1)
        os.dup2(null, 2)
        work.run(folder)
        os._exit(0)
    except (KeyboardInterrupt, typer.Exit):
        os._exit(INTERRUPTED)
    except BaseException:  # noqa: BLE001  the child must not go on as its parent
        os.write(errors, traceback.format_exc().encode())
        os._exit(1)


def ended(process: int) -> None:
    _, status = os.waitpid(process, 0)
    if status:
        raise SystemExit(f"the run ended with status {status}: its error stands above.")


def killed(process: int, after: float, by: int) -> bool:
    """Whether the process was still there to be killed; one that failed ends everything."""
    until = time.monotonic() + after
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done and status:
            raise SystemExit(f"the run ended with status {status}: its error stands above.")
        if done:
            return False
        time.sleep(min(0.005, max(0.0, until - time.monotonic())))
    os.kill(process, by)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == INTERRUPTED


def try_work(name: str, kills: int, folder: Path, chance: random.Random) -> str:
    """Kill one work so many times; the figures in a line. Any difference ends the program."""
    work, whole, start = WORKS[name], folder / name / "whole", time.monotonic()
    ended(started(work, whole))
    seconds = time.monotonic() - start
    expected, done, compared = work.read(whole), 0, 0
    while done < kills:
        broken = folder / name / f"broken{compared}"
        began, before = time.monotonic(), done
        # Also moments after the end of an unbroken run, so that every run can end.
        while done < kills:
            after = chance.uniform(0, 1.1 * seconds)
            if not killed(started(work, broken), after, work.signal):
                break
            done += 1
        if done == kills:
            ended(started(work, broken))
        elif done == before:
            # The first run may have been slow by chance; then most moments would come too late.
            seconds = min(seconds, time.monotonic() - began)
        found = work.read(broken)
        wrong = [path for path in expected | found if expected.get(path) != found.get(path)]
        if wrong or expected.keys() != found.keys():
            raise SystemExit(f"{name}: {broken} differs from {whole} in {', '.join(wrong)}.")
        compared += 1
    return (
        f"{name}: {done} kills in {compared} runs ({seconds:.1f} s unbroken), all {len(expected)} "
        f"files equal to those of the unbroken run, {time.monotonic() - start:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of all together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(given.seed)
    shares = {"build": 3, "corpus": 2, "bench": 1, "train": 1, "train, Ctrl-C": 1, "sweep": 2}
    shares |= {"language": 1, "localize": 1}
    with tempfile.TemporaryDirectory() as folder:
        for name, share in shares.items():
            kills = max(1, round(given.kills * share / sum(shares.values())))
            sys.stdout.write(try_work(name, kills, Path(folder), chance) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
