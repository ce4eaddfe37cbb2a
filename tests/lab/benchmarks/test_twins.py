"""What the benchmark of twins leaves out of a training."""

import pytest

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.relations import twins
from lab.benchmarks.twins import WAYS, Fold, folds

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.slow
def test_twins_of_what_is_validated_are_left_out_and_as_many_others() -> None:
    found = list(folds(case_ids(split="pool")))
    assert [fold.number for fold in found] == [0, 1, 4]
    assert sum(len(fold.twinned) for fold in found) == 16
    for fold in found:
        whole, without, fewer = (fold.left(way, seed=0) for way in WAYS)
        assert whole == list(fold.others)
        assert len(without) == len(fewer) == len(whole) - len(fold.seen)
        for id in fold.twinned:
            assert load_case(id).fold == fold.number
            assert twins(id).intersection(whole)
            assert not twins(id).intersection(without)
        assert fold.seen <= set(fewer)


def test_others_are_of_the_same_size_where_there_are_some() -> None:
    fold = Fold(4, ("ib-93",), ("ib-58", "ib-45", "ib-7"))
    assert fold.seen == {"ib-58"}
    assert fold.left("without others", seed=0) == ["ib-58", "ib-7"]
    assert Fold(4, ("ib-93",), ("ib-58", "ib-7")).left("without others", seed=0) == ["ib-58"]
