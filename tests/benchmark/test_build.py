"""Building subjects: what is written when, what a second build keeps, and what is refused."""

import logging
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphcircuits.benchmark import build as module
from graphcircuits.benchmark import load_case
from graphcircuits.benchmark.build import (
    BuildConfig,
    Built,
    build,
    case_exchange,
    fleets,
    read_report,
    subject_codec,
    subject_config,
    subject_path,
)
from graphcircuits.benchmark.case import Case
from graphcircuits.rasp import Map, indices, tokens
from graphcircuits.siit.train import SiitConfig, Trained, train_fleet
from graphcircuits.store import StoreError, load_transformer, save_transformer
from graphcircuits.transformer import Transformer
from tests.subjects import make_config, make_subject

pytestmark = pytest.mark.usefixtures("unchecked")

SIIT = SiitConfig(steps=200, rows=16, check_every=20, check_rows=64, lr=2e-2, final_lr=1e-3)
CONFIG = BuildConfig(siit=SIIT, inputs=64, pairs=32, verify_inputs=64, verify_pairs=64)
HOPELESS = replace(CONFIG, siit=replace(SIIT, steps=1))


def letters(id: str = "own-swap", **options: Any) -> Case:
    """Two tokens that change places; passes within a hundred steps."""
    given = {
        "vocab": ("a", "b"),
        "max_seq_len": 3,
        "build": lambda: Map(lambda x: "b" if x == "a" else "a", tokens).named("other"),
    }
    return Case(id=id, name=id, task="The other letter.", **(given | options))


def constant(id: str = "own-parity") -> Case:
    program = Map(lambda i: i % 2, indices).named("parity")
    return letters(id=id, build=lambda: program)


