"""What a case is related to, whichever kind it is: listed, random, or a task among several.

`groups_of` names the groups of the split that a case belongs to, by its id or that of one of its
subjects. Two cases are related when they share one. A model of several tasks belongs to the groups
of all of them: whoever saw it has seen every one of its circuits.

`twins` names what is related by its answer alone: listed cases of a pool whose complete circuit is
the very same mask over the same graph. Groups tell the token and the position embedding apart,
which a mask cannot, as a graph has one `input`; so twins can be of different groups and folds, and
whoever learned from one has seen the labels of the other. Selection leaves them out of training
where the other is validated.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from graphcircuits.cases import FAMILIES, MULTITASK, RANDOM, load_case, random_seed, split_records

if TYPE_CHECKING:
    import graphcircuits.circuit


def groups_of(id: str) -> frozenset[str]:
    """The groups of a case; what the corpus does not know is a group of its own."""
    if (listed := split_records().get(id)) is not None:
        return frozenset({listed["group"]})
    case = _case_of(id)
    if case.partition("-")[0] == MULTITASK:
        tasks = _tasks_of(case)
        return frozenset(group for task in tasks for group in groups_of(task)) or frozenset({case})
    if (seed := random_seed(case)) is not None:
        from graphcircuits.cases.random_programs import random_facts

        return frozenset({random_facts(seed).place["group"]})
    return frozenset({split_records().get(case, {}).get("group", case)})


def fold_of(id: str) -> int | None:
    """The fold of the pool that the groups of a case are in; None if they are in none."""
    case = _case_of(id)
    if case.partition("-")[0] == MULTITASK:
        return next((fold for task in _tasks_of(case) if (fold := fold_of(task)) is not None), None)
    if (seed := random_seed(case)) is not None:
        from graphcircuits.cases.random_programs import place_of, random_facts

        # Also of a program that is discarded because its output is constant.
        return place_of(random_facts(seed).structure, constant=False).get("fold")
    groups = groups_of(case)
    folds = (r["fold"] for r in split_records().values() if r["group"] in groups and "fold" in r)
    return next(folds, None)


def twins(id: str) -> frozenset[str]:
    """The other cases of the pools whose circuit is the same mask, by the id of a case or subject.

    Those of its own fold are among them, and a case that is held out can have some too. Only listed
    cases have twins: random programs are too many to compare.
    """
    case = _case_of(id)
    if case.partition("-")[0] == MULTITASK:
        return frozenset(twin for task in _tasks_of(case) for twin in twins(task))
    if case not in split_records():
        return frozenset()
    return _by_mask().get(load_case(case).circuit, frozenset()) - {case}


@cache
def _by_mask() -> Mapping["graphcircuits.circuit.Circuit", frozenset[str]]:
    """The cases of the pools by their circuit."""
    from graphcircuits.cases.pools import POOLS, pool_cases

    alike: dict[graphcircuits.circuit.Circuit, frozenset[str]] = {}
    for id in dict.fromkeys(case.id for pool in POOLS for case in pool_cases(pool)):
        circuit = load_case(id).circuit
        alike[circuit] = alike.get(circuit, frozenset()) | {id}
    return alike


def _case_of(id: str) -> str:
    """The case of a subject's id, such as `ib-3.natural.llama.0`; only the corpus has such ids."""
    known = id.partition("-")[0] in (*FAMILIES, MULTITASK, RANDOM)
    return id.partition(".")[0] if known else id


def _tasks_of(case: str) -> list[str]:
    """The programs of a model of several tasks, such as `mt-7` or `mt-7@ib-4`; none if unknown."""
    from graphcircuits.cases.multitask import AT, multi_records

    return list(multi_records().get(case.partition(AT)[0], {}).get("cases", ()))
