"""A corpus read back: entries, filters, weights when asked for, and what is wrong with files."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import graphcircuits
from graphcircuits.cases import collection
from graphcircuits.cases.collection import Corpus, load_corpus, shard_path
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.io.store import StoreError
from lab.factory.shards import ShardContent, write_manifest, write_shard
from tests.cases.small import CONFIG, PLAN, begun, report, tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus whose first two shards are finished; in the first one subject did not pass."""
    manifest, kept = begun(tmp_path), {}
    for shard in PLAN[:2]:
        reports = {order.id: report(order) for order in shard.orders}
        passed = {id: tiny() for id, one in reports.items() if one["passed"]}
        content = ShardContent(passed, reports, {})
        kept[shard.name] = write_shard(tmp_path, shard, CONFIG, content)
    write_manifest(tmp_path, manifest.keeping(kept))
    return tmp_path


def ids(corpus: Corpus) -> list[str]:
    return [entry.id for entry in corpus]


def test_entries_in_the_order_of_the_plan(folder: Path) -> None:
    corpus = graphcircuits.load_corpus(str(folder))
    assert ids(corpus) == ["ib-4.natural.plain.0", "ib-4.natural.llama.0", "ib-8.natural.llama.0"]
    assert (len(corpus), corpus.missing, corpus.refused) == (3, 1, {})
    assert corpus.failed == {"ib-36.natural.plain.0": report(PLAN[0].orders[1])}
    entry = corpus["ib-8.natural.llama.0"]
    assert (entry.order, entry.fold, entry.group) == (PLAN[1].orders[1], 0, "ib-8")
    assert entry.report["accuracy"] == 0.999
    assert repr(entry) == (
        "CorpusEntry(order=Order(case='ib-8', fleet='natural', architecture='llama', seed=0), "
        "fold=0, group='ib-8')"
    )


def test_a_subject_is_as_it_was_stored_in_single_precision(folder: Path) -> None:
    entry = load_corpus(folder)["ib-4.natural.plain.0"]
    subject, stored = entry.subject(), tiny()
    assert (subject.config, subject.codec, subject.case) == (stored.config, stored.codec, "ib-4")
    assert (subject.dtype, subject.fleet, subject.tokenizer) == (torch.float32, "natural", None)
    for name, weight in stored.weights.items():
        assert torch.equal(subject.weights[name], weight.float())


def test_programs_and_pairs(folder: Path) -> None:
    entry = load_corpus(folder)["ib-4.natural.plain.0"]
    assert entry.case() is graphcircuits.load_case("ib-4")
    assert entry.tasks() == (entry.case(),)
    expected = graphcircuits.load_case("ib-4").pairs(3, seed=5)
    assert torch.equal(entry.pairs(3, seed=5).clean, expected.clean)
    with pytest.raises(ValueError, match=r"ib-4.natural.plain.0 has 1 tasks, from 0; got task 1\."):
        entry.pairs(3, task=1)


def test_a_model_of_several_tasks_has_pairs_of_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ("ib-8", "ib-34")
    model = MultiCase(id="two", cases=tuple(graphcircuits.load_case(id) for id in ids))
    monkeypatch.setattr(collection, "find_case", lambda id: model)
    entry = load_corpus(folder)["ib-4.natural.plain.0"]
    assert entry.case() is model
    assert [task.id for task in entry.tasks()] == ["two@ib-8", "two@ib-34"]
    for place, task in enumerate(model.tasks):
        assert torch.equal(entry.pairs(3, 5, task=place).clean, task.pairs(3, 5).clean)


def test_filters(folder: Path) -> None:
    corpus = load_corpus(folder)
    assert ids(corpus.of(fleet="natural")) == ids(corpus)
    assert ids(corpus.of(architecture="plain")) == ["ib-4.natural.plain.0"]
    assert ids(corpus.of(architecture="llama", fold=0)) == [
        "ib-4.natural.llama.0",
        "ib-8.natural.llama.0",
    ]
    assert len(corpus.of(fold=(1, 2))) == 0
    assert len(corpus.of(fold=(0, 1)).of(fleet="natural")) == 3
    with pytest.raises(ValueError, match="no subject of fleet 'public'; it has natural"):
        corpus.of(fleet="public")
    with pytest.raises(ValueError, match="no subject of architecture 'gpt2'; it is empty"):
        corpus.of(fold=4).of(architecture="gpt2")


def test_a_subject_that_is_not_there(folder: Path) -> None:
    corpus = replace(load_corpus(folder), refused={"ib-1": "has nothing to train"})
    with pytest.raises(KeyError, match=r"no subject 'ib-36.natural.plain.0': it did not pass"):
        corpus["ib-36.natural.plain.0"]
    with pytest.raises(KeyError, match="no subject 'ib-1': it has nothing to train"):
        corpus["ib-1"]
    with pytest.raises(KeyError, match="no subject 'ib-2': it is not in it"):
        corpus["ib-2"]


def test_language_models_beside_the_shards_are_listed(folder: Path) -> None:
    assert load_corpus(folder).languages == ()
    for name in ("b", "a"):
        (folder / "language" / name).mkdir(parents=True)
        (folder / "language" / name / "config.json").write_text("{}")
    (folder / "language" / "notes").mkdir()
    assert [path.name for path in load_corpus(folder).languages] == ["a", "b"]


def test_a_damaged_shard_is_refused(folder: Path) -> None:
    path = shard_path(folder, PLAN[0].name)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(StoreError, match="is not a whole safetensors file"):
        load_corpus(folder)
    shutil.copy(shard_path(folder, PLAN[1].name), path)
    with pytest.raises(StoreError, match="is not the shard that was finished"):
        load_corpus(folder)
    path.unlink()
    with pytest.raises(StoreError, match="is gone; the command that built the corpus makes it"):
        load_corpus(folder)


def test_a_shard_that_changes_after_loading(folder: Path) -> None:
    entry = load_corpus(folder)["ib-4.natural.plain.0"]
    path = shard_path(folder, PLAN[0].name)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="has changed since the corpus was loaded"):
        entry.subject()


def test_a_forged_configuration_is_refused(folder: Path) -> None:
    entry = load_corpus(folder)["ib-4.natural.plain.0"]
    wrong = {**entry.record, "transformer": {**entry.record["transformer"], "d_model": 3}}
    with pytest.raises(StoreError, match=r"is not a whole shard \(.*W_E"):
        replace(entry, record=wrong).subject()
    with pytest.raises(StoreError, match="not a whole shard"):
        replace(entry, record={}).subject()
