"""Which cases are held out, which are for training, and which are for neither.

1. Two cases are related when they match under one of three checks:
   `template`: the same program but for names and literals, as written or as built (see `template`);
   `circuit`: the same edges under the official labels, q, k and v apart, `tokens` and `indices`
   apart (the graph itself has one `input`);
   `structure`: the same edges up to renaming components of one kind.
2. Relations are transitive: groups are what they connect.
3. InterpBench's 16 evaluation cases are held out. A group that holds one of them is discarded, and
   so is every case that the paper discarded, and with it its group: our pool is never laxer than
   the paper's. Cases whose output is the same for every input of full length are discarded too.
   `held-out` is what is measured apart from the 16: the mended program of one of them.
4. The rest is the pool. Its groups are dealt to five folds of nearly equal size, and as far as
   groups allow of equal depth.

5. Random programs are not among the cases that are divided: `random_programs` places them by the
   structure of their circuit, next to the listed cases that have it.

Where the paper compares the edge lists that were published, we compare the official labels: the
lists write one circuit in several ways, and relate fewer cases. Like the paper we tell the two
embeddings apart. That relates fewer cases than a single `input` would, and leaves pairs of cases
whose circuits are one and the same mask over the graph in different folds (`relations.twins`).

`python -m lab.generators split` writes `data/split.json`, which is what the package reads.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations, product

import networkx as nx

from graphcircuits.cases import FAMILIES, N_FOLDS
from graphcircuits.cases.case import Case
from graphcircuits.cases.prepare import is_constant
from graphcircuits.cases.random_programs import Edge, circuit_of, kind_of, structure_hash
from graphcircuits.io.store import write_atomic
from lab import DATA
from lab.generators.template import program_template, source_template
from lab.programs import parser

CHECKS = ("template", "circuit", "structure")
HELD_OUT = ("ib-13-fixed",)
"""Held out beside the paper's test cases, for figures of their own."""
SPLIT_FILE = DATA / "split.json"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What the three checks compare of a case."""

    source: str
    program: str
    circuit: frozenset[Edge]
    structure: int
    """The number of a class of circuits that are equal up to renaming."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a case stands in the split."""

    split: str
    group: str
    """The first case of its group."""
    fold: int | None = None
    check: str | None = None
    """Why it is discarded: one of CHECKS, `paper` (by the paper) or `constant` (its output)."""
    to: str | None = None
    """The case that the check found it related to: a test case, or one discarded before it."""


# --- relations -----------------------------------------------------------------------------------


def corpus() -> list[Case]:
    """All cases of all families, without their places."""
    return [case for module in FAMILIES.values() for case in import_module(module).cases()]


def traits_of(cases: Iterable[Case]) -> dict[str, Traits]:
    """What the checks compare, by id."""
    listed = list(cases)
    circuits = [circuit_of(case.layout) for case in listed]
    return {
        case.id: Traits(
            source=_digest(
                program_template(case.program)
                if case.source is None
                else source_template(case.source)
            ),
            program=_digest(program_template(case.program)),
            circuit=circuit,
            structure=structure,
        )
        for case, circuit, structure in zip(listed, circuits, structures(circuits), strict=True)
    }


def _digest(form: object) -> str:
    return hashlib.sha256(repr(form).encode()).hexdigest()


def structures(circuits: Sequence[frozenset[Edge]]) -> list[int]:
    """Numbers that are equal where circuits are isomorphic."""
    classes: dict[frozenset[Edge], int] = {}
    for circuit in circuits:
        if circuit not in classes:
            like = (number for known, number in classes.items() if is_isomorphic(circuit, known))
            classes[circuit] = next(like, len(classes))
    return [classes[circuit] for circuit in circuits]


def is_isomorphic(one: frozenset[Edge], other: frozenset[Edge]) -> bool:
    """Equal up to renaming heads and MLPs; q, k and v, and the two embeddings, are told apart."""
    if Counter(slot for *_, slot in one) != Counter(slot for *_, slot in other):
        return False
    return nx.is_isomorphic(
        _networkx(one),
        _networkx(other),
        node_match=nx.isomorphism.categorical_node_match("kind", None),
        edge_match=nx.isomorphism.categorical_multiedge_match("slot", None),
    )


def _networkx(edges: frozenset[Edge]) -> nx.MultiDiGraph:
    graph = nx.MultiDiGraph()
    for writer, reader, slot in sorted(edges):
        for name in (writer, reader):
            graph.add_node(name, kind=kind_of(name))
        graph.add_edge(writer, reader, slot=slot)
    return graph


def match(one: Traits, other: Traits) -> str | None:
    """The first check under which two cases are related, if any."""
    if one.source == other.source or one.program == other.program:
        return "template"
    if one.circuit == other.circuit:
        return "circuit"
    return "structure" if one.structure == other.structure else None


def groups_of(traits: Mapping[str, Traits]) -> list[list[str]]:
    """What the relations connect. Cases and groups in the order given."""
    related = nx.Graph()
    related.add_nodes_from(traits)
    related.add_edges_from(
        (one, other) for one, other in combinations(traits, 2) if match(traits[one], traits[other])
    )
    place = {id: number for number, id in enumerate(traits)}
    groups = [sorted(group, key=place.__getitem__) for group in nx.connected_components(related)]
    return sorted(groups, key=lambda group: place[group[0]])


