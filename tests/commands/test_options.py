"""Options as text: JSON where it is JSON, and no more of it than the package can walk."""

import pytest

from graphcircuits.commands.output import parse_options
from tests.damage import nested


def test_values_are_json_or_text() -> None:
    found = parse_options(["steps=10", "pool=sum", "at=[1, 2]", "open=[1,"])
    assert found == {"steps": 10, "pool": "sum", "at": [1, 2], "open": "[1,"}


@pytest.mark.parametrize("value", ["[" * 100_000, nested(100_000), nested(101)])
def test_deep_values_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="the option at is nested deeper than 100 levels"):
        parse_options([f"at={value}"])
