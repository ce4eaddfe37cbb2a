"""The page of planted language models, the reports behind it, and the list that comes of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.cases import case_ids
from graphcircuits.cases.language import language_records
from graphcircuits.cases.orders import Order, shipped_path
from lab.factory import planted_page, planted_plan
from lab.factory.planted.make import path_of
from lab.factory.planted.reports import REPORTS, read_reports, report_of, write_reports
from lab.factory.planted_plan import passed_calls, plan
from lab.files import read_packed


def test_the_list_is_that_of_the_plan_and_the_reports() -> None:
    """Made by `python -m lab.factory planted-plan`."""
    reports = read_reports()
    models = {
        id: model | {"passed": passed_calls(model, reports.get(id))} for id, model in plan().items()
    }
    assert models == language_records()
    assert sum(len(model["passed"]) for model in models.values()) == len(case_ids("plm"))


def test_a_model_that_was_made_by_another_plan_has_no_cases() -> None:
    report = dict(read_reports()["plm-0"])
    model = plan()["plm-0"]
    assert passed_calls(model, report) == ["shift", "count"]
    calls = report["calls"] | {"count": report["calls"]["count"] | {"passed": False}}
    assert passed_calls(model, report | {"calls": calls}) == ["shift"]
    assert passed_calls(model, None) == []
    assert passed_calls(model, report | {"design": report["design"] | {"layers": 3}}) == []
    assert passed_calls(model, report | {"places": {}}) == []


@pytest.mark.slow
def test_what_ships_is_what_was_reported() -> None:
    reports = read_reports()
    for id in language_records():
        path = shipped_path(Order(id))
        if path.is_file():
            assert report_of(path) == reports[id]


def test_the_page_says_what_the_reports_say() -> None:
    """Made by `python -m lab.factory planted-page`."""
    reports = list(read_reports().values())
    written = planted_page.page(reports, REPORTS.name, "../figures/planted-models.png")
    assert REPORTS.with_name("planted-models.md").read_text() == written + "\n"


@pytest.mark.slow
def test_what_is_in_the_folder_takes_the_place_of_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    shutil.copy(shipped_path(Order("plm-0")), path_of(made, "plm-0"))
    stored = read_reports()
    stale: dict[str, Any] = {**stored["plm-0"], "loss": 9.0}
    data, page = tmp_path / "models.jsonl.gz", tmp_path / "models.md"
    write_reports([stored["plm-8"], stale], data)
    monkeypatch.chdir(tmp_path)
    planted_page.main([str(made), "--page", str(page), "--figure", "curves.svg"])
    assert read_reports(data) == {id: stored[id] for id in ("plm-0", "plm-8")}
    assert [json.loads(line)["case"] for line in read_packed(data).splitlines()] == [
        "plm-0",
        "plm-8",
    ]
    text = page.read_text()
    assert text.startswith("# Planted language models\n\n2 models with 5 calls, of which 5 pass ")
    assert "\n| plm-8@same | 5 | 1.000 |" in text
    assert "of the 1 models whose figures are kept: `brackets` 1 models and 1 twins" in text
    assert "<svg" in Path("curves.svg").read_text()
    assert "models.jsonl.gz and curves.svg\n" in capsys.readouterr().out


def test_settings_that_a_command_leaves_out_are_added() -> None:
    reports = read_reports()
    assert planted_page.whole_command(reports["plm-0"]) == (
        "python -m lab.factory planted DIR --models all --device cuda --steps 6000 --rows 256 "
        "--text-rows 48 --minutes 7.42"
    )
    assert planted_page.whole_command(reports["plm-7"]) == reports["plm-7"]["command"]


def test_without_models_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no planted language model in .*; make them with"):
        planted_page.main([str(tmp_path), "--page", str(tmp_path / "models.md")])
    assert list(tmp_path.iterdir()) == []


def test_a_plan_keeps_calls_to_their_part_of_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [("test", "gpt2-2", "shift first", True, 0)]
    monkeypatch.setattr(planted_plan, "MODELS", wrong)
    with pytest.raises(ValueError, match=r"^plm-0 is of test, and first is not\.$"):
        plan()
