"""Facts about InterpBench and TracrBench from `tests/data`; its README says where they are from."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"


@cache
def reference(file: str) -> Any:
    data = (DATA / file).read_bytes()
    return json.loads(gzip.decompress(data) if file.endswith(".gz") else data)


@cache
def reference_cases() -> dict[str, dict[str, Any]]:
    """InterpBench's cases by id."""
    return {case["id"]: case for case in reference("interpbench_cases.json.gz")}


@cache
def reference_tasks(file: str) -> dict[str, dict[str, Any]]:
    """The tasks of one file by id."""
    return {task["id"]: task for task in reference(file)}
