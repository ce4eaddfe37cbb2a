"""`graphcircuits localize`: it writes only what is asked for, and never keeps results to itself."""

import json
from pathlib import Path

import pytest
import torch

from graphcircuits.corpus import load_case
from graphcircuits.corpus.build import start_of
from graphcircuits.corpus.orders import Order, shipped_path
from graphcircuits.result import Result
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from tests.shell import Command, refused
from tests.subjects import make_subject
from tests.viewer.reading import bits, data_of

FAST = ["localize", "ib-3", "--method", "random", "--pairs", "2"]


def own_subject(folder: Path, name: str = "mine.safetensors") -> list[str | Path]:
    """The words that name a small subject of one's own and its prompts."""
    plain = make_subject()
    codec = Codec(("x", "y", "z"), ("p", "q", "r"))
    path, prompts = folder / name, folder / "pairs.csv"
    save_transformer(path, Transformer(plain.config, dict(plain.weights), codec))
    prompts.write_text("clean,corrupted\n0 2 3 4,0 3 3 4\n0 4 2 2,0 2 2 2\n")
    return ["localize", "--subject", path, "--pairs-file", prompts, "--method", "random"]


@pytest.mark.slow
def test_a_picture_only_if_it_is_asked_for(command: Command, tmp_path: Path) -> None:
    ended = command(*FAST)
    assert (ended.code, "wrote" in ended.out) == (0, False)
    assert list(tmp_path.iterdir()) == []
    ended = command(*FAST, "--html", "a.html")
    assert ended.out.endswith("wrote a.html\n")
    assert len(data_of((tmp_path / "a.html").read_text())["results"]) == 1
    assert command(*FAST, "--no-picture").code == 2


def test_the_page_shows_curve_prompts_truth_and_variables(command: Command, tmp_path: Path) -> None:
    given = ["localize", "ib-3", "--method", "eap", "--pairs", "4", "--edges", "7"]
    ended = command(*given, "--html", "a.html", "--out", "a.json")
    assert ended.code == 0, ended.err
    case, data = load_case("ib-3"), data_of((tmp_path / "a.html").read_text())
    (told,) = data["results"]
    assert told["chosen"] == 7
    assert 7 in told["curve"]["sizes"]
    assert (told["curve"]["pairs"], told["curve"]["seed"]) == (4, 0)
    assert torch.equal(bits(data["truth"]["edges"], 110), case.circuit.mask)
    assert data["component_notes"] == case.variables != {}
    assert len(data["prompts"]) == 4
    # The file holds as much, so that it can be looked at later.
    result = Result.load(tmp_path / "a.json")
    assert result.curve is not None
    assert result.curve.to_json() == told["curve"]
    assert result.prompts is not None
    assert [list(tokens) for tokens in result.prompts.clean] == [
        prompt["clean"] for prompt in data["prompts"]
    ]


def test_nobody_knows_the_circuit_of_a_natural_subject(command: Command, tmp_path: Path) -> None:
    ended = command(*FAST, "--edges", "3", "--fleet", "natural", "--html", "a.html")
    assert ended.code == 0, ended.err
    data = data_of((tmp_path / "a.html").read_text())
    assert (data["truth"], data["component_notes"]) == (None, {})


def test_a_table_needs_no_curve(command: Command, tmp_path: Path) -> None:
    ended = command(*FAST, "--edges", "3", "--json")
    assert json.loads(ended.out)["faithfulness"]["curve"] is None


@pytest.mark.slow
def test_results_are_printed_even_if_they_cannot_be_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = command(*FAST, "--json").out

    def full(path: str | Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", f"{path}.tmp")

    for module in ("files", "result"):
        monkeypatch.setattr(f"graphcircuits.{module}.write_atomic", full)
    failures = (
        "error: cannot write a.json: no space left on device\n"
        "error: cannot write a.html: no space left on device\n"
    )
    ended = command(*FAST, "--out", "a.json", "--html", "a.html", "--json")
    assert (ended.code, ended.err) == (1, failures)
    record, wanted = json.loads(ended.out), json.loads(expected)
    assert record | {"seconds": 0} == wanted | {"seconds": 0}
    ended = command(*FAST, "--out", "a.json", "--html", "a.html")
    assert (ended.code, ended.err) == (1, failures)
    assert "20 of 110 edges in the circuit" in ended.out
    assert "wrote" not in ended.out


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--pairs", "0"], "--pairs must be in 1..1000000, got 0."),
        (["--seed", "99999999999999999999"], "--seed must be in 0..4294967295, got 99999999999999"),
        (["--method", ""], "unknown method ''; (acdc, eap,"),
        (["--method", "EAP-IG"], "unknown method 'EAP-IG'; did you mean 'eap-ig'? (acdc, "),
        (
            ["--method", "eap-ig", "--option", "steps=abc"],
            "--option steps=abc: steps of eap-ig must be a whole number.",
        ),
        (["--method", "exact", "--top", "0"], "--top must be at least 1, got 0."),
        (
            ["--method", "eap", "--top", "5"],
            "--top goes with methods that test edge by edge: --method exact or acdc, got eap.",
        ),
        (["--top", "5"], "--method exact or acdc, got none."),
        (["--refine", "0"], "--refine must be above 0, got 0.0."),
        (["--refine", "nan"], "--refine must be a finite number, got nan."),
        (["--refine-steps", "0"], "--refine-steps must be at least 1, got 0."),
        (
            ["--refine", "3", "--refine-steps", "5"],
            "give --refine (seconds) or --refine-steps, not both.",
        ),
        (
            ["--refine-checkpoint", "a.safetensors"],
            "--refine-checkpoint goes with --refine or --refine-steps.",
        ),
        (
            ["--refine", "3", "--refine-checkpoint", "a.pt"],
            "--refine-checkpoint must end in .safetensors, got a.pt.",
        ),
        (["--out", "."], "--out must be a file, but . is a folder."),
        (["--out", "file/a.json"], "file is not a folder."),
        (["--html", "file/a.html"], "file is not a folder."),
    ],
)
def test_refusals_before_anything_is_loaded(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    text: str,
) -> None:
    def loaded(id: str) -> None:
        raise AssertionError(f"{id} was loaded")

    monkeypatch.setattr("graphcircuits.corpus.load_case", loaded)
    (tmp_path / "file").write_text("")
    refused(command("localize", "ib-3", *given), text)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--fleet", "wild"], "--fleet must be one of planted, public, natural, got 'wild'."),
        (["--architecture", "bert"], "--architecture must be one of plain, relu, rotary, gpt2, n"),
        (
            ["--fleet", "public"],
            "no subject ib-3.public.plain.0 is shipped; there are ib-3; build it with: "
            "graphcircuits build ib-3 --fleet public",
        ),
    ],
)
def test_subjects_that_there_are_not(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], text: str
) -> None:
    monkeypatch.setattr("graphcircuits.corpus.orders.files", lambda _: tmp_path)
    save_transformer(tmp_path / "data/subjects/ib-3.safetensors", make_subject())
    refused(command(*FAST, *given), text)


