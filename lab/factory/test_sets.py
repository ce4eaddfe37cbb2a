"""The test sets that ship beside the planted subjects: which subjects, and how they are built.

1. natural: every program of the test split in the plain architecture and in one other, dealt out in
   turn, and held-out random programs, in all architectures in turn.
2. public: every program of the test split, by the public losses.
3. multitask: the models of several tasks whose programs are all held out, planted.
4. deep: held-out random programs of four to seven layers, planted, each with a circuit of its own.
   Of what passes, the first of each depth ship.

    python -m lab.factory test-sets FOLDER [--sets deep] [--device cuda] [--processes 8]

builds them, or some of these sets, into FOLDER, goes on where it was cut off, and says what did not
pass and what has nothing to train; what passed is what `graphcircuits/data` holds, each subject
where `shipped_path` says. The public fleet holds the paper's pool besides, which is for learning:
docs/subjects.md has the command.
"""

import logging
import shlex
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from graphcircuits.cases import RANDOM, case_ids
from graphcircuits.cases.architectures import ARCHITECTURES
from graphcircuits.cases.build import BuildConfig, build, subject_path
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import load_multi, multi_ids
from graphcircuits.cases.orders import Order
from graphcircuits.cases.random_programs import (
    GUESSABLE,
    circuit_of,
    probed,
    random_case,
    random_facts,
    random_ids,
    structure_hash,
)
from graphcircuits.fleets.recipes import SiitConfig
from lab.generators.random_programs import N_SEEDS
from lab.programs import parser

RANDOM_PROGRAMS = 40
LAYERS = 3
"""Deepest subject of a random program."""
HEADS = 4
"""Models of several tasks with more are few, and a fleet of few costs as much as one of many."""

DEEP = (4, 5, 6, 7)
DEEP_TRIED = 20
"""Programs of each depth that are trained."""
DEEP_WIDTH = 16
"""Width of their streams: the narrowest, for the size of the package."""
LIKE_THE_POOL = (73, 2181)
"""Held-out seeds whose circuit is a random pool program's, seeds 3479 and 1090, once tokens and
positions count as one input."""


def mask_structure(case: Case) -> str:
    """The structure of the circuit as a mask has it, where `tokens` and `indices` are one input."""
    edges = circuit_of(case.layout)
    return structure_hash({("tokens" if w == "indices" else w, r, slot) for w, r, slot in edges})


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


def deep_orders(depths: Sequence[int] = DEEP) -> list[Order]:
    """Deep programs that are held out, in no model of several tasks and not constant; no two
    circuits alike."""
    taken = {case for model in map(load_multi, multi_ids("test")) for case in model.names}
    found: dict[int, dict[str, Order]] = {depth: {} for depth in depths}
    for seed in range(N_SEEDS):
        facts, order = random_facts(seed), Order(f"{RANDOM}-{seed}")
        alike = found.get(facts.n_layers)
        if alike is None or len(alike) == DEEP_TRIED or facts.guessable > GUESSABLE:
            continue
        if facts.assignment["split"] != "test" or order.case in taken or seed in LIKE_THE_POOL:
            continue
        case = random_case(seed)
        fits = (case.subject_dims.d_model, case.subject_dims.n_heads) == (DEEP_WIDTH, HEADS)
        if fits and not _has_one_answer(case):
            alike.setdefault(mask_structure(case), order)
    return [order for alike in found.values() for order in alike.values()]


def _has_one_answer(case: Case) -> bool:
    """Whether every position has the same answer wherever it has one: nothing could be trained."""
    return all(len(set(column) - {"None"}) < 2 for column in zip(*probed(case), strict=True))


SETS = {
    "public": public_orders,
    "natural": natural_orders,
    "multitask": multitask_orders,
    "deep": deep_orders,
}
RECIPES = {"deep": SiitConfig(steps=2000, edge_weight=10.0)}
"""How a set is trained, where not by the recipe of its fleet."""


def main(arguments: Sequence[str]) -> None:
    """Build what the folder lacks."""
    words = parser("lab.factory test-sets", __doc__)
    words.add_argument("folder", type=Path)
    words.add_argument("--device", default="cpu")
    words.add_argument("--processes", type=int, default=1, help="workers that prepare the data")
    words.add_argument("--minutes", type=float, help="stop after so long, with what is there")
    words.add_argument("--sets", default=",".join(SETS), help="some of them, commas between")
    given = words.parse_args(arguments)
    if unknown := [name for name in given.sets.split(",") if name not in SETS]:
        words.error(f"unknown sets {', '.join(unknown)}; choose from {', '.join(SETS)}")
    logging.basicConfig(level=logging.WARNING)
    deadline = float("inf") if given.minutes is None else time.monotonic() + 60 * given.minutes
    for name in given.sets.split(","):
        command = f"python -m lab.factory test-sets FOLDER --sets {name}"
        config = BuildConfig(siit=RECIPES.get(name), processes=given.processes)
        orders = SETS[name]()
        built = build(
            orders,
            given.folder,
            config,
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
        sys.stdout.write(f"{name}: {there} of {len(orders)} subjects in {given.folder}\n")
