"""The two indexes that the package reads instead of the things themselves.

`python -m lab.generators.index subjects` hashes the weights of every shipped subject into
`data/subjects.json`, by which `cases.recognize` knows them; `python -m lab.generators.index random`
draws the first random programs and writes what is known of them to `data/random.json`, which saves
`cases.random_programs` a tenth of a second for each.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import graphcircuits
from graphcircuits.cases.orders import Order, shipped_orders, shipped_path
from graphcircuits.cases.random_programs import Facts, drawn_case, facts_of
from graphcircuits.cases.recognize import fingerprint, n_weights, shipped_ids
from graphcircuits.io.disk import write_atomic
from graphcircuits.subject.files import load_transformer

DATA = Path(graphcircuits.__file__).parent / "data"
SUBJECTS_FILE, RANDOM_FILE = DATA / "subjects.json", DATA / "random.json"
INDEXED = 4096
"""Seeds whose facts are in the second file."""


def subject_records() -> dict[str, dict[str, Any]]:
    """Number and hash of the weights of every shipped subject, by the id of its order."""
    listed = [Order(id) for id in shipped_ids()]
    orders = [*listed, *(order for order in shipped_orders() if order not in listed)]
    subjects = {order.id: load_transformer(shipped_path(order)) for order in orders}
    return {
        id: {"parameters": n_weights(subject), "sha256": fingerprint(subject)}
        for id, subject in subjects.items()
    }


def subjects_text(records: dict[str, dict[str, Any]]) -> str:
    """One line per subject."""
    lines = [f"  {json.dumps(id)}: {json.dumps(record)}" for id, record in records.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def random_text(facts: Iterable[Facts]) -> str:
    """One line per seed."""
    return "[\n" + ",\n".join(f"  {json.dumps(astuple(each))}" for each in facts) + "\n]\n"


def main(words: list[str]) -> None:
    """Write the file that is named."""
    match words:
        case ["subjects"]:
            path, text = SUBJECTS_FILE, subjects_text(subject_records())
        case ["random"]:
            path = RANDOM_FILE
            text = random_text(facts_of(drawn_case(seed)) for seed in range(INDEXED))
        case _:
            raise SystemExit("usage: python -m lab.generators.index subjects | random")
    write_atomic(path, text.encode())
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
