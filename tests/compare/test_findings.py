"""Each finding of the paper, on made-up sweeps where it holds and where it does not."""

import pytest

from graphcircuits.compare.findings import (
    best_median,
    eligibility,
    findings,
    incidence_control,
    learner_table,
    learners,
    message_passing,
    rank,
    selection,
)
from graphcircuits.compare.sweeps import Search, sweeps_of
from tests.compare.sweep_examples import row, sweep

OBSERVED, NONE = "dirgnn-line-observed", "dirgnn-line-none"
MINUS = "\N{MINUS SIGN}"


def test_the_published_figures_have_every_finding() -> None:
    """The paper's claims are true of the paper's table; of its settings only the range is known."""
    found = findings(sweep())
    assert [one.holds for one in found] == [True] * 5 + [False]
    assert len({one.claim for one in found}) == 6


def test_message_passing() -> None:
    above = message_passing(sweep({OBSERVED: 0.95, NONE: 0.9}, shifts=(0.0, 0.02)))
    assert above.holds is True
    assert above.text == (
        "Median 0.960 against 0.910 (+0.050; above on 16 of 16 cases, below on 0; beyond one "
        "standard deviation over seeds, 0.020); the paper has 0.902 against 0.825 (+0.077)."
    )
    below = message_passing(sweep({OBSERVED: 0.9, NONE: 0.91}, shifts=(0.0, 0.02)))
    assert below.holds is False
    assert below.verdict == "does not hold"
    assert f"({MINUS}0.010; above on 0 of 16 cases, below on 16; within one" in below.text
    equal = message_passing(sweep({OBSERVED: 1.0, NONE: 1.0 - 1e-6}))
    assert equal.holds is False
    assert "1.000 against 1.000 (0.000; above on 0 of 16 cases, below on 0);" in equal.text
    (one,) = sweeps_of([row(OBSERVED)])
    missing = message_passing(one)
    assert (missing.holds, missing.verdict) == (None, "cannot be said")
    assert missing.text == "Not run: dirgnn-line-none."


def test_each_learner() -> None:
    assert learners(sweep()).text == "It is so for all three; in the paper it is so for all three."
    some = learners(sweep({"dagformer-line-none": 0.99}))
    assert some.holds is False
    assert some.text.startswith(
        "It is so for Factorized DAGformer and DirGraphConv, not for Quadratic DAGformer; in the"
    )
    none = sweep({f"{name}-line-none": 0.99 for name in ("factorized", "dirgnn", "dagformer")})
    assert learners(none).text.startswith("It is so for none; ")
    (one,) = sweeps_of([row(OBSERVED), row(NONE)])
    assert learners(one).holds is None
    table = learner_table(one).splitlines()
    assert table[2:] == [
        "| DirGraphConv | Line | 0.902 | 0.825 | +0.077 | 16 of 16 | 0 | +0.077 | +0.077 |"
    ]
    assert len(learner_table(sweep()).splitlines()) == 8
    assert learner_table(sweeps_of([row(NONE)])[0]) == ""


def test_selection() -> None:
    as_in_the_paper = selection(sweep())
    assert as_in_the_paper.holds is True
    ours, theirs = as_in_the_paper.text.split(" The paper's")
    assert ours == (
        "Ours chooses DirGraphConv, incidence graph (score 0.949), median 0.876 on held-out cases, "
        "rank 4 of 14; the best is DirGraphConv, line graph (0.902, rank 2 of 14 in "
        "cross-validation)."
    )
    assert theirs == (
        " would have chosen DirGraphConv, incidence graph (0.949), median 0.876, rank 4 of 14; its "
        "best is DirGraphConv, line graph (0.902), rank 2 in cross-validation."
    )
    right = selection(sweep(scores={OBSERVED: 0.99}))
    assert right.holds is False
    assert (
        "DirGraphConv, line graph (score 0.990), median 0.902 on held-out cases, rank 1 of 14."
        in (right.text)
    )
    tied = selection(sweep({"factorized-line-none": 0.902}, {OBSERVED: 0.99}))
    assert "rank 1 of 14 together with 1 more." in tied.text
    (two,) = sweeps_of([row(OBSERVED), row(NONE, cross_validation=None)])
    assert selection(two).text.startswith("Ours chooses of those that were run DirGraphConv, line")
    (unscored,) = sweeps_of(
        [row(OBSERVED, cross_validation=None), row(NONE, cross_validation=None)]
    )
    assert selection(unscored).holds is None
    assert rank({"a": 0.9, "b": 0.90004, "c": 0.95}, "a") == 2


