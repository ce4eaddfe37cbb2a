"""What commands share: printing, files, and options as text.

All that a command prints goes through `printable`, so that nothing read from a file or taken from
a path can steer the terminal.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
INTERRUPTED = 130
"""Exit code after Ctrl-C."""

# Control characters, marks that reorder or break lines, and the halves of characters that stand
# for undecodable bytes of a path.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    r"""The text with whatever could steer a terminal written out: `\x1b` for an escape."""
    return _STEERING.sub(lambda at: at[0].encode("unicode_escape").decode(), str(text))


def say(text: object, *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(printable(text), err=err)


def say_error(text: object) -> None:
    """Say on standard error, in one line, what went wrong."""
    say("error: " + str(text).replace("\n", " "), err=True)


def in_words(error: Exception) -> str:
    """What an error says; one of the system's without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {reason(error)}"
    return reason(error)


def reason(error: Exception) -> str:
    """What an error says, without the file it is about where the system raised it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def print_table(columns: list[str], rows: Sequence[Sequence[str]], *, numbers: int = 0) -> None:
    """A table without lines; the last `numbers` columns stand to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        right = number >= len(columns) - numbers
        table.add_column(column, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*map(printable, row))
    # A pipe has no width of its own: give lines room instead of folding them at 80.
    width = None if sys.stdout.isatty() else 160
    Console(width=width, markup=False, emoji=False).print(table)


def print_json(record: object) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False)
    # JSON has an escape of its own for what `printable` writes out; its line ends stay.
    typer.echo(_STEERING.sub(lambda at: at[0] if at[0] == "\n" else f"\\u{ord(at[0]):04x}", text))


def write(path: Path, text: str) -> None:
    from graphcircuits.io.store import write_atomic

    write_atomic(path, text.encode())


@dataclass(frozen=True)
class Saved:
    """Files that were written, and why others were not."""

    written: tuple[Path, ...]
    failures: tuple[str, ...]

    def tell(self, *, quiet: bool = False) -> None:
        """Say which were written, unless `quiet`, and end with exit code 1 if any was not."""
        for path in () if quiet else self.written:
            say(f"wrote {path}")
        for failure in self.failures:
            say_error(failure)
        if self.failures:
            raise typer.Exit(1)


def save(files: Mapping[Path | None, Callable[[Path], Iterable[Path] | None]]) -> Saved:
    """Write files, each by its function; one that fails does not keep the results unprinted.

    A function that writes other files than this one, or none, returns their paths.
    """
    written: list[Path] = []
    failures = []
    for path, write_to in files.items():
        if path is None:
            continue
        try:
            paths = write_to(path)
            written += [path] if paths is None else paths
        except (OSError, ValueError) as error:
            failures.append(f"cannot write {path}: {reason(error)}")
    return Saved(tuple(written), tuple(failures))


def parse_options(given: Sequence[str]) -> dict[str, Any]:
    """`["steps=10", "pool=sum"]` as names and values; a value that is JSON is read as JSON."""
    from graphcircuits.io.files import NotFiniteError, StoreError, parse_json

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
        except (json.JSONDecodeError, NotFiniteError):
            options[name] = value  # NaN may be the name of a file; it fits no number
        except StoreError as error:
            raise ValueError(f"the option {name} {error}") from error
    return options
