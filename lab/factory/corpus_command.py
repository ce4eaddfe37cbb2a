"""`python -m lab.factory corpus`: subjects by the thousand, in shards, for training predictors."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands.checks import (
    device_there,
    in_range,
    refuse,
    seed_range,
    writable_folders,
)
from graphcircuits.commands.options import MOST_PROCESSES, Device
from graphcircuits.commands.output import INTERRUPTED, Json, print_json, print_table, say
from graphcircuits.commands.progress import late_progress

if TYPE_CHECKING:
    from rich.progress import TaskID

    from graphcircuits.cases.collection import Corpus
    from lab.factory.shards import CorpusConfig, Manifest

MOST_TOGETHER = 64


def corpus(
    folder: Annotated[Path, typer.Argument(help="Where the corpus is, or is to be.")],
    natural: Annotated[
        int | None, typer.Option(help="Subjects trained on their task alone.")
    ] = None,
    planted: Annotated[int | None, typer.Option(help="Subjects with a known circuit.")] = None,
    public: Annotated[
        int | None, typer.Option(help="Subjects trained by the public losses.")
    ] = None,
    multitask: Annotated[
        int | None, typer.Option(help="Models of several tasks, with known circuits.")
    ] = None,
    natural_multitask: Annotated[
        int | None, typer.Option(help="Models of several tasks, trained on them alone.")
    ] = None,
    architectures: Annotated[
        str | None, typer.Option(help="Which, as a,b,c; all that there are if not given.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Deepest subject; 4 if not given.")] = None,
    width: Annotated[int | None, typer.Option(help="Widest subject; 32 if not given.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps at most; the fleet's own if not given.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option(help="Subjects per shard at most; 128 if not given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of inputs and weights; 0 if not given.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only read the finished shards and measure them again.")
    ] = False,
    device: Device = "cpu",
    processes: Annotated[int, typer.Option(help="Workers that prepare the data.")] = 1,
    together: Annotated[int, typer.Option(help="Shards that train at once.")] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop after this many minutes; finished shards stay. 0 only plans."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a corpus for training: many subjects of the pool's programs, and of random ones.

    Subjects that train side by side lie in one file, a shard. A corpus that was stopped, killed or
    out of disk goes on when the command is given again, with the same settings or with none, and
    ends with the same files. What did not train is counted, by architecture. Exit code 1 if shards
    are missing, or if --verify finds anything wrong.
    """
    names = None if architectures is None else tuple(map(str.strip, architectures.split(",")))
    given: dict[str, Any] = {
        "natural": natural,
        "planted": planted,
        "public": public,
        "multitask": multitask,
        "natural_multitask": natural_multitask,
        "architectures": names,
        "layers": layers,
        "width": width,
        "steps": steps,
        "shard": shard,
        "seed": seed,
    }
    given = {name: value for name, value in given.items() if value is not None}
    refuse(
        in_range("--steps", steps, 1),
        seed_range(seed or 0),
        in_range("--processes", processes, 1, MOST_PROCESSES),
        in_range("--together", together, 1, MOST_TOGETHER),
        in_range("--minutes", minutes, 0),
        device_there(device),
        ["--verify takes no settings: it reads what is there"] if verify and given else [],
        [] if verify else writable_folders({"the folder": folder}),
    )
    if verify:
        _verify(folder, device, processes, as_json=as_json)
        return
    manifest = _make(folder, _settings(folder, given), device, processes, together, minutes)
    _report(folder, manifest, as_json=as_json)


def _settings(folder: Path, given: dict[str, Any]) -> "CorpusConfig | None":
    """What was asked for; None if nothing was, which goes on with what is there."""
    from graphcircuits.cases.collection import MANIFEST
    from lab.factory.shards import CorpusConfig, check_settings, read_manifest

    there = (folder / MANIFEST).exists()
    if there and not given:
        return None
    config = CorpusConfig(**given)
    if there:
        check_settings(folder, read_manifest(folder), config)
    return config


