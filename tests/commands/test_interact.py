"""`graphcircuits interact`: its numbers are those of the package, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from graphcircuits.cases import load_case
from graphcircuits.commands.interact import _doubts, interact
from graphcircuits.interactions import SharedRead, edge_interactions, finite, integral, local
from graphcircuits.interactions.report import STRONGEST
from graphcircuits.methods import METHODS
from graphcircuits.subject.files import save_transformer
from graphcircuits.task.pairs import Pairs
from tests.subjects import make_subject

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(interact)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def printed(*args: str | Path) -> dict[str, Any]:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def own_subject(folder: Path, architecture: str = "plain") -> tuple[Path, Path]:
    """Files of a small subject and of its prompts."""
    path, prompts = folder / "mine.safetensors", folder / "pairs.csv"
    save_transformer(path, make_subject(architecture))
    prompts.write_text("clean,corrupted\n0 2 3 4,1 3 3 4\n4 2 2 0,3 2 1 1\n")
    return path, prompts


@pytest.mark.slow
def test_edges_into_one_reader(tmp_path: Path) -> None:
    path, prompts = own_subject(tmp_path)
    given = [path, prompts, "--reader", "m1", "--top", "3", "--integrals", "1", "--order", "5"]
    record = printed(*given, "--decay", "--by-position")
    subject, pairs = make_subject(), Pairs.load(prompts)
    read = SharedRead.of(subject, pairs, "m1")
    whole, at_read, hessian = (
        edge_interactions(subject, pairs, read.edges),
        finite(read),
        local(read),
    )
    assert (record["reader"], record["kinks"], record["pairs"]) == ("m1", [], 2)
    assert record["edges"] == list(read.edges)
    assert len(record["interactions"]) == 3
    sizes = [row["size"] for row in record["interactions"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(whole.interaction.abs().mean(-1).max().item())
    row = record["interactions"][0]
    one, other = (read.edges.index(edge) for edge in row["edges"])
    expected = {
        "joint": whole.joint[one, other],
        "interaction": whole.interaction[one, other],
        "finite": at_read.interaction[one, other],
        "local": hessian[one, other],
    }
    for name, values in expected.items():
        assert row[name] == pytest.approx(values.mean().item())
    assert row["single"] == pytest.approx([whole.single[i].mean().item() for i in (one, other)])
    exact = integral(read, [(read.edges[one], read.edges[other])], order=5)
    (found,) = record["integrals"]
    assert found["integral"] == pytest.approx(exact.value.mean().item())
    assert found["error"] == pytest.approx(exact.error.mean().item())
    assert record["decay"]["slope"] == pytest.approx(3, abs=0.2)
    by_position = torch.tensor(record["by_position"]["local"], dtype=torch.float64)
    torch.testing.assert_close(by_position, hessian.mean(-1).permute(2, 0, 1))
    matrix = torch.tensor(record["matrices"]["one position, local"], dtype=torch.float64)
    torch.testing.assert_close(matrix, hessian.mean((-1, -2)))


@pytest.mark.slow
def test_table_and_pictures(tmp_path: Path) -> None:
    path, prompts = own_subject(tmp_path)
    svg, html = tmp_path / "new" / "a.svg", tmp_path / "a.html"
    given = [path, prompts, "--edges", "input->m1,a0.h1->m1", "--edges", "m0->m1"]
    done = run(*given, "--integrals", "1", "--order", "4", "--decay", "--svg", svg, "--html", html)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "mine: edge interactions at m1, 2 pairs of prompts"
    assert lines[1].split()[:2] == ["edge", "edge"]
    assert lines[1].endswith("finite at a position  local at a position")
    assert len([line for line in lines if line.startswith(("input->", "a0.h1->"))]) == 3
    assert "integral of " in done.stdout
    assert "the error of the local form falls with power " in done.stdout
    assert f"wrote {svg}\nwrote {html}\n" in done.stdout
    assert svg.read_text().startswith("<svg")
    assert svg.read_text().count("<g>") == 3 * 9
    assert "one position, local" in html.read_text()


@pytest.mark.slow
def test_a_large_error_estimate_says_what_to_raise(tmp_path: Path) -> None:
    # Two digits of ib-13 meet in m0 across the sharp steps of a trained MLP.
    given = ["ib-13", "--draw", "1", "--edges", "a0.h0->m0,a0.h1->m0", "--integrals", "1"]
    record = printed(*given, "--order", "4")
    (row,) = record["integrals"]
    assert row["error"] > 0.01 * row["size"]
    share = f"{row['error'] / row['size']:.0%}"
    said = f"The error estimate is up to {share} of the integral: raise --order, which is 4, to 8"
    assert record["remarks"] == [f"{said} or more."]
    # A smooth random subject needs no such word.
    path, prompts = own_subject(tmp_path)
    record = printed(path, prompts, "--reader", "m1", "--integrals", "1", "--order", "8")
    assert record["remarks"] == []


@pytest.mark.parametrize(
    ("order", "advice"),
    [
        (8, "raise --order, which is 8, to 16 or more."),
        (60, "raise --order, which is 60, to 100 or more."),
        (100, "the read is too sharp for this quadrature; rely on the finite form."),
    ],
)
def test_what_to_do_about_an_integral(order: int, advice: str) -> None:
    rows = [{"error": 0.001, "size": 1.0}, {"error": 0.5, "size": 2.0}, {"error": 0, "size": 0}]
    assert _doubts(rows, order) == [f"The error estimate is up to 25% of the integral: {advice}"]
    assert _doubts(rows[:1], order) == _doubts([], order) == []


@pytest.mark.slow
def test_a_case_wins_over_a_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, prompts = own_subject(tmp_path)
    own.rename(tmp_path / "ib-13")
    edges = ["--edges", "input->m1,a0.h1->m1", "--draw", "1"]
    assert printed("ib-13", *edges)["subject"] == "ib-13"
    assert printed("ib-13", *edges)["task"] != ""
    assert printed("./ib-13", prompts, *edges)["task"] == ""


@pytest.mark.slow
def test_kinks_are_said(tmp_path: Path) -> None:
    path, prompts = own_subject(tmp_path, "relu")
    done = run(path, prompts, "--reader", "m0")
    said = "The local and integral forms do not apply: downstream of m0 there is relu in m0, m1"
    assert said in done.stdout
    assert "finite at a position" in done.stdout
    assert "local at a position" not in done.stdout
    record = printed(path, prompts, "--reader", "m0", "--by-position")
    assert record["kinks"] == ["relu in m0, m1"]
    assert record["interactions"][0]["local"] is None
    assert record["by_position"]["local"] is None
    for option in (["--decay"], ["--integrals", "1"]):
        refused = run(path, prompts, "--reader", "m0", *option)
        assert "--integrals and --decay do not apply. The local" in str(refused.exception)


@pytest.mark.slow
def test_a_case_pairs_its_strongest_edges() -> None:
    case = load_case("ib-13")
    record = printed("ib-13", "--draw", "2", "--seed", "3")
    assert (record["subject"], record["task"], record["reader"]) == ("ib-13", case.task, None)
    subject, pairs = case.subject().to(torch.float64), case.pairs(2, seed=3)
    scores = METHODS["exact"](subject, pairs)
    assert set(record["edges"]) == {
        subject.graph.edge_name(edge) for edge in scores.topk(STRONGEST).indices.tolist()
    }
    assert list(record["matrices"]) == ["whole edges"]
    done = run("ib-13", "--draw", "2", "--top", "1")
    assert "These edges have several readers; --reader shows" in done.stdout


def test_a_case_with_pairs_of_your_own(tmp_path: Path) -> None:
    prompts = tmp_path / "pairs.csv"
    prompts.write_text("clean,corrupted\n5 5 5 5 5 5 5 5,0 0 0 0 0 0 0 0\n")
    record = printed("tb-pairwise-max", prompts, "--words", "--edges", "input->m0,a0.h0->m0")
    assert record["pairs"] == 1
    (row,) = record["interactions"]
    # The larger of two equal tokens needs only one of them.
    assert max(row["single"]) < 0.1 * row["joint"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["ib-13", "--top", "0", "--integrals", "-1"], "--top must be at least 1, got 0; --integ"),
        (["ib-13", "--html", "a.svg"], "--html must end in .html, .htm, got a.svg"),
        (["ib-13", "--svg", "a.png"], "--svg must end in .svg, got a.png"),
        (["ib-13", "--svg", "/"], "--svg must be a file, but / is a folder"),
        (["ib-13", "--draw", "0"], "--draw must be in 1..1000000, got 0"),
        (["ib-13", "--order", "2"], "--order must be in 3..100, got 2"),
        (["ib-13", "--words"], "--words goes with a file of prompts"),
        (["ib-13", "--by-position"], "--by-position goes with --json"),
        (
            ["ib-13", "--by-position", "--json", "--draw", "1"],
            "--by-position does not apply. These edges have several readers",
        ),
        (["ib-13", "--reader", "m1", "--edges", "x"], "give --reader or --edges, not both"),
        (["ib-13", "--reader", "m7"], "unknown reader 'm7'"),
        (["ib-13", "--edges", "input->m0"], "two or more different edges"),
        (["ib-1300"], "unknown case 'ib-1300'"),
    ],
)
def test_refusals(args: list[str], text: str) -> None:
    done = run(*args)
    assert isinstance(done.exception, ValueError)
    assert text in str(done.exception)


def test_your_own_subject_must_be_there_and_needs_prompts(tmp_path: Path) -> None:
    said = "no model at absent.safetensors: there is no such file or folder."
    path, prompts = own_subject(tmp_path)
    assert said in str(run("absent.safetensors", prompts).exception)
    assert "your own model needs prompts: name a task with --task" in str(run(path).exception)
