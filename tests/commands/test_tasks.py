"""`graphcircuits tasks`: the list, and what a model makes of it."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from graphcircuits import tasks
from graphcircuits.adapters.load import load_model
from graphcircuits.subject.files import save_transformer
from graphcircuits.task.accuracy import share_right
from graphcircuits.task.pairs import Pairs
from tests import text
from tests.shell import Command, refused
from tests.subjects import make_subject


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Hugging Face's: a tiny random model that knows letters only."""
    folder, tokenizer = tmp_path_factory.mktemp("model"), text.letters()
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, n_positions=128, vocab_size=len(tokenizer)
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_list(command: Command) -> None:
    ended = command("tasks")
    assert ended.code == 0
    assert all(f"\n{name} " in ended.out for name in tasks.names())
    record = json.loads(command("tasks", "--json").out)
    assert [row["name"] for row in record] == tasks.names()
    assert record[0]["example"] == tasks.ioi.example
    assert record[0]["reference"] == tasks.ioi.reference


def test_one_task(command: Command) -> None:
    ended = command("tasks", "docstring")
    lines = [tasks.docstring.name, tasks.docstring.description, tasks.docstring.example]
    assert ended.out == "\n".join([*lines, tasks.docstring.reference]) + "\n"
    assert len(json.loads(command("tasks", "greater_than", "--json").out)) == 1


def test_on_how_many_prompts_a_model_is_right(
    command: Command, model: Path, tmp_path: Path
) -> None:
    ended = command(
        "tasks", "quotes", "--model", model, "--pairs", "8", "--out", "a.jsonl", "--json"
    )
    (row,) = json.loads(ended.out)
    subject = load_model(model)
    drawn = tasks.quotes(subject.tokenizer, 8)
    assert row == {
        "name": "quotes",
        "problem": None,
        "pairs": 8,
        "tokens": drawn.clean.shape[1],
        "right": share_right(subject, drawn),
    }
    assert 0 < row["right"] < 1
    loaded = Pairs.load(tmp_path / "a.jsonl")
    assert torch.equal(loaded.clean, drawn.clean)
    ended = command("tasks", "quotes", "--model", model, "--pairs", "8", "--out", "a.csv")
    assert f"{row['right']:.0%}" in ended.out
    assert ended.out.endswith("wrote a.csv\n")


def test_the_tasks_that_a_tokenizer_cannot_do(
    command: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "graphcircuits.tasks._TASKS", {t.name: t for t in (tasks.ioi, tasks.quotes)}
    )
    ended = command("tasks", "--model", model, "--pairs", "4")
    assert ended.code == 0
    assert "quotes" in ended.out
    assert "the task ioi is not for this tokenizer: it needs at least 3 names of one" in ended.out
    record = json.loads(command("tasks", "--model", model, "--pairs", "4", "--json").out)
    assert [row["problem"] is None for row in record] == [False, True]


def test_refusals(command: Command, model: Path, tmp_path: Path) -> None:
    refused(command("tasks", "ioo"), "unknown task 'ioo'; did you mean 'ioi'? (ioi, greater-than")
    refused(command("tasks", "--pairs", "0"), "--pairs must be in 1..1000000, got 0.")
    refused(command("tasks", "ioi", "--out", "a.csv"), "--out goes with one task and --model.")
    refused(command("tasks", "--out", "a.txt"), "--out must end in .csv, .jsonl, got a.txt")
    ended = command("tasks", "ioi", "--model", model)
    assert (ended.code, ended.out) == (2, "")
    # Loading shows a bar before it.
    assert "\nerror: the task ioi is not for this tokenizer: it needs at" in f"\n{ended.err}"
    save_transformer(tmp_path / "mine.safetensors", make_subject())
    refused(
        command("tasks", "--model", "mine.safetensors"),
        "mine.safetensors has no tokenizer, which tasks need: give a model that comes with one",
    )
