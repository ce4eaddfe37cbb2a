"""Building subjects: what is written when, what a second build keeps, and what is refused."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphcircuits.cases import SubjectDims, load_case, subjects
from graphcircuits.cases import build as module
from graphcircuits.cases.architectures import ARCHITECTURES, subject_config
from graphcircuits.cases.build import Built, subject_path
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig, Data, case_exchange, prepare
from graphcircuits.cases.subjects import fleets_of, start_of, training, verified
from graphcircuits.fleets.recipes import SiitConfig, recipe
from graphcircuits.fleets.train import TrainedSubject, train_fleet
from graphcircuits.fleets.verify import verify_fleet
from graphcircuits.io.store import StoreError, load_artifact
from graphcircuits.rasp import Map, indices, tokens
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from tests.subjects import make_config, make_subject

pytestmark = pytest.mark.usefixtures("unchecked")

SIIT = SiitConfig(steps=200, rows=16, check_every=20, check_rows=64, lr=2e-2, final_lr=1e-3)
CONFIG = BuildConfig(
    siit=SIIT, inputs=64, interchanges=32, verify_inputs=64, verify_interchanges=64
)
HOPELESS = replace(CONFIG, siit=replace(SIIT, steps=1))


def read_report(path: Path) -> dict[str, Any]:
    return load_artifact(path, "transformer").meta["report"]


def letters(id: str = "own-swap", **options: Any) -> Case:
    """Two tokens that change places; passes within a hundred steps."""
    given = {
        "vocab": ("a", "b"),
        "max_seq_len": 3,
        "program": Map(lambda x: "b" if x == "a" else "a", tokens).named("other"),
        "causal": True,
    }
    return Case(id=id, name=id, task="The other letter.", **(given | options))


def constant(id: str = "own-parity") -> Case:
    return letters(id=id, program=Map(lambda i: i % 2, indices).named("parity"))


@cache
def trained() -> Transformer:
    """A subject that passes, trained once."""
    case = letters()
    data = [case_exchange(case, 64, 32, seed) for seed in (1, 2)]
    start = Transformer.random(subject_config(case), torch.Generator().manual_seed(0), case.codec)
    (one,) = train_fleet([start], [data[:1]], [data[1:]], SIIT, torch.Generator().manual_seed(0))
    assert one.passed
    return one.subject


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that gives a finished subject at once, unless a single step is asked for."""
    finished = TrainedSubject(trained(), 0.98, 20, passed=True)

    def train(subjects: Any, a: Any, b: Any, config: SiitConfig, *rest: Any) -> Any:
        if config.steps == 1:
            return [TrainedSubject(subject, 0.0, 1, passed=False) for subject in subjects]
        keep = rest[-1]
        keep(dict.fromkeys(range(len(subjects)), finished))
        return [finished] * len(subjects)

    monkeypatch.setattr(subjects, "train_fleet", train)


def build(
    cases: Sequence[Case | MultiCase],
    directory: Path,
    config: BuildConfig,
    *,
    fleet: str = "planted",
    architectures: Sequence[str] = ("plain",),
    seed: int = 0,
    **options: Any,
) -> Iterator[Built]:
    """A subject of every case in every architecture."""
    orders = [Order(case.id, fleet, name, seed) for case in cases for name in architectures]
    return module.build(orders, directory, config, cases=cases, **options)


def done(
    cases: Sequence[Case | MultiCase],
    directory: Path,
    config: BuildConfig = CONFIG,
    **options: Any,
) -> dict[str, Built]:
    return {built.id: built for built in build(cases, directory, config, **options)}


@pytest.mark.slow
def test_a_subject_that_passes_is_kept_with_its_report(tmp_path: Path) -> None:
    case = letters()
    (built,) = build([case], tmp_path, CONFIG, command="make it")
    assert built.path == subject_path(tmp_path, "own-swap")
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["own-swap.safetensors"]
    report = read_report(built.path)
    assert report == built.report
    assert report["passed"] is built.passed is True
    assert report["accuracy"] >= 0.99
    assert 0 < report["loss"] < 0.1
    assert report["worst_interchange"] == min(report["interchange"].values()) >= 0.97
    assert report["worst_strict"] == min(report["strict"].values()) >= 0.97
    assert report["circuit_accuracy"] >= 0.97
    assert set(report["interchange"]) == {"m0"}
    assert len(report["strict"]) == 9
    assert Order(**{key: report[key] for key in vars(built.order)}) == Order("own-swap")
    assert report["widened"] is False
    assert report["steps"] % SIIT.check_every == 0
    assert "seconds" not in report
    assert report["build"]["siit"]["lr"] == SIIT.lr
    assert report["build"]["device"] == "cpu"
    subject = load_transformer(built.path)
    assert subject.dtype == torch.float16
    assert subject.config == subject_config(case)
    assert subject.codec == case.codec
    assert subject.to(torch.float32).apply(["a", "b"]) == ["b", "a"]


