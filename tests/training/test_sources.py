"""Where examples come from: folders, folds, what is left out; and reading them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.cases.multitask import load_multi
from graphcircuits.cases.orders import Order
from graphcircuits.cases.relations import pool_cases
from graphcircuits.io.store import StoreError, save_artifact
from graphcircuits.jobs.processes import Processes
from graphcircuits.training import data, sources
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import FRESH, Example, read
from graphcircuits.training.sources import (
    LEAST_PAIRS,
    MINED,
    Source,
    corpus_sources,
    language_sources,
    mined_files,
    mined_sources,
    plan_sources,
    refuse_others,
    shipped_sources,
    split,
)
from lab.examples import read_examples
from lab.paper.named_source import named_source
from tests.predictor.cases import training
from tests.training.examples import PRIOR, natural_of

pytestmark = pytest.mark.usefixtures("unchecked")


def test_shipped_subjects_are_planted_and_labelled() -> None:
    (found,) = shipped_sources(["ib-7"])
    case = load_case("ib-7")
    assert (found.folds, found.groups, found.labelled) == ((case.fold,), ("ib-7",), True)
    subject = found.subject()
    assert found.circuit(subject, "complete") == case.labels("complete")
    assert torch.equal(found.pairs(subject, 3, 5).clean, case.pairs(3, 5).clean)
    with pytest.raises(ValueError, match=r"only cases of the pool .* not ib-3 \(test\), mt-0 \(te"):
        refuse_others(["ib-7", "ib-3", "mt-0"])


def test_the_papers_pool_has_two_cases_and_folds_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_others(["ib-7", "ib-25", "ib-106"], "paper-pool")
    with pytest.raises(
        ValueError, match=r"cases of paper-pool .* not tb-sort \(pool\), ib-3 \(test\)"
    ):
        refuse_others(["ib-7", "tb-sort", "ib-3"], "paper-pool")
    folds = {case.id: (case.fold,) for case in pool_cases("paper-pool")}
    found = shipped_sources(folds, "paper-pool")
    assert {source.id: source.folds for source in found} == folds
    assert folds != {source.id: source.folds for source in shipped_sources(folds)}
    for name in ("ib-25.public.plain.0", "ib-7.public.plain.0", "tb-sort.public.plain.0"):
        (tmp_path / f"{name}.safetensors").touch()
    one, other = corpus_sources(tmp_path, "paper-pool")
    assert (one.id, one.folds, one.groups) == ("ib-25.public.plain.0", folds["ib-25"], ("ib-18",))
    assert (other.id, other.folds) == ("ib-7.public.plain.0", folds["ib-7"])
    assert caplog.messages == [f"{tmp_path}: left out, not of paper-pool: tb-sort.public.plain.0"]
    # No fold divides a group, so whatever is held out was not learned from.
    for fold in range(5):
        left, held_out = split(found, fold)
        assert len(left) + len(held_out) == 50


@pytest.mark.slow
def test_a_corpus_gives_a_source_per_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = load_multi("mt-51")
    entries = [
        SimpleNamespace(order=Order("ib-7", "natural", "llama"), fold=2, group="ib-7", id="a"),
        SimpleNamespace(order=Order("mt-51"), fold=several.fold, group="mt-51", id="b"),
    ]
    corpus = SimpleNamespace(entries=entries)
    monkeypatch.setattr(sources, "_corpus", lambda _: corpus)
    (tmp_path / "manifest.json").touch()
    one, *tasks = corpus_sources(tmp_path)
    assert (one.id, one.task, one.fleet, one.labelled) == (
        "ib-7.natural.llama.0",
        "ib-7",
        "natural",
        False,
    )
    assert one.circuit(load_case("ib-7").subject(), "interpbench") is None
    assert [task.id for task in tasks] == [f"mt-51@{name}" for name in several.names]
    assert {task.groups for task in tasks} == {tuple(sorted(set(tasks[0].groups)))}
    assert {load_case(name).group for name in several.names} == set(tasks[0].groups)
    assert all(task.model == "mt-51" and task.labelled for task in tasks)
    entries[0].fold = None
    with pytest.raises(ValueError, match="a is in no fold of the pool; learn from others"):
        corpus_sources(tmp_path)


def test_of_a_folder_of_files_test_cases_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"holds no subjects: neither manifest\.json of a corpus"):
        corpus_sources(tmp_path)
    for name in ("ib-3.natural.plain.0", "ib-7.natural.llama.0", "ib-2"):
        (tmp_path / f"{name}.safetensors").touch()
    found = corpus_sources(tmp_path)
    assert [source.id for source in found] == ["ib-2", "ib-7.natural.llama.0"]
    assert [source.fleet for source in found] == ["planted", "natural"]
    assert found[0].folds == (load_case("ib-2").fold,)
    assert caplog.messages == [f"{tmp_path}: left out, not of the pool: ib-3.natural.plain.0"]


def test_language_models_give_the_tasks_that_they_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no language models with a report\.json"):
        language_sources(tmp_path)
    shares = {"gpt2-c": {"quotes": 0.9, "types": 0.2}, "llama-f": {"types": 0.8, "quotes": 1.0}}
    for name, tasks in shares.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps({"tasks": tasks}))
    found = language_sources(tmp_path)
    assert [(source.id, source.folds) for source in found] == [
        ("gpt2-c@quotes", (0, 0)),
        ("llama-f@types", (1, 1)),
        ("llama-f@quotes", (1, 0)),
    ]
    assert {source.groups for source in found} == {("task:quotes",), ("task:types",)}
    assert [source.id for source in language_sources(tmp_path / "llama-f")] == [
        "llama-f@types",
        "llama-f@quotes",
    ]
    # A task of a model is held out where both are, and learned from where neither is.
    left, held_out = split(found, 0)
    assert ([x.id for x in left], [x.id for x in held_out]) == (
        ["llama-f@types"],
        ["gpt2-c@quotes"],
    )


def mine_file(folder: Path, name: str, kinds: dict[str, int], **changes: Any) -> Path:
    """Tasks as `python -m lab.factory mine` writes them, with so many pairs; the first token of
    each window is the number of its pair."""
    tensors = {}
    for kind, size in kinds.items():
        rows = torch.arange(size, dtype=torch.int32)[:, None]
        tensors[f"{kind}.clean"] = torch.cat([rows, rows * 0 + 1, rows * 0 + 2], 1)
        tensors[f"{kind}.corrupted"] = torch.cat([rows, rows * 0 + 3, rows * 0 + 2], 1)
    meta = {"model": f"models/{name}", "sha256": "ab", "kinds": kinds}
    given: dict[str, Any] = {"kind": MINED, "config": {}, "seed": 0}
    path = folder / f"{name}.safetensors"
    save_artifact(path, **(given | {"tensors": tensors, "meta": meta} | changes))
    return path


def test_mined_tasks_are_in_the_fold_of_their_model(tmp_path: Path) -> None:
    assert mined_files(tmp_path) == []
    for name in ("llama-f", "gpt2-c"):
        mine_file(tmp_path, name, {"word-once-2-any": 24, "sign-once-4-same.2": 24})
        (tmp_path / "models" / name).mkdir(parents=True)
        report = json.dumps({"tasks": {"quotes": 1.0, "types": 0.9}})
        (tmp_path / "models" / name / "report.json").write_text(report)
    files = [tmp_path / f"{name}.safetensors" for name in ("gpt2-c", "llama-f")]
    assert mined_files(tmp_path) == mined_files(str(tmp_path)) == files
    found = mined_sources(tmp_path)
    assert language_sources(str(tmp_path)) == found
    assert [(x.id, x.folds, x.groups, x.prompts) for x in found] == [
        (f"{name}@mined:{kind}", (fold,), (f"mined:{name}",), str(path))
        for fold, (name, path) in enumerate(zip(("gpt2-c", "llama-f"), files, strict=True))
        for kind in ("word-once-2-any", "sign-once-4-same.2")
    ]
    assert {(x.kind, x.model, x.path, x.labelled) for x in found} == {
        ("language", "gpt2-c", "models/gpt2-c", False),
        ("language", "llama-f", "models/llama-f", False),
    }
    # Whatever is left shares no model with what is held out, whichever of its tasks.
    both = found + language_sources(tmp_path / "models")
    left, held_out = split(both, 0)
    assert {x.id for x in held_out} == {
        "gpt2-c@mined:word-once-2-any",
        "gpt2-c@mined:sign-once-4-same.2",
        "gpt2-c@quotes",
    }
    assert {x.model for x in left} == {"llama-f"}
    assert {x.id for x in found if x.model == "llama-f"} < {x.id for x in left}
    # A corpus is no folder of mined tasks.
    (tmp_path / "manifest.json").touch()
    assert mined_files(tmp_path) == []
    with pytest.raises(ValueError, match=r"holds no language models with a report\.json"):
        language_sources(tmp_path)


def test_a_third_of_mined_pairs_is_only_for_judging(tmp_path: Path) -> None:
    mine_file(tmp_path, "gpt2-c", {"word-once-2-any": 36})
    (source,) = mined_sources(tmp_path)
    subject = load_case("ib-7").subject()

    def rows(n: int, seed: int) -> list[int]:
        pairs = source.pairs(subject, n, seed)
        assert pairs.loss_name == "kl"
        assert pairs.targets is None
        assert pairs.scored.tolist() == [[False, False, True]] * len(pairs)
        assert (pairs.clean != pairs.corrupted).sum(1).tolist() == [1] * len(pairs)
        assert torch.equal(pairs.clean[:, 0], pairs.corrupted[:, 0])
        return pairs.clean[:, 0].tolist()

    assert rows(12, FRESH) == rows(50, FRESH + 7) == list(range(24, 36))
    assert rows(8, FRESH) == list(range(28, 36))
    assert sorted(rows(24, 0)) == sorted(rows(50, FRESH - 1)) == list(range(24))
    some = [rows(10, seed) for seed in range(5)]
    assert all(len(set(x)) == 10 and max(x) < 24 for x in some)
    assert some[0] == rows(10, 0) != some[1]


@pytest.mark.parametrize(
    ("size", "n", "seed", "error"),
    [
        (21, 8, FRESH, "word has 7 pairs to judge by, of at least 8; mine more."),
        (21, 12, FRESH, "word has 7 pairs to judge by, of at least 8; mine more."),
        (21, 7, FRESH, None),
        (24, 12, FRESH, None),
        (10, 8, 0, "word has 7 pairs to read, of at least 8; mine more."),
        (12, 30, 0, None),
    ],
)
def test_too_few_mined_pairs(
    tmp_path: Path, size: int, n: int, seed: int, error: str | None
) -> None:
    assert LEAST_PAIRS == 8
    path = mine_file(tmp_path, "gpt2-c", {"word": size})
    (source,) = mined_sources(tmp_path)
    subject = load_case("ib-7").subject()
    if error is None:
        assert len(source.pairs(subject, n, seed)) <= n
        return
    with pytest.raises(ValueError, match=f"^{path}: {error}$"):
        source.pairs(subject, n, seed)


def test_files_that_hold_no_mined_tasks(tmp_path: Path) -> None:
    one, other, third = (tmp_path / x for x in "abc")
    mine_file(one, "gpt2-c", {"word": 24}, kind="transformer")
    with pytest.raises(StoreError, match="holds a 'transformer' artifact; expected 'mined-tasks'"):
        language_sources(one)
    mine_file(other, "gpt2-c", {"word": 24}, tensors={})
    with pytest.raises(StoreError, match=r"is not a whole file of mined tasks \(.*word\.clean"):
        language_sources(other)
    # A model in which nothing was found has no tasks, and is no mistake.
    mine_file(third, "gpt2-c", {})
    assert language_sources(third) == []


def test_what_is_held_out_shares_neither_program_nor_model() -> None:
    def source(task: str, model: str, group: str, fold: int) -> Source:
        return Source(Order(model, "natural"), "here", task, (group,), (fold,))

    given = [
        source("a", "one", "p", 0),
        source("b", "two", "p", 1),
        source("c", "one", "q", 1),
        source("d", "three", "q", 1),
        replace(source("e", "one", "r", 1), path="there"),
        replace(source("f", "four", "s", 1), folds=()),
    ]
    left, held_out = split(given, 0)
    assert [x.task for x in held_out] == ["a"]
    assert [x.task for x in left] == ["d", "e", "f"]
    with pytest.raises(ValueError, match=r"the fold must be in 0\.\.4, got 5"):
        split(given, 5)


def test_the_papers_pool_is_taken_by_its_name_and_in_its_own_folds() -> None:
    plan = plan_sources("paper-pool", without_fold=0)
    learned, held_out = ([x.id for x in each] for each in (plan.learned, plan.held_out))
    folds = {case.id: case.fold for case in pool_cases("paper-pool")}
    assert plan.left_out == ["tb-count-less-freq", "tb-test-at-least-two-equal"]
    assert sorted(learned + held_out + plan.left_out) == sorted(folds)
    assert {folds[id] for id in held_out} == {0}
    assert 0 not in {folds[id] for id in learned}
    # What learned from ib-25 says so by its group, and is not used on the test case it is like.
    assert {source.id: source.groups for source in plan.held_out}["ib-25"] == ("ib-18",)


def test_a_subject_is_found_by_its_id(tmp_path: Path) -> None:
    shipped = named_source("ib-7")
    assert (shipped.id, shipped.path, shipped.labelled) == ("ib-7", "", True)
    other = natural_of(shipped, tmp_path)
    found = named_source(other.id, tmp_path)
    assert (found.id, found.kind, found.labelled) == (other.id, "natural", False)
    assert torch.equal(found.subject().weights["W_E"], shipped.subject().weights["W_E"])
    with pytest.raises(FileNotFoundError, match="no public subject of tb-polynomial ships; build"):
        named_source("tb-polynomial.public.plain.0")


# Reading


def test_examples_are_judged_on_prompts_that_were_not_read() -> None:
    config = training(PRIOR, pairs=3, views=2, judged=5, faithfulness_weight=1.0)
    one, two = read_examples(["ib-7"], config)
    assert one.item is not None
    assert one.item is two.item
    subject, pairs = one.item
    assert torch.equal(pairs.clean, load_case("ib-7").pairs(5, seed=FRESH).clean)
    assert one.source is not None
    assert torch.equal(subject.weights["W_E"], one.source.subject().weights["W_E"])
    assert one.reading.structure is two.reading.structure
    assert one.circuit == load_case("ib-7").circuit
    assert one.reading.prior is not None


def test_what_has_labels_is_read_more_often(tmp_path: Path) -> None:
    config = training(PRIOR, pairs=3, views=2)
    (labelled,) = shipped_sources(["ib-7"])
    given = [labelled, natural_of(labelled, tmp_path)]

    def cases(config: TrainConfig, **options: Any) -> list[str]:
        return [x.case for x in read(given, config, judged=False, **options).examples]

    natural = "ib-7.natural.plain.0"
    assert cases(config) == ["ib-7", "ib-7", natural]
    assert cases(replace(config, views=1, unlabelled_views=2)) == ["ib-7", natural, natural]
    assert cases(config, views=1) == ["ib-7", natural]


def test_sources_that_say_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = training(PRIOR, pairs=3, views=1, judged=5)
    monkeypatch.setattr(data, "SMALLEST_GAP", 1e6)
    found = read(shipped_sources(["ib-7"]), config)
    assert found.examples == []
    assert "corruption does not hurt: the loss is" in found.left_out["ib-7"]
    with pytest.raises(ValueError, match="ib-7: corruption does not hurt"):
        read_examples(["ib-7"], replace(config, faithfulness_weight=1.0))


@pytest.mark.slow
def test_processes_read_what_one_reads() -> None:
    config = training(PRIOR, pairs=3, views=2, judged=4)
    given = shipped_sources(["ib-7", "ib-2"])
    done: list[tuple[int, int]] = []
    one = read(given, config).examples
    other = read(given, config, runner=Processes(2), progress=lambda *x: done.append(x)).examples
    assert done == [(1, 2), (2, 2)]
    assert [x.case for x in one] == [x.case for x in other] == ["ib-7", "ib-7", "ib-2", "ib-2"]
    for a, b in zip(one, other, strict=True):
        same_example(a, b)


def test_readings_are_kept_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = training(PRIOR, pairs=3, views=2, judged=4)
    given = shipped_sources(["ib-7", "ib-2"])
    fails = data._read_source

    def read_source(source: Source, *args: Any) -> list[Example]:
        if source.id == "ib-2":
            raise ValueError("nothing to see")
        return fails(source, *args)

    monkeypatch.setattr(data, "_read_source", read_source)
    before = read(given, config, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(data, "_read_source", None)
    done: list[tuple[int, int]] = []
    after = read(given, config, folder=tmp_path, progress=lambda *x: done.append(x))
    assert done == [(2, 2)]
    assert after.left_out == before.left_out == {"ib-2": "nothing to see"}
    for a, b in zip(before.examples, after.examples, strict=True):
        same_example(a, b)
    # Other settings are other readings, and what does not change them is not.
    share = replace(config, predictor=replace(PRIOR, share=0.5))
    for other in (replace(config, pairs=4), replace(config, views=1), share):
        with pytest.raises(TypeError):
            read(given, other, folder=tmp_path)
    assert read(given, replace(config, lr=1.0), folder=tmp_path).left_out


def same_example(a: Example, b: Example) -> None:
    assert isinstance(a.reading.content, Tensor)
    assert isinstance(b.reading.content, Tensor)
    assert torch.equal(a.reading.content, b.reading.content)
    assert a.reading.prior is not None
    assert b.reading.prior is not None
    assert torch.equal(a.reading.prior, b.reading.prior)
    assert (a.case, a.circuit, a.source) == (b.case, b.circuit, b.source)
    assert a.item is not None
    assert b.item is not None
    one, other = a.item[1], b.item[1]
    for name in ("clean", "corrupted", "scored", "targets"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert (one.loss_name, one.case) == (other.loss_name, other.case)


def test_a_process_that_ended_costs_the_source_it_was_at() -> None:
    job = tuple((place, x, 1) for place, x in enumerate(shipped_sources(["ib-7", "ib-2"])))
    assert data._lost(job, 0, "it was killed") == ([(0, "it was killed")], job[1:])
    assert data._lost(job, 1, "it was killed") == ([(1, "it was killed")], None)


def test_a_change_of_what_is_read_is_another_revision() -> None:
    """If these numbers change, raise REVISION: files of readings hold the old ones."""
    (example,) = read_examples(["ib-7"], TrainConfig(pairs=8, views=1))
    assert isinstance(example.reading.content, Tensor)
    assert example.reading.prior is not None
    nodes, prior = example.reading.content.double(), example.reading.prior
    figures = [float(nodes.mean()), float(nodes.std()), float(prior.mean())]
    assert figures == pytest.approx([-2.4199, 5.0902, -8.5888], abs=1e-3)
    assert data.REVISION == 2
