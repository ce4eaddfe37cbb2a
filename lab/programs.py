"""The command lines of the laboratory: few programs, each with subcommands.

A subcommand is a function with the options of `typer`, or the `main` of a module that parses its
words with `argparse`; the module is imported when it is called, so that `--help` answers at once.
"""

import argparse
from importlib import import_module
from typing import Annotated

import typer


def program(package: str, about: str, commands: dict[str, str]) -> typer.Typer:
    """A program of the modules of a package: by their names, what each does.

    Example:
        `program("lab.studies", "Studies.", {"scaling": "What more data is worth."})`
    """
    app = typer.Typer(
        help=about, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(lambda: None)  # a program of one subcommand would take its name for an argument
    for name, does in commands.items():
        _add(app, name, f"{package}.{name.replace('-', '_')}", does)
    return app


def _add(app: typer.Typer, name: str, module: str, does: str) -> None:
    # `--help` too is for the module's own parser.
    settings = {"ignore_unknown_options": True, "help_option_names": []}

    @app.command(name, help=does, context_settings=settings)
    def call(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        import_module(module).main(words or [])


def parser(command: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser of the words after `python -m COMMAND`, which says the docstring for help."""
    return argparse.ArgumentParser(
        prog=f"python -m {command}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
