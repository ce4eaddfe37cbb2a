"""Pools: whose cases, folds and groups they are."""

from collections import Counter

import pytest

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.relations import pool_cases
from lab.generators.split import deal
from tests.cases.reference import reference, reference_tasks

NOT_COMPILED = (
    *("tb-element-divide", "tb-polynomial", "tb-rescale", "tb-swap-min-max"),
    *("tb-multiply-all-elements", "tb-rolling-max"),
)
"""Tasks of our pool for which TracrBench has no compiled model."""


def test_ours_is_the_splits() -> None:
    found = pool_cases("pool")
    assert [case.id for case in found] == case_ids(split="pool")
    assert all((x.fold, x.group) == (load_case(x.id).fold, load_case(x.id).group) for x in found)
    assert pool_cases() == found


def test_the_papers_has_its_cases_and_groups() -> None:
    facts = reference("interpbench_split.json")
    found = {case.id: case for case in pool_cases("interpbench-pool")}
    assert list(found) == facts["pool"]
    assert len(found) == 26
    groups = {id: group[0] for group in facts["groups"] for id in group}
    assert {id: case.group for id, case in found.items()} == {id: groups[id] for id in found}
    assert len({case.group for case in found.values()}) == 20


@pytest.mark.slow
def test_the_papers_pool_has_24_small_tasks_of_tracrbench_beside_them() -> None:
    groups = {case.id: case.group for case in pool_cases("paper-pool")}
    assert list(groups)[:26] == [case.id for case in pool_cases("interpbench-pool")]
    assert len(set(groups.values())) == 32
    cases = [load_case(id) for id in case_ids("tb", "pool")]
    tasks = reference_tasks("tracrbench_tasks.json")
    eligible = [x for x in cases if x.id not in NOT_COMPILED and not tasks[x.id]["repeats"]]
    by_size = sorted(
        eligible, key=lambda case: (case.graph.n_layers, len(case.labels("interpbench")))
    )
    assert list(groups)[26:] == [case.id for case in eligible if case in by_size[:24]]
    # Related tasks stay together: a group of the split is in one group here.
    for case in by_size[:24]:
        others = {groups[x.id] for x in by_size[:24] if x.group == case.group}
        assert others == {groups[case.id]}


@pytest.mark.parametrize(
    ("pool", "sizes"), [("interpbench-pool", [5, 5, 5, 5, 6]), ("paper-pool", [10] * 5)]
)
def test_the_papers_folds_are_dealt_from_its_groups(pool: str, sizes: list[int]) -> None:
    found = pool_cases(pool)
    groups: dict[str, list[str]] = {}
    for case in found:
        groups.setdefault(case.group, []).append(case.id)
    depth = {case.id: load_case(case.id).layout.n_layers for case in found}
    dealt = {name: fold for fold, names in enumerate(deal(groups, depth)) for name in names}
    assert {case.id: case.fold for case in found} == {x.id: dealt[x.group] for x in found}
    assert sorted(Counter(case.fold for case in found).values()) == sizes


def test_an_unknown_pool_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^unknown pool 'poool'; choose from pool, paper-pool, "
        r"interpbench-pool\.$",
    ):
        pool_cases("poool")
