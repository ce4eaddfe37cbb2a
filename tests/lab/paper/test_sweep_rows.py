"""Rows of a sweep and their file."""

import json
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.io.store import StoreError, save_artifact
from lab.paper.sweep_rows import (
    CONFIGURATIONS,
    SweepRow,
    command_of,
    configuration_parts,
    read_rows,
    write_rows,
)


def a_row(**changes: Any) -> SweepRow:
    given: dict[str, Any] = {
        "configuration": "dirgnn-line-observed",
        "aligner": "tabpfn",
        "pool": "paper-pool",
        "fleet": "planted",
        "labels": "interpbench",
        "cross_validation": 0.9,
        "eligible": 17,
        "settings": 18,
        "chosen": {"width": 32, "lr": 0.003},
        "step": 400,
        "cases": {"ib-3": (0.5, 0.75), "ib-8": (1.0, 0.0)},
    }
    return SweepRow(**(given | changes))


def test_the_names_are_the_14_of_the_paper() -> None:
    assert len(CONFIGURATIONS) == len(set(CONFIGURATIONS)) == 14
    assert configuration_parts("factorized-incidence-complete") == (
        "factorized",
        "incidence",
        "complete",
    )
    assert "dagformer-line-complete" not in CONFIGURATIONS
    with pytest.raises(ValueError, match="unknown configuration 'gcn'; expected one of factorized"):
        configuration_parts("gcn")


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [a_row(), a_row(cross_validation=None, eligible=0, details={"standardize": False})]
    for name in ("a.json", "b.json"):
        write_rows(
            tmp_path / name, rows, config={"seeds": 2}, command="python -m lab.paper sweep x.toml"
        )
    assert read_rows(tmp_path / "a.json") == rows
    assert command_of(tmp_path / "a.json") == "python -m lab.paper sweep x.toml"
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert rows[0].n_seeds == 2
    assert rows[0].parts == ("dirgnn", "line", "observed")
    assert rows[0].by_seed() == {"ib-3": {0: 0.5, 1: 0.75}, "ib-8": {0: 1.0, 1: 0.0}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"configuration": "dagformer-line-complete"}, "got 'dagformer-line-complete'"),
        ({"eligible": 19}, r"eligible must be in 0\.\.18, the settings in the grid, got 19"),
        ({"cross_validation": float("nan")}, r"cross_validation must be in 0\.\.1, got nan"),
        ({"step": -1}, "step must be at least 0, got -1"),
        ({"cases": {}}, "one number for each seed, as many in each case, got {}"),
        ({"cases": {"ib-3": ()}}, "got {'ib-3': 0}"),
        ({"cases": {"ib-3": (0.5,), "ib-8": (0.5, 0.5)}}, "got {'ib-3': 1, 'ib-8': 2}"),
        ({"cases": {"ib-3": (1.5,)}}, r"scores of ib-3 must be in 0\.\.1, got 1\.5"),
    ],
)
def test_what_cannot_be_a_row(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        a_row(**changes)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    record = json.loads(json.dumps(vars(a_row())))
    for change, told in (
        ({"cases": [1]}, "AttributeError"),
        ({"cases": {"ib-3": ["many"]}}, "could not convert"),
        ({"eligible": "all"}, "'eligible' must be int, got 'all'"),
        ({"colour": 1}, "unknown key"),
    ):
        save_artifact(
            path, kind="sweep-rows", config={}, seed=None, meta={"rows": [record | change]}
        )
        with pytest.raises(
            StoreError, match=r"sweep\.json is not a whole file of sweep rows"
        ) as error:
            read_rows(path)
        assert told in str(error.value)
    save_artifact(path, kind="bench-run", config={}, seed=None)
    with pytest.raises(StoreError, match="holds a 'bench-run' artifact; expected 'sweep-rows'"):
        read_rows(path)
