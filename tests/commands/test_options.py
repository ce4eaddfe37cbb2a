"""Options of methods as text: values of the right type, and refusals that quote what was typed."""

from collections.abc import Sequence
from typing import Any, cast, get_args

import pytest
import torch
from torch import Tensor

from graphcircuits import methods
from graphcircuits.commands.options import listed_methods, method_options, options_by_method
from graphcircuits.commands.output import parse_options
from graphcircuits.methods import METHODS, options_of
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.damage import nested


def many(
    subject: Transformer,
    pairs: Pairs,
    *,
    n_steps: int = 1,
    rate: float = 0.5,
    file: str = "",
    fast: bool = False,
    parts: Sequence[float] = (1.0,),
    limit: int | None = None,
    free=3,  # pyright: ignore[reportMissingParameterType]
) -> Tensor:
    return torch.zeros(subject.graph.n_edges)


@pytest.fixture(autouse=True)
def _with_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, Any], methods.METHODS), "many", many)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n-steps=7", 7),
        ("rate=2", 2),
        ("rate=1e30", 1e30),
        ("file=5", "5"),
        ("file=true", "true"),
        ("file=[1", "[1"),
        ('file="a b"', "a b"),
        ("fast=true", True),
        ("parts=[1, 2.5]", [1, 2.5]),
        ("parts=[]", []),
        ("limit=null", None),
        ("limit=4", 4),
        ("free=4", 4),
    ],
)
def test_values_that_fit(text: str, value: object) -> None:
    (found,) = method_options("many", [text]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n-steps=abc", "n-steps of many must be a whole number"),
        ("n_steps=1.5", "n_steps of many must be a whole number"),
        ("n-steps=true", "n-steps of many must be a whole number"),
        ("n-steps=99999999999999999999", "n-steps of many must be a whole number"),
        ("rate=fast", "rate of many must be a number"),
        ("rate=NaN", "rate of many must be a number"),
        ("rate=-Infinity", "rate of many must be a number"),
        ("rate=1e999", "rate of many must be a number"),
        ("rate=false", "rate of many must be a number"),
        ("fast=1", "fast of many must be true or false"),
        ("parts=3", "parts of many must be a list, each item a number"),
        ('parts=["x"]', "parts of many must be a list, each item a number"),
        ("limit=x", "limit of many must be a whole number or null"),
        ("free=x", "free of many must be a whole number"),
    ],
)
def test_values_that_do_not_fit(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole text is compared
        method_options("many", [text])
    assert str(caught.value) == f"--option {text}: {words}."
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        options_by_method([f"many.{text}"], ["many"])
    assert str(caught.value) == f"--option many.{text}: {words}."


@pytest.mark.parametrize("name", METHODS)
def test_defaults_of_every_method_are_taken_as_they_are(name: str) -> None:
    """Were an annotation not understood, every value of its option would be let through."""
    import json

    for option, default in options_of(METHODS[name]).items():
        text = default if isinstance(default, str) else json.dumps(default)
        (found,) = method_options(name, [f"{option}={text}"]).values()
        assert found == (list(default) if isinstance(default, tuple) else default)
        hint = METHODS[name].annotations[option]
        if str not in (hint, *get_args(hint)):
            with pytest.raises(ValueError, match=rf"--option {option}=no: {option} of {name} must"):
                method_options(name, [f"{option}=no"])


def test_unknown_options() -> None:
    with pytest.raises(ValueError, match=r"^--option N-STEP=1: many has no option 'N-STEP'; did"):
        method_options("many", ["N-STEP=1"])
    with pytest.raises(ValueError, match=r"no option 'x'; it has n-steps, rate, file, fast, parts"):
        method_options("many", ["x=1"])
    with pytest.raises(
        ValueError, match=r"--option random.x=1: random has no option 'x'; it has paths"
    ):
        options_by_method(["random.x=1"], ["random"])
    with pytest.raises(ValueError, match=r"unknown method 'EAP-IG'; did you mean 'eap-ig'\?"):
        options_by_method(["EAP-IG.steps=1"], ["eap-ig"])
    with pytest.raises(ValueError, match="are given for methods that do not run: many"):
        options_by_method(["many.rate=1"], ["random"])
    for text in ("steps=3", "eap", ".x=1=2", "pool=a.b"):
        expected = r"unknown method ''" if text[0] == "." else "METHOD.NAME=VALUE, got"
        with pytest.raises(ValueError, match=expected):
            options_by_method([text], ["eap"])


def test_lists_of_methods() -> None:
    assert listed_methods(None) == [name for name in METHODS if name != "gcl-paper"]
    assert listed_methods("eap, random") == ["eap", "random"]
    with pytest.raises(ValueError, match="unknown method ''"):
        listed_methods("")
    with pytest.raises(ValueError, match=r"--methods names eap twice\."):
        listed_methods("eap,random,eap")


def test_values_are_json_or_text() -> None:
    found = parse_options(["steps=10", "pool=sum", "at=[1, 2]", "open=[1,", "path=NaN"])
    assert found == {"steps": 10, "pool": "sum", "at": [1, 2], "open": "[1,", "path": "NaN"}


@pytest.mark.parametrize("value", ["[" * 100_000, nested(100_000), nested(101)])
def test_deep_values_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="the option at is nested deeper than 100 levels"):
        parse_options([f"at={value}"])
