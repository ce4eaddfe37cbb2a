"""What makes the data that the package ships and trains on: `python -m lab.factory --help`."""

from graphcircuits.cli import run
from lab.factory.corpus_command import corpus
from lab.factory.language_command import language
from lab.programs import program

app = program(
    "lab.factory",
    "What makes the data that the package ships and trains on.",
    {
        "predictors": "Train the predictors that ship.",
        "test-sets": "Build the subjects that ship for tests.",
        "audit": "Measure how well subjects follow their circuits.",
        "alive": "Measure which components the tasks of a model need.",
    },
)
app.command()(corpus)
app.command()(language)

if __name__ == "__main__":
    run(app)
