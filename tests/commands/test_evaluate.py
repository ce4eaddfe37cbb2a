"""`graphcircuits evaluate`: fresh prompts, results side by side, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.evaluation.curves import evaluate
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.tasks import find
from tests.lab.benchmarks.test_language_models import Words
from tests.shell import Command, refused
from tests.subjects import make_subject

GRAPH = ComponentGraph(2, 4)


@pytest.fixture
def results(tmp_path: Path) -> list[Path]:
    """Two results of ib-3, as localize writes them."""
    files = [tmp_path / "first.json", tmp_path / "second.safetensors"]
    for seed, file in enumerate(files):
        scores = torch.randn(GRAPH.n_edges, generator=torch.Generator().manual_seed(seed))
        task = load_case("ib-3").task
        Result(graph=GRAPH, scores=scores, subject="ib-3", task=task, method="m", seed=4).save(file)
    return files


@pytest.mark.slow
def test_the_case_that_the_files_name_on_fresh_pairs(
    command: Command, results: list[Path], tmp_path: Path
) -> None:
    ended = command("evaluate", *results, "--pairs", "4", "--out", "a.csv", "--plot", "a.svg")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].startswith("ib-3: Running fraction of 'x'")
    assert lines[1:3] == ["4 pairs", "fresh pairs, of seed 1004; the results were found with 4"]
    assert "3 of 10 circuits repeat or are empty" in lines[3]
    assert "faithfulness by output, log-spaced sizes" in lines
    assert "faithfulness by loss, MIB's sizes, parts of all edges" in lines
    assert lines[-2:] == ["wrote a.csv", "wrote a.svg"]
    assert (tmp_path / "a.csv").read_text().startswith("result,method,sizes,by,part,edges,kept,")
    assert "<svg" in (tmp_path / "a.svg").read_text()

    case = load_case("ib-3")
    expected = evaluate(case.subject(), case.pairs(4, seed=1004), results)
    record = json.loads(command("evaluate", *results, "--pairs", "4", "--json").out)
    assert record["results"] == json.loads(json.dumps(expected.record()["results"]))
    assert (record["seed"], record["pairs"], record["edges"]) == (1004, 4, 110)
    areas = ["CPR", *(f"{one.curves['log'].cpr:.3f}" for one in expected.results)]
    assert areas in [line.split() for line in lines]
    by_loss = json.loads(
        command("evaluate", *results, "--pairs", "4", "--by", "loss", "--json").out
    )
    assert {curve["by"] for one in by_loss["results"] for curve in one["curves"].values()} == {
        "loss"
    }


def test_seeds_and_sizes_of_ones_own(command: Command, results: list[Path]) -> None:
    given = ["evaluate", "ib-3", results[0], "--pairs", "2", "--sizes", "1, 5", "--json"]
    record = json.loads(command(*given, "--seed", "4").out)
    assert record["notes"] == [
        "these pairs may not be fresh: the results were found with 4, the seed that was given"
    ]
    assert record["results"][0]["curves"]["given"]["sizes"] == [1, 5]
    record = json.loads(command(*given, "--seed", "7").out)
    assert record["notes"] == ["pairs of seed 7; the results were found with 4"]
    assert record["seed"] == 7


def test_results_of_something_else_are_named(command: Command, results: list[Path]) -> None:
    ended = command("evaluate", results[0], "ib-4", "--pairs", "2", "--sizes", "1")
    assert ended.code == 0
    assert "first was found for another subject: ib-3\n" in ended.out
    assert "first was found for another task: Running fraction" in ended.out


def own_model(folder: Path, answers: str) -> list[str | Path]:
    plain = make_subject()
    codec = Codec(("x", "y", "z"), ("p", "q", "r"))
    path, prompts = folder / "mine.safetensors", folder / "pairs.csv"
    save_transformer(path, Transformer(plain.config, dict(plain.weights), codec))
    rows = ["clean,corrupted,correct_idx", f"0 2 3 4,0 3 3 4,{answers[0]}"]
    prompts.write_text("\n".join([*rows, f"0 4 2 2,0 2 2 2,{answers[1]}"]) + "\n")
    return ["--model", path, "--pairs-file", prompts]


def test_a_model_of_ones_own(command: Command, results: list[Path], tmp_path: Path) -> None:
    logits = make_subject().logits(torch.tensor([[0, 2, 3, 4], [0, 4, 2, 2]]))[:, -1]
    right = "".join(map(str, logits.argmax(-1).tolist()))
    given = ["evaluate", results[0], "--sizes", "1,20,110"]
    ended = command(*given, *own_model(tmp_path, right))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("mine\n2 pairs, the subject is right on 100% of them\n")
    # Nobody knows where the prompts of a file come from.
    assert "fresh" not in ended.out
    assert "were used to find" not in ended.out
    wrong = "".join(map(str, logits.argmin(-1).tolist()))
    ended = command(*given, *own_model(tmp_path, wrong), "--json", "--dtype", "float32")
    assert ended.err.startswith("warning: the model is right on 0% of 2 prompts only, below 60%; a")
    record = json.loads(ended.out)
    assert (record["right"], record["seed"]) == (0.0, None)
    assert record["notes"][-1].startswith("the model is right on 0%")


def test_prompts_that_a_circuit_was_found_on_are_counted(command: Command, tmp_path: Path) -> None:
    words = own_model(tmp_path, "01")
    assert command("localize", *words, "--method", "eap", "--out", "a.json").code == 0
    ended = command("evaluate", "a.json", *words, "--sizes", "1,20")
    said = "2 of 2 prompts were used to find a: on those it may look better than on others\n"
    assert said in ended.out


@pytest.mark.slow
def test_a_task_from_localize_to_evaluate(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both draw fresh prompts of the task, with the same seed."""
    model = make_subject(n_ctx=40, d_vocab=1500, d_vocab_out=1500)
    subject = Transformer(model.config, dict(model.weights), tokenizer=Words())
    loader = "graphcircuits.adapters.load.load_with_circuit"
    monkeypatch.setattr(loader, lambda *_, **__: (subject, None))
    given = ["--model", "mine.gguf", "--task", "plurals", "--pairs", "4", "--json"]
    ended = command("localize", *given, "--method", "random", "--edges", "90", "--out", "a.json")
    assert ended.code == 0, ended.err
    kept = json.loads(ended.out)["faithfulness"]
    assert (kept["pairs"], kept["fresh"]["pairs"]) == (4, 4)
    record = json.loads(command("evaluate", "a.json", *given, "--sizes", "90").out)
    assert record["seed"] == 1000
    assert record["task"] == find("plurals").description
    assert record["notes"][0] == "fresh pairs, of seed 1000; the results were found with 0"
    (curve,) = record["results"][0]["curves"].values()
    on_fresh = pytest.approx(kept["fresh"]["faithfulness"])
    assert curve["faithfulness"] == [on_fresh]
    assert record["results"][0]["circuit"]["faithfulness"] == on_fresh


