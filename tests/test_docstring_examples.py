"""The examples in docstrings of public names give what they say."""

import doctest
from importlib import import_module

import pytest

MODULES = (
    "cases",
    "cases.calls",
    "cases.case",
    "cases.claims",
    "cases.language",
    "cases.multitask",
    "cases.random_programs",
    "circuit",
    "evaluation.localize",
    "graph",
    "methods.shipped",
    "rasp.compile",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    outcome = doctest.testmod(import_module(f"graphcircuits.{name}"))
    assert outcome.attempted
    assert not outcome.failed
