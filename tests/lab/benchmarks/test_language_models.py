"""The table of language models: the whole program on tiny models, from pairs to the page."""

import json
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
from lab.benchmarks import language_models, language_models_page
from lab.benchmarks.language_models import draw, main, model_files

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
GIVEN += ["--methods", "eap,edge-pruning,random", "--option", "edge-pruning.steps=1"]
PAGE = ["--out", "docs/page.md", "--figure", "figures/curves.svg"]


@pytest.mark.slow
def test_all_at_once(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--models", str(models), *GIVEN, *PAGE]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert said.count(": CMD ") == 2 * 2 * 3
    page = (tmp_path / "docs" / "page.md").read_text()
    assert "![Faithfulness curves](../figures/curves.svg)" in page
    assert "<svg" in (tmp_path / "figures" / "curves.svg").read_text()
    assert page.count("| method | ioi | plurals | mean |") == 2 * len(language_models_page.NUMBERS)
    assert page.count("Left out: agreement (2 tasks were taken before).") == 2
    assert "| edge-pruning | " in page
    assert "steps 1, " in page
    assert "\nFailed" not in page

    # A cell is what the method and the curve give.
    folder = tmp_path / "store" / "one"
    subject = language_models._subject(
        Path("store"), models, "one", language_models.Settings(options={})
    )
    found, fresh = (Pairs.load(folder / "ioi" / f"{name}.jsonl") for name in ("found", "fresh"))
    scores = localize(subject, found, "eap")
    curve = faithfulness_curve(subject, fresh, scores, by="loss", sizes="mib")
    unit = json.loads((folder / "ioi" / "eap.json").read_text())
    needed = faithfulness_curve(subject, fresh, scores).edges_for(0.9)
    assert unit["curves"]["log"]["edges_for"]["0.9"] == needed
    cells = page.split("## one")[1].split("### Edges that keep 0.9")[1].split("| eap | ")[1]
    assert cells.split(" | ")[0].strip("*") == f"{needed:,}"
    assert unit["curves"]["mib"]["cmd"] == pytest.approx(curve.cmd, abs=1e-5)
    cells = page.split("## one")[1].split("### CMD, MIB")[1].split("| eap | ")[1]
    assert cells.split(" | ")[0].strip("*") == f"{unit['curves']['mib']['cmd']:.3f}"

    # What is there is not done again, what is damaged is.
    (folder / "ioi" / "eap.json").write_text("{")
    assert main(given) == 0
    assert re.findall(r"^(\S+ \S+ \S+): CMD", capsys.readouterr().out, re.MULTILINE) == [
        "one ioi eap"
    ]


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
    assert not list(tmp_path.glob("store/*/*/eap.json"))
    assert main([*GIVEN, "--only-run", "--minutes", "0"]) == 1
    assert len(list(tmp_path.glob("store/*/*/*.json"))) == 1
    assert main([*GIVEN, "--only-run"]) == 0
    assert len(list(tmp_path.glob("store/*/*/eap.json"))) == 4
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
        patched.setattr(language_models, "evaluate", broken)
        given = ["--models", str(models), *GIVEN, *PAGE]
        given[given.index("eap,edge-pruning,random")] = "random"
        given = given[: given.index("--option")] + PAGE
        (models / "two.bin").unlink()
        assert main(given) == 2
    captured = capsys.readouterr()
    assert "one ioi random: failed: out of memory\n" in captured.out
    assert captured.err == "store holds no results; run without --only-page first.\n"
    plurals = tmp_path / "store" / "one" / "plurals" / "random.json"
    kept = plurals.read_bytes()
    assert main(given) == 0
    plurals.write_bytes(kept)
    assert main([*GIVEN, *PAGE, "--only-page"]) == 0
    page = (tmp_path / "docs" / "page.md").read_text()
    assert "Failed: random on plurals (out of memory)." in page
    # A mean without all of its tasks would be another number.
    assert re.search(r"\| random \| \*\*\S+\*\* \|  \|  \|", page)


@pytest.mark.slow
def test_pairs_are_kept_apart() -> None:
    tokenizer = Words()
    for name in ("ioi", "plurals"):
        found, fresh, asked = draw(tasks.find(name), tokenizer, 6)
        assert len(found) == len(fresh) == 6
        for one, other in ((fresh, found), (asked, fresh)):
            left = unseen(one, other)
            assert left is not None
            assert len(left) == len(one)
        assert 0 < len(asked) <= language_models.ASKED
    few = tasks.find("plurals")
    with pytest.raises(ValueError, match="only 0 pairs are left that no circuit was found on"):
        draw(lambda t, n, seed: few(t, n=4, seed=0), tokenizer, 4)


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
