"""Each finding of the paper, on made-up sweeps where it holds, does not, and cannot be decided."""

from collections.abc import Mapping

import pytest

from lab.intervals import ByCase, Interval
from lab.paper.findings import (
    BASELINE_NAMES,
    PGEXPLAINER,
    ClaimCheck,
    above_explainer,
    below_search,
    best_minimum,
    best_of_all,
    best_quartile,
    findings,
    learner_table,
    learners,
    message_passing,
    rank,
    selection,
)
from lab.paper.sweeps import Search, sweeps_of
from tests.lab.paper.sweep_examples import CASES, row, sweep

OBSERVED, NONE = "dirgnn-line-observed", "dirgnn-line-none"


def flat(value: float) -> ByCase:
    """A method with one AUROC on every case."""
    return {case: {0: value, 1: value} for case in CASES}


def methods(**values: float) -> Mapping[str, ByCase]:
    """All of the paper's baselines and PGExplainer, 0.8 unless given."""
    names = (*BASELINE_NAMES, PGEXPLAINER)
    return {name: flat(values.get(name.replace("-", "_"), 0.8)) for name in names}


def check(found: ClaimCheck | None) -> ClaimCheck:
    assert found is not None
    return found


def test_what_was_not_run_is_no_finding() -> None:
    (one,) = sweeps_of([row(OBSERVED, eligible=3)])
    assert findings(one) == {}
    both = findings(sweeps_of([row(OBSERVED), row(NONE)])[0])
    assert list(both) == ["message passing"]
    searches = [Search(method=name, fleet="planted", cases=x) for name, x in methods().items()]
    assert list(findings(sweep(), searches)) == [
        *("message passing", "learners", "above PGExplainer", "best minimum", "best quartile"),
        *("best of all", "below EAP-IG", "below ACDC", "selection"),
    ]
    # Searches of other subjects or by other labels are not compared with.
    elsewhere = [Search(method=PGEXPLAINER, fleet="public", cases=flat(0.5))]
    assert "above PGExplainer" not in findings(sweep(), elsewhere)


def test_message_passing() -> None:
    above = check(message_passing(sweep({OBSERVED: 0.95, NONE: 0.9}, shifts=(0.0, 0.02))))
    assert above.verdict == "holds"
    assert above.published == "+0.077"
    assert above.short.startswith("holds: +0.050 [+0.0")
    assert above.text == "Median 0.960 against 0.910; above on 16 of 16 cases, below on 0."
    below = check(message_passing(sweep({OBSERVED: 0.9, NONE: 0.91})))
    assert below.verdict == "does not hold"
    # One seed of five that collapsed does not make it hold.
    rows = [row(OBSERVED, median=0.97, shifts=(0.0, 0.01, -0.01, 0.0, 0.0))]
    rows += [row(NONE, median=0.965, shifts=(0.01, 0.0, -0.3, 0.01, 0.005))]
    assert check(message_passing(sweeps_of(rows)[0])).verdict == "undecided"


def test_each_learner() -> None:
    every = check(learners(sweep()))
    assert (every.holds, every.published) == (True, "+0.006 to +0.077")
    assert check(learners(sweep({"dagformer-line-none": 0.99}))).holds is False
    table = learner_table(sweeps_of([row(OBSERVED), row(NONE)])[0]).splitlines()
    assert table[2:] == [
        "| DirGraphConv | Line | 0.902 | 0.825 | +0.077 [+0.077, +0.077] | 16 of 16 | 0 | +0.077 "
        "| +0.077 |"
    ]
    assert len(learner_table(sweep()).splitlines()) == 8
    assert learner_table(sweeps_of([row(NONE)])[0]) == ""


@pytest.mark.parametrize(("explainer", "verdict"), [(0.858, "holds"), (0.95, "does not hold")])
def test_above_the_explainer(explainer: float, verdict: str) -> None:
    found = check(above_explainer(sweep(), methods(pgexplainer=explainer)))
    assert found.verdict == verdict
    assert found.text == f"Median 0.9020 against {explainer:.4f}."
    assert above_explainer(sweep(), {}) is None


def test_minima_and_quartiles() -> None:
    ours = methods(pgexplainer=0.85)
    assert check(best_minimum(sweep(), ours)).holds is True
    assert check(best_quartile(sweep(), ours)).holds is True
    better = methods(pgexplainer=0.85, eap_ig=0.93)
    assert check(best_minimum(sweep(), better)).holds is False
    low = check(best_quartile(sweep(), better))
    assert low.holds is False
    assert low.text.startswith("First quartiles: DirGraphConv 0.902, acdc 0.800, eap-ig 0.930")
    # The minimum of PGExplainer counts too.
    assert check(best_minimum(sweep(), methods(pgexplainer=0.7))).holds is False
    partly = {name: cases for name, cases in ours.items() if name != "acdc"}
    assert best_minimum(sweep(), partly) is None
    assert best_quartile(sweep(), partly) is None


def test_the_best_and_the_searches() -> None:
    assert check(best_of_all(sweep())).holds is True
    other = check(best_of_all(sweep({"factorized-line-none": 0.95})))
    assert other.holds is False
    assert other.text.startswith(
        "Our best is Factorized DAGformer, line graph, no message passing, median 0.950"
    )
    assert check(below_search(sweep(), methods(eap_ig=0.95), "EAP-IG")).holds is True
    above = check(below_search(sweep(), methods(acdc=0.85), "ACDC"))
    assert (above.holds, above.published) == (False, "+0.057")


def test_selection() -> None:
    found = check(selection(sweep()))
    assert (found.holds, found.published) == (True, "+0.026")
    assert found.text == (
        "Ours chooses DirGraphConv, incidence graph (score 0.949), median 0.876, rank 4 of 14."
    )
    assert check(selection(sweep(scores={OBSERVED: 0.99}))).holds is False
    unscored = [row(name, cross_validation=None) for name in sweep().medians]
    assert selection(sweeps_of(unscored)[0]) is None
    assert rank({"a": 0.9, "b": 0.90004, "c": 0.95}, "a") == 2


def test_all_parts_of_a_claim_must_hold() -> None:
    yes, no, maybe = Interval(0.2, 0.1, 0.3), Interval(-0.2, -0.3, -0.1), Interval(0.1, -0.1, 0.2)
    for parts, verdict in (
        ((yes, yes), "holds"),
        ((yes, no), "does not hold"),
        ((maybe, no), "does not hold"),
        ((yes, maybe), "undecided"),
    ):
        found = ClaimCheck(claim="", published="", intervals=parts, text="")
        assert found.verdict == verdict
