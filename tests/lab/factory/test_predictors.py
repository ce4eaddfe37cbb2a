"""The predictors that ship: their files record what this repository has, and how they are made."""

import re
import shlex
from argparse import ArgumentParser
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from graphcircuits.cases.collection import MANIFEST
from graphcircuits.io.config import build_config
from graphcircuits.io.store import Artifact, load_artifact, save_artifact
from graphcircuits.jobs.runner import IN_PROCESS
from graphcircuits.methods.shipped import SHIPPED
from graphcircuits.methods.shipped import shipped as shipped_predictor
from graphcircuits.predictor.ensemble import KIND as PREDICTOR
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.model import Predictor
from graphcircuits.training import members
from graphcircuits.training.config import TrainConfig, shipped_recipe
from graphcircuits.training.members import TrainedPredictor
from graphcircuits.training.sources import Plan, shipped_sources
from lab import ROOT
from lab.factory import predictors as shipped
from lab.factory.__main__ import app
from lab.factory.predictors import describe, describe_all, share_right, true_sources
from lab.paper.configurations import load_sweep
from lab.paper.predictors import CONFIGURATION
from tests.predictor.cases import small
from tests.test_readme import python_blocks, run_block
from tests.training.examples import natural_of

FOLDER = Path(str(files("graphcircuits").joinpath("data/predictors")))


def recorded_settings(train: dict[str, Any]) -> TrainConfig:
    """The settings that a file records. Those that ship name the inputs a network does without,
    which was a setting when they were trained: none."""
    assert train["without"] == []
    return build_config(TrainConfig, {name: x for name, x in train.items() if name != "without"})


def recorded(name: str) -> Artifact:
    return load_artifact(FOLDER / f"{name}.safetensors", PREDICTOR)


def parsed(command: str, program: str) -> Any:
    """The arguments of a command that runs a program of the laboratory."""
    python, flag, name, second, *words = shlex.split(command)
    assert (python, flag, f"{name} {second}") == ("python", "-m", program)
    parser: ArgumentParser = import_module(f"{name}.{second}").command_words()
    return parser.parse_args(words)


def check_subcommand(command: str) -> None:
    """The command is one of the factory, with arguments that it takes."""
    python, flag, name, *given = shlex.split(command)
    assert (python, flag, name) == ("python", "-m", "lab.factory")
    group = typer.main.get_command(app)
    own = group.get_command(group.make_context(name, given), given[0])  # type: ignore[attr-defined]
    own.make_context(given[0], given[1:])


# What the files say


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_predictors_record_a_command_of_this_repository(name: str) -> None:
    artifact = recorded(name)
    given = parsed(artifact.command, "lab.factory predictors")
    assert given.steps is None
    corpora = load_artifact(FOLDER / shipped.CORPORA, shipped.KIND)
    assert artifact.command == corpora.command
    folders = [*given.corpus.split(","), *given.language.split(",")]
    assert [Path(folder).name for folder in folders] == list(corpora.meta["corpora"])


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_predictors_record_the_recipe_and_the_corpora(name: str) -> None:
    artifact, recipe = recorded(name), shipped_recipe()
    origin = artifact.meta["origin"]
    assert recorded_settings(origin["train"]) == recipe
    assert shipped_predictor(name).config == recipe.predictor
    assert origin["seeds"] == list(range(shipped.SEEDS))
    assert artifact.meta["members"] == shipped.SEEDS
    assert origin["code"]
    corpora = load_artifact(FOLDER / shipped.CORPORA, shipped.KIND).meta["corpora"]
    assert origin["corpora"] == {
        place: {name: own[name] for name in ("sha256", "subjects")}
        for place, own in corpora.items()
    }
    # Tasks that were learned from are of these subjects, and of those that ship.
    assert 0 < origin["fleets"]["natural"] <= sum(own["subjects"] for own in corpora.values())


def test_shipped_corpora_record_commands_of_this_repository() -> None:
    corpora = load_artifact(FOLDER / shipped.CORPORA, shipped.KIND).meta["corpora"]
    for own in corpora.values():
        assert len(own["sha256"]) == 64
        assert own["subjects"] > 0
        check_subcommand(own["command"])


def test_shipped_predictors_learned_from_complete_circuits() -> None:
    assert shipped_recipe().labels == TrainConfig().labels == "complete"
    assert {shipped_predictor(name).labels for name in SHIPPED} == {"complete"}


def test_the_docs_say_what_the_files_record() -> None:
    text = (ROOT / "docs" / "predictor.md").read_text("utf-8")
    section = text.partition("## How it was trained")[2].partition("\n## ")[0]
    assert sum([run_block(block, {}) for block in python_blocks(section)]) == 4
    rows = dict(re.findall(r"^\| ([a-z, ]+) \| (\d.*) \|$", text, flags=re.MULTILINE))
    names = {"planted, several tasks": "planted-multitask", "small language models": "language"}
    said = {names.get(row, row): re.findall(r"[\d.]+", own) for row, own in rows.items()}
    measured = shipped_predictor("default").measured
    assert said.keys() == measured.keys()
    for kind, found in measured.items():
        figures = [found["subjects"]["count"]]
        for figure in ("cmd", "auroc"):
            figures += [found[figure][method] for method in ("gcl", "eap-ig") if figure in found]
        assert [*map(float, said[kind])] == pytest.approx(figures, abs=5e-4)