@pytest.mark.slow
@pytest.mark.usefixtures("instant")
def test_a_second_build_keeps_what_is_there(tmp_path: Path) -> None:
    first = done([letters("own-1")], tmp_path)["own-1"]
    before = first.path.read_bytes()
    assert list(done([letters("own-1"), letters("own-2")], tmp_path)) == ["own-2"]
    assert first.path.read_bytes() == before
    assert done([letters("own-1"), letters("own-2")], tmp_path) == {}


@pytest.mark.slow
def test_the_same_build_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("x", "y"):
        list(build([letters()], tmp_path / name, CONFIG, command="make it"))
    assert files(tmp_path / "x") == files(tmp_path / "y")


def files(directory: Path) -> dict[str, bytes]:
    """Everything that a build left, by path."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


@pytest.mark.slow
@pytest.mark.usefixtures("instant")
def test_a_subject_that_fails_is_set_aside(tmp_path: Path) -> None:
    failed = done([letters()], tmp_path, HOPELESS)["own-swap"]
    assert failed.path == tmp_path / "failed" / "own-swap.safetensors"
    assert not subject_path(tmp_path, "own-swap").exists()
    assert read_report(failed.path)["passed"] is False
    assert list(files(tmp_path)) == ["failed/own-swap.safetensors"]
    passed = done([letters()], tmp_path)["own-swap"]
    assert passed.passed
    assert list(files(tmp_path)) == ["own-swap.safetensors"]


@pytest.mark.slow
@pytest.mark.usefixtures("instant")
def test_what_failed_is_given_again_and_trained_anew_under_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = done([letters()], tmp_path, HOPELESS)["own-swap"]
    before = files(tmp_path)
    train, starts = subjects.train_fleet, []

    def watched(subjects: Any, *rest: Any, **to: Any) -> Any:
        starts.extend(subjects)
        return train(subjects, *rest, **to)

    monkeypatch.setattr(subjects, "train_fleet", watched)
    again = done([letters()], tmp_path, replace(HOPELESS, processes=2))["own-swap"]
    assert again == replace(first, report=read_report(first.path))
    assert (starts, files(tmp_path)) == ([], before)
    # Another program of the same name, another seed: from random weights, not from what failed.
    other = letters(program=Map(lambda x: x == "a", tokens).named("is_a"))
    for case, seed in ((other, 0), (letters(), 1)):
        done([case], tmp_path, HOPELESS, seed=seed)
        drawn = Transformer.random(
            subject_config(case), torch.Generator().manual_seed(seed), case.codec
        )
        start = starts.pop()
        assert not starts
        assert all(torch.equal(w, drawn.weights[name]) for name, w in start.weights.items())


@pytest.mark.slow
@pytest.mark.usefixtures("instant")
def test_a_draft_of_an_older_version_is_trained_anew(tmp_path: Path) -> None:
    """Such a file in failed/ has no report."""
    draft = subject_path(tmp_path / "failed", "own-swap")
    save_transformer(draft, make_subject())
    assert list(done([letters()], tmp_path, HOPELESS)) == ["own-swap"]
    assert read_report(draft)["passed"] is False


@pytest.mark.slow
@pytest.mark.usefixtures("instant")
def test_what_failed_before_it_passed_is_removed(tmp_path: Path) -> None:
    """As a build leaves it that is killed between the two."""
    failed = done([letters()], tmp_path, HOPELESS)["own-swap"].path
    left = failed.read_bytes()
    done([letters()], tmp_path)
    failed.write_bytes(left)
    assert done([letters()], tmp_path) == {}
    assert list(files(tmp_path)) == ["own-swap.safetensors"]


@pytest.mark.slow
@pytest.mark.usefixtures("instant")
@pytest.mark.parametrize("config", [CONFIG, HOPELESS], ids=["both pass", "one fails"])
def test_two_builds_that_finish_together_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: BuildConfig
) -> None:
    """The second build does all its work while the first verifies its subject."""
    second = []

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(subjects, "verify_fleet", verify_fleet)
        second.extend(build([letters()], tmp_path, CONFIG))
        return verify_fleet(*args)

    monkeypatch.setattr(subjects, "verify_fleet", slow)
    (first,) = build([letters()], tmp_path, config)
    assert second[0].passed
    assert read_report(second[0].path)["passed"]
    assert read_report(first.path)["passed"] is first.passed is (config is CONFIG)


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
        done([letters()], tmp_path)


def test_without_time_nothing_is_built(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(build([letters()], tmp_path, CONFIG, deadline=-math.inf)) == []
    assert "out of time: 1 subjects left untrained" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Case], BuildConfig]:
    """A fleet in which one passes at the first check, and one never does."""
    easy, hard = letters("own-easy"), letters("own-hard")

    def wrong_check(case: Case, inputs: int, pairs: int, seed: int) -> Any:
        made = case_exchange(case, inputs, pairs, seed)
        return replace(made, targets=1 - made.targets) if case is hard else made

    monkeypatch.setattr("graphcircuits.cases.prepare.case_exchange", wrong_check)
    monkeypatch.setattr(subjects, "start_of", lambda *_: trained())
    return [hard, easy], replace(CONFIG, siit=replace(SIIT, steps=6, check_every=2))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["out of time", "interrupted"])
def test_a_build_that_was_cut_off_keeps_what_passed_and_trains_the_others_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    two: tuple[list[Case], BuildConfig],
    how: str,
) -> None:
    cases, config = two

    def interrupt(step: int, *_: int) -> None:
        if step == 4:
            raise KeyboardInterrupt

    if how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            list(build(cases, tmp_path / "x", config, progress=interrupt))
    else:
        clock = iter(range(1000))
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(module.time, "monotonic", lambda: float(next(clock)))
            (passed,) = build(cases, tmp_path / "x", config, deadline=4.0)
        assert passed.id == "own-easy"
        assert "1 subjects unfinished; the same build trains them anew" in caplog.text
    before = files(tmp_path / "x")
    assert list(before) == ["own-easy.safetensors"]
    steps: list[int] = []
    (failed,) = build(cases, tmp_path / "x", config, progress=lambda s, *_: steps.append(s))
    assert (failed.id, failed.passed, steps) == ("own-hard", False, [2, 4, 6])
    # As if it had been asked for alone.
    list(build(cases[:1], tmp_path / "y", config))
    assert files(tmp_path / "x") == before | files(tmp_path / "y")


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
    orders = [Order(f"own-{i}") for i in range(len(configs))]
    assert sorted(fleets_of(orders, configs)) == [[0, 1], [2, 4], [3], [5], [6]]
    assert sorted(fleets_of(orders, configs, most=1)) == [[i] for i in range(7)]


def test_a_fleet_has_one_recipe_and_architecture_and_seeds_share_it() -> None:
    orders = [
        Order("x", "natural", "llama"),
        Order("x", "natural", "llama", 1),
        Order("x", "natural", "gpt2"),
        Order("x", "planted", "llama"),
        Order("y", "natural", "llama"),
        Order("y", "natural", "gpt2"),
    ]
    heads = [8, 8, 8, 8, 16, 16]
    configs = [
        make_config(d_model=4 * d_head, d_head=d_head, **options(order.architecture))
        for order, d_head in zip(orders, heads, strict=True)
    ]
    # Rotary heads are of one width.
    assert sorted(fleets_of(orders, configs)) == [[0, 1], [2, 5], [3], [4]]


def options(architecture: str) -> dict[str, Any]:
    own = ARCHITECTURES[architecture]
    return {"norm": own.norm, "positions": own.positions}


def test_natural_subjects_are_regularized_as_their_architecture_is() -> None:
    natural, given = recipe("natural"), SiitConfig(steps=5, dropout=0.5)
    assert training(Order("x", "natural", "llama")) == replace(natural, weight_decay=0.1)
    gpt2 = replace(natural, weight_decay=0.01, dropout=0.1)
    assert training(Order("x", "natural", "gpt2")) == gpt2
    assert training(Order("x", "natural")) == natural
    assert training(Order("x", "natural"), given) == replace(given, dropout=0.0)
    # What is planted must carry its variables exactly.
    assert training(Order("x", "planted", "gpt2")) == recipe("planted")
    assert training(Order("x", "public", "llama"), given) == given


# Fleets, architectures, several tasks

NATURAL = replace(
    CONFIG, siit=replace(recipe("natural"), steps=200, rows=16, check_every=20, lr=2e-2)
)


@pytest.mark.slow
def test_natural_subjects_of_two_architectures_are_built(tmp_path: Path) -> None:
    names = ("gpt2", "llama-gqa")
    built = done([letters()], tmp_path, NATURAL, fleet="natural", architectures=names, seed=3)
    assert set(built) == {"own-swap.natural.gpt2.3", "own-swap.natural.llama-gqa.3"}
    for id, one in built.items():
        order = Order.parse(id)
        assert one.path == tmp_path / f"{id}.safetensors"
        report = read_report(one.path)
        assert report == one.report
        assert {key: report[key] for key in vars(order)} == vars(order)
        assert report["passed"]
        assert report["accuracy"] >= 0.99
        assert report["loss"] < 0.1
        assert not {"interchange", "strict", "circuit_accuracy"} & report.keys()
        own = ARCHITECTURES[order.architecture]
        siit = report["build"]["siit"]
        assert (siit["weight_decay"], siit["dropout"]) == (own.weight_decay, own.dropout)
        subject = load_transformer(one.path)
        assert subject.config == subject_config(letters(), order.architecture)
        assert (subject.case, subject.fleet) == ("own-swap", "natural")
        assert subject.to(torch.float32).apply(["a", "b"]) == ["b", "a"]
    # Another build adds an architecture, and keeps what is there.
    more = done(
        [letters()], tmp_path, NATURAL, fleet="natural", architectures=[*names, "relu"], seed=3
    )
    assert list(more) == ["own-swap.natural.relu.3"]


@pytest.mark.usefixtures("instant")
def test_what_does_not_fit_is_refused_after_the_others(tmp_path: Path) -> None:
    """A program that reads a head in the MLP of its layer has no place in parallel layers."""
    case = load_case("ib-13")
    building = build([case, letters()], tmp_path, HOPELESS, architectures=["neox"])
    assert next(building).id == "own-swap.planted.neox.0"
    said = (
        r"case 'ib-13': the program reads along a0\.h0->m0, and in parallel layers an MLP does no"
    )
    with pytest.raises(ValueError, match=said):
        next(building)
    with pytest.raises(ValueError, match="'own-parity'") as caught:
        done([constant()], tmp_path, HOPELESS, fleet="natural", architectures=["gpt2", "rms"])
    assert str(caught.value).count("own-parity") == 1
    three = letters(released_dims=SubjectDims(2, 3, 4, 12, 48))
    with pytest.raises(ValueError, match="has 3 heads, which llama-gqa cannot put in groups of 2"):
        done([three], tmp_path, HOPELESS, fleet="natural", architectures=["llama-gqa"])


def two_tasks() -> MultiCase:
    same = letters("own-same", program=Map(lambda x: "b" if x == "b" else "a", tokens).named("id"))
    return MultiCase(id="own-two", cases=(letters(), same))


@pytest.mark.usefixtures("unchecked")
def test_several_tasks_are_reported_one_by_one() -> None:
    """Against each task verified by itself."""
    model, order = two_tasks(), Order("own-two")
    data = prepare(order, model, CONFIG)
    assert isinstance(data, Data)
    assert len(data.train) == len(data.check) == len(data.unseen) == 2
    start = TrainedSubject(start_of(order, data), 0.0, 7, passed=False)
    (made,) = verified([start], {order: data}, CONFIG)
    assert made.subject.dtype == torch.float16
    generator = torch.Generator().manual_seed(1)
    stored = made.subject.to(torch.float32)
    (verdicts,) = verify_fleet([stored], [data.unseen], generator)
    report = made.report
    assert set(report["tasks"]) == {"own-swap", "own-same"}
    assert report["passed"] is made.passed is False
    assert report["accuracy"] == min(verdict.accuracy for verdict in verdicts)
    assert report["loss"] == max(verdict.loss for verdict in verdicts)
    assert report["worst_strict"] == min(verdict.worst_strict for verdict in verdicts)
    for verdict, one in zip(verdicts, report["tasks"].values(), strict=True):
        assert (one["accuracy"], one["strict"]) == (verdict.accuracy, verdict.strict)
    assert not {"interchange", "strict"} & report.keys()
    assert (report["case"], report["steps"]) == ("own-two", 7)
