"""What methods have over floors, from the runs of a bench."""

import pytest

from graphcircuits.cases import load_case
from graphcircuits.evaluation.auroc import auroc
from lab.benchmarks.contrasts import ALONE, SHARED, kinds_of, sections

CASES = ("ib-3", "ib-8", "ib-20")  # the last two have one circuit


def runs(by_method: dict[str, tuple[float, ...]], figure: str) -> list[dict[str, str]]:
    blank = {"auroc": "", "cmd": "0.1", "fleet": "planted" if figure == "auroc" else "natural"}
    return [
        {**blank, "case": case, "method": method, "seed": "0", figure: str(value)}
        for method, values in by_method.items()
        for case, value in zip(CASES, values, strict=True)
    ]


def test_circuits_that_are_one_of_a_kind_stand_apart() -> None:
    kinds = dict(zip(CASES, (ALONE, SHARED, SHARED), strict=True))
    assert kinds_of(CASES, "complete", "head") == kinds
    assert kinds_of(CASES, "complete", "qkv") == kinds
    names = auroc(load_case("ib-8").circuit.mask.double(), load_case("ib-3").circuit)
    text = sections(runs({"edge-frequency": (names, 1.0, 1.0), "gcl": (1.0, 1.0, 1.0)}, "auroc"))
    assert "| Method | Median, one of a kind (1) | Mean | Min. | Median, shared (2) |" in text
    assert text.index("| gcl |") < text.index("| edge-frequency |")
    assert f"| edge-frequency | {names:.3f} | {names:.3f} | {names:.3f} | 1.000 |" in text
    assert f"(`gcl` against `edge-frequency`). 3 cases: +{(1 - names) / 3:.3f} [0.000, +" in text
    assert text.endswith("2 shared: 0.000 [0.000, 0.000].\n")


@pytest.mark.parametrize("method", ["gcl", "eap"])
def test_what_is_gained_where_no_circuit_is_known(method: str) -> None:
    text = sections(runs({method: (0.1, 0.2, 0.1), "eap-ig": (0.2, 0.2, 0.2)}, "cmd"))
    line = "- In all (`gcl` against `eap-ig`). 3 subjects: 33.3% [0.0, 50.0]."
    assert (line in text) == (method == "gcl")


def test_where_edges_were_counted_the_log_area_and_they_are_compared() -> None:
    rows = runs({"gcl": (0.1, 0.2, 0.1), "eap-ig": (0.2, 0.2, 0.2)}, "log_area")
    for row in rows:
        row["edges_for_0.9"] = "5" if row["method"] == "gcl" else "10"
    text = sections(rows)
    assert "By how much less the mean log area is" in text
    gained = "3 subjects: 33.3% [0.0, 50.0]; edges for 0.9 fewer by 50.0% [50.0, 50.0]."
    assert gained in text