def reasons(
    group: Sequence[str], traits: Mapping[str, Traits], roots: Collection[str]
) -> dict[str, tuple[str, str]]:
    """How each case of a group hangs on the roots: the check and the case that it matches.

    Cases that match a root come first, then those that match these, and so on; of several matches
    the one of the first check, then of the first case.
    """
    found: dict[str, tuple[str, str]] = {}
    reached = [id for id in group if id in roots]
    while reached:
        links = {
            id: [(check, to) for to in reached if (check := match(traits[id], traits[to]))]
            for id in group
            if id not in roots and id not in found
        }
        # min keeps the first of equal ones.
        step = {
            id: min(several, key=lambda link: CHECKS.index(link[0]))
            for id, several in links.items()
            if several
        }
        found |= step
        reached = list(step)
    return found


# --- the split -----------------------------------------------------------------------------------


def split_cases(cases: Sequence[Case], traits: Mapping[str, Traits]) -> dict[str, Place]:
    """The place of every case, by id."""
    by_paper = {case.id: case.paper_split for case in cases}
    constant = {case.id for case in cases if is_constant(case)}
    depth = {case.id: case.layout.n_layers for case in cases}
    groups = groups_of(traits)
    places: dict[str, Place] = {}
    for group in groups:
        held_out = [id for id in group if by_paper[id] == "test"]
        roots = held_out or [id for id in group if by_paper[id] == "discarded"]
        found = reasons(group, traits, roots)
        for id in group:
            if id in held_out:
                places[id] = Place(split="test", group=group[0])
            elif id in HELD_OUT:
                places[id] = Place(split="held-out", group=group[0])
            elif id in constant:
                places[id] = Place(split="discarded", group=group[0], check="constant")
            elif id in found:
                check, to = found[id]
                places[id] = Place(split="discarded", group=group[0], check=check, to=to)
            elif id in roots:
                places[id] = Place(split="discarded", group=group[0], check="paper")
    pool = {group[0]: [id for id in group if id not in places] for group in groups}
    for fold, names in enumerate(deal({name: ids for name, ids in pool.items() if ids}, depth)):
        for name in names:
            places |= {id: Place(split="pool", group=name, fold=fold) for id in pool[name]}
    return {case.id: places[case.id] for case in cases}


def deal(
    groups: Mapping[str, Sequence[str]], depth: Mapping[str, int], n: int = N_FOLDS
) -> list[list[str]]:
    """The groups of each fold, so that folds are alike: first in size, then in depth.

    1. The largest groups first, and of equal ones the deepest, go to the fold with the fewest
       cases; of several to the one with the fewest cases of that depth.
    2. Two groups of one size change places as long as that brings the counts of cases of each depth
       closer together: it lowers the sum of their squares.
    """
    layers = {name: Counter(depth[id] for id in ids) for name, ids in groups.items()}
    folds: list[list[str]] = [[] for _ in range(n)]
    tally: list[Counter[int]] = [Counter() for _ in range(n)]
    for name in sorted(groups, key=lambda name: (-len(groups[name]), -max(layers[name]))):
        load = [(counts.total(), counts[max(layers[name])]) for counts in tally]
        fold = load.index(min(load))
        folds[fold].append(name)
        tally[fold] += layers[name]
    changed = True
    while changed:
        changed = False
        for a, b in combinations(range(n), 2):
            for i, j in product(range(len(folds[a])), range(len(folds[b]))):
                one, other = layers[folds[a][i]], layers[folds[b][j]]
                if one.total() != other.total():
                    continue
                swapped = tally[a] - one + other, tally[b] - other + one
                if _squares(*swapped) < _squares(tally[a], tally[b]):
                    folds[a][i], folds[b][j] = folds[b][j], folds[a][i]
                    tally[a], tally[b] = swapped
                    changed = True
    return folds


def _squares(*tallies: Counter[int]) -> int:
    return sum(count**2 for counts in tallies for count in counts.values())


# --- the file ------------------------------------------------------------------------------------


def as_json(places: Mapping[str, Place], traits: Mapping[str, Traits]) -> str:
    """One line per case; what does not apply is left out. Random programs are placed by the hash
    of the structure."""
    records = {
        id: {
            **{name: value for name, value in vars(place).items() if value is not None},
            "structure": structure_hash(traits[id].circuit),
        }
        for id, place in places.items()
    }
    lines = [f"  {json.dumps(id)}: {json.dumps(record)}" for id, record in records.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def summary(places: Mapping[str, Place]) -> list[str]:
    """How many cases stand where, and why cases are discarded."""
    by_split = Counter(place.split for place in places.values())
    by_fold = Counter(place.fold for place in places.values() if place.fold is not None)
    by_check = Counter(place.check for place in places.values() if place.check)
    groups = len({place.group for place in places.values() if place.split == "pool"})
    return [
        ", ".join(f"{name} {count}" for name, count in by_split.items()),
        f"{groups} groups in the pool; cases by fold: "
        + ", ".join(str(by_fold[fold]) for fold in range(N_FOLDS)),
        "discarded by: " + ", ".join(f"{check} {count}" for check, count in by_check.items()),
    ]


def main(arguments: Sequence[str]) -> None:
    """Divide the corpus and write the file."""
    parser("lab.generators split", __doc__).parse_args(arguments)
    cases = corpus()
    traits = traits_of(cases)
    places = split_cases(cases, traits)
    write_atomic(SPLIT_FILE, as_json(places, traits).encode())
    sys.stdout.write("\n".join([*summary(places), f"wrote {SPLIT_FILE}"]) + "\n")
