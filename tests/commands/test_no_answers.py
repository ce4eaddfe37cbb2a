"""Prompts without answers, through every command that reads a file of them and in Python."""

import json
from pathlib import Path

import pytest
import torch

from graphcircuits import Pairs, faithfulness, load_model, localize
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from tests import text
from tests.adapters.hf_models import make_model, make_tokenizer
from tests.shell import Command, refused
from tests.subjects import make_config, make_subject

pytestmark = pytest.mark.usefixtures("unchecked")

PROMPTS = [("to be or not", "to be or be"), ("or be", "be be"), ("not to be", "not or be")] * 3
FLAT = (
    "the gradient of the loss is zero at every edge, so all scores would be zero; without answers"
)


@pytest.fixture
def words(tmp_path: Path) -> list[str | Path]:
    """A model with a tokenizer, and prompts of several lengths in words, without answers."""
    with torch.random.fork_rng(devices=[]):
        make_model("llama").save_pretrained(tmp_path / "tiny")
    make_tokenizer().save_pretrained(tmp_path / "tiny")
    rows = "".join(f"{clean},{corrupted}\n" for clean, corrupted in PROMPTS)
    (tmp_path / "pairs.csv").write_text(f"clean,corrupted\n{rows}")
    lines = [json.dumps({"clean": clean, "corrupted": other}) for clean, other in PROMPTS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    return ["--model", tmp_path / "tiny", "--words"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["pairs.csv", "pairs.jsonl"])
def test_from_localize_to_evaluate(
    command: Command, words: list[str | Path], file: str, tmp_path: Path
) -> None:
    given = [*words, "--pairs-file", file]
    written = ["--out", "a.json", "--html", "a.html"]
    ended = command("localize", *given, "--method", "eap-ig", "--edges", "40", *written, "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["right"], record["pairs"]) == (None, 9)
    assert "right" not in ended.err
    # The same in Python, where each prompt is scored at its own last token.
    subject = load_model(tmp_path / "tiny")
    clean, corrupted = map(list, zip(*PROMPTS, strict=True))
    pairs = Pairs.from_text(subject.tokenizer, clean=clean, corrupted=corrupted)
    assert (pairs.loss_name, pairs.targets, pairs.incorrect) == ("kl", None, None)
    assert pairs.scored.nonzero()[:, 1].tolist() == [len(one.split()) - 1 for one in clean]
    result = localize(subject, pairs, "eap-ig", keep=None)
    scores = {row["edge"]: row["score"] for row in record["ranking"]}
    assert scores == pytest.approx(dict(result.top(subject.graph.n_edges)), rel=1e-5)
    (kept,) = faithfulness(subject, pairs, [result.circuit(edges=40)])
    assert record["faithfulness"]["found_on"] == pytest.approx(kept, rel=1e-4)
    ended = command("evaluate", "a.json", *given, "--sizes", "40", "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert record["right"] is None
    assert "right" not in ended.err
    assert record["results"][0]["circuit"]["faithfulness"] == pytest.approx(kept, rel=1e-4)
    shown = command("evaluate", "a.json", *given, "--sizes", "40")
    assert "right on" not in shown.out
    assert "\n9 pairs\n" in shown.out


def test_padded_prompts_have_the_scores_that_they_have_alone() -> None:
    tokenizer = text.word_level({word: id for id, word in enumerate(["<unk>", *"abcdef"])})
    config = make_config(d_vocab=len(tokenizer), d_vocab_out=len(tokenizer), n_ctx=8)
    subject = Transformer.random(config, torch.Generator().manual_seed(0))
    clean, corrupted = ["a b c d e", "b c"], ["a f c d e", "f c"]
    together = localize(subject, Pairs.from_text(tokenizer, clean, corrupted), "eap-ig", keep=None)
    alone = [
        localize(subject, Pairs.from_text(tokenizer, [one], [other]), "eap-ig", keep=None)
        for one, other in zip(clean, corrupted, strict=True)
    ]
    expected = (alone[0].scores + alone[1].scores) / 2
    torch.testing.assert_close(together.scores, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_interactions(command: Command, words: list[str | Path]) -> None:
    ended = command("interact", "pairs.jsonl", *words, "--edges", "input->m1,a0.h0->m1", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["pairs"] == 9


@pytest.mark.slow
def test_what_needs_answers_says_so(command: Command, words: list[str | Path]) -> None:
    given = ["localize", *words, "--pairs-file", "pairs.csv"]
    refused(command(*given, "--only-right"), "--only-right needs answers to compare with, and the")
    for method in ("eap", "relp"):
        refused(command(*given, "--method", method), FLAT)
    refused(command(*given, "--method", "nap"), "give nap steps, such as 5, or give answers.")
    assert command(*given, "--method", "nap", "--option", "steps=2", "--edges", "9").code == 0


def test_gradients_at_the_clean_run_are_refused_in_single_precision_too() -> None:
    """Rounding leaves scores of about 1e-9, which rank nothing."""
    subject = make_subject().to(torch.float32)
    tokens = torch.tensor([[0, 2, 3], [4, 2, 0]])
    last = torch.tensor([[False, False, True]] * 2)
    pairs = Pairs(clean=tokens, corrupted=tokens.flip(0), scored=last, loss_name="kl")
    for method in ("eap", "relp"):
        with pytest.raises(ValueError, match=FLAT):
            localize(subject, pairs, method)
    assert localize(subject, pairs, "eap", keep=None, direction="denoising").scores.max() > 1e-4


@pytest.mark.slow
def test_numbers_are_compared_by_their_distance(command: Command, tmp_path: Path) -> None:
    """A subject whose output is one number, and a file that says nothing of a loss."""
    subject = make_subject(d_vocab_out=1)
    save_transformer(tmp_path / "number.safetensors", subject)
    (tmp_path / "ids.csv").write_text("clean,corrupted\n0 2 3 4,1 3 3 4\n4 2 2 0,3 2 1 1\n")
    given = ["--model", "number.safetensors", "--pairs-file", "ids.csv", "--method", "exact"]
    ended = command("localize", *given, "--edges", "9", "--json")
    assert ended.code == 0, ended.err
    scores = {row["edge"]: row["score"] for row in json.loads(ended.out)["ranking"]}
    named = Pairs.load(tmp_path / "ids.csv", loss_name="l1")
    expected = localize(subject, named, "exact", keep=None)
    assert scores == pytest.approx(dict(expected.top(subject.graph.n_edges)))
