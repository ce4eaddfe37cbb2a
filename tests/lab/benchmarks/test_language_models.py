"""The table of language models: the whole program on tiny models, from pairs to the page."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits import tasks
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.evaluation.proposal import unseen
from graphcircuits.methods import localize
from graphcircuits.subject.files import load_transformer
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from graphcircuits.task.pairs import Pairs
from lab.benchmarks import language_models
from lab.benchmarks.language_models import draw, main, model_files, to_ask

SIZES: dict[str, Any] = {"n_layers": 1, "n_heads": 2, "d_model": 8, "d_head": 4, "d_mlp": 8}
WORDS = 1500


class Words:
    """A tokenizer that makes every word one token, in the order in which it meets them."""

    pad_token_id = 0
    eos_token_id = None

    def __init__(self) -> None:
        self.ids: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> dict[str, list[int]]:
        words = re.findall(r" ?\w+|[^\w\s]|\s", text)
        return {"input_ids": [self.ids.setdefault(word, len(self.ids)) for word in words]}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two models, and a program that asks little of them."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one.gguf", "two.bin", "tokenizer.bin", "README.md"):
        (folder / name).write_bytes(b"")

    def load_model(source: Path, *, device: str, dtype: str) -> Transformer:
        if source.suffix == ".safetensors":
            return load_transformer(source)
        config = TransformerConfig(n_ctx=64, d_vocab=WORDS, d_vocab_out=WORDS, **SIZES)
        generator = torch.Generator().manual_seed(len(source.name))
        plain = Transformer.random(config, generator, dtype=torch.float32)
        return Transformer(config, plain.weights, tokenizer=Words())

    monkeypatch.setattr("graphcircuits.adapters.load.load_model", load_model)
    monkeypatch.setattr(language_models, "LEAST_RIGHT", 0.0)
    monkeypatch.setattr(language_models, "ASKED", 4)
    monkeypatch.chdir(tmp_path)
    return folder


GIVEN = ["--store", "store", "--tasks", "ioi,plurals,agreement", "--most", "2", "--pairs", "3"]
GIVEN += ["--seeds", "2", "--once", "edge-pruning", "--start", "eap"]
GIVEN += ["--methods", "eap-ig,edge-pruning,random", "--option", "edge-pruning.steps=1"]
PAGE = ["--out", "docs/page.md", "--figure", "figures/curves.svg"]


@pytest.mark.slow
def test_all_at_once(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--models", str(models), *GIVEN, *PAGE]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert said.count(" edges for .9, ") == 2 * 2 * (2 + 1 + 2)
    page = (tmp_path / "docs" / "page.md").read_text()
    assert "![Edges for .9 of the output against seconds](../figures/curves.svg)" in page
    assert "<svg" in (tmp_path / "figures" / "curves.svg").read_text()
    assert page.count("| method | ioi | plurals |") == 2
    assert page.count("Left out: agreement (2 tasks were taken before).") == 2
    assert "| edge-pruning | 1 | " in page
    assert "steps 1, " in page
    assert "\nFailed" not in page

    # A cell is what the method and the curve give.
    folder = tmp_path / "store" / "one"
    subject = language_models._subject(
        Path("store"), models, "one", language_models.Settings(options={})
    )
    place = folder / "ioi" / "1"
    found, fresh = (Pairs.load(place / f"{name}.jsonl") for name in ("found", "fresh"))
    result = localize(subject, found, "eap-ig")
    mib = faithfulness_curve(subject, fresh, result, by="loss", sizes="mib")
    unit = json.loads((place / "eap-ig.json").read_text())
    assert unit["cmd"] == pytest.approx(mib.cmd, abs=1e-5)
    assert unit["edges_for"]["0.9"] == faithfulness_curve(subject, fresh, result).edges_for(0.9)
    both = [json.loads((folder / "ioi" / str(n) / "eap-ig.json").read_text()) for n in (0, 1)]
    expected = math.sqrt(math.prod(one["edges_for"]["0.9"] for one in both))
    cells = page.split("## one")[1].split("### Edges for .9")[1].split("| eap-ig | ")[1]
    assert cells.split(" | ")[0].strip("*") == f"{expected:,.0f}"

    # What is there is not done again, what is damaged is.
    (place / "eap-ig.json").write_text("{")
    assert main(given) == 0
    assert re.findall(r"^(\S+ \S+ \S+ \S+): \d", capsys.readouterr().out, re.MULTILINE) == [
        "one 1 ioi eap-ig"
    ]


@pytest.mark.slow
def test_refined_for_so_many_seconds(models: Path, tmp_path: Path) -> None:
    (models / "two.bin").unlink()
    given = ["--models", str(models), *GIVEN[: GIVEN.index("--methods")], *PAGE, "--most", "1"]
    assert main([*given, "--methods", "refine-1", "--seeds", "1"]) == 0
    unit = json.loads((tmp_path / "store" / "one" / "ioi" / "0" / "refine-1.json").read_text())
    assert unit["given"] == {"start": "eap"}
    assert unit["options"]["refine_seconds"] <= 1


@pytest.mark.slow
def test_in_three_steps_without_the_models(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = ["--models", str(models), *GIVEN, "--only-prepare"]
    assert main(prepare) == 0
    assert not list(tmp_path.glob("store/*/subject.safetensors"))
    assert main([*GIVEN, "--only-run"]) == 2
    said = "subject.safetensors is not there; name the folder of the model with --models.\n"
    assert capsys.readouterr().err.endswith(said)
    assert main([*prepare, "--weights"]) == 0
    for file in models.iterdir():
        file.unlink()
    assert not list(tmp_path.glob("store/*/*/*/eap-ig.json"))
    assert main([*GIVEN, "--only-run", "--minutes", "0"]) == 1
    assert len(list(tmp_path.glob("store/*/*/*/*.json"))) == 1
    assert main([*GIVEN, "--only-run"]) == 0
    assert len(list(tmp_path.glob("store/*/*/*/eap-ig.json"))) == 8
    assert not (tmp_path / "docs").exists()
    assert main([*GIVEN, *PAGE, "--only-page"]) == 0
    assert (tmp_path / "docs" / "page.md").exists()


@pytest.mark.slow
def test_failures_are_kept_and_tried_again(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory\nat some length")

    with monkeypatch.context() as patched:
        patched.setattr(language_models, "faithfulness_curve", broken)
        given = ["--models", str(models), *GIVEN, *PAGE]
        given[given.index("eap-ig,edge-pruning,random")] = "random"
        given = given[: given.index("--option")] + PAGE
        (models / "two.bin").unlink()
        assert main(given) == 2
    captured = capsys.readouterr()
    assert "one 0 ioi random: failed: out of memory\n" in captured.out
    assert captured.err == "store holds no results; run without --only-page first.\n"
    plurals = tmp_path / "store" / "one" / "plurals" / "0" / "random.json"
    kept = plurals.read_bytes()
    assert main(given) == 0
    plurals.write_bytes(kept)
    assert main([*GIVEN, *PAGE, "--only-page"]) == 0
    page = (tmp_path / "docs" / "page.md").read_text()
    assert "Failed: random on plurals, seed 0 (out of memory)." in page


@pytest.mark.slow
def test_pairs_are_kept_apart() -> None:
    tokenizer = Words()
    for name in ("ioi", "plurals"):
        found, fresh = draw(tasks.find(name), tokenizer, 6, 1)
        asked = to_ask(tasks.find(name), tokenizer, fresh)
        assert len(found) == len(fresh) == 6
        for one, other in ((fresh, found), (asked, fresh)):
            left = unseen(one, other)
            assert left is not None
            assert len(left) == len(one)
        assert 0 < len(asked) <= language_models.ASKED
    few = tasks.find("plurals")
    with pytest.raises(ValueError, match="only 0 pairs are left that no circuit was found on"):
        draw(lambda t, n, seed: few(t, n=4, seed=0), tokenizer, 4, 0)


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*given: str) -> str:
        assert main(["--store", str(tmp_path / "store"), *given]) == 2
        return capsys.readouterr().err

    assert refused() == "give the folder of the models with --models.\n"
    assert "no model in" in refused("--models", str(tmp_path))
    assert "unknown method 'eapp'; did you mean 'eap'?" in refused("--methods", "eapp")
    assert "nothing was prepared in" in refused("--only-run", "--methods", "eap")
    assert "holds no results" in refused("--only-page", "--methods", "eap")
    said = refused("--methods", "eap", "--option", "ugs.steps=3")
    assert "ugs" in said
    with pytest.raises(ValueError, match=r"expected files ending in \.gguf, \.bin, \.safetensors"):
        model_files(tmp_path / "absent")
