"""The fast tests take some of many parameters, the slow ones the others."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], fast: Collection[Any] = ()) -> list[Any]:
    """Every value as a parameter (a tuple as several); all but those named, or all but every
    eighth, are marked slow."""
    values = list(values)
    kept = fast or values[::8]
    assert all(value in values for value in kept), f"{kept} must be among {values}"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in kept else pytest.mark.slow,
        )
        for value in values
    ]
