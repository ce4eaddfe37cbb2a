"""`graphcircuits localize`: it writes only what is asked for, and never keeps results to itself."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.cases.orders import Order, shipped_path
from graphcircuits.engine.memory import OutOfMemory
from graphcircuits.result.result import Result
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from tests.cases.programs import untrained
from tests.shell import PYTHON, Command, refused
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

    for module in ("io.files", "result.result"):
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
    assert " of 110 edges in the circuit" in ended.out
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

    monkeypatch.setattr("graphcircuits.cases.load_case", loaded)
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
    monkeypatch.setattr("graphcircuits.cases.orders.files", lambda _: tmp_path)
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
    monkeypatch.setattr("graphcircuits.cases.orders.files", lambda _: tmp_path)
    for id in ("ib-3.natural.llama.0", "ib-3.planted.llama-gqa.0"):
        order = Order.parse(id)
        subject = untrained(order, load_case("ib-3"))
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
    first = command(*given)
    assert first.code == 0
    record = json.loads(first.out)
    assert record["options"] == {"refine_steps": 3}
    assert record["notes"][-1].startswith("refined in 3 steps: ")
    again = json.loads(command(*given).out)
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


def many_prompts(folder: Path) -> list[str | Path]:
    """A small subject of one's own, and twelve pairs with the answers that it gives to half."""
    given = own_subject(folder)
    clean = torch.tensor([[0, a, b, c] for a in (2, 3, 4) for b in (2, 3) for c in (2, 4)])
    corrupted = clean.roll(1, 0)
    logits = make_subject().logits(clean)[:, -1]
    right, wrong = logits.argmax(-1).tolist(), logits.argmin(-1).tolist()
    rows = ["clean,corrupted,correct_idx,incorrect_idx"]
    for place, (one, other) in enumerate(zip(clean.tolist(), corrupted.tolist(), strict=True)):
        pair = (right, wrong) if place % 2 else (wrong, right)
        texts = (" ".join(map(str, ids)) for ids in (one, other))
        rows.append(",".join([*texts, *(str(column[place]) for column in pair)]))
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    return given


def test_some_pairs_of_a_file_are_held_back(command: Command, tmp_path: Path) -> None:
    given = many_prompts(tmp_path)
    ended = command(*given)
    assert "--hold-out 0.25 keeps a quarter of them back to judge by\n" in ended.out
    record = json.loads(command(*given, "--hold-out", "0.25", "--json").out)
    assert (record["pairs"], record["faithfulness"]["fresh"]["pairs"]) == (9, 3)
    assert record["faithfulness"]["fresh"]["faithfulness"] is not None
    assert "3 of 12 pairs are held back to judge the circuit by" in record["notes"]
    refused(command(*given, "--hold-out", "1"), "--hold-out must be below 1, got 1.0.")
    refused(command(*FAST, "--hold-out", "0.5"), "--hold-out goes with --pairs-file: other prompts")
    (tmp_path / "pairs.csv").write_text("clean,corrupted\n0 2 3 4,0 3 3 4\n")
    refused(command(*given, "--hold-out", "0.5"), "--hold-out needs 8 pairs or more, got 1: of")


def test_only_pairs_that_the_model_answers_right(command: Command, tmp_path: Path) -> None:
    given = many_prompts(tmp_path)
    assert json.loads(command(*given, "--json").out)["right"] == 0.5
    record = json.loads(command(*given, "--only-right", "--json").out)
    assert (record["pairs"], record["right"]) == (6, 1.0)
    assert "6 of 12 pairs are left out, which the model gets wrong" in record["notes"]


def test_a_method_of_your_own(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def backwards(subject, pairs, *, scale: float = 1.0):\n"
        "    return -scale * torch.arange(subject.graph.n_edges).double()\n"
        "def other(graph):\n    return None\n"
        "number = 3\n"
    )
    given = [*own_subject(tmp_path)[:-1], f"{file}:backwards", "--edges", "2", "--json"]
    record = json.loads(command(*given, "--option", "scale=2").out)
    assert (record["method"], record["options"]["scale"]) == ("backwards", 2)
    assert [row["score"] for row in record["ranking"][:2]] == [0.0, -2.0]
    refused(command(*given, "--option", "size=2"), "backwards has no option 'size'; ")
    for name, said in (
        ("backward", "defines no 'backward'; did you mean backwards"),
        ("other", "'other' in " + str(file) + " is no method: it cannot be called with a subject"),
        ("number", "is no method: it is a int"),
    ):
        refused(command(*FAST[:2], "--method", f"{file}:{name}"), said)
    refused(command(*FAST[:2], "--method", file), "must name a function of the file, such as")
    refused(command(*FAST[:2], "--method", "no.py:x"), "no Python file at no.py; give your method")


def test_more_edges_than_there_are_and_one_pair(command: Command, tmp_path: Path) -> None:
    given = own_subject(tmp_path)
    (tmp_path / "pairs.csv").write_text("clean,corrupted\n0 2 3 4,0 3 3 4\n")
    ended = command(*given, "--edges", "500")
    assert "warning: --edges 500 is more than there are: the circuit has all 110\n" in ended.err
    assert "found on one pair alone: " in ended.out


def test_ctrl_c_says_what_was_not_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphcircuits.methods.ChosenMethod.run", interrupted)
    ended = command(*FAST, "--out", "a.json", "--html", "a.html")
    said = "interrupted: there is no result yet; not written: a.json, a.html.\n"
    assert (ended.code, ended.err) == (130, said)


def test_out_of_memory_in_the_words_of_the_command_line(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OutOfMemory("out of memory on cpu with 64 prompts at once", 2**20, 8)

    monkeypatch.setattr("graphcircuits.methods.ChosenMethod.run", full)
    ended = command(*FAST)
    assert ended.code == 1
    assert "--option memory-limit=1048576" in ended.err
    assert PYTHON.search(ended.err.replace("memory-limit=1048576", "")) is None
    assert "memory_limit" not in ended.err


def test_the_circuit_keeps_what_is_asked_for(command: Command) -> None:
    given = ["localize", "ib-3", "--method", "eap", "--pairs", "8", "--json"]
    half, usual = (json.loads(command(*given, *keep).out) for keep in (["--keep", "0.5"], []))
    assert half["faithfulness"]["keep"] == 0.5
    assert usual["faithfulness"]["found_on"] >= 0.9
    assert len(half["circuit"]) <= len(usual["circuit"])
    refused(command(*given[:-1], "--keep", "0"), "--keep must be in 0.01..1, got 0.0.")


def test_the_page_knows_the_size_of_a_circuit_without_dead_ends(tmp_path: Path) -> None:
    graph = make_subject().graph
    path = graph.edge_indices(["input->m0", "m0->logits"])
    scores = torch.zeros(graph.n_edges)
    scores[path], scores[graph.edge_indices(["input->a1.h3<q>"])] = 1.0, 2.0
    result = Result(graph=graph, scores=scores)
    proposed = replace(result, chosen=result.circuit(edges=3, prune=True))
    proposed.show(tmp_path / "a.html")
    (shown,) = data_of((tmp_path / "a.html").read_text())["results"]
    assert (shown["chosen"], shown["chosen_best"]) == (None, 3)
    assert torch.equal(bits(shown["chosen_edges"], 110).nonzero()[:, 0], torch.tensor(sorted(path)))
