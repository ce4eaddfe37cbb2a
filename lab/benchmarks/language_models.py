"""Methods on language models: how few edges do the job, on prompts that they never saw.

1. Preparing reads every model in a folder and draws, for each task of the library and each seed of
   prompts, pairs to find circuits on and fresh ones to judge them on (none of the former among
   them), and others to see whether the model does the task at all (none of the first seed's fresh
   ones among them). The tasks of a model are the first MOST of the library on which it is right on
   LEAST_RIGHT of the latter; why others are left out is kept.
2. Running scores all edges with every method on every task and seed, and measures time, memory, how
   many of the best edges keep .8, .9 and .95 of the model's own output, the area over log sizes,
   and MIB's areas by its own measure. `refine-10` refines the scores of --start for ten seconds in
   all. Each finished unit is one file in the store, written whole or not at all; if it is there, it
   is skipped. A unit that failed is tried again.
3. The page is Markdown with tables per model and a figure of quality against seconds.

All three happen one after the other, or apart and on different machines that share the store. With
--weights, preparing also writes the models into it, so that running needs no other file; without,
running reads them from --models, and needs no tokenizer either way.

python -m lab.benchmarks.language_models --models build/models --device cuda \
    --out docs/results/language-models.md --figure docs/figures/language-models.png
"""

import argparse
import math
import platform
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphcircuits import __version__, methods
from graphcircuits.commands.options import options_by_method
from graphcircuits.compare.measure import measure
from graphcircuits.evaluation.evaluate import CROSSINGS, faithfulness_curve
from graphcircuits.evaluation.localize import refine
from graphcircuits.io.store import StoreError, content_hash, read_json, write_json
from graphcircuits.result.result import Result
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import share_right
from graphcircuits.task.fresh import unseen
from graphcircuits.task.pairs import Pairs
from lab.benchmarks.language_models_page import BASE, write_page

METHODS = (
    "random",
    "eap",
    "eap-ig",
    "relp",
    "eap-gp",
    "gcl",
    "ig-own",
    "refine-1",
    "refine-3",
    "refine-10",
    "refine-30",
    "mattr",
    "ugs",
    "edge-pruning",
)
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "eap-ig+paths": ("eap-ig", {"paths": True}),
    "gcl-unlooking": ("gcl", {"looks": 0}),
}
"""Methods by names of their own: a method of the package, and options."""
ONCE = ("refine-30", "mattr", "ugs", "edge-pruning")
"""Methods that take long, and run on the first seed of prompts alone."""
REFINED = re.compile(r"refine-(\d+)")
SUFFIXES = (".gguf", ".bin", ".safetensors")
NO_MODELS = ("tokenizer.bin",)
MOST = 8
LEAST_RIGHT = 0.75
ASKED = 64
"""Prompts that decide whether a model does a task."""
FEWEST = 8
"""Fresh pairs without which a task is left out."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What results depend on, besides models and code."""

    pairs: int = 24
    tasks: tuple[str, ...] | None = None
    """None are those of the library."""
    most: int = MOST
    methods: tuple[str, ...] = METHODS
    options: Mapping[str, Mapping[str, Any]]
    seeds: int = 3
    """Of prompts."""
    once: tuple[str, ...] = ONCE
    start: str = "eap-ig"
    """The method whose scores are refined."""
    device: str = "cpu"
    dtype: str = "float32"


# Preparing


def model_files(folder: Path) -> list[Path]:
    """The models in a folder, by name."""
    found = (
        [path for path in folder.iterdir() if path.suffix in SUFFIXES] if folder.is_dir() else []
    )
    found = sorted(path for path in found if path.name not in NO_MODELS)
    if not found:
        raise ValueError(f"no model in {folder}: expected files ending in {', '.join(SUFFIXES)}.")
    return found


