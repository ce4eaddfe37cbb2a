"""`python -m lab` lists the programs of the laboratory."""

import sys

PROGRAMS = {
    "lab.paper": "the paper's experiment: sweep, page, predictors",
    "lab.factory": "what ships and is trained on: corpus, language, predictors, audit, ...",
    "lab.generators": "tables that the package reads: split, random-programs, multitask, ...",
    "lab.studies": "what matters in training: scaling, targets",
    "lab.cost": "what methods cost on growing subjects",
    "lab.benchmarks": "speed and memory; lab/benchmarks/README.md lists more",
}

if __name__ == "__main__":
    lines = [f"python -m {name:16} {does}\n" for name, does in PROGRAMS.items()]
    sys.stdout.write("".join(lines))