def test_a_fleet_is_no_matter_of_your_own_model(command: Command, tmp_path: Path) -> None:
    said = "--fleet and --architecture choose among the subjects of a case, not with --model."
    refused(command(*own_subject(tmp_path), "--architecture", "llama"), said)


@pytest.mark.slow
def test_a_natural_subject_has_no_true_circuit(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a planted one of another architecture has it in its own graph."""
    monkeypatch.setattr("graphcircuits.corpus.orders.files", lambda _: tmp_path)
    for id in ("ib-3.natural.llama.0", "ib-3.planted.llama-gqa.0"):
        order = Order.parse(id)
        subject = start_of(order, load_case("ib-3"))
        save_transformer(shipped_path(order), subject, meta={"report": vars(order)})
    found = json.loads(command(*FAST, "--fleet", "natural", "--json").out)
    assert (found["subject"], found["auroc"]) == ("ib-3.natural.llama.0", None)
    found = json.loads(command(*FAST, "--architecture", "llama-gqa", "--json").out)
    assert found["subject"] == "ib-3.planted.llama-gqa.0"
    assert 0 <= found["auroc"] <= 1
    assert command(*FAST, "--architecture", "llama-gqa", "--level", "qkv").code == 0


def test_a_path_in_the_place_of_a_case(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    for path in ("model", "absent/model", "model.safetensors"):
        said = (
            f"{path} is a path, not a case; give it as --model {path}, with --task or --pairs-file."
        )
        refused(command("localize", path), said)
    # The case wins over a file of its name.
    (tmp_path / "ib-3").write_text("")
    assert command(*FAST).code == 0
    refused(command("localize", ""), "unknown case ''; `graphcircuits cases` lists all cases.")


def test_prompts_of_your_own(command: Command, tmp_path: Path) -> None:
    given = own_subject(tmp_path)
    prompts = tmp_path / "pairs.csv"
    refused(command(*given, "--out", prompts), f"--out would overwrite {prompts}, which is read.")
    prompts.write_text("clean,corrupted\nx y,y y\n")
    refused(command(*given), "line 2: clean must be whole numbers, got 'x y'. Prompts in words")
    prompts.write_text("clean,corrupted\n0 2 3,0 3 3\n0 4,0 2\n")
    refused(command(*given), "split the file by length or, in Python and for a causal subject")
    prompts.unlink()
    refused(command(*given), f"{prompts}: no such file or directory")
    prompts.mkdir()
    refused(command(*given), f"{prompts} is a folder; expected a regular file.")


@pytest.mark.slow
def test_scores_are_refined(command: Command, tmp_path: Path) -> None:
    given = [*own_subject(tmp_path), "--edges", "3", "--refine-steps", "3", "--json"]
    first = command(*given, "--refine-checkpoint", "kept.safetensors")
    assert first.code == 0
    record = json.loads(first.out)
    assert record["options"] == {"refine_steps": 3}
    assert record["notes"][-1].startswith("refined in 3 steps: ")
    again = json.loads(command(*given, "--refine-checkpoint", "kept.safetensors").out)
    assert again | {"seconds": 0} == record | {"seconds": 0}


def test_names_and_files_do_not_steer_the_terminal(command: Command, tmp_path: Path) -> None:
    given = own_subject(tmp_path, "a\x1b[31m\x9b[b]\u202e.safetensors")
    ended = command(*given, "--html", tmp_path / "\x1b[2J.html")
    assert ended.code == 0, ended.err
    assert not set(ended.out + ended.err) & {"\x1b", "\x9b", "\u202e"}
    assert ended.out.startswith(r"a\x1b[31m\x9b[b]\u202e" + "\n")
    assert r"\x1b[2J.html" in ended.out
    assert "\x1b" not in (tmp_path / "\x1b[2J.html").read_text()
    prompts = tmp_path / "pairs.csv"
    prompts.write_text("clean,corrupted\x1b]0;title\x07\n1,2\n")
    ended = command(*given)
    assert ended.code == 2
    assert not set(ended.err) & {"\x1b", "\x07"}
    assert r"\x1b]0;title\x07" in ended.err
    prompts.write_text("clean,corrupted\n\x1b[31m,2\n")
    assert r"\x1b[31m" in command(*given).err
