"""Shares against `faithfulness`, clocks, and intervals against known ones."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphcircuits as gc
from graphcircuits.certificates import judging
from graphcircuits.certificates.judging import (
    Clock,
    Judge,
    OutOfTime,
    between,
    draws,
    mean_interval,
    share_interval,
)
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns
from tests.certificates.judges import drawn, tiny


def test_the_mean_of_the_shares_is_faithfulness() -> None:
    subject, pairs, judge = tiny()
    circuits = [drawn(subject.graph, 0.6, seed) for seed in range(5)]
    shares = judge.shares(circuits)
    assert shares.shape == (5, len(pairs))
    expected = gc.faithfulness(subject, pairs, circuits)
    assert shares.mean(1).tolist() == pytest.approx(expected)
    assert judge.kept(circuits[3]) == pytest.approx(expected[3])
    assert len({round(value, 6) for value in shares[0].tolist()}) > 1


def test_all_edges_keep_everything_and_none_keep_nothing() -> None:
    subject, pairs, judge = tiny()
    none = torch.zeros(subject.graph.n_edges, dtype=torch.bool)
    everything, nothing = (Circuit.from_mask(subject.graph, mask) for mask in (~none, none))
    assert judge.kept(everything) == pytest.approx(1)
    assert judge.shares([nothing]).tolist() == [[0.0] * len(pairs)]


def test_circuits_go_in_parts_between_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, _, judge = tiny()
    circuits = [drawn(subject.graph, 0.5, seed) for seed in range(5)]
    whole = judge.shares(circuits)
    monkeypatch.setattr(judging, "AT_ONCE", 2)
    looks: list[None] = []

    class Watched(Clock):
        def check(self) -> None:
            looks.append(None)

    assert torch.allclose(Judge(judge.runs, Watched()).shares(circuits), whole)
    assert len(looks) == 3


def test_prompts_that_say_nothing_are_refused() -> None:
    subject, pairs, _ = tiny()
    same = replace(pairs, corrupted=pairs.clean)
    judge = Judge(CircuitRuns(subject, same), Clock())
    with pytest.raises(ValueError, match="needs a clean and an ablated run that differ"):
        judge.kept(drawn(subject.graph, 0.5, 0))


def test_clocks() -> None:
    endless, long, over = Clock(), Clock(1000.0), Clock(1e-9)
    endless.check()
    long.check()
    with pytest.raises(OutOfTime):
        over.check()
    assert endless.share(0.5) is endless
    assert long.share(0.25) == Clock(250.0, long.began)
    # It began when the whole did.
    with pytest.raises(OutOfTime):
        Clock(10.0, long.began - 9).share(0.5).check()
    assert Clock(began=long.began - 5).spent == pytest.approx(long.spent + 5, abs=0.1)


@pytest.mark.parametrize(
    ("hits", "n", "expected"),
    [
        # Wilson 1927; as in R's binom.wilson.
        (5, 10, (0.2366, 0.7634)),
        (0, 40, (0.0, 0.0876)),
        (40, 40, (0.9124, 1.0)),
        (1, 10, (0.0179, 0.4042)),
        (81, 263, (0.2553, 0.3662)),
    ],
)
def test_wilson(hits: int, n: int, expected: tuple[float, float]) -> None:
    assert share_interval(hits, n) == pytest.approx(expected, abs=1e-4)


@given(st.integers(1, 500), st.data())
def test_the_interval_of_a_share_is_around_it(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    low, high = share_interval(hits, n)
    assert 0 <= low <= hits / n + 1e-9
    assert hits / n - 1e-9 <= high <= 1
    assert high > low
    others = share_interval(n - hits, n)
    assert others == pytest.approx((1 - high, 1 - low))
    wide, narrow = high - low, share_interval(4 * hits, 4 * n)
    assert narrow[1] - narrow[0] < wide


def test_intervals_are_those_of_values_drawn_again() -> None:
    values = torch.rand(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = mean_interval(values)
    chance = random.Random(0)
    means = sorted(sum(chance.choices(values.tolist(), k=30)) / 30 for _ in range(4000))
    assert found == pytest.approx((means[100], means[-101]), abs=0.015)
    assert mean_interval(values[:4]) is not None
    assert mean_interval(values[:3]) is None
    same = mean_interval(torch.full((5,), 0.25))
    assert same == pytest.approx((0.25, 0.25))


def test_draws_are_the_same_for_every_question() -> None:
    rows = draws(7, 50)
    assert rows.shape == (50, 7)
    assert (int(rows.min()), int(rows.max())) == (0, 6)
    assert torch.equal(rows, draws(7, 50))


def test_between_leaves_out_a_fortieth_on_either_side() -> None:
    assert between(torch.linspace(0, 1, 1001)) == pytest.approx((0.025, 0.975), abs=1e-4)