def _make(
    folder: Path,
    config: "CorpusConfig | None",
    device: str,
    processes: int,
    together: int,
    minutes: float | None,
) -> "Manifest":
    """Plan, train and write, with a line per shard; gives the manifest as it is then."""
    import time

    from lab.factory.making import begin, make, training_of
    from lab.factory.shards import in_words

    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    with _interruptible(folder), late_progress() as bar:
        overall = bar.add_task("planning", total=None)
        manifest = begin(folder, config, processes)
        bar.say(f"{in_words(manifest.unfinished)} to train; {len(manifest.kept)} shards there")
        bar.update(overall, description="shards", total=len(manifest.unfinished))
        steps = {
            shard.name: training_of(manifest.config, shard).steps for shard in manifest.unfinished
        }
        tasks: dict[str, TaskID] = {}

        def show(name: str, step: int, passed: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=steps[name])
            text = f"{name}: {passed} of {total} pass, step"
            bar.update(tasks[name], completed=step, description=text)

        kept = dict(manifest.kept)
        options: dict[str, Any] = {"device": device, "processes": processes, "together": together}
        for shard, one in make(folder, manifest, **options, progress=show, deadline=deadline):
            kept[shard.name] = one
            bar.remove_task(tasks.pop(shard.name)) if shard.name in tasks else None
            bar.advance(overall)
            bar.say(
                f"{shard.name:32} {one.passed} passed, {one.failed} not, {one.refused} refused; "
                f"{len(kept)} of {len(manifest.plan)} shards"
            )
    return manifest.keeping(kept)


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Say, after Ctrl-C, what is kept."""
    from graphcircuits.cases.collection import MANIFEST
    from lab.factory.shards import read_manifest

    try:
        yield
    except KeyboardInterrupt:
        there = (folder / MANIFEST).exists()
        manifest = read_manifest(folder) if there else None
        shards = (
            "nothing was planned yet"
            if manifest is None
            else f"{len(manifest.kept)} of {len(manifest.plan)} shards are kept in {folder}"
        )
        say(f"interrupted: {shards}; the same command goes on from there.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _report(folder: Path, manifest: "Manifest", *, as_json: bool) -> None:
    """What is in the folder now, by fleet and architecture."""
    from graphcircuits.cases.collection import load_corpus

    found = load_corpus(folder)
    rows = _counts(found)
    left = [shard.name for shard in manifest.unfinished]
    if as_json:
        print_json({"folder": str(folder), "subjects": len(found), "by": rows, "unfinished": left})
    else:
        columns = ["fleet", "architecture", "subjects", "did not pass", "refused", "accuracy"]
        keys = ("fleet", "architecture", "passed", "failed", "refused", "accuracy")
        print_table(columns, [[_shown(row[key]) for key in keys] for row in rows], numbers=4)
        say(f"{len(found)} subjects in {folder}")
    if left:
        say(
            f"out of time: {len(left)} of {len(manifest.plan)} shards are missing, such as "
            f"{left[0]}; the same command goes on with them",
            err=True,
        )
        raise typer.Exit(1)


def _counts(found: "Corpus") -> list[dict[str, Any]]:
    """Per fleet and architecture: how many passed, did not, were refused; the median accuracy."""
    from statistics import median

    from graphcircuits.cases.orders import Order

    def kind_of(order: Order) -> tuple[str, str]:
        return order.fleet, order.architecture

    passed: dict[tuple[str, str], list[float]] = {}
    for entry in found:
        passed.setdefault(kind_of(entry.order), []).append(entry.report["accuracy"])
    failed = Counter(kind_of(Order.parse(id)) for id in found.failed)
    refused = Counter(kind_of(Order.parse(id)) for id in found.refused)
    return [
        {
            "fleet": fleet,
            "architecture": architecture,
            "passed": len(passed.get((fleet, architecture), [])),
            "failed": failed[fleet, architecture],
            "refused": refused[fleet, architecture],
            "accuracy": median(passed[kind]) if (kind := (fleet, architecture)) in passed else None,
        }
        for fleet, architecture in sorted({*passed, *failed, *refused})
    ]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value is None else str(value)


def _verify(folder: Path, device: str, processes: int, *, as_json: bool) -> None:
    """Measure again what is there; problems are told at once, a line per shard at the end."""
    from dataclasses import asdict

    from lab.factory.making import measure_again
    from lab.factory.shards import read_manifest

    shards = []
    with late_progress() as bar:
        overall = bar.add_task("shards", total=len(read_manifest(folder).kept))
        for one in measure_again(folder, device=device, processes=processes):
            shards.append(one)
            bar.advance(overall)
            for problem in one.problems:
                bar.say(problem)
    for one in () if as_json else shards:
        state = "as it was" if not one.problems else f"{len(one.problems)} problems"
        lowest = f", accuracy {one.accuracy:.4f} or more" if one.accuracy is not None else ""
        say(f"{one.shard:32} {one.subjects} subjects: {state}{lowest}")
    wrong = sum(1 for one in shards if one.problems)
    if as_json:
        print_json([asdict(one) for one in shards])
    else:
        say(f"{len(shards) - wrong} of {len(shards)} shards in {folder} are as they were")
    if wrong:
        raise typer.Exit(1)
