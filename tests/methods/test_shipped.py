"""The predictors of the package: found by name, and blind to the cases they are given."""

import pytest

from graphcircuits.cases import case_ids, load_case, random_programs
from graphcircuits.cases.relations import groups_of
from graphcircuits.methods.shipped import SHIPPED, blind_to, find_ensemble, seen_related, shipped
from graphcircuits.predictor.ensemble import Ensemble
from tests.subjects import make_subject

# What training saw was drawn at random, which makes many small calls.
pytestmark = pytest.mark.usefixtures("unchecked")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no predictor 'defalt'") as caught:
        find_ensemble("defalt")
    assert str(caught.value).endswith("one of default, fold-0, fold-1, fold-2, fold-3, fold-4.")


def test_the_blind_predictor_has_seen_nothing_related_to_the_case() -> None:
    for id in case_ids():
        assert seen_related(shipped(blind_to(id)), id) == []
        if load_case(id).split != "pool":
            continue
        assert blind_to(id) == f"fold-{load_case(id).fold}"
    assert {blind_to(id) for id in case_ids()} == set(SHIPPED)
    assert blind_to("ib-3") == blind_to("of nobody") == "default"
    # Discarded since its output is constant, but of a group that is in the pool.
    assert load_case("tb-length").split == "discarded"
    assert blind_to("tb-length") == blind_to("ib-7") == "fold-0"


@pytest.mark.slow
def test_what_training_saw_of_a_case() -> None:
    own = Ensemble(shipped("default").members, {"cases": ["ib-3"]})
    assert seen_related(own, "ib-3") == ["ib-3"]
    assert seen_related(own, "ib-4") == []
    assert "ib-7" in seen_related(shipped("default"), "tb-length")
    assert "tb-length" not in seen_related(shipped("default"), "tb-length")
    silent = Ensemble(own.members, {})
    assert seen_related(silent, "ib-3") == silent.unseen(make_subject("llama")) == []


@pytest.mark.slow
def test_random_programs_are_kept_from_those_who_saw_related_ones() -> None:
    # Of the structure of ib-7, of the pool; of ib-8's, a test case; and two of one own structure.
    assert blind_to("rnd-48") == blind_to("ib-7") == "fold-0"
    assert blind_to("rnd-13") == "default"
    assert blind_to("rnd-7") == blind_to("rnd-20") == f"fold-{load_case('rnd-7').fold}"
    assert "ib-7" in seen_related(shipped("default"), "rnd-48")
    assert seen_related(shipped("fold-0"), "rnd-48") == []
    own = f"fold-{load_case('rnd-7').fold}"
    assert seen_related(shipped(own), "rnd-7") == []
    assert all(groups_of(id) == groups_of("rnd-7") for id in ("rnd-20", "rnd-1326"))
    assert "rnd-1326" in seen_related(shipped("default"), "rnd-7")
    own = Ensemble(shipped("default").members, {"cases": ["rnd-20", "rnd-6", "ib-3"]})
    assert seen_related(own, "rnd-7") == seen_related(own, "rnd-20.natural.llama.0") == ["rnd-20"]
    assert seen_related(own, "ib-24") == ["rnd-6"]
    assert seen_related(own, "rnd-48") == []


def test_recorded_groups_spare_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"cases": ["rnd-20", "rnd-4000000000"], "groups": sorted(groups_of("rnd-20"))}
    own = Ensemble(shipped("default").members, origin)

    def draw(seed: int) -> None:
        raise AssertionError("drawn")

    monkeypatch.setattr(random_programs, "draw", draw)
    assert seen_related(own, "ib-3") == seen_related(own, "rnd-48") == []
    with pytest.raises(AssertionError, match="drawn"):
        seen_related(own, "rnd-7")
