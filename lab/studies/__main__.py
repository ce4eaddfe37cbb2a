"""Studies of what matters in training: `python -m lab.studies --help`."""

from graphcircuits.cli import run
from lab.programs import program

app = program(
    "lab.studies",
    "What matters in training.",
    {
        "certainty": "Fit and measure the probabilities of edges that certificates give.",
        "looking": "Train networks that look, with parts and data taken away, and compare.",
        "scaling": "Train with more and less data and parts, and compare.",
        "targets": "Find scores case by case by gradient steps.",
        "wrong-circuits": "Certify right circuits and wrong ones: which are caught?",
        "truth": "Compare faithful circuits with the planted ones of language models.",
    },
)

if __name__ == "__main__":
    run(app)
