"""`python -m lab.factory planted`: language models with programs planted in known components."""

import random
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands.checks import (
    above,
    device_there,
    in_range,
    refuse,
    seed_range,
    writable_folders,
)
from graphcircuits.commands.options import Device
from graphcircuits.commands.output import INTERRUPTED, Json, print_json, print_table, say
from graphcircuits.commands.progress import late_progress

if TYPE_CHECKING:
    from graphcircuits.cases.language import LanguageModel
    from lab.factory.planted.make import PlantingJob
    from lab.factory.planted.train import PlantingConfig

MOST_WORKERS = 64
SHARES = ("accuracy", "interchange", "strict", "circuit")


def planted(
    folder: Annotated[Path, typer.Argument(help="Directory to write models to.", metavar="DIR")],
    models: Annotated[
        str, typer.Option(help="Of the benchmark: test, pool, all, or ids with commas between.")
    ] = "test",
    calls: Annotated[
        Path | None,
        typer.Option(
            help="Instead of those, one model for the calls that this Python file defines, each a "
            "graphcircuits.Call."
        ),
    ] = None,
    architecture: Annotated[
        str, typer.Option(help="Of that model: gpt2, neox, llama or llama-gqa.")
    ] = "gpt2",
    layers: Annotated[int, typer.Option(help="Of that model.")] = 4,
    heads: Annotated[int, typer.Option(help="Of that model, in each layer.")] = 4,
    width: Annotated[int, typer.Option(help="Of that model; a multiple of its heads.")] = 64,
    vocabulary: Annotated[int, typer.Option(help="Tokens of that model: 1000 to 8000.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of that model's places, weights and batches.")] = 0,
    text: Annotated[
        Path, typer.Option(help="Folder that `python -m lab.factory text` wrote.")
    ] = Path("build/text"),
    steps: Annotated[int, typer.Option(help="Training steps of each model.")] = 4000,
    rows: Annotated[int, typer.Option(help="Prompts of each model in a step.")] = 256,
    text_rows: Annotated[int, typer.Option(help="Windows of 128 tokens of text in a step.")] = 64,
    lr: Annotated[
        float, typer.Option(help="Highest learning rate of a model 64 wide; less of wider ones.")
    ] = 3e-3,
    device: Device = "cpu",
    processes: Annotated[
        int, typer.Option(help="Processes that train, each models of one design.")
    ] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(help="For models side by side; the learning rate falls by it if it is short."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train language models in which known components run programs, and check each program.

    Every model is DIR/ID.safetensors with its report, written when it is complete; the same command
    goes on with those that are missing. A call passes if behaviour, interchange, strict share and
    the circuit alone, by output, reach 0.97; a model if its perplexity on held-out text is at most
    1.1 times that of its twin, which trained on the text alone. Exit code 1 if anything fell short.
    """
    from lab.factory.planted.train import PlantingConfig

    refuse(
        in_range("--layers", layers, 1, 48),
        in_range("--heads", heads, 1, 64),
        in_range("--width", width, heads, 4096) or _uneven(width, heads),
        in_range("--vocabulary", vocabulary, 1000, 8000),
        seed_range(seed),
        in_range("--steps", steps, 1),
        in_range("--rows", rows, 4),
        in_range("--text-rows", text_rows, 1),
        above("--lr", lr, 0),
        device_there(device),
        in_range("--processes", processes, 1, MOST_WORKERS),
        above("--minutes", minutes, 0),
        writable_folders({"DIR": folder}),
    )
    config = PlantingConfig(
        steps=steps,
        seconds=float("inf") if minutes is None else 60 * minutes,
        rows=rows,
        cut_rows=rows // 4,
        text_rows=text_rows,
        lr=lr,
    )
    if calls is None:
        wanted: list[LanguageModel | str] = list(_listed(models))
    else:
        wanted = [_own(calls, folder, architecture, layers, heads, width, vocabulary, seed)]
    try:
        reports = _make(wanted, folder, text, config, device, processes)
    except KeyboardInterrupt:
        say(f"interrupted: what is finished is in {folder}; the same command goes on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(reports)
    else:
        _show(reports, folder)
    if not all(_whole(report) for report in reports.values()):
        raise typer.Exit(1)


def _uneven(width: int, heads: int) -> list[str]:
    uneven = heads > 0 and width % heads > 0
    return [f"--width must be a multiple of --heads, got {width} and {heads}"] * uneven


def _listed(models: str) -> list[str]:
    from graphcircuits.cases.language import language_records, load_language

    records = language_records()
    if models == "all":
        return list(records)
    if models in ("test", "pool"):
        return [id for id, record in records.items() if record["split"] == models]
    return [load_language(id.strip()).id for id in models.split(",")]


def _own(
    file: Path,
    folder: Path,
    architecture: str,
    layers: int,
    heads: int,
    width: int,
    vocabulary: int,
    seed: int,
) -> "LanguageModel":
    """A model for the calls that a file defines."""
    from graphcircuits.cases.calls import Call
    from graphcircuits.cases.language import Design, LanguageModel
    from graphcircuits.cases.tokens import word_ids
    from lab.factory.planted.places import place

    if not file.is_file():
        raise FileNotFoundError(f"--calls must be a Python file that defines calls, got {file}.")
    found = tuple(x for x in runpy.run_path(str(file)).values() if isinstance(x, Call))
    if not found:
        raise ValueError(f"{file} defines no graphcircuits.Call; see the documentation.")
    design = Design(
        architecture=architecture, layers=layers, heads=heads, width=width, vocabulary=vocabulary
    )
    for call in found:
        word_ids(call, vocabulary)
    places = place(found, design.graph, True, random.Random(seed))
    return LanguageModel(id=file.stem, design=design, calls=found, places=places, seed=seed)


def _make(
    wanted: "list[LanguageModel | str]",
    folder: Path,
    text: Path,
    config: "PlantingConfig",
    device: str,
    processes: int,
) -> dict[str, dict[str, Any]]:
    """The reports by model, with a line for each that gets ready."""
    from graphcircuits.cases.language import load_language
    from graphcircuits.jobs.runner import Resources, runner_of
    from lab.factory.planted.make import PlantingJob, finished, path_of

    command = shlex.join(["python", "-m", "lab.factory", *sys.argv[1:]])
    models = {x if isinstance(x, str) else x.id: x for x in wanted}
    loaded = {id: load_language(x) if isinstance(x, str) else x for id, x in models.items()}
    found = {id: finished(path_of(folder, id), x, config) for id, x in loaded.items()}
    reports = {id: report for id, report in found.items() if report is not None}
    # Models of one design train side by side.
    groups: dict[Any, list[LanguageModel | str]] = {}
    for id, model in models.items():
        if id not in reports:
            groups.setdefault(loaded[id].design, []).append(model)
    with tempfile.TemporaryDirectory() as place, late_progress() as bar:
        overall = bar.add_task("reading text", total=len(models))
        if reports:
            bar.advance(overall, len(reports), reused=True)
        for size in {design.vocabulary for design in groups}:
            _encode(text, size, Path(place))
        bar.update(overall, description="models")
        # The deepest first: begun last, they would run on alone.
        jobs = [
            PlantingJob(tuple(groups[design]), folder, Path(place), config, device, command)
            for design in sorted(groups, key=lambda design: -design.layers)
        ]
        training: dict[str, Any] = {}
        runner = runner_of(max(1, min(processes, len(jobs))))
        for news in runner.run(_news, jobs, resources=Resources(cpus=1.0)):
            name = news["case"] if "calls" in news else news["model"]
            if name not in training:
                training[name] = bar.add_task(name, total=config.steps)
            if "calls" in news:
                reports[name] = news
                bar.remove_task(training[name])
                bar.say(_line(news))
                bar.advance(overall)
            else:
                worst = min(news[share] for share in SHARES)
                about = f"{name} {news['loss']:.3f} {worst:.2f}"
                bar.update(training[name], completed=news["step"], description=about)
    return {id: reports[id] for id in models if id in reports}


def _news(job: "PlantingJob") -> Iterator[dict[str, Any]]:
    """Rows of learning curves, then the reports."""
    import torch

    from lab.factory.planted.make import make_planted

    # Weights see thousands of small steps: the products of TF32 are exact enough for them.
    torch.set_float32_matmul_precision("high")
    with closing(make_planted(job)) as making:
        yield from making


def _encode(text: Path, size: int, place: Path) -> None:
    """The text in the tokens of a vocabulary."""
    import numpy as np

    from graphcircuits.cases.tokens import merges, tokenizer
    from lab.factory.language.packages import read_documents
    from lab.factory.language.tokens import encode

    made = tokenizer(merges(), size)
    for name in ("train", "held_out"):
        documents = read_documents(text / f"{name}.jsonl.xz")
        np.save(place / f"{name}-{size}.npy", encode(made, documents))


def _whole(report: dict[str, Any]) -> bool:
    return report["passed"] and all(call["passed"] for call in report["calls"].values())


def _line(report: dict[str, Any]) -> str:
    passed = [name for name, call in report["calls"].items() if call["passed"]]
    return (
        f"{report['case']:8} {len(passed)} of {len(report['calls'])} calls pass, perplexity "
        f"{report['perplexity_ratio']:.3f} times that of its twin, {report['seconds']:.0f} s"
    )


def _show(reports: dict[str, dict[str, Any]], folder: Path) -> None:
    rows = [
        [
            f"{id}@{name}",
            *(f"{call[share]:.3f}" for share in SHARES),
            str(call["edges"]),
            "" if call["passed"] else "no",
        ]
        for id, report in reports.items()
        for name, call in report["calls"].items()
    ]
    if rows:
        print_table(["call", *SHARES, "edges", "passes"], rows, numbers=5)
        say("")
    for report in reports.values():
        say(_line(report))
    say(f"{len(reports)} models in {folder}")
