"""The paper's experiment: `python -m lab.paper --help` lists its programs."""

from graphcircuits.cli import run
from graphcircuits.commands.options import RayCommand
from lab.paper.sweep_command import sweep
from lab.programs import program

app = program(
    "lab.paper",
    "The paper's experiment.",
    {
        "page": "Make a page of stored sweeps, with the paper's table, figure and claims.",
        "predictors": "Make predictors of the refits of a sweep.",
    },
)
app.command(cls=RayCommand)(sweep)

if __name__ == "__main__":
    run(app)
