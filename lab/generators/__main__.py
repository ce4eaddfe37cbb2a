"""What writes the tables in graphcircuits/data: `python -m lab.generators --help`."""

from graphcircuits.cli import run
from lab.programs import program

app = program(
    "lab.generators",
    "What writes the tables that the package reads.",
    {
        "split": "Divide the cases into folds and a test split: split.json.",
        "tables": "Print the tables of cases in docs/benchmark.md.",
        "random-programs": "Draw the first random programs: random.json.",
        "multitask": "Choose which programs share a model: multitask.json.",
        "subjects": "Hash the subjects that ship, by which they are recognized: subjects.json.",
    },
)

if __name__ == "__main__":
    run(app)
