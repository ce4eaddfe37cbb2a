"""What commands share: printing, files, options as text, and a progress bar that comes late."""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
PATIENCE = 2.0
"""Seconds after which a progress bar appears."""


def print_table(columns: list[str], rows: Sequence[Sequence[str]], *, numbers: int = 0) -> None:
    """A table without lines; the last `numbers` columns stand to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        right = place >= len(columns) - numbers
        table.add_column(column, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*row)
    # A pipe has no width of its own: give lines room instead of folding them at 80.
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)


def print_json(record: object) -> None:
    typer.echo(json.dumps(record, indent=1, ensure_ascii=False))


def shown(value: object) -> str:
    return "" if value is None else str(value)


def write(path: Path, text: str) -> None:
    from graphcircuits.store import write_atomic

    write_atomic(path, text.encode())


def parse_options(given: Sequence[str]) -> dict[str, Any]:
    """`["steps=10", "pool=sum"]` as names and values; a value that is JSON is read as JSON."""
    from graphcircuits.files import StoreError, parse_json

    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ValueError(f"an option is NAME=VALUE, got {text!r}.")
        if name in options:
            raise ValueError(f"the option {name} is given twice.")
        try:
            options[name] = parse_json(value)
        except json.JSONDecodeError:
            options[name] = value
        except StoreError as error:
            raise ValueError(f"the option {name} {error}") from error
    return options


def options_by_method(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`["eap-ig.steps=10"]` as options by method."""
    by_method: dict[str, list[str]] = {}
    for text in given:
        method, dot, rest = text.partition(".")
        if not dot:
            raise ValueError(f"an option of a method is METHOD.NAME=VALUE, got {text!r}.")
        by_method.setdefault(method, []).append(rest)
    return {method: parse_options(texts) for method, texts in by_method.items()}


@contextmanager
def late_progress() -> Iterator["Progress"]:
    """A progress bar on standard error that appears only if the work takes a while."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        timer.join()
        # Stopping a bar that never appeared would leave an empty line.
        if bar.live.is_started:
            bar.stop()
