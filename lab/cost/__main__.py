"""What methods cost on growing subjects: `python -m lab.cost --help`."""

import typer

from graphcircuits.cli import run
from lab.cost.command import cost

app = typer.Typer(
    help="What methods cost on growing subjects.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(cost)

if __name__ == "__main__":
    run(app)
