"""What makes the data that the package ships and trains on: `python -m lab.factory --help`."""

from graphcircuits.cli import run
from lab.factory.corpus_command import corpus
from lab.factory.language_command import language
from lab.factory.mine_command import mine
from lab.factory.planted_command import planted
from lab.factory.text_command import text
from lab.programs import program

app = program(
    "lab.factory",
    "What makes the data that the package ships and trains on.",
    {
        "predictors": "Train the predictors that ship.",
        "lookers": "Train the networks that look, and give them to the predictors that ship.",
        "test-sets": "Build the subjects that ship for tests.",
        "audit": "Measure how well subjects follow their circuits.",
        "planted-plan": "Choose language models and the places of programs in them: language.json.",
        "planted-page": "Write what became of planted language models, as a page.",
        "alive": "Measure which components the tasks of a model need.",
    },
)
app.command()(corpus)
app.command()(language)
app.command()(mine)
app.command()(planted)
app.command()(text)

if __name__ == "__main__":
    run(app)
