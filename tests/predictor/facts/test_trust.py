"""How much of a correction counts: the line of the least loss, files, and what an ensemble makes of
it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.facts.familiarity import case_features
from graphcircuits.predictor.facts.trust import Trust
from graphcircuits.predictor.invariant import table_width
from graphcircuits.predictor.model import Predictor, read_case
from graphcircuits.predictor.paths import along_paths
from lab.factory.trust import RIDGE, fit_trust
from tests.predictor.cases import make_task, small
from tests.predictor.graphs import seeded


def certain(columns: int, odds: float) -> Trust:
    return Trust(torch.zeros(columns), torch.tensor([odds]))


def made(n: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of which the first decides, up to noise."""
    features = torch.randn(n, 3, generator=seeded(0))
    noise = 0.3 * torch.randn(n, generator=seeded(1))
    return features, features[:, 0] + noise > 0, torch.rand(n, generator=seeded(2)) + 0.1


def test_the_line_is_where_the_loss_has_no_gradient() -> None:
    features, helped, stakes = made()
    trust = fit_trust(features, helped, stakes)
    deviation, mean = features.double().std(0), features.double().mean(0)
    slopes = (trust.weights.double() * deviation).requires_grad_()
    bias = (trust.bias.double() + trust.weights.double() @ mean).requires_grad_()
    odds = ((features.double() - mean) / deviation) @ slopes + bias
    weights = stakes.double() / stakes.double().sum()
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        odds, helped.double(), weights, reduction="sum"
    )
    loss = losses + 0.5 * RIDGE * slopes.square().sum()
    for gradient in torch.autograd.grad(loss, [slopes, bias]):
        assert gradient.abs().max() < 1e-5


def test_it_tells_apart_what_it_learned_from_and_ignores_what_did_not_matter() -> None:
    features, helped, stakes = made()
    trust = fit_trust(features, helped, stakes)
    assert trust(torch.tensor([2.0, 0.0, 0.0])) > 0.9
    assert trust(torch.tensor([-2.0, 0.0, 0.0])) < 0.1
    # Cases without a stake do not count, whatever is said of them.
    wrong = torch.cat([helped, ~helped])
    doubled = fit_trust(
        torch.cat([features, features]), wrong, torch.cat([stakes, torch.zeros_like(stakes)])
    )
    assert doubled.weights == pytest.approx(trust.weights, abs=1e-2)


def test_cases_of_one_kind_teach_nothing() -> None:
    features, helped, stakes = made()
    with pytest.raises(ValueError, match="got 200 of 200 that it helped"):
        fit_trust(features, torch.ones_like(helped), stakes)


def test_files_hold_it_and_refuse_another(tmp_path: Path) -> None:
    config = small()
    member = Predictor(config, generator=seeded(0)).eval()
    columns = table_width(config.share)
    trust = Trust(torch.randn(columns, generator=seeded(3)), torch.tensor([0.5]))
    path = tmp_path / "trusted.safetensors"
    save_ensemble(path, Ensemble((member,), {}, trust=trust))
    found = load_ensemble(path).trust
    assert found is not None
    assert all(torch.equal(x, found.tensors()[name]) for name, x in trust.tensors().items())
    with pytest.raises(ValueError, match=f"trust must be of {columns} columns"):
        Trust.from_tensors({"weights": torch.zeros(2), "bias": torch.zeros(1)}, columns)
    with pytest.raises(ValueError, match="finite numbers in single precision"):
        Trust.from_tensors({"weights": torch.full((2,), torch.nan), "bias": torch.zeros(1)}, 2)


def test_an_ensemble_counts_so_much_of_its_correction() -> None:
    subject, pairs = make_task()
    config = small()
    member = Predictor(config, generator=seeded(0)).eval()
    with torch.no_grad():
        member.readout.weight.normal_(generator=seeded(1))
    member.requires_grad_(False)
    plain = Ensemble((member,), {})
    reading = read_case(config, subject, pairs, generator=seeded(0))
    columns = len(case_features(reading))
    start = member.start(reading)
    assert start is not None
    corrected = plain.member_logits(reading, generator=seeded(0))[0]
    for odds, share in ((-50.0, 0.0), (0.0, 0.5), (50.0, 1.0)):
        ensemble = replace(plain, trust=certain(columns, odds))
        expected = along_paths(start.lerp(corrected, share), subject.graph)
        for found in (
            ensemble.predict(reading, generator=seeded(0)),
            ensemble.predict_case(subject, pairs, generator=seeded(0)),
        ):
            assert found.trust == pytest.approx(share)
            assert found.logits == pytest.approx(expected, abs=1e-5)
