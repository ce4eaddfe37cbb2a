"""Familiarity: exact distances, what is left out, limits, and what files must hold."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.predictor.facts.familiarity import (
    GUARD,
    Cloud,
    KnownCases,
    case_features,
    disagreement,
    fit_cloud,
    fit_familiarity,
    shrunk,
)
from graphcircuits.predictor.model import Reading
from tests.predictor.cases import make_reading, small
from tests.predictor.graphs import seeded

pytestmark = pytest.mark.usefixtures("unchecked")


def make_readings(n: int = 40, columns: int = 3, seed: int = 0) -> list[Reading]:
    """Cases whose mean features are normal numbers, in tables of two rows."""
    structure = make_reading(small(), "one-layer").structure
    drawn = torch.randn(n, columns, generator=seeded(seed), dtype=torch.float64)
    mixed = drawn @ torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 5.0]]).double()
    return [as_reading(row, structure) for row in mixed[:, :columns] + 7]


def as_reading(features: Tensor, structure: object = None) -> Reading:
    nodes = torch.stack([features - 1, features + 1])
    return Reading(structure, nodes)  # pyright: ignore[reportArgumentType]


def make_logits(n: int, seed: int = 1, noise: float = 0.1) -> list[Tensor]:
    """Two members that nearly agree on nine edges."""
    generator = seeded(seed)
    means = torch.randn(n, 1, 9, generator=generator)
    return list(means + noise * torch.randn(n, 2, 9, generator=generator))


def test_distances_are_those_of_the_inverse_covariance() -> None:
    rows = torch.stack([case_features(reading) for reading in make_readings(4000)])
    cloud = fit_cloud(rows)
    covariance = torch.cov(rows.T, correction=0)
    point = torch.tensor([8.0, 6.0, 20.0]).double()
    apart = point - rows.mean(0)
    expected = (apart @ torch.linalg.solve(covariance, apart) / 3).sqrt()
    # Of thousands of cases in three columns hardly anything is shrunk.
    assert float(cloud.distance(point)) == pytest.approx(float(expected), rel=0.02)
    assert float(cloud.distance(rows).square().mean()) == pytest.approx(1, rel=0.02)


def test_shrinking_is_that_of_ledoit_and_wolf() -> None:
    rows = torch.randn(12, 5, generator=seeded(3), dtype=torch.float64)
    sample = sum((row[:, None] * row for row in rows), torch.zeros(5, 5)) / 12
    level = sum(sample[i, i] for i in range(5)) / 5
    target = level * torch.eye(5)
    noise = sum(((row[:, None] * row - sample) ** 2).sum() for row in rows) / 12**2
    share = min(1.0, float(noise / ((sample - target) ** 2).sum()))
    assert 0.1 < share < 1
    torch.testing.assert_close(shrunk(rows), (1 - share) * sample + share * target)


def test_units_of_columns_do_not_matter() -> None:
    rows = torch.stack([case_features(reading) for reading in make_readings()])
    units = torch.tensor([100.0, 3.0, 20.0]).double()
    point = torch.tensor([8.0, 6.0, 20.0]).double()
    one, other = fit_cloud(rows).distance(point), fit_cloud(rows * units).distance(point * units)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=0)


def test_a_column_that_never_varies_is_no_reason_for_infinity() -> None:
    rows = torch.stack([case_features(reading) for reading in make_readings()])
    still = torch.cat([rows, torch.ones(len(rows), 1).double()], dim=1)
    cloud = fit_cloud(still)
    moved = still.mean(0) + torch.tensor([0, 0, 0, 0.02]).double()
    assert float(cloud.distance(moved)) == pytest.approx(1, rel=0.1)


def test_disagreement_by_hand_and_whatever_the_scale() -> None:
    logits = torch.tensor([[0.0, 1.0, 5.0], [0.0, 3.0, 3.0]])
    expected = (0 + 2**0.5 + 2**0.5) / 3 / torch.tensor([0.0, 2.0, 4.0]).std()
    assert disagreement(logits) == pytest.approx(float(expected))
    assert disagreement(3 * logits + 5) == pytest.approx(float(expected))
    assert disagreement(logits[[0, 0]]) == 0


def fit(
    readings: list[Reading], logits: list[Tensor] | None = None, groups: list[Any] | None = None
) -> KnownCases:
    """By readings of cases, each a group of its own if no groups are given."""
    apart = None if logits is None else [disagreement(each) for each in logits]
    features = torch.stack([case_features(reading) for reading in readings])
    return fit_familiarity(features, apart, range(len(readings)) if groups is None else groups)


def test_what_is_like_the_training_is_known_and_what_is_not_is_not() -> None:
    readings, logits = make_readings(), make_logits(40)
    known, calm = fit(readings, logits), make_logits(1, noise=0.01)[0]
    usual = known.judge(torch.tensor([7.0, 7.0, 7.0]), calm)
    assert usual.known
    assert usual.share > 0.3
    assert usual.why() == "it is like the cases of the training"
    shares, strange = [], []
    for far in (0, 3, 10, 100):
        moved = known.judge(torch.tensor([7.0 + far, 7.0, 7.0]), calm)
        shares.append(moved.share)
        strange.append(moved.strangeness)
    assert shares == sorted(shares, reverse=True)
    assert strange == sorted(strange)
    assert shares[-1] == 0 < 1 < strange[-1]
    torn = known.judge(case_features(readings[0]), make_logits(1, noise=3.0)[0])
    assert not torn.known
    assert torn.disagreement is not None
    assert torn.strangeness == torn.disagreement > 1 > torn.distance
    assert torn.why().startswith("the networks of the predictor disagree about it ")
    far_off = known.judge(torch.tensor([7.0, 90.0, 7.0]), calm)
    assert far_off.why().startswith("its features differ from those of the training cases ")


def test_the_order_of_cases_does_not_matter_to_the_cloud_and_the_limits() -> None:
    readings, logits = make_readings(), make_logits(40)
    order = torch.randperm(40, generator=seeded(5)).tolist()
    one = fit(readings, logits, [n // 2 for n in range(40)])
    # Groups go to pieces as they come.
    groups = [n // 2 for n in order]
    other = fit([readings[n] for n in order], [logits[n] for n in order], groups)
    torch.testing.assert_close(one.cloud.mean, other.cloud.mean)
    torch.testing.assert_close(one.limits[0], other.limits[0])
    judged = [x.judge(case_features(readings[3]), logits[3]).disagreement for x in (one, other)]
    assert judged[0] == pytest.approx(judged[1])


def test_cases_are_measured_without_their_group() -> None:
    readings = make_readings(4)
    # Two groups: every case is measured against the other one alone.
    known = fit(readings, groups=["a", "a", "b", "b"])
    rows = torch.stack([case_features(reading) for reading in readings])
    one, other = fit_cloud(rows[2:]).distance(rows[:2]), fit_cloud(rows[:2]).distance(rows[2:])
    distances = torch.cat([one, other])
    limit = GUARD * distances.quantile(0.99)
    torch.testing.assert_close(known.limits, torch.tensor([0.0, float(limit)]))
    torch.testing.assert_close(known.strangeness, (distances / limit).sort().values.float())


def test_one_member_has_nobody_to_disagree_with() -> None:
    readings = make_readings()
    alone = [logits[:1] for logits in make_logits(40)]
    judged = fit(readings).judge(case_features(readings[0]), alone[0])
    assert judged.disagreement is None
    assert judged.strangeness == judged.distance


# Files


def test_tensors_bring_it_back() -> None:
    readings, logits = make_readings(), make_logits(40)
    known = fit(readings, logits)
    again = KnownCases.from_tensors(known.tensors(), 3)
    for reading, logit in zip(readings[:3], make_logits(3, seed=9), strict=True):
        features = case_features(reading)
        assert again.judge(features, logit) == known.judge(features, logit)


def test_what_is_no_familiarity_is_refused() -> None:
    known = fit(make_readings(), make_logits(40))
    whole = known.tensors()
    wrong = [
        (whole, 4, "must be of 4 columns"),
        ({k: v for k, v in whole.items() if k != "limits"}, 3, "must be of 3 columns"),
        (whole | {"strangeness": torch.empty(0)}, 3, "must be of 3 columns"),
        (whole | {"mean": torch.full((3,), torch.nan)}, 3, "finite numbers in single precision"),
        (whole | {"mean": torch.ones(3).double()}, 3, "finite numbers in single precision"),
        (whole | {"limits": torch.zeros(2)}, 3, r"limits must be above 0, got \[0.0, 0.0\]"),
    ]
    for tensors, columns, message in wrong:
        with pytest.raises(ValueError, match=message):
            KnownCases.from_tensors(tensors, columns)


def test_what_cannot_be_fitted_is_refused() -> None:
    readings = make_readings(4)
    with pytest.raises(ValueError, match="give two at least, got 1"):
        fit(readings, groups=["a"] * 4)
    features = make_reading(small(aligner="tabpfn", context_pairs=2), "one-layer")
    with pytest.raises(ValueError, match="measured on invariants, got features"):
        case_features(features)


def test_a_cloud_is_a_value() -> None:
    cloud = fit_cloud(torch.randn(9, 2, generator=seeded(0), dtype=torch.float64))
    still = replace(cloud, mean=torch.zeros(2))
    assert isinstance(still, Cloud)
    assert float(still.distance(torch.zeros(2))) == 0
