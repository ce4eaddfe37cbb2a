"""Which case a subject and its prompts belong to, whatever way they came.

1. A subject that `graphcircuits build` wrote says its case when it is read from its file, and how
   it was trained: only a planted one has a known circuit.
2. A shipped subject is known by its weights: `data/subjects.json` has their number and a hash. The
   hash is of the weights rounded to bfloat16, so that any dtype that holds them gives it.
3. Prompts that a case drew say its id.

Not recognized are weights that were changed, be it by one step of training, prompts that went
through a file, and subjects that others trained on the same program.

`python -m lab.generators subjects` writes that file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from graphcircuits.cases import case_ids, stored
from graphcircuits.cases.orders import Order, shipped_path
from graphcircuits.io.store import content_hash
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


@dataclass(frozen=True)
class Recognized:
    """What is known of a subject and its prompts by themselves."""

    case: str | None
    """The case that the subject, or else the pairs, belong to."""
    planted: str | None
    """The case whose circuit the subject was trained to have."""


def recognize(subject: Transformer, pairs: Pairs | None = None) -> Recognized:
    """Which case a subject and its prompts belong to; both names are None if none is recognized."""
    if subject.case is not None:
        case, fleet = subject.case, subject.fleet
    elif (order := _known(subject)) is not None:
        case, fleet = order.case, order.fleet
    else:
        return Recognized(None if pairs is None else pairs.case, None)
    return Recognized(case, None if fleet == "natural" else case)


def _known(subject: Transformer) -> Order | None:
    """The shipped subject that has these weights."""
    known = _by_content()
    size = n_parameters(subject)
    # Nearly every other subject has another number of weights, and need not be hashed.
    if size not in {listed for listed, _ in known}:
        return None
    return known.get((size, fingerprint(subject)))


def fingerprint(subject: Transformer) -> str:
    """A hash of the weights, the same in every dtype that holds them, and wherever they are."""
    rounded = {name: weight.to(torch.bfloat16) for name, weight in subject.weights.items()}
    return content_hash(rounded)


def shipped_ids() -> list[str]:
    """Cases whose planted subject is in the package, in the order of `case_ids`."""
    return [id for id in case_ids() if shipped_path(Order(id)).is_file()]


def n_parameters(subject: Transformer) -> int:
    """How many numbers its weights are."""
    return sum(weight.numel() for weight in subject.weights.values())


@cache
def _by_content() -> Mapping[tuple[int, str], Order]:
    records = stored("subjects")
    return {
        (record["parameters"], record["sha256"]): Order.parse(id) for id, record in records.items()
    }
