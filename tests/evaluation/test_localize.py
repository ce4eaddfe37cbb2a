"""What `localize` says of the circuit it proposes: its size, and how faithful it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import graphcircuits as gc
from graphcircuits.cases import load_case
from graphcircuits.commands import localize as command_module
from graphcircuits.evaluation.proposal import fresh_seed, propose
from graphcircuits.methods import localize, shipped
from graphcircuits.predictor.facts.calibration import Platt
from graphcircuits.result.result import Result
from graphcircuits.subject.files import save_transformer
from graphcircuits.task.pairs import Pairs
from tests.shell import Command
from tests.subjects import make_subject


def own_model(folder: Path, answers: str = "") -> list[str | Path]:
    """The words that name a small model of one's own and its prompts."""
    path, prompts = folder / "mine.safetensors", folder / "pairs.csv"
    save_transformer(path, make_subject())
    rows = ["clean,corrupted", "0 2 3 4,0 3 3 4", "0 4 2 2,0 2 2 2"]
    if answers:
        rows = [f"{row},{cell}" for row, cell in zip(rows, ["correct_idx", *answers], strict=True)]
    prompts.write_text("\n".join(rows) + "\n")
    return ["localize", "--model", path, "--pairs-file", prompts, "--method", "eap-ig"]


def test_a_case_is_measured_on_its_pairs_and_on_fresh_ones(command: Command) -> None:
    given = ["localize", "ib-3", "--method", "eap", "--pairs", "8", "--seed", "3"]
    case = load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(8, seed=3)
    fresh = case.pairs(8, seed=fresh_seed(3))
    found = propose(subject, pairs, localize(subject, pairs, "eap"), fresh=fresh, seed=3)
    assert "\n".join(found.sentences()) in command(*given).out
    record = json.loads(command(*given, "--json").out)
    assert record["faithfulness"] == found.record()
    # The same circuit as without a truth to compare with, and as in Python.
    assert record["circuit"] == list(gc.localize(subject, pairs, "eap").circuit())


@pytest.mark.slow
def test_the_size_is_found_where_no_truth_is_known(command: Command, tmp_path: Path) -> None:
    given = own_model(tmp_path)
    subject, pairs = make_subject(), Pairs.load(tmp_path / "pairs.csv")
    found = propose(subject, pairs, localize(subject, pairs, "eap-ig"))
    assert found.curve is not None
    ended = command(*given, "--out", "a.json")
    assert "\n".join(found.sentences()) in ended.out
    assert "fresh" not in ended.out
    saved = Result.load(tmp_path / "a.json")
    assert saved.chosen == found.circuit
    assert saved.curve is not None
    assert found.best in saved.curve.sizes
    record = json.loads(command(*given, "--json").out)
    assert record["faithfulness"]["curve"]["sizes"] == list(found.curve.sizes)
    assert record["circuit"] == list(found.circuit)
    assert len(record["ranking"]) == 110


def test_long_tables_are_cut_unless_asked_for(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_module, "ROWS", 2)
    given = ["localize", "ib-3", "--method", "eap", "--pairs", "2"]
    lines = command(*given).out.splitlines()
    assert "... and 1 more, which --json and --out give" in lines
    assert not any(line.startswith("3   ") for line in lines)
    lines = command(*given, "--edges", "4").out.splitlines()
    assert any(line.startswith("4   ") for line in lines)
    assert not any("more" in line for line in lines)


@pytest.mark.slow
@pytest.mark.usefixtures("uninformed")
def test_probabilities_are_shown_and_likely_edges_are_in_the_circuit(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["localize", "ib-3", "--pairs", "4", "--method", "gcl"]
    plain = command(*given, "--json")
    assert "probability" not in plain.out
    ensemble = shipped.shipped("default")
    # The line lies between two scores beyond the usual one.
    scores = [row["score"] for row in json.loads(plain.out)["ranking"]]
    below = [score for score in scores if score < 0]
    shift = -(below[1] + below[2]) / 2
    calibrated = replace(ensemble, calibration={"planted": Platt(1.0, shift)})
    monkeypatch.setattr(shipped, "shipped", lambda name: calibrated)
    record = json.loads(command(*given, "--json").out)
    for row in record["ranking"]:
        expected = torch.tensor(row["score"] + shift).sigmoid().item()
        assert row["probability"] == pytest.approx(expected, abs=1e-6)
    likely = {row["edge"] for row in record["ranking"] if row["probability"] > 0.5}
    assert {*json.loads(plain.out)["circuit"]} < {*record["circuit"]} <= likely
    assert record["faithfulness"]["likely_edges"] == len(likely)
    first = record["ranking"][0]
    lines = [line.split() for line in command(*given).out.splitlines()]
    assert ["rank", "edge", "score", "probability", "in"] in [line[:5] for line in lines]
    shown = ["1", first["edge"], f"{first['score']:.4g}", f"{first['probability']:.0%}"]
    assert shown in [line[:4] for line in lines]


def test_a_model_that_gets_the_task_wrong(command: Command, tmp_path: Path) -> None:
    logits = make_subject().logits(torch.tensor([[0, 2, 3, 4], [0, 4, 2, 2]]))[:, -1]
    answers = "".join(map(str, logits.argmax(-1).tolist()))
    ended = command(*own_model(tmp_path, answers))
    assert (ended.code, ended.err) == (0, "")
    assert "the subject is right on 100% of the prompts\n" in ended.out
    answers = "".join(map(str, logits.argmin(-1).tolist()))
    ended = command(*own_model(tmp_path, answers), "--json")
    assert ended.code == 0
    assert ended.err.startswith("warning: the model is right on 0% of 2 prompts only, below 60%;")
    assert json.loads(ended.out)["right"] == 0.0