def test_a_program_and_its_subject(command: Command, tmp_path: Path) -> None:
    case = load_case("ib-3")
    program = tmp_path / "mine.py"
    program.write_text(
        "from graphcircuits.cases import load_case\nfraction = load_case('ib-3').program\n"
    )
    subject = tmp_path / "subject.safetensors"
    plain = case.subject()
    save_transformer(subject, Transformer(plain.config, plain.weights, plain.codec))
    scores = case.circuit.on(GRAPH).mask.double()
    Result(graph=GRAPH, scores=scores, subject="fraction").save(tmp_path / "a.json")
    given = ["evaluate", "a.json", f"{program}:fraction", "--model", subject, "--pairs", "8"]
    ended = command(*given, "--sizes", "5", "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["subject"], record["seed"]) == ("fraction", 1000)
    (kept,) = record["results"][0]["curves"]["given"]["faithfulness"]
    assert kept == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["ib-3"], "give at least one result, such as a file that localize wrote with --out."),
        (["first.json", "first.json"], "RESULT names first.json twice."),
        (["first.json", "ib-3", "ib-4"], "give one case or program, got ib-3, ib-4."),
        (
            ["first.json", "ib-3", "--model", "a.safetensors"],
            "give a case or --model, not both ib-3 and a.safetensors.",
        ),
        (["first.json", "a.py:x"], "a.py:x is a program; name the subject that was built from it"),
        (["first.json", "--pairs-file", "a.csv"], "--pairs-file goes with --model."),
        (["first.json", "--task", "ioi"], "--task goes with --model alone"),
        (["first.json", "--model", "a.gguf"], "your own model needs prompts: name a task"),
        (["first.json", "--words"], "--words goes with a file of prompts."),
        (["first.json", "--pairs", "0"], "--pairs must be in 1..1000000, got 0."),
        (["first.json", "--seed", "-1"], "--seed must be in 0..4294967295, got -1."),
        (["first.json", "--dtype", "int8"], "--dtype must be one of float64, float32,"),
        (["first.json", "--device", "tpu"], "--device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
        (["first.json", "--out", "a.txt"], "--out must end in .json, .csv, .md, got a.txt."),
        (["first.json", "--plot", "a.gif"], "--plot must end in .svg, .png, .pdf, got a.gif."),
        (["first.json", "--out", "first.json"], "--out would overwrite first.json, which is read."),
        (
            ["first.json", "--sizes", "5,x"],
            "--sizes must be log, mib, both or numbers of edges with commas between, got '5,x'.",
        ),
        (["first.json", "--sizes", "5,3"], "sizes must be growing numbers in 0..110, got [5, 3]."),
        (["absent.json"], "absent.json: no such file or directory"),
        (["a.csv"], "a result is read from .json, .safetensors or .pt, got a.csv."),
        (["other.json"], "the files do not say which case they are of: give it, such as ib-3, or"),
        (
            ["deep.json", "ib-3"],
            "results must be of the subject, which has 2 layers x 4 heads; deep is of 3 layers x 4",
        ),
    ],
)
@pytest.mark.usefixtures("results")
def test_refusals(command: Command, given: list[str], text: str) -> None:
    Result(graph=GRAPH, scores=torch.zeros(110), subject="mine").save("other.json")
    deep = ComponentGraph(3, 4)
    Result(graph=deep, scores=torch.zeros(deep.n_edges)).save("deep.json")
    refused(command("evaluate", *given), text)


def test_a_plot_without_its_library_is_refused_at_once(
    command: Command, results: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = "--plot needs matplotlib; install it with: pip install 'graphcircuits[plot]'."
    refused(command("evaluate", results[0], "--plot", "a.svg"), said)
