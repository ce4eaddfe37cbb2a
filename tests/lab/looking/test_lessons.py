"""Lessons in files: which sources make a job, what is refined and looked at once, what is read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.cases.orders import Order
from graphcircuits.io.store import load_artifact
from graphcircuits.training.sources import Source
from lab.looking import lessons
from lab.looking.cases import look_again, look_at
from lab.looking.learn import Lesson
from lab.looking.lessons import (
    REFINED,
    TOGETHER,
    Job,
    Shop,
    jobs_of,
    lessons_path,
    look_job,
    read_lessons,
    refine_job,
    refined_path,
)
from lab.looking.targets import log_area
from tests.lab.looking.groups import (
    ALIKE,
    OTHER,
    Few,
    as_kind,
    group,
    ids_of,
    make_looker,
    settings,
    sources,
)
from tests.training.examples import natural_of

pytestmark = pytest.mark.usefixtures("unchecked")


def made(name: str, path: str = "corpus", fold: int = 0) -> Source:
    return Source(Order(name), path, name, (name,), (fold,))


def task(model: str, name: str) -> Source:
    return Source(None, model, name, (f"task:{name}",), (0,))


# Jobs


def test_tasks_of_a_language_model_make_a_job() -> None:
    one, other = ([task(x, f"t{n}") for n in range(TOGETHER + 8)] for x in ("gpt", "llama"))
    assert jobs_of([*one, *other]) == [tuple(one), tuple(other)]
    mixed = [source for both in zip(one, other, strict=True) for source in both]
    assert jobs_of(mixed) == [tuple(one), tuple(other)]


def test_subjects_of_a_corpus_make_jobs_of_one_fold() -> None:
    some = [made(f"rnd-{n}", fold=n % 2) for n in range(4 * TOGETHER + 2)]
    others = [made(f"rnd-{n}", "another") for n in range(3)]
    language = [task("gpt", "quotes")]
    given = [*some, *others, *language]
    jobs = jobs_of(given)
    assert sorted(map(len, jobs)) == [1, 1, 1, 3, *[TOGETHER] * 4]
    assert sorted(x.id + x.path for job in jobs for x in job) == sorted(
        x.id + x.path for x in given
    )
    for job in jobs:
        assert len({(x.path, x.folds) for x in job}) == 1
    assert jobs_of([]) == []


def test_files_are_named_by_what_is_in_them(tmp_path: Path) -> None:
    job, config = sources(), settings()

    def paths(job: Job = job, **changes: Any) -> tuple[Path, Path]:
        shop = Shop(tmp_path, replace(config, **changes))
        return refined_path(shop, job), lessons_path(shop, job, 0)

    longer = replace(config.train, steps=99)
    assert paths() == paths(train=longer)
    others = [paths(job[:2]), paths(refined=9), paths(read=9), paths(judged=9)]
    for found in zip(paths(), *others, strict=True):
        assert len(set(found)) == 5
    # Other looks at the same refined values.
    more = paths(looker=replace(config.looker, sizes=4))
    assert more[0] == paths()[0]
    assert more[1] != paths()[1]
    first, second = (lessons_path(Shop(tmp_path, config), job, n) for n in (0, 1))
    assert first != second


# Refining, looking, reading


@pytest.fixture
def job() -> Job:
    """Of two groups, and a case that has too few prompts."""
    first, second, third, other = sources(*ALIKE, OTHER)
    return first, as_kind(Few, second), other, third


def refine(shop: Shop, job: Job) -> Path:
    list(refine_job(shop, job))
    return refined_path(shop, job)


def lessons_of(shop: Shop, job: Job, number: int = 0, *lookers: Any) -> list[Lesson]:
    """All that a job has to teach."""
    refine(shop, job)
    list(look_job(shop, job, number, lookers))
    return read_lessons(shop, job, [job], number)


def test_a_job_is_refined_once(
    job: tuple[Source, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path / "new" / "refined", settings())
    words = list(refine_job(shop, job))
    path = refined_path(shop, job)
    assert list(path.parent.iterdir()) == [path]
    assert words[0].endswith(f"{job[0].path}: 3 cases, log area {words[0][-14:]}")
    assert words[1:] == [
        f"left out: {ALIKE[1]}: {ALIKE[1]} has 3 and 3 pairs, not 8 to read and 6 to judge by."
    ]
    artifact = load_artifact(path, REFINED)
    assert artifact.tensors.keys() == {ALIKE[0], ALIKE[2], OTHER}
    assert artifact.meta["left_out"].keys() == {ALIKE[1]}
    # Each has its own values: those whose log area is recorded.
    found = group()
    for row, name in ((0, ALIKE[0]), (2, ALIKE[2])):
        before, after = artifact.meta["areas"][name]
        assert after <= before
        stack, values = found.stack.subset([row]), artifact.tensors[name].float()[None]
        assert torch.equal(values.isfinite(), found.starts[[row]].isfinite())
        assert float(log_area(stack, found.starts[[row]])) == pytest.approx(before, abs=1e-3)
        # In half precision two edges may have changed places.
        assert float(log_area(stack, values)) == pytest.approx(after, abs=0.01)
    # What is there stays.
    written = path.read_bytes(), path.stat().st_mtime_ns
    monkeypatch.setattr(lessons, "read_cases", None)
    list(refine_job(shop, job))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == written


def test_lessons_are_of_cases_that_were_refined(job: Job, tmp_path: Path) -> None:
    shop = Shop(tmp_path, settings())
    tensors = load_artifact(refine(shop, job), REFINED).tensors
    # The file alone says which: now the second could be read.
    job = sources(*(source.id for source in job))
    found = lessons_of(shop, job)
    assert [ids_of(lesson.sources) for lesson in found] == [[ALIKE[0], ALIKE[2]], [OTHER]]
    lesson, config, rows = found[0], settings(), [0, 2]
    whole = group()
    look = look_at(whole.stack, whole.starts, config.looker.sizes, config.looked)[rows]
    torch.testing.assert_close(lesson.values, whole.starts[rows])
    torch.testing.assert_close(lesson.tables.float(), whole.tables[rows], rtol=0.01, atol=0.01)
    assert lesson.looks.shape == look.shape
    # Ranks of worths that are nearly equal differ between machines, and from case to case.
    apart = (lesson.looks.float() - look).abs() > 0.02
    assert float(apart.float().mean()) < 0.02
    assert lesson.graph == whole.graph
    for number, row in enumerate(rows):
        own, other = lesson.circuits[number], whole.circuits[row]
        assert own is not None
        assert other is not None
        assert torch.equal(own, other)
    for each in found:
        for source, target in zip(each.sources, each.targets, strict=True):
            assert torch.equal(target, tensors[source.id].float())
        assert torch.equal(each.values.isfinite(), each.targets.isfinite())
        edges = each.graph.n_edges
        assert each.tables.shape[:2] == each.looks.shape[:2] == (len(each), edges)
        assert each.structure.n_nodes == edges


def test_lessons_of_a_second_round_begin_where_lookers_end(tmp_path: Path) -> None:
    shop, job, looker = Shop(tmp_path, settings()), sources(), make_looker()
    (first,), (second,) = lessons_of(shop, job), lessons_of(shop, job, 1, looker)
    whole = group()
    values = look_again(whole, whole.starts, [looker], settings())
    torch.testing.assert_close(first.values, whole.starts)
    alive = values.isfinite()
    assert torch.equal(second.values.isfinite(), alive)
    places, own, before = (
        torch.where(alive, x, -100.0).argsort(-1).argsort(-1)
        for x in (second.values, values, first.values)
    )
    # Equal worths differ in their last bits, and then by their ranks.
    assert float((places != own).float().mean()) < 0.1
    assert float((places != before).float().mean()) > 0.5
    assert not torch.equal(first.looks, second.looks)
    for name in ("tables", "targets"):
        one, other = getattr(first, name), getattr(second, name)
        torch.testing.assert_close(one, other)


def test_a_job_is_looked_at_once(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, settings())
    # What is not refined is not looked at.
    list(look_job(shop, job))
    assert read_lessons(shop, job, [job], 0) == []
    assert list(tmp_path.iterdir()) == []
    before = lessons_of(shop, job)
    written = lessons_path(shop, job, 0).read_bytes()
    monkeypatch.setattr(lessons, "read_cases", None)
    list(look_job(shop, job))
    assert lessons_path(shop, job, 0).read_bytes() == written
    again = read_lessons(shop, job, [job], 0)
    for one, other in zip(before, again, strict=True):
        assert torch.equal(one.looks, other.looks)


def test_only_what_may_be_learned_from_is_read(tmp_path: Path) -> None:
    shop, jobs = Shop(tmp_path, settings()), [sources(*ALIKE[:2]), sources(OTHER)]
    for one in jobs:
        lessons_of(shop, one)

    def ids(*wanted: str) -> list[list[str]]:
        return [ids_of(x.sources) for x in read_lessons(shop, sources(*wanted), jobs, 0)]

    assert ids(*ALIKE, OTHER) == [[*ALIKE[:2]], [OTHER]]
    assert ids(OTHER) == [[OTHER]]
    assert all(ALIKE[1] not in own for own in ids(ALIKE[0], OTHER))
    assert ids("ib-53") == []


def test_circuits_that_are_not_known_stay_so(tmp_path: Path) -> None:
    (source,) = sources(OTHER)
    natural = natural_of(source, tmp_path)
    shop = Shop(tmp_path / "work", settings())
    (known,) = lessons_of(shop, (source,))
    (unknown,) = lessons_of(shop, (natural,))
    assert known.circuits[0] is not None
    assert unknown.circuits == (None,)
    torch.testing.assert_close(known.values, unknown.values)


def test_a_job_of_nothing_gives_no_lessons(tmp_path: Path) -> None:
    shop, job = Shop(tmp_path, settings()), (as_kind(Few, sources()[0]),)
    (words,) = refine_job(shop, job)
    assert words.startswith(f"left out: {ALIKE[0]}: ")
    assert refined_path(shop, job).is_file()
    assert lessons_of(shop, job) == []
