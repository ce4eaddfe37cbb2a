"""Reference facts about InterpBench that lie beside a checkout; absent from a plain clone."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"

needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="the reference files are not beside this checkout"
)


@cache
def reference(file: str) -> Any:
    return json.loads((REFERENCE / file).read_text("utf-8"))


def reference_cases() -> dict[str, dict[str, Any]]:
    """InterpBench's cases by id."""
    return {case["id"]: case for case in reference("interpbench_cases.json")}
