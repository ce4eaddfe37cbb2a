"""Number and hash of the weights of every shipped subject: `data/subjects.json`.

The package recognizes subjects by it (`graphcircuits.cases.recognize`).

    python -m lab.generators subjects
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from graphcircuits.cases.orders import Order, shipped_orders, shipped_path
from graphcircuits.cases.recognize import fingerprint, n_parameters, shipped_ids
from graphcircuits.io.store import write_atomic
from graphcircuits.subject.files import load_transformer
from lab import DATA
from lab.programs import parser

FILE = DATA / "subjects.json"


def index() -> dict[str, dict[str, Any]]:
    """Number and hash of the weights of every shipped subject, by the id of its order."""
    listed = [Order(id) for id in shipped_ids()]
    orders = [*listed, *(order for order in shipped_orders() if order not in listed)]
    subjects = {order.id: load_transformer(shipped_path(order)) for order in orders}
    return {
        id: {"parameters": n_parameters(subject), "sha256": fingerprint(subject)}
        for id, subject in subjects.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Read all shipped subjects and write the file."""
    parser("lab.generators subjects", __doc__).parse_args(arguments)
    records = index()
    lines = [f"  {json.dumps(id)}: {json.dumps(record)}" for id, record in records.items()]
    write_atomic(FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    sys.stdout.write(f"{len(records)} subjects\nwrote {FILE}\n")
