"""The tables: the paper's rows, the counts behind ours, and the page that shows them."""

import statistics

import pytest

from graphcircuits.cases import case_ids, load_case
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from lab import ROOT
from lab.generators.tables import (
    PAPER_SUBSETS,
    circuit_size,
    circuit_table,
    graph_table,
    split_table,
    summary,
    tables,
    worked_out,
)
from tests.tiers import some

PAGE = ROOT / "docs" / "benchmark.md"


def row(table: str, name: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {name}")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_papers_sizes_of_the_test_set_come_out():
    assert row(graph_table(PAPER_SUBSETS), "Test (n=16)") == [
        "38 [38-38]",
        "38-74",
        "110 [110-110]",
        "110-479",
    ]
    assert row(circuit_table("paper", PAPER_SUBSETS), "Test (n=16)") == [
        "2 [2-8]",
        "2-14",
        "1 [1-5.75]",
        "1-16",
    ]


@pytest.mark.parametrize("id", some(case_ids(split="paper")))
def test_the_rule_gives_the_sizes_of_the_published_lists(id: str):
    case = load_case(id)
    # The flag says which it is, and never both.
    assert (case.published is None) != (case.worked_out is None)
    if case.published is None:
        assert case.labels("paper") == worked_out(case)
        return
    assert case.labels("paper").edges == set(case.published)
    assert circuit_size(worked_out(case)) == circuit_size(case.labels("paper"))
    if id != "ib-3":  # published with another head of the same layer
        assert worked_out(case).edges == set(case.published)


def test_the_two_test_cases_without_a_published_list_are_worked_out():
    assert worked_out(load_case("ib-18")).edges == {"m0->m1", "m1->logits"}
    assert worked_out(load_case("ib-21")).edges == {
        "input->m0",
        "m1->m2",
        "input->m2",
        *(f"{writer}->a3.h0<{slot}>" for writer in ("m2", "input") for slot in "qkv"),
        "a3.h0->logits",
    }


def test_circuit_nodes_are_reads_and_writes_apart():
    graph = ComponentGraph(2, 4)
    circuit = Circuit.from_names(graph, ["input->m0", "m0->m1", "m0->logits"])
    # Writers input and m0; readers m0, m1 and logits.
    assert circuit_size(circuit) == (5, 3)


def test_quartiles_are_interpolated():
    values = [4, 1, 9, 2, 7, 7]
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    assert summary(values) == (f"{median:g} [{q1:g}-{q3:g}]", "1-9")
    assert summary([3]) == ("3 [3-3]", "3-3")
    assert summary([1, 1520]) == ("760.5 [380.75-1140.25]", "1-1520")


def test_the_split_table_counts_the_cases():
    table = split_table()
    for name, split in [("Pool", "pool"), ("Fold 3", "fold-3"), ("Test", "test")]:
        families = [len(case_ids(family, split)) for family in ("ib", "tb", "new")]
        groups = {load_case(id).group for id in case_ids(split=split)}
        expected = [sum(families), *families, len(groups)]
        assert row(table, f"{name} ") == list(map(str, expected))


@pytest.mark.slow
def test_the_page_shows_the_tables():
    page = PAGE.read_text("utf-8")
    missing = [title for title, text in tables().items() if text not in page]
    assert missing == [], "paste them from: python -m lab.generators tables"
