"""Which programs stand together in the corpus' models of several tasks.

1. The programs of a split: listed ones that train alone and whose circuit does the task alone, and
   the first random ones; none too deep.
2. Programs can share a model when they have one length, one attention mask, one kind of output and
   one kind of token.
3. A model takes programs that were taken least so far, and only such that no two are related (their
   circuits differ) and that some token is in every vocabulary (so that the tokens alone do not give
   the task away). Every second model has heads of its own for each program.

Models for training hold programs of one fold each, so that no fold is divided.

`python -m lab.generators multitask` writes `data/multitask.json`, which is what the package
reads.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from graphcircuits.cases import MULTITASK, N_FOLDS, case_ids, load_case
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import MAX_HEADS, share_heads
from graphcircuits.cases.random_programs import random_ids
from graphcircuits.cases.recognize import shipped_ids
from graphcircuits.io.store import write_atomic
from lab import DATA
from lab.programs import parser

FILE = DATA / "multitask.json"
COUNTS = {"test": 44, **{f"fold-{fold}": 10 for fold in range(N_FOLDS)}}
"""Models of each split."""
RANDOM = {"test": 120, **{f"fold-{fold}": 40 for fold in range(N_FOLDS)}}
"""Random programs to choose from."""
SIZES = (2, 3, 2, 4, 2, 3, 5, 2, 8)
"""Programs in a model, in turn; fewer where not so many go together. An odd number of them, so that
every size comes with and without shared heads."""
DEEPEST, LARGEST, LONGEST = 4, 7, 10
"""Layers and components of a program, and length of its inputs, at most."""
DEEPEST_RANDOM = 3
"""Random programs are mostly deep ones, so that nearly all models would be."""
STEPS, ALONE = 4000, 0.98
"""A listed program trained in at most so many steps, and its circuit alone keeps such a share."""


def programs(split: str) -> list[Case]:
    """The programs to choose from."""
    shipped = set(shipped_ids())
    listed = [load_case(id) for id in case_ids(split=split) if id in shipped]
    good = [
        case
        for case in listed
        if case.report()["steps"] <= STEPS and case.report()["circuit_accuracy"] >= ALONE
    ]
    drawn = [load_case(id) for id in random_ids(split, RANDOM[split], layers=DEEPEST_RANDOM)]
    return [
        case
        for case in good + drawn
        if case.layout.n_layers <= DEEPEST
        and len(case.layout.components) <= LARGEST
        and case.max_seq_len <= LONGEST
    ]


def kind(case: Case) -> tuple[Any, ...]:
    """What the programs of one model have in common."""
    words = any(isinstance(token, str) for token in case.vocab)
    return (case.max_seq_len, case.causal, case.categorical, words)


def compose(cases: Sequence[Case], count: int) -> list[dict[str, Any]]:
    """Models of these programs, all different: their programs, and whether heads are shared."""
    choice, used = random.Random(0), Counter[str]()
    kinds: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        kinds.setdefault(kind(case), []).append(case)
    made: dict[frozenset[str], dict[str, Any]] = {}
    for number in range(count):
        size, shared = SIZES[number % len(SIZES)], number % 2 == 0
        # Of Python's generator, the numbers of `random()` are the ones that no version may change.
        tries = [
            _choose(sorted(like, key=lambda c: (used[c.id], choice.random())), size, shared)
            for like in kinds.values()
        ]
        new = [t for t in tries if len(t) > 1 and frozenset(c.id for c in t) not in made]
        if not new:
            break
        # As many as wanted; then what was taken least, in sum.
        best = min(new, key=lambda t: (-len(t), sum(used[c.id] for c in t) / len(t)))
        used.update(case.id for case in best)
        ids = [case.id for case in best]
        made[frozenset(ids)] = {"cases": ids, "shared": shared}
    return list(made.values())


def _choose(cases: Sequence[Case], size: int, shared: bool) -> list[Case]:
    """The first of the cases that go together, at most so many."""
    chosen: list[Case] = []
    for case in cases:
        more = [*chosen, case]
        if (
            len(more) <= size
            and len({one.group for one in more}) == len(more)
            and set.intersection(*(set(one.vocab) for one in more))
            and max(x.n_heads for x in share_heads([y.layout for y in more], shared)) <= MAX_HEADS
        ):
            chosen = more
    return chosen


def records() -> dict[str, dict[str, Any]]:
    """All models by id, with the place of each in the split."""
    found: list[dict[str, Any]] = []
    for split, count in COUNTS.items():
        fold = {} if split == "test" else {"fold": int(split.removeprefix("fold-"))}
        place = {"split": "pool" if fold else "test", **fold}
        found += [model | place for model in compose(programs(split), count)]
    return {f"{MULTITASK}-{number}": record for number, record in enumerate(found)}


def as_json(models: Mapping[str, Mapping[str, Any]]) -> str:
    """One line per model."""
    lines = [f"  {json.dumps(id)}: {json.dumps(record)}" for id, record in models.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments: Sequence[str]) -> None:
    """Choose and write."""
    parser("lab.generators multitask", __doc__).parse_args(arguments)
    models = records()
    write_atomic(FILE, as_json(models).encode())
    sizes = Counter(len(model["cases"]) for model in models.values())
    tasks = ", ".join(f"{count} of {size} tasks" for size, count in sorted(sizes.items()))
    sys.stdout.write(f"{len(models)} models: {tasks}\nwrote {FILE}\n")
