"""What a case is related to, and the pools that predictors are trained and selected on.

`groups_of` names the groups of the split that a case belongs to, by its id or that of one of its
subjects. Two cases are related when they share one. A model of several tasks belongs to the groups
of all of them: whoever saw it has seen every one of its circuits.

`twins` names what is related by its answer alone: listed cases of a pool whose complete circuit is
the very same mask over the same graph. Groups tell the token and the position embedding apart,
which a mask cannot, as a graph has one `input`; so twins can be of different groups and folds, and
whoever learned from one has seen the labels of the other. Selection leaves them out of training
where the other is validated.

`pool_cases` gives the pools, with the folds and groups of each, whether subjects ship or not:

1. `pool` is ours: every listed case of the split's pool, in the split's folds and groups.
2. `interpbench-pool` is InterpBench's share of the paper's pool: 26 cases in the paper's own 20
   groups. Two of them, `ib-25` and `ib-106`, our split discards, because it relates them to test
   cases. The paper does not publish its folds, so these are assigned as ours are (`split.deal`)
   and stored in `data/interpbench.json`, where nothing can move them.
3. `paper-pool` has 24 cases of TracrBench beside those, as the paper's 50 do. The paper does not
   say which: these are the smallest, by layers and then by edges of the circuit, of the tasks that
   our split relates to no test case, that repeat no other case, and whose own program TracrBench
   could compile. They come to 32 groups, where the paper has 31. `data/paper-pool.json` holds the
   50, with folds assigned in the same way. Two of them, `tb-count-less-freq` and
   `tb-test-at-least-two-equal`, have no subject.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from graphcircuits.cases import (
    FAMILIES,
    LANGUAGE_MODELS,
    MULTITASK,
    RANDOM,
    load_case,
    random_seed,
    split_records,
    stored,
)

if TYPE_CHECKING:
    import graphcircuits.circuit

POOLS = ("pool", "paper-pool", "interpbench-pool")


# --- groups ------------------------------------------------------------------------------------


def groups_of(id: str) -> frozenset[str]:
    """The groups of a case; what the corpus does not know is a group of its own."""
    if (listed := split_records().get(id)) is not None:
        return frozenset({listed["group"]})
    case = _case_of(id)
    if (model := _language_model(case)) is not None:
        return frozenset(model["groups"].values())
    if case.partition("-")[0] == MULTITASK:
        tasks = _tasks_of(case)
        return frozenset(group for task in tasks for group in groups_of(task)) or frozenset({case})
    if (seed := random_seed(case)) is not None:
        from graphcircuits.cases.random_programs import random_facts

        return frozenset({random_facts(seed).assignment["group"]})
    return frozenset({split_records().get(case, {}).get("group", case)})


def fold_of(id: str) -> int | None:
    """The fold of the pool that the groups of a case are in; None if they are in none."""
    case = _case_of(id)
    if (model := _language_model(case)) is not None:
        return model.get("fold")
    if case.partition("-")[0] == MULTITASK:
        return next((fold for task in _tasks_of(case) if (fold := fold_of(task)) is not None), None)
    if (seed := random_seed(case)) is not None:
        from graphcircuits.cases.random_programs import assignment_of, random_facts

        # Also of a program that is discarded because its output is constant.
        return assignment_of(random_facts(seed).structure, constant=False).get("fold")
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
    alike: dict[graphcircuits.circuit.Circuit, frozenset[str]] = {}
    for id in dict.fromkeys(case.id for pool in POOLS for case in pool_cases(pool)):
        circuit = load_case(id).circuit
        alike[circuit] = alike.get(circuit, frozenset()) | {id}
    return alike


def _case_of(id: str) -> str:
    """The case of a subject's id, such as `ib-3.natural.llama.0`; only the corpus has such ids."""
    known = id.partition("-")[0] in (*FAMILIES, MULTITASK, RANDOM, LANGUAGE_MODELS)
    return id.partition(".")[0] if known else id


def _language_model(case: str) -> Mapping[str, Any] | None:
    """What is known of the language model that is meant, such as plm-3 or plm-3@sort, if one is."""
    from graphcircuits.cases.multitask import AT

    if case.partition("-")[0] != LANGUAGE_MODELS:
        return None
    return stored("language").get(case.partition(AT)[0])


def _tasks_of(case: str) -> list[str]:
    """The programs of a model of several tasks, such as `mt-7` or `mt-7@ib-4`; none if unknown."""
    from graphcircuits.cases.multitask import AT, multi_records

    return list(multi_records().get(case.partition(AT)[0], {}).get("cases", ()))


# --- pools -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoolCase:
    """A case of a pool, with its fold and group there."""

    id: str
    fold: int
    group: str
    """The first case of its group."""


def pool_cases(pool: str = "pool") -> list[PoolCase]:
    """The cases of a pool, in the order of `case_ids`."""
    if pool not in POOLS:
        raise ValueError(f"unknown pool {pool!r}; choose from {', '.join(POOLS)}.")
    files = {"pool": "split", "interpbench-pool": "interpbench", "paper-pool": "paper-pool"}
    return [
        PoolCase(id, record["fold"], record["group"])
        for id, record in stored(files[pool]).items()
        if record.get("split", "pool") == "pool"
    ]
