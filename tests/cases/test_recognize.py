"""Recognizing cases by file, by weights in every dtype, by prompts; and what is not recognized."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits.adapters.interpbench import import_interpbench
from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.orders import Order, shipped_orders
from graphcircuits.cases.recognize import Recognized, fingerprint, recognize, shipped_ids
from graphcircuits.io.store import content_hash
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.benchmarks.interpbench_export import export_interpbench
from lab.generators.subjects import FILE, index
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")


def unmarked(id: str) -> Transformer:
    """A shipped subject as someone else's code would make it, from its weights alone."""
    subject = load_case(id).subject()
    return Transformer(subject.config, dict(subject.weights), subject.codec)


@pytest.mark.slow
def test_the_index_is_that_of_the_shipped_subjects() -> None:
    """Made by `python -m lab.generators subjects`."""
    stored = json.loads(FILE.read_text())
    assert stored == index()
    assert set(stored) == {order.id for order in shipped_orders()}
    assert [id for id in stored if id in case_ids()] == shipped_ids()
    assert len({record["sha256"] for record in stored.values()}) == len(stored)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_weights_are_recognized_in_every_dtype(dtype: str) -> None:
    subject = unmarked("ib-7").to(getattr(torch, dtype))
    assert subject.case is None
    assert recognize(subject).case == "ib-7"


def test_weights_are_recognized_in_another_layout(tmp_path: Path) -> None:
    case = load_case("ib-14")
    export_interpbench(tmp_path, case.subject(), case.circuit, {})
    assert recognize(import_interpbench(tmp_path).transformer).case == "ib-14"


def test_weights_that_were_changed_are_not() -> None:
    subject = unmarked("ib-7")
    subject.weights["b_U"] = subject.weights["b_U"] + 0.01
    assert recognize(subject).case is None
    assert recognize(make_subject()).case is None


def test_other_sizes_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(subject: Transformer) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr("graphcircuits.cases.recognize.fingerprint", refuse)
    assert recognize(make_subject()).case is None
    with pytest.raises(AssertionError, match="hashed"):
        recognize(unmarked("ib-7"))


def test_a_file_of_build_says_its_case(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_transformer(path, make_subject(), meta={"report": {"case": "ib-2"}})
    loaded = load_transformer(path)
    assert recognize(loaded).case == recognize(loaded.to(torch.float32)).case == "ib-2"
    for meta in ({}, {"report": None}, {"report": {"case": 3}}, {"report": {}}):
        save_transformer(path, make_subject(), meta=meta)
        assert load_transformer(path).case is None


def test_a_file_of_build_says_how_it_was_trained(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    # Files of older builds do not say it: those were planted.
    for said, fleet in (
        ({}, "planted"),
        ({"fleet": 3}, "planted"),
        ({"fleet": "public"}, "public"),
    ):
        save_transformer(path, make_subject(), meta={"report": {"case": "ib-2", **said}})
        assert load_transformer(path).fleet == fleet
        assert recognize(load_transformer(path)).planted == "ib-2"
    report = {"case": "ib-2", "fleet": "natural"}
    save_transformer(path, make_subject(), meta={"report": report})
    natural = load_transformer(path).to(torch.float64)
    assert natural.fleet == "natural"
    assert recognize(natural) == Recognized("ib-2", None)
    save_transformer(path, make_subject(), meta={"report": {"fleet": "natural"}})
    assert load_transformer(path).fleet is None


def test_shipped_natural_weights_belong_to_their_case_and_have_no_circuit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = make_subject()
    size = sum(weight.numel() for weight in subject.weights.values())
    known = {(size, fingerprint(subject)): Order("ib-2", "natural", "gpt2")}
    monkeypatch.setattr("graphcircuits.cases.recognize._by_content", lambda: known)
    assert recognize(subject) == Recognized("ib-2", None)
    monkeypatch.undo()
    assert recognize(unmarked("ib-7")).planted == "ib-7"
    assert recognize(subject).planted is None


def test_prompts_of_a_case_say_so() -> None:
    pairs = load_case("ib-7").pairs(4)
    subject = make_subject()
    assert recognize(subject, pairs).case == "ib-7"
    assert recognize(subject, pairs[:2]).case == recognize(subject, pairs.to("cpu")).case == "ib-7"
    assert recognize(subject, Pairs.concatenate([pairs, pairs])).case == "ib-7"
    mixed = Pairs.concatenate([pairs, replace(pairs, case="ib-14")])
    assert recognize(subject, mixed).case is None
    # The circuit is in the subject: prompts speak only where it says nothing.
    assert recognize(unmarked("ib-2"), pairs).case == "ib-2"


def test_marks_are_no_content() -> None:
    marked, plain = load_case("ib-7").subject(), unmarked("ib-7")
    assert fingerprint(marked) == fingerprint(plain)
    assert content_hash(marked) == content_hash(plain)
    pairs = load_case("ib-7").pairs(2)
    assert content_hash(pairs) == content_hash(replace(pairs, case=None))
