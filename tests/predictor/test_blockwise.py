"""Block by block, a predictor gives the logits of the general path."""

from typing import Any

import pytest
import torch

from graphcircuits.predictor import blockwise
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.facts.familiarity import case_features, fit_familiarity
from graphcircuits.predictor.model import Predictor, PredictorConfig, measure, read_case, start
from tests.predictor.cases import AT_THE_CLEAN_RUN, make_reading, make_task, small
from tests.predictor.graphs import seeded


def drawn(config: PredictorConfig, seed: int) -> Predictor:
    """A predictor in float64 of which no weight, bias, scale or deviation is one or zero."""
    predictor = Predictor(config).double().eval().requires_grad_(False)
    generator = seeded(seed)
    for name, values in predictor.state_dict().items():
        values.normal_(0, 0.5, generator=generator)
        if name.endswith("deviation"):
            values.abs_().add_(0.5)
    return predictor


def in_spans(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Treat every graph as a large one, so many edges at once; with one, members go one by one."""
    monkeypatch.setattr(blockwise, "SMALL", 0)
    monkeypatch.setattr(blockwise, "AT_ONCE", size)
    if size == 1:
        monkeypatch.setattr(blockwise, "STATES", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("size", [None, 1, 24])
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("plain", {}),
        ("plain", AT_THE_CLEAN_RUN),
        ("grouped-keys", {"both_ends": True}),
        ("grouped-keys", AT_THE_CLEAN_RUN | {"both_ends": True}),
        ("parallel", {"aggregation": "sum"}),
        ("one-layer", {"layers": 1, "prior": False}),
    ],
)
def test_logits_and_means_are_those_of_the_general_path(
    architecture: str, options: dict[str, Any], size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size is not None:
        in_spans(monkeypatch, size)
    config = small(**options)
    subject, pairs = make_task(architecture)
    members = [drawn(config, seed) for seed in range(2)]
    reading = read_case(config, subject, pairs, generator=seeded(0))
    expected = torch.stack([member(reading, generator=seeded(0)) for member in members])
    found = measure(config, subject, pairs)
    logits, columns = blockwise.run(blockwise.folded(members), found)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(columns, case_features(reading), rtol=1e-9, atol=1e-9)
    assert (expected.std(1) > 1e-2).all()


@pytest.mark.usefixtures("unchecked")
def test_a_correction_that_is_nothing_leaves_the_prior() -> None:
    """An untrained predictor ranks edges as the search it starts from; members scale it."""
    subject, pairs = make_task("grouped-keys")
    members = [Predictor(small(), generator=seeded(seed)).double() for seed in range(2)]
    for member, scale in zip(members, (0.0, 0.7), strict=True):
        assert member.log_scale is not None
        member.log_scale.data.fill_(scale)
    found = measure(small(), subject, pairs)
    logits, _ = blockwise.run(blockwise.folded(members), found)
    scales = torch.tensor([[0.0], [0.7]], dtype=torch.float64).exp()
    torch.testing.assert_close(logits, scales * start(found))


@pytest.mark.usefixtures("unchecked")
def test_a_subject_of_another_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small()
    subject, pairs = make_task()
    member = drawn(config, 0).float()
    found = measure(config, subject, pairs)
    expected, columns = blockwise.run(blockwise.folded([drawn(config, 0)]), found)
    for size in (None, 12):
        if size is not None:
            in_spans(monkeypatch, size)
        logits, means = blockwise.run(blockwise.folded([member]), found)
        assert logits.dtype == means.dtype == torch.float32
        torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(means.double(), columns, rtol=1e-4, atol=1e-4)


OTHERS: list[dict[str, Any]] = [
    {"learner": "factorized"},
    {"transformation": "incidence"},
    {"connectivity": "none"},
    {"context_width": 2},
    {"aligner": "tabpfn"},
    {"readout_norm": False},
]


@pytest.mark.parametrize("options", OTHERS)
def test_other_predictors_take_the_general_path(options: dict[str, Any]) -> None:
    assert blockwise.applies(small())
    assert not blockwise.applies(small(**options))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options", [{}, {"transformation": "incidence"}, AT_THE_CLEAN_RUN])
def test_an_ensemble_says_the_same_by_either_path(options: dict[str, Any]) -> None:
    config = small(**options)
    subject, pairs = make_task("grouped-keys")
    known = fit_familiarity([make_reading(config, seed=seed) for seed in range(3)])
    ensemble = Ensemble(tuple(drawn(config, seed) for seed in range(2)), {}, known=known)
    reading = read_case(config, subject, pairs, generator=seeded(0))
    expected = ensemble.predict(reading, generator=seeded(0))
    found = ensemble.predict_case(subject, pairs, generator=seeded(0))
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)
    assert found.familiarity is not None
    assert expected.familiarity is not None
    assert found.familiarity.distance == pytest.approx(expected.familiarity.distance)
    scores = ensemble.scores(subject, pairs, generator=seeded(0))
    assert torch.equal(scores, found.logits)


def test_some_members_of_several() -> None:
    config = small()
    members = [drawn(config, seed) for seed in range(3)]
    one_of, own = blockwise.folded(members).some(1, 1), blockwise.folded(members[1:2])
    assert len(one_of) == 1
    for name in ("project", "bias", "readout", "readout_bias", "scale"):
        assert torch.equal(getattr(one_of, name), getattr(own, name))
    for one, other in zip(one_of.layers, own.layers, strict=True):
        assert all(torch.equal(x, getattr(other, name)) for name, x in vars(one).items())
