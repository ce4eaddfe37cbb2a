"""`graphcircuits train`: the file it writes is a predictor, what it says, what it refuses."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from graphcircuits import localize
from graphcircuits.cases import load_case
from graphcircuits.commands.train import train
from graphcircuits.compare.selection import select_cases
from graphcircuits.predictor.ensemble import load_ensemble
from graphcircuits.subject.files import save_transformer
from graphcircuits.training import facts, members
from graphcircuits.training.data import save_targets

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(train)

SMALL = """
steps = 3
views = 1
pairs = 4
batch = 0
[predictor]
width = 8
layers = 1
"""


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.usefixtures("unchecked")
def test_a_predictor_that_localize_takes(tmp_path: Path, config: Path) -> None:
    out = tmp_path / "mine.safetensors"
    given = ["--cases", "ib-7,ib-2", "--config", config, "--seeds", "2", "--out", out]
    done = run(*given, "--checkpoints", tmp_path / "checkpoints", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (record["cases"], record["seeds"], record["steps"]) == (2, 2, 3)
    assert (record["held_out"], record["auroc"]) == ({}, {})
    ensemble = load_ensemble(out)
    assert len(ensemble.members) == 2
    assert ensemble.config.width == 8
    assert ensemble.origin["cases"] == ["ib-7", "ib-2"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "seed0.safetensors",
        "seed1.safetensors",
    ]
    case = load_case("ib-3")
    pairs = case.pairs(4)
    result = localize(case.subject(), pairs, "gcl", predictor=str(out))
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(
        result.scores, ensemble.predict_case(case.subject(), pairs, generator=generator).logits
    )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_training_that_was_interrupted_goes_on_with_the_same_command(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole.safetensors", tmp_path / "mine.safetensors"
    given = ["--cases", "ib-7", "--config", config, "--seeds", "2", "--out"]
    assert run(*given, whole).exit_code == 0
    backward, steps = members._OnExamples.backward, []

    def interrupted(learner: Any, step: int) -> torch.Tensor:
        steps.append((learner.seed, step))
        if len(steps) == 5:
            raise KeyboardInterrupt
        return backward(learner, step)

    monkeypatch.setattr(members._OnExamples, "backward", interrupted)
    stopped = run(*given, out)
    folder = tmp_path / "mine.checkpoints"
    assert stopped.exit_code == 130
    assert f"interrupted: the same command goes on from {folder}." in unwrapped(stopped.output)
    assert [path.name for path in folder.iterdir()] == ["seed0.safetensors"]
    assert not out.exists()
    done = run(*given, out, "--plot", tmp_path / "curves.svg")
    assert done.exit_code == 0
    assert f"wrote {tmp_path / 'curves.svg'}" in unwrapped(done.output)
    # Both seeds, of which the first was trained by the command before.
    drawn = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert all(word in drawn for word in ("seed 0", "seed 1", "training loss"))
    # Seed 0 had made its three steps; the second one of seed 1 was cut off before any checkpoint.
    assert steps[5:] == [(1, 0), (1, 1), (1, 2)]
    assert out.read_bytes() == whole.read_bytes()
    assert not folder.exists()
    assert run(*given, out, "--checkpoints", tmp_path / "kept", "--steps", "2").exit_code == 0
    other = run(*given, out, "--checkpoints", tmp_path / "kept")
    assert isinstance(other.exception, ValueError)
    assert "is the checkpoint of another training: its settings differ" in str(other.exception)


def unwrapped(text: str) -> str:
    return text.replace("\n", "")


@pytest.mark.usefixtures("unchecked")
def test_a_fold_is_held_out_and_scored(tmp_path: Path, config: Path) -> None:
    out = tmp_path / "mine.safetensors"
    given = ["--cases", "ib-7,ib-2", "--config", config, "--seeds", "1", "--out", out]
    done = run(*given, "--without-fold", "4", "--steps", "1", "--json")
    record = json.loads(done.stdout)
    assert list(record["held_out"]) == ["ib-2"]
    assert (record["cases"], record["steps"]) == (1, 1)
    ensemble = load_ensemble(out)
    assert ensemble.origin["cases"] == ["ib-7"]
    assert record["measured"] == ensemble.measured
    figures = ensemble.measured["planted"]["auroc"]
    assert figures["gcl"] == record["auroc"]["qkv"]
    # Of one case neither a limit nor a probability is known.
    assert (ensemble.known, ensemble.calibration) == (None, {})
    said = run(*given, "--without-fold", "4", "--steps", "1").stdout
    assert f"1 held-out cases: mean AUROC {record['auroc']['head']:.4f} (head)" in said
    told = f"AUROC {figures['gcl']:.4f}, of eap-ig {figures['eap-ig']:.4f}"
    assert f"held-out planted subjects: {told}" in said
    assert f"wrote {out}" in said.replace("\n", "")


@pytest.mark.usefixtures("unchecked")
def test_a_predictor_knows_its_training(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "FEWEST", 2)
    out = tmp_path / "mine.safetensors"
    given = ["--config", config, "--seeds", "1", "--steps", "1", "--without-fold", "4"]
    done = run(*given, "--cases", "ib-7,ib-24,ib-2,ib-40", "--out", out)
    assert done.exit_code == 0, (done.output, done.exception)
    ensemble = load_ensemble(out)
    assert ensemble.origin["cases"] == ["ib-7", "ib-24"]
    assert ensemble.known is not None
    assert list(ensemble.calibration) == ["planted"]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_faithfulness_of_a_folder_with_targets(tmp_path: Path) -> None:
    """A folder of subjects, two held-out folds, scores found before, and the best step kept."""
    folder, targets = tmp_path / "subjects", tmp_path / "targets.safetensors"
    folder.mkdir()
    for id in ("ib-7", "ib-2", "ib-24"):
        save_transformer(folder / f"{id}.safetensors", load_case(id).subject())
    ids = {int(load_case(id).fold or 0): id for id in ("ib-7", "ib-2", "ib-24")}
    learned, watched, held_out = sorted(ids)
    scores = {ids[learned]: torch.rand(load_case(ids[learned]).graph.n_edges)}
    save_targets(targets, scores)
    path = tmp_path / "small.toml"
    own = "judged = 4\nmasks = 2\nkeep = 'best'\n[predictor]\nprior = true\n"
    path.write_text(SMALL.replace("[predictor]\n", own).replace("steps = 3", "steps = 2"))
    given = ["--corpus", folder, "--targets", targets, "--config", path, "--seeds", "1"]
    given += ["--objective", "labels=1,faithfulness=1,distill=0.5", "--json"]
    given += ["--without-fold", str(held_out), "--validation-fold", str(watched)]
    done = run(*given, "--out", tmp_path / "mine.safetensors")
    assert done.exit_code == 0, (done.output, done.exception)
    record = json.loads(done.stdout)
    assert (record["cases"], record["fleets"]) == (1, {"planted": 1})
    assert list(record["held_out"]) == [ids[held_out]]
    assert record["cmd"] == record["held_out"][ids[held_out]]["cmd"]
    ensemble = load_ensemble(tmp_path / "mine.safetensors")
    assert ensemble.origin["cases"] == [ids[learned]]
    assert ensemble.origin["train"]["distill_weight"] == 0.5
    limited = run(
        *given[:1],
        folder,
        "--config",
        path,
        "--limit",
        "1",
        "--seeds",
        "1",
        "--json",
        "--without-fold",
        str(held_out),
        "--out",
        tmp_path / "one.safetensors",
    )
    assert json.loads(limited.stdout)["cases"] == 1


@pytest.mark.usefixtures("unchecked")
def test_cases_without_a_subject_are_named(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, absent = select_cases("pool")
    assert absent
    # Two cases stand for the whole pool.
    monkeypatch.setattr(
        "graphcircuits.training.sources.select_cases", lambda _: (["ib-7", "ib-2"], absent)
    )
    given = [
        "--config",
        config,
        "--seeds",
        "1",
        "--steps",
        "1",
        "--out",
        tmp_path / "a.safetensors",
    ]
    done = run(*given)
    assert done.exit_code == 0, done.output
    assert f"left out, no subject is shipped: {', '.join(absent)}" in done.stderr
    assert f"1 predictors, 2 cases ({len(absent)} without a subject left out), 1 st" in done.stdout
    assert json.loads(run(*given, "--json").stdout)["left_out"] == absent


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            ["--cases", "test"],
            "cases must be pool, paper-pool, interpbench-pool or ids, got test",
        ),
        (
            ["--cases", "ib-3,ib-7,ib-25"],
            "only cases of the pool are for training, not ib-3 (test), ib-25 (discarded).",
        ),
        (
            ["--cases", "ib-7,new-sorted-run-count"],
            "no subject is shipped to learn from: new-sorted-run-count.",
        ),
        (
            # Held out, of a test case's structure, and with a constant output.
            ["--cases", "rnd-11,rnd-13,rnd-62,rnd-7"],
            "not rnd-11 (test), rnd-13 (discarded), rnd-62 (discarded).",
        ),
        (
            ["--cases", "paper-pool", "--corpus", "here"],
            "cases paper-pool have folds of their own, which corpora and language models do not "
            "follow; give them alone.",
        ),
        (["--cases", "rnd-7"], "no subject is shipped to learn from: rnd-7."),
        (["--without-fold", "5"], "--without-fold must be in 0..4, got 5"),
        (["--out", "mine.pt"], "--out must end in .safetensors, got mine.pt"),
        (["--seeds", "0"], "--seeds must be in 1..1000, got 0"),
        (["--device", "tpu"], "--device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
        (["--out", "/"], "--out must be a file, but / is a folder"),
        (
            ["--checkpoints", "/dev/null"],
            "--checkpoints cannot be written: /dev/null is not a f",
        ),
        (["--plot", "a.gif"], "--plot must end in .svg, .png, .pdf, got a.gif"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--processes", "0"], "--processes must be in 1..1024, got 0"),
        (["--objective", "labels=1,truth=2"], "objectives are labels, faithfulness, distill, each"),
        (["--objective", "labels=much"], "got 'labels=much'"),
        (["--objective", "distill=1"], "distill needs targets, and targets need distill"),
        (["--without-fold", "1", "--validation-fold", "1"], "must be different folds"),
        (["--validation-fold", "7"], "--validation-fold must be in 0..4, got 7"),
        (["--corpus", "/proc/none"], "/proc/none holds no subjects: neither manifest.json"),
        (["--language", "/proc/none"], "/proc/none holds no language models"),
    ],
)
def test_refusals(given: list[str], text: str, tmp_path: Path) -> None:
    start = [] if "--out" in given else ["--out", str(tmp_path / "mine.safetensors")]
    done = run(*start, *given)
    assert done.exit_code == 1
    assert isinstance(done.exception, ValueError)
    assert text in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("stepps = 3\n")
    done = run("--out", tmp_path / "mine.safetensors", "--config", path)
    assert isinstance(done.exception, ValueError)
    assert "stepps" in str(done.exception)


def test_a_gpu_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = run("--out", tmp_path / "mine.safetensors", "--device", "cuda")
    assert isinstance(done.exception, ValueError)
    assert "PyTorch finds no GPU here" in str(done.exception)


@pytest.mark.usefixtures("unchecked")
def test_figures_go_to_tensorboard_if_it_is_there(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, str, float, int]] = []
    closed: list[str] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((self.folder, name, value, step))

        def close(self) -> None:
            closed.append(self.folder)

    given = [
        "--cases",
        "ib-7",
        "--config",
        config,
        "--seeds",
        "1",
        "--tensorboard",
        tmp_path / "tb",
    ]
    given += ["--out", tmp_path / "mine.safetensors"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    missing = run(*given)
    assert isinstance(missing.exception, ImportError)
    assert "pip install tensorboard" in str(missing.exception)
    fake = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    assert run(*given).exit_code == 0
    folder = str(tmp_path / "tb" / "seed0")
    assert [(place, name, step) for place, name, _, step in written] == [(folder, "loss", 3)]
    assert closed == [folder]