def prepare(files: Sequence[Path], store: Path, settings: Settings, *, weights: bool) -> None:
    """Draw the pairs of every model into the store; with `weights`, write its subject there too."""
    from graphcircuits.adapters.load import load_model

    for file in files:
        place = store / file.stem
        wanted = {
            "source": file.name,
            "pairs": settings.pairs,
            "asked": settings.tasks and list(settings.tasks),
            "most": settings.most,
            "least": LEAST_RIGHT,
            "seeds": settings.seeds,
        }
        known = _read(place / "model.json") or {}
        lacking = weights and not (place / "subject.safetensors").exists()
        if known.items() >= wanted.items() and not lacking:
            continue
        subject = load_model(file, device=settings.device, dtype=settings.dtype)
        if subject.tokenizer is None:
            raise ValueError(f"{file} has no tokenizer, so no prompts can be drawn for it.")
        print(f"{file.stem}: {subject.graph.n_edges} edges", flush=True)
        tasks = dict(_tasks(subject, place, settings))
        if weights:
            save_transformer(place / "subject.safetensors", subject)
        config = subject.config
        sizes = {"layers": config.n_layers, "heads": config.n_heads, "edges": subject.graph.n_edges}
        count = sum(weight.numel() for weight in subject.weights.values())
        sizes |= {"d_model": config.d_model, "parameters": count}
        write_json(place / "model.json", {**wanted, **sizes, "tasks": tasks, "command": _command()})


