"""Ensembles: the mean of their members, the same from a file, and files that are refused."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.io.store import StoreError, load_artifact, save_artifact
from graphcircuits.predictor.ensemble import (
    KIND,
    KNOWN,
    Ensemble,
    load_ensemble,
    save_ensemble,
    seen_of,
)
from graphcircuits.predictor.facts.calibration import Isotonic, Platt
from graphcircuits.predictor.facts.familiarity import (
    case_features,
    disagreement,
    fit_familiarity,
)
from graphcircuits.predictor.model import Predictor, PredictorConfig, Reading, join, read_case
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.predictor.cases import AT_THE_CLEAN_RUN, make_reading, make_task, small
from tests.predictor.graphs import seeded
from tests.subjects import make_subject
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("unchecked")


def make_ensemble(config: PredictorConfig | None = None, members: int = 3) -> Ensemble:
    origin = {"cases": ["ib-3"], "seeds": [0, 1, 2], "subjects": seen_of([make_subject()])}
    return Ensemble(tuple(drawn(config or small(), seed) for seed in range(members)), origin)


def drawn(config: PredictorConfig, seed: int) -> Predictor:
    """A predictor that has something to say from the start, prior or not."""
    made = Predictor(config, generator=seeded(seed))
    made.readout.weight.data.normal_(generator=seeded(seed))
    return made


def make_case() -> tuple[Transformer, Pairs]:
    subject, pairs = make_task("one-layer")
    return subject.to(torch.float32), pairs


@pytest.mark.parametrize(
    "options", some([{}, {"aligner": "tabpfn"}, AT_THE_CLEAN_RUN], [{}, AT_THE_CLEAN_RUN])
)
def test_scores_are_the_mean_of_the_members(options: dict[str, Any]) -> None:
    config = small(dropout=0.5, **options)
    ensemble = make_ensemble(config)
    subject, pairs = make_case()
    generator = seeded(3)
    reading = read_case(config, subject, pairs, generator=generator)
    with torch.no_grad():
        alone = [member.eval()(reading, generator=generator) for member in ensemble.members]
    assert not torch.allclose(alone[0], alone[1])
    # Dropout is for training, whatever state the members were left in.
    ensemble.members[1].train()
    found = ensemble.predict_case(subject, pairs, generator=seeded(3)).logits
    mean = torch.stack(alone).mean(0)
    expected = along_paths(mean, subject.graph) if config.paths else mean
    assert torch.allclose(expected, mean) != config.paths
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    again = ensemble.predict(reading, generator=seeded(3)).logits
    assert again.shape == (subject.graph.n_edges,)


def test_paths_are_those_of_one_case() -> None:
    readings = [make_reading(small(), "one-layer", seed) for seed in range(2)]
    with pytest.raises(ValueError, match="are those of one case: predict joined readings apart"):
        make_ensemble().predict(join(readings), generator=seeded(0))
    free = make_ensemble(small(paths=False))
    together = free.predict(join(readings), generator=seeded(0)).logits
    alone = [free.predict(reading, generator=seeded(0)).logits for reading in readings]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    some(
        [{}, {"learner": "factorized"}, AT_THE_CLEAN_RUN, {"aligner": "tabpfn"}],
        [{}, {"learner": "factorized"}, AT_THE_CLEAN_RUN],
    ),
)
def test_a_file_brings_it_back(options: dict[str, Any], tmp_path: Path) -> None:
    config = small(**options)
    ensemble = make_ensemble(config)
    for name, values in ensemble.members[0].state_dict().items():
        if name in ("align.mean", "log_scale"):
            values.fill_(0.3)
    path = tmp_path / "own.safetensors"
    save_ensemble(path, ensemble, seed=7)
    loaded = load_ensemble(path)
    assert loaded.config == config
    assert loaded.origin == ensemble.origin
    assert load_artifact(path, KIND).seed == 7
    one, other = (
        x.predict_case(*make_case(), generator=seeded(0)).logits for x in (ensemble, loaded)
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    for member in loaded.members:
        assert not member.training
        assert not any(parameter.requires_grad for parameter in member.parameters())
    again = load_ensemble(path).predict_case(*make_case(), generator=seeded(0)).logits
    torch.testing.assert_close(again, one, rtol=0, atol=1e-5)


def test_moving_leaves_the_original_where_it_was() -> None:
    ensemble = make_ensemble()
    moved = ensemble.to("meta")
    assert {p.device.type for p in moved.members[0].parameters()} == {"meta"}
    assert {p.device.type for p in ensemble.members[0].parameters()} == {"cpu"}
    assert moved.origin == ensemble.origin


# Files that are refused


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_ensemble(path, make_ensemble())
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        load_ensemble(path)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreError, match="has changed since it was written"):
        load_ensemble(path)
    save_artifact(path, kind="transformer", config={}, seed=None)
    with pytest.raises(StoreError, match="holds a 'transformer' artifact; expected 'predictor'"):
        load_ensemble(path)


def test_predictors_of_another_code_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_ensemble(path, make_ensemble(members=1))
    whole = load_artifact(path, KIND)
    config, tensors, meta = dict(whole.config), dict(whole.tensors), dict(whole.meta)
    fewer = {name: tensor for name, tensor in tensors.items() if name != "0.readout.bias"}
    others = [
        (config | {"width": 12}, tensors, meta, "size mismatch"),
        (config | {"depth": 2}, tensors, meta, "unknown key 'depth'"),
        (config | {"learner": "mlp"}, tensors, meta, "learner"),
        (config | {"share": 1.0}, tensors, meta, "prior needs a share below 1"),
        (config | {"share": 1.0, "prior": False}, tensors, meta, "size mismatch"),
        (config | {"prior": False}, tensors, meta, "log_scale"),
        (config, fewer, meta, "readout.bias"),
        (config, tensors | {"0.extra": torch.ones(1)}, meta, "extra"),
        (config, tensors, meta | {"members": 2}, "Missing key"),
        (config, tensors, {"members": 1}, "origin"),
        (config, tensors, meta | {"origin": {"cases": "ib-3"}}, "cases of its origin must be a li"),
        (config, tensors, meta | {"origin": {"groups": [3]}}, "groups of its origin must be a lis"),
        *(
            (config, tensors, meta | {"origin": {"measured": wrong}}, "must be numbers by kind")
            for wrong in ([1], {"a": 1}, {"a": {"cmd": 1}}, {"a": {"cmd": {"gcl": "1"}}})
        ),
        (config, tensors, meta | {"calibration": 3}, "calibration must be by kind of subject"),
        (config, tensors, meta | {"calibration": {"x": {"kind": 1}}}, "kind platt or isotonic"),
        (config, tensors | {f"{KNOWN}mean": torch.ones(1)}, meta, "familiarity must be of "),
        (
            config | {"aligner": "tabpfn", "prior": False},
            Predictor(small(aligner="tabpfn")).state_dict(prefix="0.")
            | {f"{KNOWN}mean": torch.ones(1)},
            meta,
            "only predictors that take invariants have familiarity",
        ),
    ]
    for other_config, other_tensors, other_meta, text in others:
        save_artifact(
            path,
            kind=KIND,
            config=other_config,
            seed=None,
            tensors=other_tensors,
            meta=other_meta,
        )
        with pytest.raises(StoreError, match="does not match this version of the code") as caught:
            load_ensemble(path)
        assert text in str(caught.value)
        assert str(caught.value).endswith("train it again with: graphcircuits train")


# Calibration and familiarity


def make_readings(n: int = 6) -> list[Reading]:
    architectures = ("plain", "one-layer", "grouped-keys")
    return [make_reading(small(), architectures[seed % 3], seed) for seed in range(n)]


def test_without_calibration_and_familiarity_there_is_nothing_to_say() -> None:
    ensemble, reading = make_ensemble(), make_readings(1)[0]
    found = ensemble.predict(reading, generator=seeded(0), kind="natural")
    assert torch.equal(found.logits, ensemble.predict(reading, generator=seeded(0)).logits)
    assert found.probabilities is found.familiarity is None
    assert found.familiarity is None
    assert ensemble.measured == {}


def with_known_cases(ensemble: Ensemble, readings: list[Reading]) -> Ensemble:
    members = [ensemble.member_logits(reading, generator=seeded(0)) for reading in readings]
    features = torch.stack([case_features(reading) for reading in readings])
    known = fit_familiarity(features, [disagreement(x) for x in members], range(len(readings)))
    return replace(ensemble, known=known)


def test_what_it_knows_goes_with_what_it_predicts() -> None:
    readings, calibration = make_readings(), Platt(1.5, -0.25)
    ensemble = with_known_cases(make_ensemble(), readings)
    ensemble = replace(ensemble, calibration={"natural": calibration})
    reading = readings[1]
    for kind in (None, "public"):
        assert ensemble.predict(reading, generator=seeded(0), kind=kind).probabilities is None
    said = ensemble.predict(reading, generator=seeded(0), kind="natural")
    assert said.probabilities is not None
    assert torch.equal(said.probabilities, calibration(said.logits))
    assert said.familiarity is not None
    assert said.familiarity.disagreement is not None
    assert ensemble.known is not None
    members = ensemble.member_logits(reading, generator=seeded(0))
    limit = float(ensemble.known.limits[0])
    assert said.familiarity.disagreement * limit == pytest.approx(disagreement(members))


@pytest.mark.parametrize("calibration", [Platt(1.5, -0.25), Isotonic([0.0, 1.0], [0.1, 0.7]), None])
def test_a_file_brings_back_what_it_knows(
    calibration: Platt | Isotonic | None, tmp_path: Path
) -> None:
    readings, path = make_readings(), tmp_path / "own.safetensors"
    measured = {"natural": {"cmd": {"gcl": 0.1, "eap-ig": 0.2}}}
    given = {"natural": calibration} if calibration else {}
    ensemble = replace(make_ensemble(), calibration=given)
    ensemble = with_known_cases(ensemble, readings) if calibration else ensemble
    ensemble = replace(ensemble, origin=ensemble.origin | {"measured": measured})
    save_ensemble(path, ensemble)
    loaded = load_ensemble(path)
    assert loaded.calibration == given
    assert loaded.measured == measured
    one, other = (x.predict(readings[2], generator=seeded(0)) for x in (ensemble, loaded))
    assert one.familiarity == other.familiarity
    assert (one.familiarity is None) is (calibration is None)


# What it was trained on


def test_what_no_training_subject_had_is_named() -> None:
    plain = make_ensemble()
    assert plain.unseen(make_subject()) == []
    assert plain.unseen(make_subject("one-layer")) == []
    assert plain.unseen(make_subject("llama", n_layers=3)) == [
        "norm rms",
        "positions rotary",
        "gated MLP",
        "grouped keys",
        "3 layers, at most 2 were seen",
    ]
    assert plain.unseen(make_subject("parallel")) == ["parallel layers"]
    both = Ensemble(plain.members, {"subjects": seen_of([make_subject(), make_subject("gpt-2")])})
    assert both.unseen(make_subject("gpt-2")) == []
    assert both.unseen(make_subject("neox")) == ["positions rotary", "parallel layers"]


def test_weights_kept_in_half_precision_are_read_as_single(tmp_path: Path) -> None:
    ensemble, path = make_ensemble(), tmp_path / "half.safetensors"
    save_ensemble(path, ensemble, dtype=torch.float16)
    assert {tensor.dtype for tensor in load_artifact(path, KIND).tensors.values()} == {
        torch.float16
    }
    for kept, own in zip(load_ensemble(path).members, ensemble.members, strict=True):
        for name, value in own.state_dict().items():
            assert torch.equal(kept.state_dict()[name], value.half().float())


@contextmanager
def counted_waits() -> Iterator[list[warnings.WarningMessage]]:
    """What was waited for inside, on a GPU."""
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", message="called a synchronizing CUDA operation")
        try:
            torch.cuda.set_sync_debug_mode("warn")
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_gpu_is_waited_for_a_few_times_whatever_the_depth() -> None:
    """For what is looked at on the host: losses, what is finite, and what the case looks like."""
    ensemble = make_ensemble(small())
    subject, pairs = make_case()
    reading = read_case(ensemble.config, subject, pairs, generator=seeded(0))
    members = ensemble.member_logits(reading, generator=seeded(0))
    features = torch.randn(9, len(case_features(reading)), generator=seeded(1))
    known = fit_familiarity(features.double(), [disagreement(members)] * 9, range(9))
    ensemble = replace(ensemble, known=known)
    counts = []
    for n_layers in (2, 6):
        subject, pairs = make_task(n_layers=n_layers)
        subject, pairs = subject.to(torch.float32).to("cuda"), pairs.to("cuda")
        there = ensemble.to("cuda")
        there.predict_case(subject, pairs, generator=seeded(0))  # tables that are made once
        with counted_waits() as waits:
            found = there.predict_case(subject, pairs, generator=seeded(0)).logits
        counts.append(len(waits))
        here = ensemble.predict_case(subject.to("cpu"), pairs.to("cpu"), generator=seeded(0)).logits
        # Features are ranks among others: near ties change places with the last digits.
        apart = (found.cpu() - here).abs()
        assert float(apart.median()) < 1e-3
        assert float(apart.max()) < float(here.std())
    assert counts[0] == counts[1] <= 12, [str(wait.message) for wait in waits]
