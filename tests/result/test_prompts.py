"""Prompts in the files of a result: kept whole, absent where there are none, and never trusted."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError
from graphcircuits.result.result import Result
from graphcircuits.task.stored import StoredPrompts
from tests.damage import join_artifact, limits, rehashed_result, split_artifact

GRAPH = ComponentGraph(2, 4)


def make_prompts(n_layers: int = 2, n_heads: int = 4) -> StoredPrompts:
    generator = torch.Generator().manual_seed(0)

    def table(length: int) -> torch.Tensor:
        shape = (n_layers, n_heads, length, length)
        return torch.randint(256, shape, generator=generator).to(torch.uint8)

    return StoredPrompts(
        clean=[["BOS", " a", "\u2028"], ["BOS", "</script>"]],
        corrupted=[["BOS", "b", "\x1b"], ["BOS", ""]],
        answers=["yes", None],
        patterns=[table(3), table(2)],
        patterns_corrupted=[table(3), table(2)],
    )


def make(prompts: StoredPrompts | None = None) -> Result:
    return Result(graph=GRAPH, scores=torch.arange(GRAPH.n_edges).float(), prompts=prompts)


@pytest.mark.parametrize("name", ["a.json", "a.safetensors"])
def test_prompts_are_kept(name: str, tmp_path: Path) -> None:
    path, plain, result = tmp_path / name, make(), make(make_prompts())
    assert result != plain
    result.save(path)
    loaded = Result.load(path)
    assert loaded == result
    assert loaded.prompts == make_prompts()
    # A loaded result is written as the one that was loaded.
    loaded.save(tmp_path / f"again-{name}")
    assert Result.load(tmp_path / f"again-{name}") == result
    plain.save(path)
    assert Result.load(path) == plain
    assert b"corrupted" not in path.read_bytes()


def test_json_stays_what_eap_ig_reads(tmp_path: Path) -> None:
    """But for our block, a file with prompts is the one without."""
    make(make_prompts()).save(tmp_path / "a.json")
    make().save(tmp_path / "b.json")
    files = [json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json")]
    blocks = [file.pop("graphcircuits") for file in files]
    assert files[0] == files[1]
    assert blocks[0].keys() - blocks[1].keys() == {"prompts"}


def test_prompts_go_with_a_result_to_another_graph() -> None:
    brought = make(make_prompts()).on(ComponentGraph(2, 4, n_kv_heads=2))
    assert brought.prompts == make_prompts()


def test_prompts_of_other_heads_are_refused() -> None:
    text = "the prompts have patterns of 2 layers x 3 heads, the graph has 2 x 4"
    with pytest.raises(ValueError, match=text):
        make(make_prompts(n_heads=3))


def forged(path: Path, change: Callable[[dict[str, Any]], object], **tensors: Any) -> Path:
    """A file whose prompts were changed, with the hash of what it holds then."""
    make(make_prompts()).save(path)
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        change(content["graphcircuits"])
        path.write_text(json.dumps(rehashed_result(content)))
        return path
    header, held = split_artifact(path)
    change(header["meta"])
    held |= tensors
    join_artifact(path, header, {name: t for name, t in held.items() if t is not None})
    return path


def of_prompts(**given: Any) -> Callable[[dict[str, Any]], object]:
    return lambda block: block["prompts"].update(given)


BOTH: list[Any] = [
    (lambda block: block.update(prompts=3), "'prompts' must be dict, got 3"),
    (lambda block: block["prompts"].pop("clean"), "is not a whole set of prompts: no 'clean'"),
    (of_prompts(more=1), "is not a whole set of prompts: unknown key 'more'"),
    (of_prompts(answers="yes"), "'answers' must be list, got 'yes'"),
    (of_prompts(answers=["yes", 3]), r"answers must be texts or null, got \['yes', 3\]"),
    (of_prompts(answers=["yes"]), "answers must be one for each of 2 prompts, got 1"),
    (of_prompts(clean=[]), "there must be a prompt, and none without tokens"),
    (of_prompts(clean=[["a"], []]), "there must be a prompt, and none without tokens"),
    (of_prompts(clean=["abc", "def"]), "clean prompts must be lists of texts, got 'abc'"),
    (of_prompts(corrupted=[["a", "b", 3]]), "corrupted prompts must be lists of texts, got"),
    (of_prompts(corrupted=[["a"], ["b"]]), "as long as clean ones, 3, 2 tokens, got 1, 1"),
]


@pytest.mark.parametrize("name", ["a.json", "a.safetensors"])
@pytest.mark.parametrize(("change", "message"), BOTH)
def test_forged_texts(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = forged(tmp_path / name, change)
    with limits(), pytest.raises(StoreError, match=rf"{name}.*{message}"):
        Result.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_prompts(patterns=3), "'patterns' must be str, got 3"),
        (of_prompts(patterns="?"), "patterns of prompts must be base64"),
        (of_prompts(patterns="é"), "patterns of prompts must be base64"),
        (
            of_prompts(patterns_corrupted=base64.b64encode(bytes(103)).decode()),
            r"patterns_corrupted must hold 104 bytes for prompts of \[3, 2\] tokens and 2 x 4 "
            "heads, got 103",
        ),
        (of_prompts(clean=[["a"] * 10**4] * 5), "must hold 4000000000 bytes for prompts of"),
        (of_prompts(patterns=""), "must hold 104 bytes for prompts of .* got 0"),
    ],
)
def test_forged_patterns_in_json(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = forged(tmp_path / "a.json", change)
    with limits(), pytest.raises(StoreError, match=rf"a\.json.*{message}"):
        Result.load(path)


@pytest.mark.parametrize(
    ("change", "tensors", "message"),
    [
        (
            lambda meta: None,
            {"patterns": torch.zeros(104)},
            "patterns must be one row of bytes, got torch.float32 of shape",
        ),
        (
            lambda meta: None,
            {"patterns_corrupted": torch.zeros(1, 104, dtype=torch.uint8)},
            r"patterns_corrupted must be one row of bytes, got torch.uint8 of shape \(1, 104\)",
        ),
        (
            lambda meta: None,
            {"patterns": torch.zeros(105, dtype=torch.uint8)},
            "patterns must hold 104 bytes for prompts of",
        ),
        (
            lambda meta: None,
            {"patterns": None},
            "prompts need their texts, patterns and patterns_corrupted, got texts, "
            "patterns_corrupted alone",
        ),
        (
            lambda meta: meta.pop("prompts"),
            {},
            "prompts need their texts, .* got patterns, patterns_corrupted alone",
        ),
    ],
)
def test_forged_patterns_in_tensors(
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    tensors: dict[str, Any],
    message: str,
) -> None:
    path = forged(tmp_path / "a.safetensors", change, **tensors)
    with limits(), pytest.raises(StoreError, match=rf"a\.safetensors.*{message}"):
        Result.load(path)


def test_a_changed_prompt_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    make(make_prompts()).save(path)
    path.write_text(path.read_text().replace('"yes"', '"no"'))
    with pytest.raises(StoreError, match="has changed since it was written"):
        Result.load(path)


def test_prompts_can_be_left_out() -> None:
    assert replace(make(make_prompts()), prompts=None) == make()
