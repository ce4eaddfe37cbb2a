"""`python -m lab.factory mine`: tasks for training, found in text for one model after the other."""

from pathlib import Path
from typing import Annotated

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
from lab.factory.text_command import MOST_TEXT

LEAST_PAIRS = 24
"""Of which a third is for judging."""


def mine(
    folder: Annotated[Path, typer.Argument(help="Directory to write tasks to.", metavar="DIR")],
    language: Annotated[
        str,
        typer.Option(help="Folders that `python -m lab.factory language` wrote, commas between."),
    ] = "",
    models: Annotated[str, typer.Option(help="Files of other models, with commas between.")] = "",
    text: Annotated[
        Path | None,
        typer.Option(
            help="Folder that `lab.factory text` wrote, or another to take text from, instead of "
            "Python's library and the packages installed beside it."
        ),
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows of text to try, for each model.")] = 60_000,
    change: Annotated[
        float, typer.Option(help="Nats by which the model's output must change, at least.")
    ] = 0.1,
    pairs: Annotated[int, typer.Option(help="Pairs of each task.")] = 36,
    most: Annotated[int, typer.Option(help="Tasks of each model, at most.")] = 72,
    length: Annotated[int, typer.Option(help="Tokens of a window.")] = 24,
    mib: Annotated[float, typer.Option(help="Text in MiB, at most.")] = 12.0,
    seed: Annotated[int, typer.Option(help="Seed of the windows and what is exchanged.")] = 0,
    device: Device = "cpu",
    processes: Annotated[int, typer.Option(help="Models that are mined side by side.")] = 1,
    as_json: Json = False,
) -> None:
    """Find pairs of windows of text in which one exchanged token changes the next one.

    DIR gets a file for each model, with its tasks by kind; it is a folder for `--language` of
    `graphcircuits train`. Files that are there are kept: the same command goes on where it was
    stopped.
    """
    from graphcircuits.jobs.runner import runner_of
    from lab.factory.language.folder import MANIFEST
    from lab.factory.language.packages import find_text
    from lab.factory.mining import SHORTEST, MiningConfig, mine_models, models_in

    folders, files = ([Path(x) for x in given.split(",") if x] for given in (language, models))
    refuse(
        [] if folders or files else ["give models by --language or --models"],
        [f"DIR must be a folder of its own, and {folder} holds models"]
        * (folder / MANIFEST).is_file(),
        in_range("--windows", windows, 1),
        above("--change", change, 0),
        in_range("--pairs", pairs, LEAST_PAIRS),
        in_range("--most", most, 1),
        in_range("--length", length, SHORTEST + 1),
        above("--mib", mib, 0) or in_range("--mib", mib, 0, MOST_TEXT),
        seed_range(seed),
        device_there(device),
        in_range("--processes", processes, 1),
        writable_folders({"DIR": folder}),
    )
    named = models_in(folders, files)
    config = MiningConfig(
        windows=windows,
        change=change,
        pairs=pairs,
        most=most,
        length=length,
        mib=mib,
        seed=seed,
    )
    found: dict[str, dict[str, int]] = {}
    try:
        with late_progress() as bar:
            task = bar.add_task("models", total=len(named))
            given = find_text(None if text is None else [text], mib)
            for name, kinds in mine_models(
                folder,
                named,
                given,
                config,
                device=device,
                runner=runner_of(processes),
            ):
                found[name] = kinds
                bar.advance(task)
    except KeyboardInterrupt:
        say(f"interrupted: what is finished is in {folder}; the same command goes on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(found)
        return
    rows = [[name, str(len(kinds)), str(sum(kinds.values()))] for name, kinds in found.items()]
    print_table(["model", "kinds", "pairs"], rows, numbers=2)
    say("")
    say(f"{sum(map(len, found.values()))} tasks of {len(found)} models in {folder}")