@cache
def trained() -> Transformer:
    """A subject that passes, trained once."""
    case = letters()
    data = [case_exchange(case, 64, 32, seed) for seed in (1, 2)]
    start = Transformer.random(
        subject_config(case), torch.Generator().manual_seed(0), subject_codec(case)
    )
    (one,) = train_fleet([start], data[:1], data[1:], SIIT, torch.Generator().manual_seed(0))
    assert one.passed
    return one.subject


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that gives a finished subject at once, unless a single step is asked for."""
    finished = Trained(trained(), 0.98, 20, passed=True)

    def train(subjects: Any, a: Any, b: Any, config: SiitConfig, *rest: Any) -> list[Trained]:
        if config.steps == 1:
            return [Trained(subject, 0.0, 1, passed=False) for subject in subjects]
        for place in range(len(subjects)):
            rest[-1](place, finished)
        return [finished] * len(subjects)

    monkeypatch.setattr(module, "train_fleet", train)


def done(cases: list[Case], directory: Path, config: BuildConfig = CONFIG) -> dict[str, Built]:
    return {built.id: built for built in build(cases, directory, config)}


def test_a_subject_that_passes_is_kept_with_its_report(tmp_path: Path) -> None:
    case = letters()
    (built,) = build([case], tmp_path, CONFIG, command="make it")
    assert built.path == subject_path(tmp_path, "own-swap")
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["own-swap.safetensors"]
    report = read_report(built.path)
    assert report == built.report
    assert report["passed"] is built.verdict.passed is True
    assert report["accuracy"] == built.verdict.accuracy >= 0.99
    assert report["worst_interchange"] == min(report["interchange"].values()) >= 0.97
    assert report["worst_strict"] == min(report["strict"].values()) >= 0.97
    assert report["circuit_accuracy"] == built.verdict.circuit
    assert set(report["interchange"]) == {"m0"}
    assert len(report["strict"]) == 9
    assert (report["case"], report["widened"], report["steps"]) == ("own-swap", False, built.steps)
    assert report["seconds"] >= 0
    assert report["build"]["siit"]["lr"] == SIIT.lr
    assert report["build"]["device"] == "cpu"
    subject = load_transformer(built.path)
    assert subject.dtype == torch.float16
    assert subject.config == subject_config(case)
    assert subject.codec == subject_codec(case)
    assert subject.to(torch.float32).apply(["a", "b"]) == ["b", "a"]


@pytest.mark.usefixtures("instant")
def test_a_second_build_keeps_what_is_there(tmp_path: Path) -> None:
    first = done([letters("own-1")], tmp_path)["own-1"]
    before = first.path.read_bytes()
    assert list(done([letters("own-1"), letters("own-2")], tmp_path)) == ["own-2"]
    assert first.path.read_bytes() == before
    assert done([letters("own-1"), letters("own-2")], tmp_path) == {}


@pytest.mark.slow
def test_the_same_build_gives_the_same_weights(tmp_path: Path) -> None:
    paths = [done([letters()], tmp_path / name)["own-swap"].path for name in ("x", "y")]
    x, y = (load_transformer(path).weights for path in paths)
    assert all(torch.equal(x[name], y[name]) for name in x)


@pytest.mark.usefixtures("instant")
def test_a_subject_that_fails_is_set_aside_and_taken_up_again(tmp_path: Path) -> None:
    failed = done([letters()], tmp_path, HOPELESS)["own-swap"]
    assert failed.path == tmp_path / "failed" / "own-swap.safetensors"
    assert not subject_path(tmp_path, "own-swap").exists()
    assert read_report(failed.path)["passed"] is False
    stored = load_transformer(failed.path).to(torch.float32)
    start = module._start(letters(), tmp_path, replace(CONFIG, seed=1))
    assert all(torch.equal(w, stored.weights[name]) for name, w in start.weights.items())
    passed = done([letters()], tmp_path)["own-swap"]
    assert passed.verdict.passed
    assert not failed.path.exists()


@pytest.mark.usefixtures("instant")
@pytest.mark.parametrize("options", [{"vocab": ("x", "a")}, {"max_seq_len": 5}])
def test_what_was_set_aside_for_another_case_is_not_taken_up(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    done([letters()], tmp_path, HOPELESS)
    other = letters(**options)
    start = module._start(other, tmp_path, CONFIG)
    assert start.config == subject_config(other)
    assert start.codec == subject_codec(other)
    again = module._start(letters(), tmp_path, CONFIG)
    assert not torch.equal(again.weights["W_in"], start.weights["W_in"])


def test_a_build_that_is_stopped_keeps_what_had_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second subject of the fleet never passes; the build ends while it still trains."""
    easy, hard = letters("own-easy"), letters("own-hard")
    exchange, steps = module.case_exchange, []

    def wrong_check(case: Case, inputs: int, pairs: int, seed: int) -> Any:
        made = exchange(case, inputs, pairs, seed)
        return replace(made, targets=1 - made.targets) if case is hard else made

    def stop(step: int, passed: int, total: int) -> None:
        if passed and steps[-1:] == [passed]:
            raise KeyboardInterrupt
        steps.append(passed)

    # The finished subject passes at the first check.
    monkeypatch.setattr(module, "_start", lambda *_: trained())
    config = replace(CONFIG, siit=replace(SIIT, check_every=2))
    with monkeypatch.context() as patch:
        patch.setattr(module, "case_exchange", wrong_check)
        building = build([hard, easy], tmp_path, config, progress=stop)
        with pytest.raises(KeyboardInterrupt):
            list(building)
    kept = subject_path(tmp_path, "own-easy")
    assert read_report(kept)["passed"]
    assert list(done([easy, hard], tmp_path, config)) == ["own-hard"]


@pytest.mark.usefixtures("instant")
def test_a_consumer_that_stops_loses_nothing(tmp_path: Path) -> None:
    """Two fleets: the build is left after the first subject, and the next build goes on."""
    cases = [letters("own-1"), letters("own-2"), letters("own-long", max_seq_len=18)]
    building = build(cases, tmp_path, HOPELESS)
    first = next(building)
    building.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert first.path.exists()
    assert subject_path(tmp_path / "failed", "own-2").exists()
    assert not subject_path(tmp_path / "failed", "own-long").exists()
    assert set(done(cases[:2], tmp_path)) == {"own-1", "own-2"}


