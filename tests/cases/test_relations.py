"""Who is related to whom: listed cases, random programs, models of several tasks."""

from itertools import combinations

import pytest

from graphcircuits.cases import case_ids, load_case, multitask, relations, split_records
from graphcircuits.cases.relations import fold_of, groups_of, twins

pytestmark = pytest.mark.usefixtures("unchecked")


def test_a_listed_case_is_of_its_group_and_fold() -> None:
    for id in case_ids():
        case = load_case(id)
        assert groups_of(id) == {case.group}
        if case.split == "pool":
            assert fold_of(id) == case.fold
    assert fold_of("ib-3") is None
    # Constant, in a group of the pool.
    assert fold_of("tb-length") == load_case("ib-7").fold


def test_a_random_program_is_of_a_listed_group_or_of_its_structures() -> None:
    assert groups_of("rnd-48") == {"ib-7"}
    assert fold_of("rnd-48") == load_case("ib-7").fold
    assert groups_of("rnd-13") == {"ib-8"}
    assert fold_of("rnd-13") is None
    assert groups_of("rnd-7") == groups_of("rnd-20") == {load_case("rnd-7").group}
    assert groups_of("rnd-7").isdisjoint(split_records())
    assert fold_of("rnd-7") == fold_of("rnd-20") == load_case("rnd-7").fold
    # Constant, so in no fold itself, but others of its structure are.
    assert load_case("rnd-62").fold is None
    assert fold_of("rnd-62") in range(5)


def test_a_subject_is_related_as_its_case_is() -> None:
    assert groups_of("ib-14.natural.llama.0") == groups_of("ib-7") == {"ib-7"}
    assert fold_of("rnd-48.public.gpt2.3") == fold_of("ib-7")


def test_a_model_of_several_tasks_is_related_to_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = {"mt-5": {"cases": ["ib-7", "rnd-48", "rnd-7"], "split": "pool", "fold": 0}}
    monkeypatch.setattr(multitask, "multi_records", lambda: records)
    expected = {"ib-7", *groups_of("rnd-7")}
    for id in ("mt-5", "mt-5@ib-7", "mt-5@rnd-7", "mt-5.natural.llama.0"):
        assert groups_of(id) == expected
        assert fold_of(id) == load_case("ib-7").fold


@pytest.mark.parametrize("id", ["of nobody", "mine.natural.llama.0", "rnd-x", "mt-x", "ib-0"])
def test_what_the_corpus_does_not_know_is_related_to_itself(id: str) -> None:
    assert groups_of(id) == {relations._case_of(id)}
    assert fold_of(id) is None
    assert id in groups_of(id)


def pairs_of_twins(labeling: str) -> set[frozenset[str]]:
    """Pairs of pool cases of different folds with one mask, by comparing all."""
    pool = [load_case(id) for id in case_ids(split="pool")]
    masks = {case.id: (case.graph, case.labels(labeling).edges) for case in pool}
    return {
        frozenset({one.id, other.id})
        for one, other in combinations(pool, 2)
        if one.fold != other.fold and masks[one.id] == masks[other.id]
    }


def test_twins_have_the_same_mask_in_other_folds_too() -> None:
    across = {
        frozenset({id, twin})
        for id in case_ids(split="pool")
        for twin in twins(id)
        if fold_of(twin) != fold_of(id)
    }
    assert across == pairs_of_twins("interpbench") == pairs_of_twins("complete")
    assert len(across) == 16
    assert {frozenset({"ib-58", "ib-93"}), frozenset({"tb-sort", "new-argsort"})} <= across
    # Twins are of other groups, and the split keeps groups together.
    assert all(len({load_case(id).group for id in pair}) == 2 for pair in across)


def test_twins_of_one_fold_and_of_the_papers_pool_are_known() -> None:
    assert twins("ib-7") >= {"ib-14", "ib-44", "ib-63"}
    assert "ib-7" not in twins("ib-7")
    assert twins("ib-25") == frozenset()
    assert twins("ib-58.public.plain.0") == twins("ib-58") >= {"ib-93", "ib-103"}


@pytest.mark.slow
def test_of_what_is_held_out_one_circuit_has_twins_in_the_pool() -> None:
    """`ib-19` reads a token where its twins read a position; strangers have none."""
    held_out = [*case_ids(split="test"), *case_ids(split="held-out")]
    pool = [load_case(id) for id in case_ids(split="pool")]
    for labeling, expected in (
        ("interpbench", {}),
        ("complete", {id: {"ib-110", "tb-one-hot-first"} for id in ("ib-19", "ib-13-fixed")}),
    ):
        found = {
            case.id: {x.id for x in pool if x.labels(labeling) == case.labels(labeling)}
            for case in map(load_case, held_out)
        }
        assert {id: ids for id, ids in found.items() if ids} == expected
    ids = {case.id for case in pool}
    assert {id: twins(id) & ids for id in held_out if twins(id) & ids} == expected
    assert twins("rnd-48") == twins("of nobody") == frozenset()


def test_a_model_of_several_tasks_has_the_twins_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    records = {"mt-5": {"cases": ["ib-58", "tb-sort"], "split": "pool", "fold": 0}}
    monkeypatch.setattr(multitask, "multi_records", lambda: records)
    assert twins("mt-5@ib-58") == twins("ib-58") | twins("tb-sort")