def _tasks(
    subject: Transformer, place: Path, settings: Settings
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task, and what came of it; the pairs of those that are taken are saved."""
    from graphcircuits import tasks

    taken = 0
    for name in tasks.names() if settings.tasks is None else settings.tasks:
        if taken == settings.most:
            yield name, {"reason": f"{taken} tasks were taken before"}
            continue
        try:
            task, count = tasks.find(name), settings.pairs
            drawn = [draw(task, subject.tokenizer, count, s) for s in range(settings.seeds)]
            asked = to_ask(task, subject.tokenizer, drawn[0][1])
        except ValueError as error:
            yield name, {"reason": str(error)}
            continue
        right = share_right(subject, asked)
        about = {"right": right, "asked": len(asked), "fresh": len(drawn[0][1])}
        print(f"  {name}: right on {right:.0%} of {len(asked)} prompts", flush=True)
        if right < LEAST_RIGHT:
            yield name, about | {"reason": f"right on {right:.1%} of {len(asked)} prompts"}
            continue
        for seed, (found, fresh) in enumerate(drawn):
            folder = place / name / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            found.save(folder / "found.jsonl")
            fresh.save(folder / "fresh.jsonl")
        taken += 1
        yield name, about | {"reason": None, "tokens": drawn[0][0].clean.shape[1]}


def draw(task: Any, tokenizer: Any, count: int, seed: int) -> tuple[Pairs, Pairs]:
    """Pairs to find circuits on, and fresh ones."""
    found = _distinct(task(tokenizer, n=count, seed=100 * seed))
    fresh = unseen(_distinct(task(tokenizer, n=4 * count, seed=100 * seed + 1)), found)
    if fresh is None or len(fresh) < min(FEWEST, count):
        left = 0 if fresh is None else len(fresh)
        raise ValueError(f"only {left} pairs are left that no circuit was found on")
    return found, fresh[:count]


def to_ask(task: Any, tokenizer: Any, fresh: Pairs) -> Pairs:
    """Prompts to try the model on, none of them fresh ones."""
    asked = unseen(_distinct(task(tokenizer, n=4 * ASKED, seed=2)), fresh)
    if asked is None:
        raise ValueError("no pairs are left to try the model on")
    return asked[:ASKED]


def _distinct(pairs: Pairs) -> Pairs:
    """Each pair once: a task that runs out of pairs begins again."""
    both = torch.cat([pairs.clean, pairs.corrupted], 1).tolist()
    first = {tuple(row): place for place, row in reversed(list(enumerate(both)))}
    return pairs[sorted(first.values())]


# Running


@dataclass(frozen=True)
class Unit:
    """One method on one task of one model, on the prompts of one seed."""

    model: str
    seed: int
    task: str
    method: str

    def path(self, store: Path) -> Path:
        return store / self.model / self.task / str(self.seed) / f"{self.method}.json"


def units(store: Path, settings: Settings) -> list[Unit]:
    """All units of the models that were prepared, seed by seed."""
    found = []
    for file in sorted(store.glob("*/model.json")):
        taken = [name for name, about in _prepared(file)["tasks"].items() if not about["reason"]]
        found += [
            Unit(file.parent.name, seed, task, method)
            for seed in range(settings.seeds)
            for task in taken
            for method in settings.methods
            if seed == 0 or method not in settings.once
        ]
    if not found:
        raise ValueError(f"nothing was prepared in {store}; run without --only-run first.")
    return found


def _prepared(file: Path) -> dict[str, Any]:
    content = _read(file)
    if content is None:
        raise ValueError(f"{file} cannot be read; delete it and prepare again.")
    return content


def run(
    store: Path, models: Path | None, settings: Settings, only: str | None = None
) -> Iterator[tuple[Unit, str]]:
    """Run the units that are missing, of one model or all, and say what came of each."""
    loaded: tuple[str, Transformer] | None = None
    for unit in units(store, settings):
        if only not in (None, unit.model):
            continue
        folder = unit.path(store).parent
        found, fresh = (Pairs.load(folder / f"{name}.jsonl") for name in ("found", "fresh"))
        options = dict(VARIANTS.get(unit.method, ("", {}))[1])
        options |= settings.options.get(unit.method, {})
        about = {
            "model": unit.model,
            "seed": unit.seed,
            "task": unit.task,
            "method": unit.method,
            "given": options | ({"start": settings.start} if _seconds(unit.method) else {}),
            "device": settings.device.partition(":")[0],
            "dtype": settings.dtype,
            "package": __version__,
            "prompts": content_hash(found.clean, found.corrupted, fresh.clean, fresh.corrupted),
        }
        known = _read(unit.path(store)) or {}
        if known.items() >= about.items() and "failure" not in known:
            continue
        if loaded is None or loaded[0] != unit.model:
            loaded = None  # one model in memory at a time
            loaded = unit.model, _subject(store, models, unit.model, settings)
            # What a device does once, such as loading kernels, is nobody's time.
            _score(loaded[1], found[:2], "eap", {}, settings.start)
        try:
            record = _run(loaded[1], found, fresh, unit.method, options, settings.start)
        except (ValueError, RuntimeError, MemoryError) as error:
            failure = (str(error) or type(error).__name__).splitlines()[0]
            write_json(unit.path(store), about | {"failure": failure})
            yield unit, f"failed: {failure}"
            continue
        machine = {
            "machine": _machine(settings.device),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "command": _command(),
        }
        write_json(unit.path(store), about | machine | record)
        yield unit, f"{record['edges_for']['0.9']} edges for .9, {record['seconds']:.2f} s"


def _run(
    subject: Transformer,
    found: Pairs,
    fresh: Pairs,
    method: str,
    options: Mapping[str, Any],
    start: str,
) -> dict[str, Any]:
    """Scores, what they took, and how faithful they are."""
    taken = measure(lambda: _score(subject, found, method, options, start), subject.device)
    result = taken.value
    judged = measure(lambda: faithfulness_curve(subject, fresh, result), subject.device)
    curve = judged.value
    mib = faithfulness_curve(subject, fresh, result, by="loss", sizes="mib")
    return {
        "options": dict(result.options),
        "seconds": taken.seconds,
        "peak_bytes": taken.peak_bytes,
        "curve_seconds": judged.seconds,
        "curve_peak_bytes": judged.peak_bytes,
        "pairs": len(found),
        "fresh": len(fresh),
        "edges": subject.graph.n_edges,
        "edges_for": {str(share): curve.edges_for(share) for share in CROSSINGS},
        "log_area": curve.log_area,
        "cmd": mib.cmd,
        "cpr": mib.cpr,
        "curves": {"output": curve.to_json(), "mib": mib.to_json()},
    }


def _seconds(method: str) -> float | None:
    """How long this method refines, where it does."""
    match = REFINED.fullmatch(method)
    return None if match is None else float(match[1])


def _score(
    subject: Transformer, pairs: Pairs, method: str, options: Mapping[str, Any], start: str
) -> Result:
    seconds = _seconds(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", methods.BeyondTraining)  # the page says it
        name = VARIANTS.get(method, (method,))[0] if seconds is None else start
        began = time.perf_counter()
        result = methods.localize(subject, pairs, name, seed=0, keep_prompts=0, **options)
    if seconds is None:
        return result
    left = max(0.1, seconds - (time.perf_counter() - began))
    return refine(subject, pairs, result, seconds=left, keep=None)


def _subject(store: Path, models: Path | None, model: str, settings: Settings) -> Transformer:
    """The prepared subject, else the model that it was prepared from."""
    from graphcircuits.adapters.load import load_model

    source = store / model / "subject.safetensors"
    if not source.exists():
        if models is None:
            raise ValueError(f"{source} is not there; name the folder of the model with --models.")
        source = models / _prepared(store / model / "model.json")["source"]
    return load_model(source, device=settings.device, dtype=settings.dtype)


def _machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    count = torch.get_num_threads()
    return "one CPU thread" if count == 1 else f"{count} CPU threads"


def _read(path: Path) -> dict[str, Any] | None:
    """What a file of the store holds; None where there is none, or not a whole one."""
    try:
        content = read_json(path)
    except (OSError, StoreError):
        return None
    return content if isinstance(content, dict) else None


def _command() -> str:
    return shlex.join(["python", "-m", "lab.benchmarks.language_models", *sys.argv[1:]])


# The program


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, help="folder of model files")
    parser.add_argument("--store", type=Path, default=Path("build/language-models"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/language-models.md"))
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/language-models.png"))
    parser.add_argument("--tasks", help="tasks with commas between; else the library's")
    parser.add_argument("--most", type=int, default=MOST, help="tasks per model")
    parser.add_argument("--methods", default=",".join(METHODS), help="with commas between")
    parser.add_argument("--once", default=",".join(ONCE), help="those that run on one seed alone")
    parser.add_argument("--start", default="eap-ig", help="the method whose scores are refined")
    parser.add_argument(
        "--base",
        default=BASE,
        help="the method that others are compared with; another than the usual one: no figure",
    )
    parser.add_argument("--seeds", type=int, default=3, help="of prompts")
    parser.add_argument("--only", help="run the units of this model alone")
    parser.add_argument("--pairs", type=int, default=24, help="per task, and as many fresh ones")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        help="METHOD.NAME=VALUE",
    )
    parser.add_argument(
        "--minutes", type=float, help="start no unit after so long; run again later"
    )
    parser.add_argument("--remark", default="", help="a sentence for the page")
    parser.add_argument("--weights", action="store_true", help="prepare the models, not pairs only")
    stage = parser.add_mutually_exclusive_group()
    stage.add_argument("--only-prepare", action="store_true", help="pairs to the store")
    stage.add_argument("--only-run", action="store_true", help="units to the store")
    stage.add_argument("--only-page", action="store_true", help="page and figure from the store")
    words = parser.parse_args(given)
    try:
        return _main(words)
    except (ValueError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2


def _main(words: argparse.Namespace) -> int:
    names = tuple(words.methods.split(","))
    for name in (words.start, *names):
        if _seconds(name) is None:
            methods.find_method(VARIANTS.get(name, (name,))[0])
    settings = Settings(
        pairs=words.pairs,
        tasks=None if words.tasks is None else tuple(words.tasks.split(",")),
        most=words.most,
        methods=names,
        options=options_by_method(words.option, names),
        seeds=words.seeds,
        once=tuple(words.once.split(",")),
        start=words.start,
        device=words.device,
        dtype=words.dtype,
    )
    everything = not (words.only_prepare or words.only_run or words.only_page)
    if words.only_prepare or everything:
        if words.models is None:
            raise ValueError("give the folder of the models with --models.")
        prepare(model_files(words.models), words.store, settings, weights=words.weights)
    failed = 0
    if words.only_run or everything:
        end = math.inf if words.minutes is None else time.monotonic() + 60 * words.minutes
        for unit, said in run(words.store, words.models, settings, words.only):
            print(f"{unit.model} {unit.seed} {unit.task} {unit.method}: {said}", flush=True)
            failed += said.startswith("failed")
            if time.monotonic() > end:
                print("the time is up; the same command goes on from here", flush=True)
                return 1
    if words.only_page or everything:
        usual = words.base == BASE
        figure = words.figure if usual else None
        command = "" if usual else _command()
        write_page(words.store, words.out, figure, names, words.remark, words.base, command)
        print(f"wrote {words.out}" + (f" and a figure at {figure}" if figure else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
