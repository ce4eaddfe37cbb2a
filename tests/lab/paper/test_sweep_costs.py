"""What trainings cost, from the times that a sweep keeps or from rows."""

import gzip
import json
from pathlib import Path

import pytest

from graphcircuits.io.files import StoreError
from lab.paper.sweep_costs import cost_markdown, formula_markdown, read_costs


def a_line(name: str, **changes: object) -> str:
    given = {"id": f"{name}.width=32.fold-0", "seconds": 80.0, "together": 16, "steps": 200}
    return json.dumps(given | {"device": "cuda", "precision": "bfloat16"} | changes)


def test_a_training_costs_its_share(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    lines = [a_line("dirgnn-line-none"), a_line("dirgnn-line-none"), a_line("dagformer-line-none")]
    path.write_text("\n".join(lines) + "\n")
    first, second, every = read_costs(path)
    assert first == {
        "name": "dirgnn-line-none",
        "device": "cuda",
        "precision": "bfloat16",
        "runs": 2,
        "side by side": 16.0,
        "seconds_per_step": 0.025,
        "seconds_per_run": 5.0,
        "runs_per_hour": 720.0,
    }
    assert (second["runs"], every["name"], every["runs"]) == (1, "all", 3)
    table = cost_markdown([first, every]).splitlines()
    assert table[0].endswith("| Seconds per step | Seconds per run | Runs per hour |")
    assert table[2] == ("| dirgnn-line-none | cuda | bfloat16 | 2 | 16 | 0.025 | 5 | 720 |")
    # Of two devices there is no sum.
    path.write_text(f"{a_line('a')}\n{a_line('a', device='cpu')}\n")
    assert [row["device"] for row in read_costs(path)] == ["cuda", "cpu"]


def test_times_may_be_packed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "times.jsonl", tmp_path / "times.jsonl.gz"
    plain.write_text(a_line("a") + "\n")
    whole = gzip.compress(plain.read_bytes())
    packed.write_bytes(whole)
    assert read_costs(packed) == read_costs(plain)
    for damaged in (b"{}", whole[:-9], whole[:12] + b"\xff\xff" + whole[14:]):
        packed.write_bytes(damaged)
        with pytest.raises(StoreError, match="must be text packed by gzip"):
            read_costs(packed)


def test_rows_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    rows = [{"name": "one card", "runs_per_hour": 1234.5678}, {"name": "a", "note": "x|y"}]
    path.write_text(json.dumps(rows))
    assert cost_markdown(read_costs(path)).splitlines() == [
        "| What | Runs per hour | Note |",
        "| --- | ---: | ---: |",
        "| one card | 1235 |  |",
        "| a |  | x\\|y |",
    ]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", "{}", "line 1 is not that of a training: .*id"),
        ("a.jsonl", "[1", "line 1 is not that of a training"),
        ("a.jsonl", a_line("a", together=0), "seconds, together and steps must be above 0"),
        ("a.jsonl", a_line("a", seconds="long"), "line 1 is not that of a training"),
        ("a.jsonl", "", "has no line"),
        ("a.json", "{}", "must be a list of records with a name and numbers or text, got {}"),
        ("a.json", '[{"runs": 1}]', "must be a list of records with a name"),
        ("a.json", '[{"name": "a", "b": [1]}]', r"numbers or text, got {'b': \[1\]}"),
        ("a.json", '[{"name": "a", "b": true}]', "numbers or text, got {'b': True}"),
    ],
)
def test_what_is_no_cost(name: str, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(StoreError, match=told):
        read_costs(tmp_path / name)


def test_the_formulas() -> None:
    assert "| GCL | W_feat + W_pred | S_feat + S_pred |" in formula_markdown()
    assert len(formula_markdown().splitlines()) == 7