@pytest.mark.parametrize("name", SHIPPED)
def test_predictors_of_the_paper_record_a_sweep_of_this_repository(name: str) -> None:
    artifact = recorded(f"paper/{name}")
    given = parsed(artifact.command, "lab.paper predictors")
    sweep = load_sweep(given.config)
    settings = sweep.chosen_settings(CONFIGURATION).values()
    trainings = [sweep.training(CONFIGURATION, values) for values in settings]
    own = recorded_settings(artifact.meta["origin"]["train"])
    assert replace(own, stop=None) in trainings
    assert own.labels == "interpbench"
    assert artifact.seed in range(sweep.seeds)


def test_files_that_do_not_say_their_labels_have_the_old_ones() -> None:
    members = (Predictor(small()),)
    assert Ensemble(members, {}).labels == "interpbench"
    assert Ensemble(members, {"train": {"labels": "complete"}}).labels == "complete"


# How they are made


def write_manifest(folder: Path, passed: int = 3) -> str:
    kept = {"a": {"sha256": "0", "passed": passed, "failed": 1, "refused": 2}}
    meta = {"kept": kept, "plan": [{}, {}]}
    return save_artifact(
        folder / MANIFEST,
        kind="corpus",
        config={},
        seed=0,
        meta=meta,
        command="python -m lab.factory corpus",
    )


def test_a_corpus_is_described_by_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    sha256 = write_manifest(tmp_path / "one")
    assert describe(tmp_path / "one") == {
        "command": "python -m lab.factory corpus",
        "sha256": sha256,
        "subjects": 3,
        "failed": 1,
        "refused": 2,
        "shards": 1,
        "planned_shards": 2,
    }
    write_manifest(tmp_path / "one", passed=4)
    assert describe(tmp_path / "one")["sha256"] != sha256
    with pytest.raises(ValueError, match="must have different names"):
        describe_all([tmp_path / "one", tmp_path / "one"])


def test_folders_without_a_manifest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nobody could say what was learned from"):
        describe(tmp_path)


@pytest.mark.slow
def test_circuits_that_are_none_are_not_learned_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sources = shipped_sources(["ib-7", "ib-24"])
    assert share_right(sources[0], "complete") >= shipped.SMALLEST_SHARE
    natural = natural_of(sources[1], tmp_path)
    assert true_sources([sources[0], natural], "complete", IN_PROCESS) == [sources[0], natural]
    # The official label of ib-13 leaves out what its first MLP reads.
    bad = shipped_sources(["ib-13"])
    assert true_sources([*bad, natural], "interpbench", IN_PROCESS) == [natural]
    assert "left out: ib-13: its circuit alone keeps" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_six_files_come_of_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings apart, which have tests of their own."""
    learned: dict[str, set[str]] = {}

    def train(examples: Any, config: TrainConfig, **given: Any) -> TrainedPredictor:
        """A predictor that has learned nothing."""
        name = Path(given["checkpoint"]).parent.name
        learned[name] = {example.case for example in examples}
        generator = torch.Generator().manual_seed(given["seed"])
        member = Predictor(config.predictor, generator=generator)
        with torch.no_grad():
            member.readout.weight.normal_(generator=generator)
        return TrainedPredictor(member, {}, 5)

    sources = shipped_sources(["ib-7", "ib-24", "ib-53", "ib-2", "tb-sort", "tb-rank", "ib-71"])
    folder = tmp_path / "natural"
    folder.mkdir()
    sources += [natural_of(source, folder) for source in sources]
    sha256 = write_manifest(folder)
    monkeypatch.setattr(members, "train_predictor", train)
    plan = Plan(sources, [], [], [], runs=True)
    monkeypatch.setattr(shipped, "plan_sources", lambda *_, **__: plan)
    words = ["predictors", str(tmp_path / "out"), "--corpus", str(folder)]
    path = Path(shipped.__file__).with_name("__main__.py")
    monkeypatch.setattr("sys.argv", [str(path), *words])
    config = replace(shipped_recipe(), predictor=small(prior=True), pairs=8, judged=8)
    figures = shipped.make(tmp_path / "out", [folder], [], config=config, most=2)
    assert figures.keys() <= {"planted", "natural"}
    for name in SHIPPED:
        artifact = load_artifact(tmp_path / "out" / f"{name}.safetensors", PREDICTOR)
        given = parsed(artifact.command, "lab.factory predictors")
        assert given.corpus == str(folder)
        origin = artifact.meta["origin"]
        assert origin["corpora"] == {"natural": {"sha256": sha256, "subjects": 3}}
        assert origin["measured"] == figures
        own = {x.id for x in sources if name == "default" or x.folds != (int(name[-1]),)}
        assert learned[name] == own
