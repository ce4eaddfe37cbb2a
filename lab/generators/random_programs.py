"""Draw the first random programs and write what is known of them: `data/random.json`.

python -m lab.generators random-programs
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple

from graphcircuits.cases.random_programs import Facts, draw, facts_of
from graphcircuits.io.store import write_atomic
from lab import DATA
from lab.programs import parser

FILE = DATA / "random.json"
N_SEEDS = 4096
"""Seeds whose facts are in that file."""


def as_json(facts: Iterable[Facts]) -> str:
    """One line per seed."""
    return (
        "[\n"
        + ",\n".join(json.dumps(astuple(each), separators=(",", ":")) for each in facts)
        + "\n]\n"
    )


def main(arguments: Sequence[str]) -> None:
    """Draw the first seeds and write what is known of them."""
    parser("lab.generators random-programs", __doc__).parse_args(arguments)
    write_atomic(FILE, as_json(facts_of(draw(seed)) for seed in range(N_SEEDS)).encode())
    sys.stdout.write(f"{N_SEEDS} seeds\nwrote {FILE}\n")
