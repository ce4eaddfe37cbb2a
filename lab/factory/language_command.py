"""`python -m lab.factory language`: small language models, trained on a machine's own text."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands.checks import (
    above,
    device_there,
    distinct,
    in_range,
    refuse,
    seed_range,
    suffix,
    writable,
    writable_folders,
)
from graphcircuits.commands.options import Device
from graphcircuits.commands.output import (
    INTERRUPTED,
    Json,
    print_json,
    print_table,
    save,
    say,
    write,
)
from graphcircuits.commands.progress import late_progress

if TYPE_CHECKING:
    from lab.factory.language.designs import Design
    from lab.factory.language.model import LanguageConfig

MOST_WORKERS = 64
MOST_TEXT = 1024


def language(
    folder: Annotated[Path, typer.Argument(help="Directory to write models to.", metavar="DIR")],
    models: Annotated[
        str | None,
        typer.Option(
            help="Models with commas between, as ARCHITECTURE-LAYERSxWIDTH-TOKENIZER, such as "
            "gpt2-4x128-bpe2k; 14 of all kinds if left out; `many`: 48, with which the shipped "
            "predictors were trained. Architectures: gpt2, neox, llama, gqa. Tokenizers: chars, "
            "bpe2k, bpe4k."
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder to take text from, instead of Python's library and the packages "
            "installed beside it; can be repeated. Or one that `lab.factory text` wrote."
        ),
    ] = None,
    mib: Annotated[float, typer.Option(help="Text in MiB, at most.")] = 32.0,
    steps: Annotated[int, typer.Option(help="Training steps of each model.")] = 2000,
    batch: Annotated[int, typer.Option(help="Tokens per step.")] = 32768,
    lr: Annotated[
        float, typer.Option(help="Highest learning rate of a model 64 wide; less of wider ones.")
    ] = 3e-3,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    device: Device = "cpu",
    processes: Annotated[int, typer.Option(help="Models that train side by side.")] = 1,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; finished models stay.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Write what became of them as tables too: .md.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train small language models and say which tasks they do.

    Each is a Hugging Face folder in DIR, which every --model takes, written when it is complete.
    Finished models are kept: the same command continues where it was stopped, and only prints
    its tables where nothing is left. The report of a model that does not learn lies in failed/.
    Exit code 1 if a model is missing.
    """
    import time

    from lab.factory.language.designs import MANY, PLAN, Design
    from lab.factory.language.model import LanguageConfig
    from lab.factory.language.report import markdown

    words = ",".join(PLAN) if models is None else models.replace(" ", "")
    names = list(MANY) if words == "many" else words.split(",")
    refuse(
        distinct("--models", names),
        above("--mib", mib, 0) or in_range("--mib", mib, 0, MOST_TEXT),
        in_range("--steps", steps, 1),
        in_range("--batch", batch, 1),
        above("--lr", lr, 0),
        seed_range(seed),
        device_there(device),
        in_range("--processes", processes, 1, MOST_WORKERS),
        in_range("--minutes", minutes, 0),
        writable_folders({"DIR": folder}),
        suffix("--table", table, ".md"),
        writable({"--table": table}),
    )
    designs = [Design.parse(name) for name in names]
    config = LanguageConfig(steps=steps, batch=batch, lr=lr, mib=mib, seed=seed)
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    try:
        reports = _make(designs, folder, config, text, device, processes, deadline)
    except KeyboardInterrupt:
        say(f"interrupted: what is finished is in {folder}; the same command goes on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    found = [reports[name] for name in names if name in reports]
    command = shlex.join(["python", "-m", "lab.factory", *sys.argv[1:]])
    saved = save({table: lambda path: write(path, markdown(found, command))})
    if as_json:
        print_json(found)
    else:
        _show(found)
        whole = sum(report["problem"] is None for report in found)
        say(f"{whole} of {len(names)} models in {folder}")
    failed = [report for report in found if report["problem"] is not None]
    for report in failed:
        say(f"{report['model']} did not learn: {report['problem']}", err=True)
    if left := [name for name in names if name not in reports]:
        say(f"out of time: {', '.join(left)}; the same command goes on with them", err=True)
    saved.tell(quiet=as_json)
    if failed or left:
        raise typer.Exit(1)


def _make(
    designs: "list[Design]",
    folder: Path,
    config: "LanguageConfig",
    text: list[Path] | None,
    device: str,
    processes: int,
    deadline: float,
) -> dict[str, dict[str, Any]]:
    """The reports by model, with a line for each that gets ready."""
    from lab.factory.language.build import make_models

    reports: dict[str, dict[str, Any]] = {}
    with late_progress() as bar:
        overall = bar.add_task("collecting text", total=len(designs))
        training: dict[str, Any] = {}

        def watch(name: str, step: int, loss: float) -> None:
            if name not in training:
                training[name] = bar.add_task(name, total=config.steps)
            bar.update(training[name], completed=step, description=f"{name} {loss:.3f}")
            bar.update(overall, description="models")

        for report in make_models(
            designs,
            folder,
            config,
            roots=text,
            device=device,
            processes=processes,
            watch=watch,
            deadline=deadline,
        ):
            name = report["model"]
            made = name in training
            if made:
                bar.remove_task(training.pop(name))
                bar.say(_line(report))
            reports[name] = report
            bar.advance(overall, reused=not made)
    return reports


def _line(report: dict[str, Any]) -> str:
    from graphcircuits.cases.collection import does

    if report["problem"] is not None:
        return f"{report['model']:20} FAILED  {report['problem']}"
    return (
        f"{report['model']:20} loss {report['loss']:.3f}  {report['bits_per_character']:.3f} bits "
        f"per character  does {len(does(report))} of {len(report['tasks'])} tasks  "
        f"{report['seconds']:.0f} s"
    )


def _show(reports: list[dict[str, Any]]) -> None:
    from graphcircuits.cases.collection import DOES, does
    from lab.factory.language.report import SIZES, percent, sizes

    if not reports:
        return
    print_table(list(SIZES), [sizes(report) for report in reports], numbers=len(SIZES) - 1)
    say("")
    rows = []
    for report in reports:
        shares = report.get("tasks", {})
        able = does(report)
        rest = [f"{name} {percent(share)}" for name, share in shares.items() if name not in able]
        rows.append([report["model"], ", ".join(able), ", ".join(rest)])
    print_table(["model", f"does ({DOES:.0%} of prompts right)", "does not"], rows)
