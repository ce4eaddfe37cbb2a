"""The test sets that ship beside the planted subjects: which subjects, and how they are built.

1. natural: every program of the test split in the plain architecture and in one other, dealt out in
   turn, and held-out random programs, in all architectures in turn.
2. public: every program of the test split, by the public losses.
3. multitask: the models of several tasks whose programs are all held out, planted.

    python -m graphcircuits.corpus.test_sets FOLDER [--device cuda] [--processes 8]

builds them into FOLDER, goes on where it was cut off, and says what did not pass and what has
nothing to train; what passed is what `graphcircuits/data` holds, each subject where `shipped_path`
says. The public fleet holds the paper's pool besides, which is for learning: docs/subjects.md has
the command.
"""

import argparse
import logging
import shlex
import sys
import time
from itertools import cycle
from pathlib import Path

from graphcircuits.corpus import case_ids
from graphcircuits.corpus.architectures import ARCHITECTURES
from graphcircuits.corpus.build import BuildConfig, build, subject_path
from graphcircuits.corpus.multitask import load_multi, multi_ids
from graphcircuits.corpus.orders import Order
from graphcircuits.corpus.random_programs import random_ids

RANDOM_PROGRAMS = 40
LAYERS = 3
"""Deepest subject of a random program."""
HEADS = 4
"""Models of several tasks with more are few, and a fleet of few costs as much as one of many."""


def natural_orders() -> list[Order]:
    """Subjects trained on the task alone, in all architectures."""
    plain, *others = ARCHITECTURES
    listed = case_ids(split="test")
    drawn = random_ids("test", RANDOM_PROGRAMS, layers=LAYERS)
    return [
        *(Order(case, "natural", plain) for case in listed),
        *(Order(case, "natural", name) for case, name in zip(listed, cycle(others), strict=False)),
        *(Order(c, "natural", name) for c, name in zip(drawn, cycle(ARCHITECTURES), strict=False)),
    ]


def public_orders() -> list[Order]:
    """Subjects trained by the public losses."""
    return [Order(case, "public") for case in case_ids(split="test")]


def multitask_orders() -> list[Order]:
    """Models of several held-out tasks, with planted circuits."""
    models = map(load_multi, multi_ids("test"))
    return [Order(model.id) for model in models if model.n_heads == HEADS]


def main() -> None:
    """Build what the folder lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="workers that prepare the data")
    parser.add_argument("--minutes", type=float, help="stop after so long, with what is there")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    deadline = float("inf") if given.minutes is None else time.monotonic() + 60 * given.minutes
    orders = [*public_orders(), *natural_orders(), *multitask_orders()]
    command = "python -m graphcircuits.corpus.test_sets FOLDER"
    built = build(
        orders,
        given.folder,
        BuildConfig(processes=given.processes),
        device=given.device,
        command=shlex.join([*command.split(), "--device", given.device]),
        deadline=deadline,
    )
    try:
        for one in built:
            if not one.report["passed"]:
                sys.stdout.write(f"not passed: {one.order.id}\n")
    except ValueError as refused:
        sys.stdout.write(f"{refused}\n")
    there = sum(subject_path(given.folder, order.id).exists() for order in orders)
    sys.stdout.write(f"{there} of {len(orders)} subjects in {given.folder}\n")


if __name__ == "__main__":
    main()
