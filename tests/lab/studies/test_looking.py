"""The study of what a look is worth: what variants learn from, that they learn, and the page."""

from pathlib import Path
from typing import Any

import pytest

from lab.looking.judge import PLAIN, RIVAL
from lab.looking.lessons import Shop, jobs_of, look_job, read_lessons, refine_job
from lab.studies import looking
from lab.studies.looking import VARIANTS, Study, Variant, judge, page, train, trained
from tests.lab.looking.groups import ALIKE, settings, sources

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """With lessons of three cases of two folds."""
    shop = Shop(tmp_path / "work", settings())
    for job in jobs_of(sources()):
        assert list(refine_job(shop, job))
        assert list(look_job(shop, job))
    return shop


def test_names_differ() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)


@pytest.mark.slow
def test_variants_learn_from_some_models_and_tasks(shop: Shop) -> None:
    lessons = read_lessons(shop, sources(), jobs_of(sources()), 0)
    count = sum(map(len, lessons))
    assert count == len(ALIKE)

    def drawn(seed: int, **shares: Any) -> list[str]:
        chosen = Variant("some", **shares).lessons(lessons, seed)
        return [source.id for lesson in chosen for source in lesson.sources]

    assert sorted(drawn(0)) == sorted(x.id for x in sources())
    assert len(drawn(0, tasks=1 / 2)) < count
    assert len(drawn(0, models=1 / 4)) < count
    assert drawn(0, tasks=1 / 2) == drawn(0, tasks=1 / 2)
    assert {*map(tuple, (drawn(seed, models=1 / 4) for seed in range(8)))} != {()}


@pytest.mark.slow
def test_every_variant_is_trained_once_and_judged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = VARIANTS[:2]
    monkeypatch.setattr(looking, "VARIANTS", some)
    study = Study(shop, sources(), 2)
    jobs = [(variant, seed) for variant in some for seed in range(2)]
    assert all(list(train(study, job)) for job in jobs)
    assert not any(list(train(study, job)) for job in jobs)
    assert not trained(study, VARIANTS[1], 0).config.looks
    job = sources(ALIKE[0])
    (row,) = judge(study, job)
    assert row["id"] == ALIKE[0]
    assert {RIVAL, PLAIN, *(x.name for x in some)} <= row["figures"].keys()
    assert [*row["figures"][some[0].name]] == ["0", "1"]
    monkeypatch.setattr(looking, "_judged", None)
    assert list(judge(study, job)) == [row]


def figures(ninety: float) -> dict[str, float]:
    return {"0.8": 10.0, "0.9": ninety, "0.95": 40.0, "log_area": 0.5}


def test_the_page_has_ratios_to_eap_ig_along_paths() -> None:
    rows = [
        {"id": f"{x}@t", "figures": {RIVAL: {"0": figures(20)}, "one look": {"0": figures(10)}}}
        for x in "ab"
    ]
    rows[1]["figures"]["one look"]["0"] = figures(40)
    text = page(rows, "Two tasks.")
    row = next(line for line in text.splitlines() if line.startswith("| one look"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # The geometric mean of 10 and 40, and of 1/2 and 2.
    assert cells[:5] == ["one look", "10.0", "20.0", "40.0", "0.500"]
    assert cells[5] == cells[7] == "1.00 [1.00, 1.00]"
    assert cells[6] == "1.00 [0.50, 2.00]"
    assert cells[8] == "1 of 2"
    assert "Two tasks." in text
