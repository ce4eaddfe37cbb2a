"""The paper's experiment: `python -m lab.paper --help` lists its programs."""

import typer

from graphcircuits.cli import run
from graphcircuits.commands.options import RayCommand
from lab.paper.sweep_command import sweep

app = typer.Typer(
    help="The paper's experiment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(cls=RayCommand)(sweep)


@app.callback()
def programs() -> None:
    """The paper's experiment, step by step."""


if __name__ == "__main__":
    run(app)
