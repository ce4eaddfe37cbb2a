"""The fast tests take some of many parameters, the slow ones the others."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], fast: Collection[Any] = ()) -> list[Any]:
    """Every value as a parameter; all but those named, or all but every eighth, marked slow."""
    values = list(values)
    kept = fast or values[::8]
    assert all(value in values for value in kept), f"{kept} must be among {values}"
    return [
        value if value in kept else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
