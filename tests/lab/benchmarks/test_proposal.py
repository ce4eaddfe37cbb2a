"""What proposed circuits are worth: the table by hand, and one subject through all rules."""

from dataclasses import replace

from graphcircuits.cases import load_case
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns, faithfulness
from lab.benchmarks.proposal import FRESH, RULES, Row, measured, needed_alone, report, table

ROW = Row(
    case="a",
    split="pool",
    rule="one",
    edges=110,
    size=4,
    true_size=5,
    precision=1.0,
    recall=0.8,
    keeps=0.95,
    true_keeps=1.0,
    idle=1,
    idle_true=0,
    seconds=0.1,
)


def test_means_and_the_worst() -> None:
    rows = [ROW, replace(ROW, case="b", size=2, precision=0.5, recall=0.2, keeps=0.85)]
    cells = table(rows).splitlines()[-1].strip("| ").split(" | ")
    assert cells[:3] == ["one", "2", "3.0"]
    assert cells[3] == "0.750 [0.500, 1.000]"
    assert cells[4].startswith("0.50 / ")
    assert cells[5] == "0.500 [0.200, 0.800]"
    assert cells[7].startswith("0.900 ")
    assert cells[-2:] == ["50%", "0.10"]


def test_subjects_without_probabilities_stand_apart() -> None:
    likely, proposed, _ = RULES
    rows = [replace(ROW, rule=likely), replace(ROW, rule=proposed)]
    text = report([*rows, replace(ROW, case="b", rule=proposed, true_keeps=0.9)])
    known, strange = text.split("With probabilities, 1 subjects.")
    assert known.count(likely) == known.count(proposed) == 1
    assert "Without, 1 subjects. True circuits have 5.0 edges of 110 and keep 0.900" in strange
    assert f"{proposed}: 2 of 8 edges cost less than 0.001 alone, 0 of them are true." in strange


def test_one_subject_by_all_rules() -> None:
    case = load_case("ib-3")
    subject = case.subject()
    rows = list(measured(case))
    assert [row.rule for row in rows] == list(RULES)
    for row in rows:
        assert (row.split, row.edges, row.true_size) == ("test", 110, len(case.circuit))
        assert 0 < row.size <= 110
    likely, _, by_eap_ig = rows
    # The likely edges are the true ones there; without probabilities three of them are enough.
    assert (likely.precision, likely.recall, likely.size) == (1.0, 1.0, 5)
    assert (by_eap_ig.precision, by_eap_ig.size, by_eap_ig.idle) == (1.0, 3, 0)
    # An edge into a head that nothing reads costs nothing.
    dead = Circuit.from_names(subject.graph, ["input->a1.h3<q>"])
    runs = CircuitRuns(subject, case.pairs(8))
    assert needed_alone(runs, case.circuit | dead) == case.circuit
    kept = faithfulness(subject, case.pairs(FRESH, seed=1000), [case.circuit])
    assert [likely.keeps, likely.true_keeps] == kept * 2