@pytest.mark.usefixtures("instant")
def test_a_disk_that_fails_leaves_earlier_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [letters("own-1"), letters("own-2")]
    save = module.save_transformer

    def full(path: Path, *rest: Any, **options: Any) -> str:
        if "own-2" in path.name:
            raise OSError(28, "No space left on device")
        return save(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_transformer", full)
        building = build(cases, tmp_path, CONFIG)
        with pytest.raises(OSError, match="No space left"):
            list(building)
    assert read_report(subject_path(tmp_path, "own-1"))["passed"]
    assert list(done(cases, tmp_path)) == ["own-2"]


@pytest.mark.usefixtures("instant")
def test_a_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "taken"
    place.write_text("something else")
    with pytest.raises(OSError, match="taken"):
        done([letters()], place, HOPELESS)
    assert place.read_text() == "something else"


@pytest.mark.usefixtures("instant")
def test_an_output_that_never_changes_is_refused_after_the_others(tmp_path: Path) -> None:
    refusal = "case 'own-parity': the output is the same for every input of 2 tokens"
    with pytest.raises(ValueError, match=refusal):
        case_exchange(constant(), 8, 8, 0)
    with pytest.raises(ValueError, match="another vocabulary, length or program"):
        done([constant()], tmp_path)
    building = build([constant(), letters(), constant("own-p2")], tmp_path, CONFIG)
    assert next(building).id == "own-swap"
    with pytest.raises(ValueError, match=refusal + r"(.|\n)*'own-p2'"):
        next(building)


@pytest.mark.usefixtures("instant")
def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = done([letters()], tmp_path, HOPELESS)["own-swap"].path
    weights = safetensors.torch.load(path.read_bytes())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert weights.keys() == safetensors.torch.load(bytes(data)).keys()
    with pytest.raises(StoreError, match="has changed since it was written"):
        read_report(path)
    with pytest.raises(StoreError, match="has changed since it was written"):
        done([letters()], tmp_path)


def test_a_transformer_without_a_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.safetensors"
    save_transformer(path, make_subject())
    with pytest.raises(ValueError, match=r"plain\.safetensors holds a transformer without a rep"):
        read_report(path)


def test_without_time_nothing_is_built(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(build([letters()], tmp_path, CONFIG, deadline=-math.inf)) == []
    assert "out of time: 1 cases left untrained" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_time_that_runs_out_while_preparing_sets_the_start_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    (built,) = build([letters()], tmp_path, CONFIG, deadline=1.0)
    assert built.steps == 0
    assert built.path.parent.name == "failed"


@pytest.mark.usefixtures("instant")
def test_the_same_case_twice_is_built_once(tmp_path: Path) -> None:
    built = list(build([letters(), letters()], tmp_path, HOPELESS))
    assert len(built) == 1


@pytest.mark.usefixtures("instant")
def test_a_wider_subject_says_so(tmp_path: Path) -> None:
    case = letters()
    built = done([case], tmp_path, replace(HOPELESS, widen=2.0))["own-swap"]
    config, dims = load_transformer(built.path).config, case.subject_dims
    assert (config.d_head, config.d_model) == (2 * dims.d_head, 2 * dims.d_model)
    assert config.d_mlp == 2 * dims.d_mlp
    assert built.report["widened"] is True
    assert built.report["build"]["widen"] == 2.0


def test_the_architecture_follows_the_case() -> None:
    case = load_case("ib-18")
    config, dims = subject_config(case), case.subject_dims
    for name in ("n_layers", "n_heads", "d_head", "d_model", "d_mlp"):
        assert getattr(config, name) == getattr(dims, name)
    assert (config.n_ctx, config.causal) == (case.max_seq_len, False)
    assert (config.d_vocab, config.d_vocab_out) == (len(case.vocab) + 2, 3)
    assert subject_config(load_case("ib-3")).d_vocab_out == 1


def test_fleets_have_one_depth_and_similar_widths() -> None:
    sizes = [(8, 2, 6), (16, 2, 6), (17, 2, 6), (8, 3, 6), (64, 2, 6), (8, 2, 17), (5000, 2, 6)]
    configs = [make_config(d_model=d, n_layers=n, n_ctx=c) for d, n, c in sizes]
    assert sorted(fleets(configs)) == [[0, 1], [2, 4], [3], [5], [6]]


@pytest.mark.slow
def test_worker_processes_prepare_the_same() -> None:
    cases = [load_case("ib-36"), letters(), load_case("tb-length"), load_case("ib-3")]
    config = replace(CONFIG, processes=2)
    alone, shared = module._prepare(cases, CONFIG), module._prepare(cases, config)
    for case, x, y in zip(cases, alone, shared, strict=True):
        if isinstance(x, str) or isinstance(y, str):
            assert case.id == "tb-length"
            assert x == y
        else:
            assert all(torch.equal(a.swapped, b.swapped) for a, b in zip(x, y, strict=True))
