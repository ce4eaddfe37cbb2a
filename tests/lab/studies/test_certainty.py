"""The arithmetic of the study of certainty: fits, what is held out, and figures."""

from collections.abc import Sequence

import pytest
import torch

from graphcircuits.certificates.probability import PLANTED
from graphcircuits.certificates.searching import Searches
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result
from lab.studies import certainty
from lab.studies.certainty import Said, by_answer, coming_back, figures, of, today
from lab.studies.certainty_data import Found, case_ids_of
from lab.studies.certainty_fit import Case, fit_chances, held_out

GRAPH = ComponentGraph(n_layers=2, n_heads=2)
N = GRAPH.n_edges


def case(
    id: str,
    seed: int,
    *,
    family: str = "pool",
    fold: int | None = 0,
    groups: Sequence[str] = (),
    strangeness: float = 0.5,
) -> Case:
    """A case whose first edges are true, and found more often than others."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(N) < 6
    results = []
    for _ in range(4):
        scores = 2.0 * truth + torch.randn(N, generator=generator)
        mask = torch.zeros(N, dtype=torch.bool)
        mask[scores.topk(6).indices] = True
        chosen = Circuit.from_mask(GRAPH, mask)
        results.append(Result(graph=GRAPH, scores=scores, chosen=chosen))
    found = Found(
        id=id,
        method="gcl",
        family=family,
        groups=tuple(groups) or (id,),
        fold=fold,
        graph=GRAPH,
        circuit=results[0].circuit(),
        searches=Searches(results),
        again=results[-1].circuit().mask,
        truth=None if family in certainty.WITHOUT else truth,
        said=torch.full((N,), 0.5),
        network=2.0 * truth + torch.randn(N, generator=generator),
        strangeness=strangeness,
        trust=1.0,
    )
    return Case(found, certainty.WITHOUT.get(family, PLANTED), found.searches)


def test_a_fit_finds_the_line_that_made_the_labels() -> None:
    """At the optimum what is said and what is true agree in the mean, for every feature."""
    cases = [case(f"c-{n}", n) for n in range(8)]
    names = ("came back", "rank", "network")
    chances = fit_chances(cases, names)
    said = torch.stack([chances(one.features) for one in cases]).double()
    truth = torch.stack([one.labels for one in cases]).double()
    assert float(said.mean()) == pytest.approx(float(truth.mean()), abs=1e-4)
    for name in chances.weights:
        column = torch.stack([one.features[name] for one in cases])
        assert float((column * (said - truth)).mean()) == pytest.approx(0, abs=5e-3)
    assert all(weight >= 0 for weight in chances.weights.values())


def test_a_growing_feature_that_counts_against_an_edge_is_left_out() -> None:
    cases = [case(f"c-{n}", n) for n in range(4)]
    for one in cases:
        one.found.network.neg_()
    assert "network" not in fit_chances(cases, ("came back", "network")).weights


def test_every_case_weighs_the_same() -> None:
    """Given twice, and one of them alone, a case counts as often as it is given."""
    one, other = case("c-0", 0), case("c-1", 1)
    both = fit_chances([one, other], ("rank",))
    assert fit_chances([one, other, one, other], ("rank",)).bias == pytest.approx(both.bias)
    assert fit_chances([one, one, other], ("rank",)).bias != pytest.approx(both.bias)


def test_related_cases_are_held_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        case("p-0", 0, fold=0),
        case("p-1", 1, fold=0, groups=["g"]),
        case("p-2", 2, fold=1),
        case("t-0", 3, family="planted", fold=None, groups=["h"]),
        case("mt-0@t-0", 4, family="multitask", fold=None, groups=["h", "i"]),
        case("plm-0@a", 5, family="language", fold=None, groups=["h"]),
        case("plm-0@b", 6, family="language", fold=None, groups=["i"]),
        case("plm-1@a", 7, family="language", fold=None, groups=["h"]),
        case("odd", 8, family="deep", fold=None, strangeness=2.0),
    ]
    learned: list[set[str]] = []

    def fitted(some: Sequence[Case], names: Sequence[str]) -> object:
        learned.append({one.found.id for one in some})
        return lambda features: torch.zeros(N)

    monkeypatch.setattr("lab.studies.certainty_fit.fit_chances", fitted)
    judged = [one.found.id for one, _ in held_out(cases, ("rank",))]
    assert sorted(judged) == sorted(one.found.id for one in cases)
    ids = {one.found.id for one in cases} - {"odd"}
    assert learned == [
        ids - {"p-0", "p-1"},
        ids - {"p-2"},
        ids - {"t-0", "mt-0@t-0"},
        ids - {"t-0", "mt-0@t-0"},
        ids - {"plm-0@a", "plm-0@b"},
        ids - {"plm-1@a"},
        ids,
    ]
    # A fit of the pool alone has nothing else.
    learned.clear()
    list(held_out(cases[3:4], ("rank",), cases[:3]))
    assert learned == [{"p-0", "p-1", "p-2"}]


def test_figures_are_those_that_one_counts_by_hand() -> None:
    labels, met = torch.tensor([True, True, False, False]), torch.arange(4) < 3
    said = [
        Said("a", torch.tensor([0.95, 0.95, 0.95, 0.05]), labels, met),
        Said("b", torch.tensor([0.95, 0.05, 0.05, 0.05]), labels, met),
    ]
    told = figures(said)
    assert (told.cases, told.sure) == (2, 4)
    assert told.share == pytest.approx(0.75)
    assert told.recall == pytest.approx(0.75)
    assert told.right.startswith("0.750 [")
    # Sure: said .95, true .75; the rest: said .05, true .25.
    assert told.error == pytest.approx(0.2, abs=1e-6)
    # Without the last edge of each: .95 and .75, .05 and .5.
    assert told.listed == pytest.approx((4 * 0.2 + 2 * 0.45) / 6, abs=1e-6)
    assert told.brier == pytest.approx((3 * 0.0025 + 0.9025) / 4, abs=1e-6)
    assert figures([Said("a", torch.full((4,), 0.5), labels, met)]).right == "-"
    # Nobody can be sure by few edges of which none is wrong: the rule of three.
    ten = torch.ones(10, dtype=torch.bool)
    assert figures([Said("a", ten.float(), ten, ten)]).right == "1.000 [0.700, 1.000]"


def test_today_is_what_gcl_says_by_itself() -> None:
    cases = [case("p-0", 0), case("p-1", 1)]
    assert [one.model for one in today(cases)] == ["p-0", "p-1"]
    judged = list(held_out([*cases, case("p-2", 2, fold=1)], ("rank",)))
    assert [one.model for one in of(judged, lambda c: c.found.fold == 1)] == ["p-2"]


def test_tables_tell_cases_that_were_answered_from_others() -> None:
    cases = [case(f"p-{n}", n, fold=n) for n in range(3)]
    cases += [case("t-0", 4, family="planted"), case("t-1", 5, family="planted", strangeness=2.0)]
    table = by_answer(list(held_out(cases, ("rank",))))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[1:3] for row in rows] == [
        ["all, if it never abstained", "2"],
        ["answered", "1"],
        ["abstained, had it answered", "1"],
    ]


def test_what_comes_back_is_judged_with_the_model_held_out() -> None:
    cases = [case(f"m-{n}@t", n, family="mined", fold=None) for n in range(3)]
    cases += [case(f"n-{n}", 9 + n, family="natural", fold=None) for n in range(2)]
    table = coming_back(cases)
    assert table.count("the share that came back, gcl") == 2
    assert table.count("fitted on both, gcl") == 2
    assert "eap-ig" not in table


def test_families_are_of_shipped_subjects() -> None:
    assert "ib-3" in case_ids_of("planted")
    assert "plm-0@count" in case_ids_of("language")
    assert all("@" in id for id in case_ids_of("multitask"))
