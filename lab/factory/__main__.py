"""What makes the data that the package ships and trains on: `python -m lab.factory --help`."""

import typer

from graphcircuits.cli import run
from lab.factory.corpus_command import corpus
from lab.factory.language_command import language

app = typer.Typer(
    help="What makes the data that the package ships and trains on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(corpus)
app.command()(language)

if __name__ == "__main__":
    run(app)
