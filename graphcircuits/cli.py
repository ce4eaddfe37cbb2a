"""The `graphcircuits` command: it registers the commands and turns errors into exit codes.

0 all done, 1 something failed, 2 a mistake of the caller, 3 a circuit that does not pass its
certificate, 70 a mistake of ours, 130 interrupted.
"""

import errno
import io
import re
import sys
import traceback
import warnings
from contextvars import ContextVar
from typing import Annotated

import typer

import graphcircuits
from graphcircuits.commands.bench import bench
from graphcircuits.commands.build import build
from graphcircuits.commands.cases import cases
from graphcircuits.commands.certify import certify
from graphcircuits.commands.compile import compile_
from graphcircuits.commands.evaluate import evaluate
from graphcircuits.commands.interact import interact
from graphcircuits.commands.localize import localize
from graphcircuits.commands.options import RayCommand
from graphcircuits.commands.output import in_words, say, say_error
from graphcircuits.commands.progress import terminable
from graphcircuits.commands.tasks import tasks
from graphcircuits.commands.train import train
from graphcircuits.commands.view import view

FAILED, MISTAKE, INTERNAL = 1, 2, 70
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where there is no room on a disk, which is nobody's mistake."""

app = typer.Typer(
    name="graphcircuits",
    help="Find the circuit a transformer uses for a task; build transformers with a known circuit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command(cls=RayCommand)(bench)
app.command(cls=RayCommand)(build)
app.command()(cases)
app.command()(certify)
app.command("compile")(compile_)
app.command()(evaluate)
app.command()(interact)
app.command()(localize)
app.command()(tasks)
app.command(cls=RayCommand)(train)
app.command()(view)

MOVED = {
    "corpus": "python -m lab.factory corpus",
    "cost": "python -m lab.cost",
    "language": "python -m lab.factory language",
    "sweep": "python -m lab.paper sweep",
}
"""Commands of the laboratory, which is in the repository and not in the package."""


def _refuse_moved(name: str) -> None:
    @app.command(name, hidden=True, context_settings={"ignore_unknown_options": True})
    def moved(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        raise ValueError(
            f"{name} is no command of the package any more; in a clone of the repository run: "
            f"{MOVED[name]}"
        )


for _name in MOVED:
    _refuse_moved(_name)


_debug: ContextVar[bool] = ContextVar("debug", default=False)
"""Whether the command that runs was called with --debug."""


def main() -> None:
    """Entry point of the package's command."""
    run(app)


def run(program: typer.Typer) -> None:
    """Run a program: whatever goes wrong is one line on standard error, and an exit code."""
    before = _debug.set(False)
    for stream in (sys.stdout, sys.stderr):
        # Not every terminal has every character; what it lacks is written out.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings(), terminable():
            warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}", err=True)
            program()
    except Exception as error:  # noqa: BLE001  nobody else is left to tell the user
        if _debug.get():
            for line in "".join(traceback.format_exception(error)).splitlines():
                say(line, err=True)
        raise SystemExit(_report(error)) from None
    finally:
        _debug.reset(before)


def _report(error: Exception) -> int:
    """Say what went wrong, and return the exit code."""
    if isinstance(error, ValueError | OSError | ImportError):
        say_error(in_words(error))
        full = isinstance(error, OSError) and error.errno in FULL
        return FAILED if full else MISTAKE
    if isinstance(error, MemoryError) or re.search("out of memory|allocate memory", str(error)):
        in_commands = getattr(error, "in_commands", None)
        text = in_commands() if in_commands else str(error) * isinstance(error, MemoryError)
        say_error(
            text or "out of memory; give fewer prompts, smaller options or a smaller subject."
        )
        return FAILED
    say_error(
        f"internal error: {type(error).__name__}: {error}; "
        "run with graphcircuits --debug for the traceback, and report it."
    )
    return INTERNAL


def _version(wanted: bool) -> bool:
    if wanted:
        say(graphcircuits.__version__)
        raise typer.Exit
    return wanted


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", envvar="GRAPHCIRCUITS_DEBUG", help="Show the traceback of an error."
        ),
    ] = False,
) -> None:
    """Options that come before any command."""
    _debug.set(debug)


if __name__ == "__main__":
    main()
