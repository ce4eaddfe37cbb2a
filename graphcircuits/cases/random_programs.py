"""Random programs as cases: `rnd-17` is what `sample_case` draws from seed 17.

1. `structure_hash` gives a number that circuits share when they are equal up to renaming heads
   among each other and MLPs among each other. Every component starts with its kind; round by round
   it takes in what it reads and who reads it, by which input (Weisfeiler and Lehman, 1968), until
   rounds cannot carry anything further; the hash is of all components together. Two circuits that
   differ may in theory share it: then they count as related, which only makes the split stricter.
   It is written with hashlib alone: where a random program stands in the split hangs on these
   numbers, which must be the same in every process and with every version of every library.
2. Two random programs are related when their circuits have one structure, and so are a random
   program and a listed case: the other checks of the split imply this one for programs that no
   function is written for. So `assignment_of` goes by the structure's hash, the same everywhere:
   - that of a listed case: the fold and group of that case, or discarded where it is held out or
     discarded, since what is related to a test case is not for training;
   - any other: one structure in eight is held out (`test`), the folds share the others. The group
     is named after the hash.
   A program whose output is the same for every input of full length is discarded.

To draw a program takes a tenth of a second, so `data/random.json` has the facts of the first seeds;
`python -m lab.generators random-programs` writes it. A seed keeps its meaning: tests compare the
first ones with a record of them.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from graphcircuits.cases import N_FOLDS, RANDOM, RANDOM_SEEDS, split_records, stored
from graphcircuits.cases.case import Case
from graphcircuits.rasp.layout import Layout, interpbench_writers
from graphcircuits.rasp.lookup import run
from graphcircuits.rasp.sample import MAX_LAYERS, layers_drawn, sample_case

HELD_OUT = 8
"""One structure in so many is for testing."""
PROBES = 256
"""Inputs on which functions are compared."""
GUESSABLE = 0.95
"""The share of answers up to which guessing them without the input leaves something to learn."""
SPLITS = ("test", "pool", "discarded", *(f"fold-{fold}" for fold in range(N_FOLDS)))
SEEDS_PER_ID = 200
"""How many seeds a search looks through for each program wanted before it gives up."""


@dataclass(frozen=True)
class Facts:
    """What decides where a random program stands, and whether it is one of those before it."""

    n_layers: int
    """Of the subject's graph."""
    categorical: bool
    causal: bool
    guessable: float
    """The share of answers that the most frequent one at each position gets right, to four digits;
    1 if the output is constant, and only then."""
    structure: str
    """The structure's hash."""
    program: str
    """A hash of structure and function: vocabulary size, length, masking, and answers to probes."""

    @property
    def assignment(self) -> dict[str, Any]:
        """Where it stands in the split: fields of `split.Place`."""
        return assignment_of(self.structure, constant=self.guessable == 1)

    @property
    def splits(self) -> set[str]:
        """The names of SPLITS that hold it."""
        assignment = self.assignment
        return {assignment["split"], f"fold-{assignment.get('fold')}"} & set(SPLITS)


@lru_cache(maxsize=256)
def random_case(seed: int) -> Case:
    """The case that a seed stands for."""
    case = draw(seed)
    facts = _index()[seed] if seed < len(_index()) else facts_of(case)
    fields = {k: v for k, v in facts.assignment.items() if k in ("split", "fold", "group")}
    return replace(case, **fields)


