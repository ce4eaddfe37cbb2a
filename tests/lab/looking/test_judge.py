"""What rankings are judged by: single circuits by output, sizes from which on they are enough."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits as gc
from graphcircuits.circuit import Circuit
from graphcircuits.predictor.paths import along_paths
from lab.looking.cases import look_again
from lab.looking.judge import (
    ENOUGH,
    LOOKING,
    PLAIN,
    RIVAL,
    SEARCH,
    SHARES,
    SIZES,
    geometric,
    judge_job,
    judged,
    rankings,
)
from lab.looking.lessons import Shop
from tests.lab.looking.groups import (
    ALIKE,
    OTHER,
    finite,
    group,
    make_looker,
    random_values,
    settings,
    sources,
)
from tests.predictor.graphs import seeded

pytestmark = pytest.mark.usefixtures("unchecked")


def grid(n_edges: int) -> list[int]:
    """Sizes in equal ratios from one edge to all."""
    return sorted({round(n_edges ** (x / (SIZES - 1))) for x in range(SIZES)})


# Judging one ranking


def test_figures_are_those_of_single_circuits() -> None:
    found, read = group(), settings().read
    values = torch.where(torch.arange(len(found))[:, None] < 2, found.starts, random_values())
    sizes = grid(found.graph.n_edges)
    for row, figures in enumerate(judged(found, values, read)):
        subject, pairs = found.items[row]
        order = finite(values)[row].argsort(descending=True, stable=True)
        masks = [torch.zeros_like(order, dtype=torch.bool) for _ in sizes]
        for size, mask in zip(sizes, masks, strict=True):
            mask[order[:size]] = True
        circuits = [Circuit.from_mask(found.graph, mask) for mask in masks]
        kept = gc.faithfulness(subject, pairs[read:], circuits)
        curve = gc.faithfulness_curve(
            subject, pairs[read:], finite(values)[row], sizes=sizes, crossings=()
        )
        assert figures["log_area"] == pytest.approx(curve.log_area, abs=1e-4)
        for share in SHARES:
            # No size is as near to a share as machines differ.
            assert min(abs(x - share) for x in kept) > 1e-5
            enough = int(figures[f"{share:g}"])
            assert enough == curve.edges_for(share)
            first = sizes.index(enough)
            assert min(kept[first:]) >= share
            assert first == 0 or kept[first - 1] < share


def judge_lacks(lacks: dict[int, float], n_edges: int = 200) -> dict[str, float]:
    """The figures of a ranking whose circuits lack so much from each size on."""

    def departure(masks: Tensor, rows: Any) -> Tensor:
        assert rows == slice(8, None)
        sizes = masks.sum(-1)
        found = torch.ones_like(sizes)
        for size, lack in lacks.items():
            found = found.masked_fill(sizes >= size, lack)
        return found

    # The gap on the prompts that judge is that on all.
    ends = torch.tensor([0.0, 1.0])[:, None, None].expand(2, 1, 14)
    stack = SimpleNamespace(departure=departure, ends=ends, gap=torch.ones(1))
    fake: Any = SimpleNamespace(graph=SimpleNamespace(n_edges=n_edges), stack=stack)
    values = torch.randn(1, n_edges, generator=seeded(0))
    (figures,) = judged(fake, values, 8)
    return dict(figures)


def test_enough_is_where_it_stays_enough() -> None:
    def first(size: int) -> int:
        return next(x for x in grid(200) if x >= size)

    figures = judge_lacks({1: 0.7, 5: 0.03, 20: 0.15, 60: 0.07, 120: 0.0})
    found = {share: figures[share] for share in ("0.8", "0.9", "0.95")}
    assert found == {"0.8": 5, "0.9": first(60), "0.95": first(120)}
    assert {f"{share:g}" for share in SHARES} == found.keys()
    assert f"{ENOUGH:g}" in found


def test_all_or_one_edge_may_be_enough() -> None:
    one, none = judge_lacks({1: 0.0}), judge_lacks({})
    assert {one[f"{share:g}"] for share in SHARES} == {1}
    assert {none[f"{share:g}"] for share in SHARES} == {200}


def test_log_area_is_a_mean_within_bounds() -> None:
    assert judge_lacks({})["log_area"] == pytest.approx(1)
    assert judge_lacks({1: 0.25})["log_area"] == pytest.approx(0.25)
    assert judge_lacks({1: 3.0})["log_area"] == pytest.approx(1)
    assert judge_lacks({1: -0.5})["log_area"] == pytest.approx(0)


# Rankings that are compared


def test_searches_are_those_of_the_package() -> None:
    found, config = group(), settings()
    looker = make_looker()
    ranked = rankings(found, [looker], config)
    assert torch.equal(ranked[PLAIN], found.starts)
    for row, (subject, pairs) in enumerate(found.items):
        own = gc.localize(subject, pairs[: config.read], method="eap-ig").scores
        torch.testing.assert_close(ranked[SEARCH][row], own.to(ranked[SEARCH]))
        paths = along_paths(own.to(ranked[RIVAL]), found.graph)
        torch.testing.assert_close(ranked[RIVAL][row], paths)
    moved = ranked[LOOKING]
    assert torch.equal(moved.isfinite(), found.starts.isfinite())
    assert not torch.equal(moved.argsort(), found.starts.argsort())
    # One round after the other.
    once = look_again(found, found.starts, [looker], config)
    torch.testing.assert_close(moved, once)
    twice = replace(config, looker=replace(config.looker, rounds=2))
    again = rankings(found, [looker], twice)[LOOKING]
    torch.testing.assert_close(again, look_again(found, once, [looker], config))


@pytest.mark.slow
def test_a_job_says_what_every_method_needs(tmp_path: Any) -> None:
    shop = Shop(tmp_path, settings())
    looker = make_looker(speaks=False)
    rows = list(judge_job(shop, sources(OTHER, *ALIKE[:2]), [looker]))
    assert [row["id"] for row in rows] == [OTHER, *ALIKE[:2]]
    starts = judged(group(), group().starts, settings().read)
    for number, row in enumerate(rows):
        assert row["kind"] == "planted"
        assert {LOOKING, PLAIN, RIVAL, SEARCH} <= row["edges"].keys()
        assert row["edges"] == {name: x[f"{ENOUGH:g}"] for name, x in row["figures"].items()}
        # A looker that learned nothing leaves the ranking as it is.
        plain, looking = (row["figures"][name] for name in (PLAIN, LOOKING))
        assert looking == pytest.approx(plain, rel=1e-3, abs=1e-3)
        if number:
            assert plain == pytest.approx(dict(starts[number - 1]), rel=1e-3, abs=1e-3)


def test_geometric_means() -> None:
    assert geometric([2.0, 8.0]) == pytest.approx(4)
    assert geometric([5.0]) == pytest.approx(5)
    assert geometric([1.0, 10.0, 100.0]) == pytest.approx(10)
