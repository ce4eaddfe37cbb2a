"""Which subjects a bench takes, shipped or in a folder, and under which names."""

from pathlib import Path

import pytest

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.multitask import multi_records
from graphcircuits.compare.selection import Unit, select_cases, select_subjects
from tests.compare.folders import save_subject

TASKS = [f"mt-0@{case}" for case in multi_records()["mt-0"]["cases"]]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_selections() -> None:
    assert select_cases("test") == (case_ids(split="test"), [])
    deep, _ = select_cases("deep-pool")
    tested, _ = select_cases("deep-test")
    assert {(load_case(id).family, load_case(id).split) for id in tested} == {("rnd", "test")}
    everything, left_out = select_cases("all")
    assert deep
    for id in deep:
        assert load_case(id).graph.n_layers >= 4
        assert load_case(id).split != "test"
    with pytest.raises(ValueError, match=r"of two kinds: deep-pool, .* deep-test"):
        select_cases("deep")
    shallow = set(everything) - set(deep) - set(case_ids(split="test"))
    assert all(load_case(id).graph.n_layers < 4 for id in shallow)
    assert sorted(everything + left_out) == sorted(case_ids())
    assert "tb-length" in left_out
    assert select_cases("ib-3, tb-length") == (["ib-3", "tb-length"], [])
    with pytest.raises(ValueError, match="unknown case 'ib-3333'"):
        select_cases("ib-3,ib-3333")
    with pytest.raises(
        ValueError,
        match="one of test, pool, paper-pool, interpbench-pool, deep-pool, deep-test, all, or ids",
    ):
        select_cases(",")
    assert select_cases("interpbench-pool") == (case_ids(split="paper-pool"), [])
    there, absent = select_cases("paper-pool")
    assert (len(there), absent) == (48, ["tb-count-less-freq", "tb-test-at-least-two-equal"])
    assert select_subjects("test") == select_cases("test")
    assert select_subjects("tb-length,ib-3") == (["tb-length", "ib-3"], [])


def test_a_word_means_the_subjects_of_its_split_that_ship_in_a_fleet() -> None:
    found, left_out = select_subjects("test", "public")
    assert set(found) == {f"{id}.public.plain.0" for id in case_ids(split="test")}
    assert (len(found), left_out) == (16, [])
    with pytest.raises(ValueError, match="no public subject of interpbench-pool is shipped; build"):
        select_subjects("interpbench-pool", "public")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for id in (
        *("ib-20.natural.plain.0", "ib-3.natural.llama.1", "ib-3.natural.plain.0", "ib-3"),
        *("ib-3.public.plain.0", "ib-7.natural.plain.0", f"{TASKS[0]}.natural.gpt2.0"),
    ):
        save_subject(tmp_path, id)
    (tmp_path / "mine.natural.plain.0.safetensors").write_bytes(b"")
    (tmp_path / "report.json").write_text("{}")
    return tmp_path


def test_subjects_of_a_folder(folder: Path) -> None:
    strange = ["mine.natural.plain.0"]
    test = ["ib-3.natural.llama.1", "ib-3.natural.plain.0", "ib-20.natural.plain.0"]
    tasks = [f"{task}.natural.gpt2.0" for task in TASKS]
    expected = {
        "test": (test, strange),
        "pool": (["ib-7.natural.plain.0"], strange),
        "paper-pool": (["ib-7.natural.plain.0"], strange),
        "all": ([*test[:2], "ib-7.natural.plain.0", test[2]], strange),
        "multitask": (tasks, strange),
        "ib-3": (test[:2], []),
        "ib-20, ib-3.natural.llama.1": ([test[2], test[0]], []),
        "mt-0": (tasks, []),
        TASKS[1]: ([tasks[1]], []),
        "mt-0.natural.gpt2.0": (tasks, []),
    }
    for selection, chosen in expected.items():
        assert select_subjects(selection, "natural", folder) == chosen
    assert select_subjects("all", "planted", folder) == (["ib-3"], strange)
    assert select_subjects("all", "public", folder) == (["ib-3.public.plain.0"], strange)


def test_what_a_folder_does_not_hold(folder: Path) -> None:
    for selection, fleet, message in (
        (
            "deep-pool",
            "natural",
            f"no natural subject of deep-pool is in {folder}; build some with:",
        ),
        ("ib-4", "natural", f"no natural subject of ib-4 is in {folder}; build it with: graphcirc"),
        ("ib-4", "planted", "build it with: graphcircuits build ib-4 --fleet planted"),
        ("mt-1", "natural", f"no natural subject of mt-1 is in {folder}; build it with: graphcirc"),
        ("ib-3333", "natural", "unknown case 'ib-3333'"),
        ("ib-3.public.plain.0", "natural", "ib-3.public.plain.0 is of the fleet public, and nat"),
        ("ib-3.natural.plain", "natural", "a subject is named by its case, such as ib-3, or as"),
        (
            ",",
            "natural",
            "interpbench-pool, deep-pool, deep-test, all, multitask, or ids; got none",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            select_subjects(selection, fleet, folder)


def test_units(folder: Path) -> None:
    one, other, *_ = (Unit.of(f"{task}.natural.gpt2.0") for task in TASKS)
    assert (one.n_tasks, one.has_truth) == (len(TASKS), False)
    subjects = [unit.subject(folder) for unit in (one, other)]
    assert [subject.case for subject in subjects] == TASKS[:2]
    assert subjects[0].config == subjects[1].config
    planted = Unit.of("ib-3.planted.llama-gqa.0")
    assert (planted.n_tasks, planted.has_truth) == (1, True)
    with pytest.raises(FileNotFoundError):
        planted.subject(folder)