def draw(seed: int) -> Case:
    """The program of a seed, outside the split."""
    if not 0 <= seed < RANDOM_SEEDS:
        raise ValueError(
            f"the seed of a random program must be 0 to {RANDOM_SEEDS - 1}, got {seed}."
        )
    drawn = sample_case(_generator(seed))
    return Case(
        id=f"{RANDOM}-{seed}",
        program=drawn.program,
        vocab=drawn.vocab,
        max_seq_len=drawn.max_seq_len,
        causal=drawn.causal,
        task=f"A random program, drawn from seed {seed}.",
        family=RANDOM,
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- structure ----------------------------------------------------------------------------------


Edge = tuple[str, str, str]
"""Writer, reader and input: `q`, `k` or `v` of a head, `in` of an MLP or the logits."""
NAMED = ("tokens", "indices", "logits")
"""The components that are told apart by name; of the others only the kind counts."""


def circuit_of(layout: Layout) -> frozenset[Edge]:
    """The official labels with the two embeddings apart."""
    return frozenset(
        (writer, reader, slot)
        for (reader, slot), writers in interpbench_writers(layout).items()
        for writer in writers
    )


def kind_of(component: str) -> str:
    """What renaming keeps of a component: `a` of a head, `m` of an MLP, other names as they are."""
    return component if component in NAMED else component[0]


def structure_hash(circuit: Iterable[Edge]) -> str:
    """16 hexadecimal digits, the same for circuits that are equal up to renaming."""
    edges = sorted(circuit)
    colour = {name: kind_of(name) for edge in edges for name in edge[:2]}
    # What is at one end reaches the other in fewer rounds than there are components.
    for _ in range(len(colour)):
        colour = _refined(edges, colour)
    return _digest(sorted(colour.values()))[:16]


def _refined(edges: Iterable[Edge], colour: Mapping[str, str]) -> dict[str, str]:
    """Every component with its neighbours taken in."""
    around: dict[str, list[str]] = {name: [] for name in colour}
    for writer, reader, slot in edges:
        around[reader].append(f"reads {slot} {colour[writer]}")
        around[writer].append(f"read by {slot} {colour[reader]}")
    return {name: _digest([colour[name], *sorted(around[name])]) for name in colour}


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# --- the split -----------------------------------------------------------------------------------


@lru_cache(maxsize=2**16)
def random_facts(seed: int) -> Facts:
    """What is known of a seed's program; it is drawn where the index does not have it."""
    return _index()[seed] if seed < len(_index()) else facts_of(draw(seed))


@cache
def _index() -> list[Facts]:
    return [Facts(*row) for row in stored("random")]


def facts_of(case: Case) -> Facts:
    """What is known of a case, read off its program."""
    answers = probed(case)
    modes = [Counter(column).most_common(1)[0][1] for column in zip(*answers, strict=True)]
    structure = structure_hash(circuit_of(case.layout))
    size, length = len(case.vocab), case.max_seq_len
    identity = (structure, size, length, case.causal, case.categorical, answers)
    return Facts(
        n_layers=case.graph.n_layers,
        categorical=case.categorical,
        causal=case.causal,
        guessable=round(sum(modes) / (len(modes) * len(answers)), 4),
        structure=structure,
        program=hashlib.sha256(repr(identity).encode()).hexdigest()[:16],
    )


def assignment_of(structure: str, *, constant: bool) -> dict[str, Any]:
    """Where a program of this structure stands: the fields of `split.Place` that apply."""
    listed, records = _listed().get(structure, ()), split_records()
    group = records[listed[0]]["group"] if listed else f"{RANDOM}:{structure[:12]}"
    if constant:
        return {"split": "discarded", "group": group, "check": "constant"}
    if not listed:
        number = int(structure, 16)
        if number % HELD_OUT == 0:
            return {"split": "test", "group": group}
        return {"split": "pool", "group": group, "fold": number // HELD_OUT % N_FOLDS}
    # A group is in the pool as a whole, but for cases whose output is constant.
    folds = [
        record["fold"]
        for record in records.values()
        if record["group"] == group and "fold" in record
    ]
    if folds:
        return {"split": "pool", "group": group, "fold": folds[0]}
    to = next((id for id in listed if records[id]["split"] == "test"), listed[0])
    return {"split": "discarded", "group": group, "check": "structure", "to": to}


@cache
def _listed() -> Mapping[str, list[str]]:
    """The listed cases of each structure."""
    listed: dict[str, list[str]] = {}
    for id, record in split_records().items():
        listed.setdefault(record["structure"], []).append(id)
    return listed


def probed(case: Case) -> list[list[str]]:
    """The answers to some inputs of full length, always the same, position by position.

    Tokens that are no numbers are written as their index in the vocabulary: names do not matter.
    """
    size, length = len(case.vocab), case.max_seq_len - 1
    # Of Python's generator, the numbers of `random()` are the ones that no version may change.
    choice = random.Random(0)
    codes = np.array([[int(choice.random() * size) for _ in range(length)] for _ in range(PROBES)])
    column = run(case.tables, codes).columns[case.program]
    if case.outputs is None:
        return [[f"{x:.9g}" for x in row] for row in column.tolist()]
    numbers = {token: str(i) for i, token in enumerate(case.vocab)}
    names = [numbers.get(x, repr(x)) if isinstance(x, str) else repr(x) for x in case.outputs]
    return [[*map([*names, "None"].__getitem__, row)] for row in column.tolist()]


# --- seeds ---------------------------------------------------------------------------------------


def random_ids(
    split: str,
    n: int,
    *,
    start: int = 0,
    layers: int | None = None,
    categorical: bool | None = None,
    causal: bool | None = None,
) -> list[str]:
    """Ids of the first random programs of a split, the same anywhere.

    No two have the same structure and function, and none has answers that can nearly all be guessed
    without the input.

    Args:
        split: `test` is for measuring, `pool` and its folds, `fold-0` and on, for training;
            `discarded` is for neither.
        n: How many.
        start: The seed to begin at.
        layers: The most layers that the subject's graph may have, at least 2.
        categorical: Only programs that give classes, or only such that give numbers.
        causal: Only programs with causal attention, or only such without.

    Returns:
        Ids for `load_case`.

    Example:
        >>> import graphcircuits as gc
        >>> len(gc.random_ids("pool", 3))
        3

    See docs/benchmark.md, and Tan et al. 2026, Creating Additional Model-Task Pairs.
    """
    _check(split, n, start, layers)
    ids: dict[str, str] = {}
    last = min(RANDOM_SEEDS, start + SEEDS_PER_ID * n)
    for seed in range(start, last):
        if len(ids) == n:
            break
        if layers is not None and layers_drawn(_generator(seed)) > layers:
            continue
        facts = random_facts(seed)
        if (
            split in facts.splits
            and facts.guessable <= GUESSABLE
            and categorical in (None, facts.categorical)
            and causal in (None, facts.causal)
        ):
            ids.setdefault(facts.program, f"{RANDOM}-{seed}")
    if len(ids) < n:
        raise ValueError(
            f"only {len(ids)} of {n} such random programs are in {split!r} among the seeds "
            f"{start} to {last - 1}; ask for fewer, or for other layers or kinds."
        )
    return list(ids.values())


def _check(split: str, n: int, start: int, layers: int | None) -> None:
    problems = []
    if split not in SPLITS:
        problems.append(
            f"unknown split {split!r} of random programs; choose from {', '.join(SPLITS)}"
        )
    if n < 0:
        problems.append(f"n must be at least 0, got {n}")
    if not 0 <= start < RANDOM_SEEDS:
        problems.append(f"start must be a seed from 0 to {RANDOM_SEEDS - 1}, got {start}")
    if layers is not None and not 2 <= layers <= MAX_LAYERS:
        problems.append(
            f"layers must be 2 to {MAX_LAYERS}, since subjects have at least 2, got {layers}"
        )
    if problems:
        raise ValueError("; ".join(problems) + ".")
