"""`graphcircuits certify`: what it prints and writes, its exit codes, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

import graphcircuits as gc
from graphcircuits.certificates.certificate import NAMES
from graphcircuits.commands.certify import FAILS
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result
from tests.shell import Command, refused


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """The planted circuit of ib-4, by a method that finds it again."""
    case = gc.load_case("ib-4")
    found = gc.localize(case.subject(), case.pairs(16), "eap", keep_prompts=0)
    found.save(tmp_path / "result.json")
    return tmp_path / "result.json"


def test_a_circuit_that_passes(command: Command, result: Path, tmp_path: Path) -> None:
    ended = command("certify", result, "--pairs", "16", "--out", "a.json")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].startswith("ib-4: ")
    assert lines[0].endswith("edges: passed")
    assert [line.split("  ")[0] for line in lines if "passed " in line] == list(NAMES)
    assert lines[-1] == "wrote a.json"
    certificate = gc.Certificate.load(tmp_path / "a.json")
    assert certificate.passed
    assert certificate.search == "eap"
    assert certificate.circuit == Result.load(result).circuit()


def test_a_circuit_that_fails_has_an_exit_code_of_its_own(command: Command, result: Path) -> None:
    ended = command("certify", result, "ib-4", "--pairs", "16", "--edges", "1", "--json")
    assert ended.code == FAILS
    record = json.loads(ended.out)
    assert not record["passed"]
    assert not record["lines"]["sufficient"]["passed"]


def test_what_time_did_not_allow_is_missing(command: Command, result: Path) -> None:
    ended = command("certify", result, "--pairs", "16", "--seconds", "1e-6", "--out", "a.md")
    assert ended.code == FAILS
    assert ended.out.count("the 1e-06 seconds were over") == len(NAMES)
    assert "not measured: sufficient" in ended.out.splitlines()[0]


def test_what_is_refused_at_once(command: Command, result: Path, tmp_path: Path) -> None:
    ended = command("certify", result, "--edges", "0", "--seconds", "0", "--out", "a.txt")
    refused(ended, "--edges must be at least 1, got 0")
    assert "--seconds must be above 0, got 0" in ended.err
    assert "--out must end in .json, .md, .html, got a.txt" in ended.err
    refused(command("certify", tmp_path / "none.json"), "no such file or directory")
    graph = ComponentGraph(2, 4)
    nameless = tmp_path / "nameless.json"
    Result(graph=graph, scores=torch.zeros(graph.n_edges)).save(nameless)
    refused(command("certify", nameless), "the files do not say which case they are of")
    refused(command("certify", nameless, "ib-4"), "come without a proposed circuit")