def test_incidence_control() -> None:
    found = incidence_control(sweep({"dirgnn-incidence-none": 0.8}))
    assert found.holds is True
    ours, theirs = found.text.split(" The paper's: ")
    assert ours.endswith(
        f"on held-out cases it is so for all three ({MINUS}0.327, {MINUS}0.025, {MINUS}0.004)."
    )
    assert theirs == (
        f"in cross-validation it is so for all three ({MINUS}0.065, {MINUS}0.050, {MINUS}0.064); "
        "on held-out cases it is so for Factorized DAGformer and Quadratic DAGformer, not for "
        f"DirGraphConv ({MINUS}0.327, +0.021, {MINUS}0.004)."
    )
    other = incidence_control(sweep(scores={"dirgnn-incidence-none": 0.95}))
    assert other.holds is False
    assert other.text.startswith(
        "Ours: in cross-validation it is so for Factorized DAGformer and Quadratic DAGformer, not "
        f"for DirGraphConv ({MINUS}0.065, +0.067, {MINUS}0.064);"
    )
    unscored = sweeps_of([row(name, cross_validation=None) for name in sweep().medians])[0]
    assert incidence_control(unscored).text == "Not all of them have a score."
    assert incidence_control(sweeps_of([row(NONE)])[0]).holds is None


@pytest.mark.parametrize(
    ("median", "told"),
    [
        (0.95, "median 0.950: 0.048 above the paper's best, 0.902, and 0.040 above EAP-IG's"),
        (0.905, "median 0.905: 0.003 above the paper's best, 0.902, and 0.005 below EAP-IG's"),
        (0.902357, "median 0.902: equal to the paper's best, 0.902, and 0.008 below EAP-IG's"),
        (0.89, "median 0.890: 0.012 below the paper's best, 0.902, and 0.020 below EAP-IG's"),
    ],
)
def test_best_median(median: float, told: str) -> None:
    found = best_median(sweep({OBSERVED: median}))
    assert told in found.text
    assert found.holds is (median < 0.91)


def test_the_best_may_be_another_and_eap_ig_is_ours_too() -> None:
    cases = {"ib-3": {0: 1.0}, "ib-8": {0: 0.9}}
    searches = [
        Search(method="eap-ig", fleet=fleet, cases=cases) for fleet in ("planted", "public")
    ]
    found = best_median(sweep({"factorized-line-none": 0.905}), searches)
    assert found.holds is False
    assert found.text.startswith(
        "Our best is Factorized DAGformer, line graph, no message passing,"
    )
    assert found.text.endswith(
        "EAP-IG on our planted subjects has 0.950, so that our best is 0.045 below it."
    )


def test_eligibility() -> None:
    rows = [row(OBSERVED, eligible=18), row(NONE, eligible=3)]
    found = eligibility(sweeps_of(rows)[0])
    assert found.holds is True
    assert found.text.startswith(
        "3 to 18 of 18 settings finished every fold, 21 in all over 2 configurations; in the paper "
        "9 to 18 of 18."
    )
    whole = eligibility(sweep())
    assert whole.holds is False
    assert whole.text.startswith("18 of 18 settings finished every fold, 252 in all")
    grids = [row(OBSERVED, settings=18), row(NONE, eligible=3, settings=3)]
    assert eligibility(sweeps_of(grids)[0]).text.startswith("3 to 18 of 3 to 18 settings")
