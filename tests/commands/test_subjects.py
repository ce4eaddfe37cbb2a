"""Models of a user's own in the commands: --model, --task, --device, --dtype, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits import tasks
from graphcircuits.adapters.load import model_name
from graphcircuits.subject.files import save_transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.tasks import Task
from tests.adapters.hf_models import make_model, make_tokenizer
from tests.shell import Command, refused
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face model with a tokenizer, and prompts in words beside it."""
    place = tmp_path / "tiny.v1"
    with torch.random.fork_rng(devices=[]):
        make_model("llama").to(torch.bfloat16).save_pretrained(place)
    make_tokenizer().save_pretrained(place)
    (tmp_path / "pairs.csv").write_text(
        "clean,corrupted,correct,incorrect\nto be,to or,not,be\nor be,be be,to,not\n"
    )
    save_transformer(tmp_path / "mine.safetensors", make_subject())
    return place


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A library with one task; how many prompts were drawn, and with which seed."""
    asked: list[tuple[int, int]] = []

    class Words(Task):
        def __call__(self, tokenizer: Any, n: int = 64, seed: int = 0) -> Pairs:
            asked.append((n, seed))
            clean, corrupted, correct, incorrect = (["to be"], ["to or"], ["not"], ["be"])
            texts = clean * n, corrupted * n, correct * n, incorrect * n
            return replace(Pairs.from_text(tokenizer, *texts), task=self.description)

    known = tasks.find("ioi")
    task = Words(**vars(known))
    monkeypatch.setattr(tasks, "find", lambda name: task if name == "ioi" else known_error(name))
    return asked


def known_error(name: str) -> Task:
    raise ValueError(f"unknown task {name!r}; did you mean 'ioi'?")


def test_localize_with_a_task(command: Command, folder: Path, drawn: list[tuple[int, int]]) -> None:
    given = ["localize", "--model", folder, "--task", "ioi", "--pairs", "3", "--seed", "7"]
    ended = command(*given, "--method", "eap", "--dtype", "float32", "--device", "cpu", "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["subject"], record["pairs"]) == ("tiny.v1", 3)
    assert record["task"] == tasks.find("ioi").description
    assert (3, 7) in drawn


def test_models_have_two_names_and_words_are_read_by_their_tokenizer(
    command: Command, folder: Path
) -> None:
    rest = ["--pairs-file", "pairs.csv", "--words", "--method", "random", "--json"]
    outputs = [command("localize", flag, folder, *rest) for flag in ("--model", "--subject")]
    assert {ended.code for ended in outputs} == {0}
    one, other = (json.loads(ended.out) for ended in outputs)
    assert one["ranking"] == other["ranking"]
    assert one["pairs"] == 2


@pytest.mark.slow
def test_interactions_of_a_model(
    command: Command, folder: Path, drawn: list[tuple[int, int]]
) -> None:
    own = ["--edges", "input->m1,a0.h0->m1", "--json", "--dtype", "float32"]
    by_task = command("interact", "--model", folder, "--task", "ioi", "--draw", "2", *own)
    assert by_task.code == 0, by_task.err
    assert drawn == [(2, 0)]
    # The file of prompts comes first where the model has an option of its own.
    by_file = [
        command("interact", *words, "--words", *own)
        for words in (["--model", folder, "pairs.csv"], [folder, "pairs.csv"])
    ]
    assert {ended.code for ended in by_file} == {0}
    records = [json.loads(ended.out) for ended in (by_task, *by_file)]
    for record in records:
        assert (record["subject"], record["pairs"]) == ("tiny.v1", 2)


def test_interactions_are_computed_in_the_dtype_asked_for(command: Command, folder: Path) -> None:
    given = ["interact", "mine.safetensors", "ids.csv", "--edges", "input->m1,a0.h0->m1", "--json"]
    (folder.parent / "ids.csv").write_text("clean,corrupted,correct\n1 2 3,1 2 2,1\n")
    exact, wide, narrow = (
        json.loads(command(*given, *dtype).out)["interactions"][0]["interaction"]
        for dtype in ([], ["--dtype", "float64"], ["--dtype", "float32"])
    )
    assert exact == wide != narrow
    assert narrow == pytest.approx(wide, rel=0.01)  # a small difference of large numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["localize", "interact"])
def test_prompts_that_do_not_fit(command: Command, folder: Path, name: str) -> None:
    file = ["--pairs-file", "pairs.csv"] if name == "localize" else ["pairs.csv"]
    model = [name, "--model", "mine.safetensors"]
    refused(command(*model), "your own model needs prompts: name a task with --task (graphcircuits")
    said = "give --task or a file of prompts, not both ioi and pairs.csv."
    refused(command(*model, *file, "--task", "ioi"), said)
    refused(command(*model, "--task", "ioj"), "unknown task 'ioj'; did you mean 'ioi'?")
    refused(command(*model, "--task", "ioi", "--words"), "--words goes with a file of prompts.")
    refused(
        command(*model, "--task", "ioi"),
        "mine.safetensors has no tokenizer, which the prompts of --task ioi need: give a model "
        "that comes with one (a GGUF file, or a Hugging Face folder with its tokenizer files), or "
        "prompts in token ids",
    )
    said = "mine.safetensors has no vocabulary to read words with; give token ids, not --words."
    refused(command(*model, *file, "--words"), said)
    said = "--task goes with --model alone: cases and programs draw their own prompts."
    refused(command(name, "ib-3", "--task", "ioi"), said)


@pytest.mark.parametrize("name", ["localize", "interact", "bench"])
def test_devices_and_dtypes_that_are_not_there(
    command: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = [name] if name == "bench" else [name, "ib-3"]
    ended = command(*given, "--device", "cuda", "--dtype", "int8")
    refused(ended, "--device cuda was asked for, but PyTorch finds no GPU here; --dtype must be ")
    assert "one of float64, float32, bfloat16, float16, got 'int8'." in ended.err


def test_nothing_given(command: Command) -> None:
    refused(
        command("interact"),
        "give a case, such as ib-3, or your own model with --model and --task or a "
        "file of prompts; got neither.",
    )


def test_titles(tmp_path: Path) -> None:
    (tmp_path / "tiny.v1.gguf").touch()
    assert model_name(str(tmp_path / "tiny.v1.gguf")) == "tiny.v1"
    assert model_name("Qwen/Qwen2.5-0.5B") == "Qwen2.5-0.5B"
    assert model_name("gpt2") == "gpt2"


@pytest.mark.slow
def test_a_bench_in_another_dtype(command: Command) -> None:
    """Other results, kept apart from those in float32."""
    given = ["bench", "--cases", "ib-3", "--methods", "eap", "--pairs", "2", "--out", "out"]
    assert command(*given).code == command(*given, "--dtype", "float64").code == 0
    assert len(list(Path("out/runs").rglob("*.json"))) == 2
