"""Tables of what became of models."""

from pathlib import Path
from typing import Any

import pytest

from graphcircuits.cases.collection import does
from graphcircuits.io.files import StoreError
from lab.factory.language.report import check_report, markdown

LEARNED: dict[str, Any] = {
    "model": "gpt2-2x64-chars",
    "layers": 2,
    "heads": 4,
    "width": 64,
    "parameters": 122752,
    "loss": 1.25,
    "bits_per_character": 1.8034,
    "bigram_loss": 2.5,
    "problem": None,
    "tasks": {"quotes": 1.0, "verbs": 0.8, "types": 0.79},
}
FAILED: dict[str, Any] = {
    **{name: value for name, value in LEARNED.items() if name != "tasks"},
    "model": "neox-2x64-chars",
    "loss": None,
    "bits_per_character": None,
    "problem": "its loss is not finite",
}


def test_what_a_model_does() -> None:
    assert does(LEARNED) == ["quotes", "verbs"]
    assert does(FAILED) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.pop("layers"), r"r\.json is not a whole report: no 'layers'"),
        (lambda x: x.update(parameters="9"), "'parameters' must be int, got '9'"),
        (lambda x: x.update(loss=float("nan")), r"losses must be finite or null, got \[nan"),
        (lambda x: x.update(tasks=[1]), r"its tasks must have shares in 0\.\.1, got \[1\]"),
        (lambda x: x.update(tasks={"quotes": None}), r"shares in 0\.\.1, got {'quotes': None}"),
        (lambda x: x.update(tasks={"quotes": float("nan")}), r"got {'quotes': nan}"),
    ],
)
def test_reports_that_no_table_can_be_made_of(change: Any, message: str) -> None:
    report: dict[str, Any] = {**LEARNED, "tasks": dict(LEARNED["tasks"]), "sha256": "ab"}
    assert check_report(Path("r.json"), report) is report
    change(report)
    with pytest.raises(StoreError, match=message):
        check_report(Path("r.json"), report)


def test_tables() -> None:
    lines = markdown([LEARNED, FAILED], "python -m lab.factory language models").splitlines()
    assert lines[0] == "By `python -m lab.factory language models`."
    assert "| gpt2-2x64-chars | 2 | 4 | 64 | 122,752 | 1.250 | 1.803 | 2.500 |" in lines
    assert "| neox-2x64-chars | 2 | 4 | 64 | 122,752 | - | - | 2.500 |" in lines
    assert "- `neox-2x64-chars` did not learn: its loss is not finite." in lines
    assert lines[-5] == "| task | gpt2-2x64-chars | neox-2x64-chars |"
    assert lines[-3:] == ["| `quotes` | 100% |  |", "| `verbs` | 80% |  |", "| `types` | 79% |  |"]
    assert "task" not in markdown([FAILED], "")
