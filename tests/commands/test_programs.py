"""A program of one's own and its subject, from commands alone: built, localized, compared."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits import methods
from graphcircuits.cases.architectures import subject_config
from graphcircuits.cases.case import Case
from graphcircuits.cases.orders import Order
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.rasp import Map, tokens
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from tests.cases.programs import untrained
from tests.shell import Command, refused
from tests.subjects import make_subject

PROGRAMS = """
from graphcircuits import rasp

swapped = rasp.Map(lambda x: {"a": "b", "b": "a"}[x], rasp.tokens)
spelled = rasp.Map(lambda x: x + x, rasp.tokens)
halved = rasp.numerical(rasp.Map(lambda x: {"a": 0.5, "b": 1.0}[x], rasp.tokens))
seen = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.EQ))
"""
MINE = ["localize", "my.py:swapped", "--subject", "mine.safetensors"]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """The program `swapped` of my.py, with an untrained subject in mine.safetensors."""
    (tmp_path / "my.py").write_text(PROGRAMS)
    program = Map(lambda x: {"a": "b", "b": "a"}[x], tokens)
    case = Case(id="swapped", program=program, vocab=("a", "b"), max_seq_len=3)
    drawn = Transformer.random(subject_config(case), torch.Generator().manual_seed(0), case.codec)
    report = {"report": {"case": "swapped"}}
    save_transformer(tmp_path / "mine.safetensors", drawn.to(torch.float16), meta=report)
    return case


@pytest.mark.slow
def test_a_program_draws_pairs_and_gives_the_truth(
    command: Command, case: Case, tmp_path: Path
) -> None:
    subject = load_transformer(tmp_path / "mine.safetensors").to(torch.float32)
    result = methods.localize(subject, case.pairs(8, seed=3), "eap", seed=3)
    asked = [*MINE, "--method", "eap", "--pairs", "8", "--seed", "3"]
    ended = command(*asked, "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert record["auroc"] == auroc(result, case.circuit)
    assert record["ranking"][0] == dict(zip(("edge", "score"), result.top(1)[0], strict=True))
    assert (record["subject"], record["task"]) == ("swapped", "swapped of my.py")
    ended = command(*asked, "--edges", "110")
    assert "in the true circuit" in ended.out
    assert "2 of the 2 true edges are among them\nAUROC " in ended.out
    # It was never trained: nobody must take the circuit of the program for its own.
    assert ended.err.startswith("warning: mine.safetensors gives the answer of my.py:swapped at ")


def test_prompts_of_a_file_are_compared_with_the_programs_circuit(
    command: Command, case: Case, tmp_path: Path
) -> None:
    (tmp_path / "pairs.csv").write_text("clean,corrupted\na b,b b\nb b,a a\n")
    given = [*MINE, "--method", "random", "--pairs-file", "pairs.csv", "--words", "--json"]
    record = json.loads(command(*given).out)
    assert (record["pairs"], record["auroc"] is None) == (2, False)


@pytest.mark.usefixtures("unchecked")
def test_interactions_of_a_program(command: Command, case: Case) -> None:
    given = ["my.py:swapped", "--subject", "mine.safetensors", "--draw", "4", "--json"]
    record = json.loads(command("interact", *given, "--edges", "input->m0,m0->logits").out)
    assert (record["subject"], record["pairs"]) == ("swapped", 4)


def test_words_need_a_file(command: Command, case: Case) -> None:
    refused(command(*MINE, "--words"), "--words goes with a file of prompts.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("my.py:other", "my.py defines no 'other'; did you mean "),
        ("absent.py:swapped", "no Python file at absent.py; give your program as path/to/file.py"),
        ("my.py", "my.py defines several programs; choose one: my.py:swapped, my.py:spelled, my."),
        (
            "my.py:spelled",
            "mine.safetensors is no subject of my.py:spelled: it was built from 'swapped'; its "
            "outputs are ['a', 'b'], those of the program ['aa', 'bb']. Build one with: "
            "graphcircuits build --program my.py:spelled --vocab TOKENS --max-seq-len LENGTH",
        ),
        ("my.py:halved", "its outputs are ['a', 'b'], those of the program numbers. Build one"),
    ],
)
@pytest.mark.parametrize("name", ["localize", "interact"])
def test_programs_that_a_subject_is_not_of(
    command: Command, case: Case, name: str, given: str, text: str
) -> None:
    refused(command(name, given, "--subject", "mine.safetensors"), text)


def test_subjects_that_a_program_cannot_have(command: Command, case: Case, tmp_path: Path) -> None:
    plain = make_subject()
    save_transformer(tmp_path / "plain.safetensors", plain)
    said = "plain.safetensors has no vocabulary, so no program can give it prompts; build a subject"
    refused(command("localize", "my.py:swapped", "--subject", "plain.safetensors"), said)
    said = "no subject at no: there is no such file; build one with: graphcircuits build --program"
    refused(command("localize", "my.py:swapped", "--subject", "no"), said)
    sizes = {"n_layers": 3, "n_heads": 2, "d_head": 2, "d_model": 4, "d_mlp": 8}
    for vocab, changes, text in (
        ((0, 1), {}, "is no subject of my.py:swapped: on its tokens, 0,1, case 'swapped': 1 exp"),
        (("a", "b"), sizes, "it has 3 layers x 2 heads, the program needs 2 layers x 4 heads. Bu"),
    ):
        other = Case(id="other", program=tokens, vocab=vocab, max_seq_len=3)
        config = replace(subject_config(other), **changes)
        generator = torch.Generator().manual_seed(0)
        drawn = Transformer.random(config, generator, other.codec)
        save_transformer(tmp_path / "other.safetensors", drawn)
        ended = command("localize", "my.py:swapped", "--subject", "other.safetensors")
        assert (ended.code, ended.out) == (2, "")
        assert text in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["public", "natural"])
def test_a_subject_of_another_architecture_is_the_programs_too(
    command: Command, case: Case, tmp_path: Path, fleet: str
) -> None:
    """Its circuit is known in its own graph, unless it trained on the task alone."""
    order = Order(case.id, fleet, "llama-gqa")
    subject = untrained(order, case)
    save_transformer(tmp_path / "gqa.safetensors", subject, meta={"report": vars(order)})
    words = ("--subject", "gqa.safetensors", "--method", "random", "--pairs", "2", "--json")
    ended = command("localize", "my.py:swapped", *words)
    assert ended.code == 0
    assert (json.loads(ended.out)["auroc"] is None) is (fleet == "natural")


def test_a_program_needs_its_subject(command: Command, case: Case) -> None:
    said = (
        "my.py:swapped is a program; name the subject that was built from it with --subject FILE, "
        "or build one with: graphcircuits build --program my.py:swapped --vocab TOKENS"
    )
    for name in ("localize", "interact"):
        refused(command(name, "my.py:swapped"), said)
    said = (
        "--model goes with a program, path/to/file.py:name, or alone: give a case or --model, not"
    )
    refused(command("interact", "ib-3", "--subject", "mine.safetensors"), said)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_loop_closes(command: Command, tmp_path: Path) -> None:
    """Write a program, build its subject, find its circuit; then change the program. It puts out
    numbers; examples/plant_a_circuit.py does the same with a program that puts out classes."""
    (tmp_path / "my.py").write_text(PROGRAMS)
    inputs = ["--vocab", "a,b", "--max-seq-len", "3"]
    built = command("build", "--program", "my.py:halved", *inputs, "--rows", "16")
    assert (built.code, built.out) == (0, "1 of 1 subjects in subjects\n"), built.err
    given = ["localize", "my.py:halved", "--subject", "subjects/halved.safetensors"]
    ended = command(*given, "--json")
    assert (ended.code, ended.err) == (0, "")
    record = json.loads(ended.out)
    assert record["notes"][0].startswith("no method was named: gcl, because this case is like")
    assert "on planted subjects it had a mean AUROC" in record["notes"][0]
    assert record["options"]["predictor"] == "default"
    assert record["auroc"] > 0.95
    ended = command(*given, "--method", "exact", "--edges", "2")
    assert "2 of the 2 true edges are among them\nAUROC 1.0000 (head level)" in ended.out
    (tmp_path / "my.py").write_text(PROGRAMS.replace('"a": 0.5', '"a": 0.0'))
    ended = command(*given, "--method", "eap")
    assert ended.code == 0
    assert "if the program has changed, build it again: its circuit need not be" in ended.err
