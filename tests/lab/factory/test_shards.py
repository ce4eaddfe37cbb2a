"""The files of a corpus: what the manifest says, which shards count as whole, what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits import __version__
from graphcircuits.cases.collection import FinishedShard, read_shard, shard_path
from graphcircuits.io.store import StoreError, load_artifact, save_artifact
from lab.factory import shards as module
from lab.factory.shards import (
    CorpusConfig,
    Manifest,
    ShardContent,
    check_settings,
    command_of,
    in_words,
    read_manifest,
    still_there,
    write_manifest,
    write_shard,
)
from tests.cases.small import BUILD, CONFIG, PLAN, begun, tiny

pytestmark = pytest.mark.usefixtures("unchecked")


def content() -> ShardContent:
    first, second = (order.id for order in PLAN[0].orders)
    subject = tiny()
    reports = {first: {"accuracy": 1.0}, second: {"accuracy": 0.2}}
    return ShardContent({first: subject}, reports, {"ib-99": "does not fit"})


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(CONFIG, PLAN, {PLAN[1].name: FinishedShard("abc", 2, 0, 0)})
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert manifest.unfinished == (PLAN[0], PLAN[2])
    later = manifest.keeping({**manifest.kept, PLAN[0].name: FinishedShard("x", 1, 1, 0)})
    assert list(later.kept) == [PLAN[0].name, PLAN[1].name]


def test_a_shard_holds_subjects_reports_and_reasons(tmp_path: Path) -> None:
    kept = write_shard(tmp_path, PLAN[0], CONFIG, content())
    found = read_shard(tmp_path, PLAN[0].name, kept)
    assert kept == FinishedShard(found.sha256, passed=1, failed=1, refused=1)
    subject = content().subjects[PLAN[0].orders[0].id]
    for name, weight in subject.weights.items():
        assert torch.equal(found.tensors[f"{PLAN[0].orders[0].id}/{name}"], weight)
    assert len(found.tensors) == len(subject.weights)
    assert found.meta["reports"] == content().reports
    assert found.meta["refused"] == {"ib-99": "does not fit"}
    empty = ShardContent({}, {}, {})
    assert write_shard(tmp_path, PLAN[1], CONFIG, empty).passed == 0


def test_the_command_says_what_differs_from_the_usual() -> None:
    assert command_of(CONFIG) == (
        "python -m lab.factory corpus FOLDER --natural 4 --planted 2 --architectures plain,llama "
        "--layers 2 --shard 2"
    )
    assert command_of(CorpusConfig(multitask=7, seed=1, steps=9)) == (
        "python -m lab.factory corpus FOLDER --multitask 7 --seed 1 --steps 9"
    )
    assert in_words(PLAN) == "6 subjects in 3 shards, about 0 MB"


# --- what is there -------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path) -> Manifest:
    """A corpus whose first shard is finished."""
    manifest = begun(tmp_path)
    kept = write_shard(tmp_path, PLAN[0], CONFIG, content())
    return manifest.keeping({PLAN[0].name: kept})


def test_a_whole_shard_counts_whether_the_manifest_has_it_yet_or_not(
    tmp_path: Path, whole: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    assert still_there(tmp_path, whole) == whole
    assert still_there(tmp_path, replace(whole, kept={})) == whole
    assert caplog.text == ""


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_shard_that_is_cut_off_is_made_again(
    tmp_path: Path, whole: Manifest, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    path = shard_path(tmp_path, PLAN[0].name)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    for manifest in (whole, replace(whole, kept={})):
        assert still_there(tmp_path, manifest).kept == {}
    assert f"{path} is not a whole safetensors file" in caplog.text
    assert "it is made again" in caplog.text


def test_a_damaged_shard_is_made_again(
    tmp_path: Path, whole: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    path = shard_path(tmp_path, PLAN[0].name)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert still_there(tmp_path, whole).kept == {}
    assert "has changed since it was written" in caplog.text


def test_another_shard_in_its_place_is_made_again(
    tmp_path: Path, whole: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole, but not the one that was finished; or made from another plan or other settings."""
    other = replace(content(), refused={})
    write_shard(tmp_path, PLAN[0], CONFIG, other)
    assert still_there(tmp_path, whole).kept == {}
    assert "is not the shard that was finished: it has sha256" in caplog.text
    caplog.clear()
    for shard, config in (
        (replace(PLAN[0], members=PLAN[0].members[:1]), CONFIG),
        (PLAN[0], replace(CONFIG, build=replace(BUILD, inputs=33))),
    ):
        write_shard(tmp_path, shard, config, other)
        assert still_there(tmp_path, replace(whole, kept={})).kept == {}
        assert "was made from another plan; it is made again" in caplog.text


def test_a_shard_that_is_gone_is_made_again(
    tmp_path: Path, whole: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    shard_path(tmp_path, PLAN[0].name).unlink()
    assert still_there(tmp_path, whole).kept == {}
    assert "is gone; it is made again" in caplog.text


def test_a_subject_without_a_report_is_refused(tmp_path: Path) -> None:
    write_shard(tmp_path, PLAN[0], CONFIG, content())
    path = shard_path(tmp_path, PLAN[0].name)
    found = load_artifact(path, module.SHARD)
    meta = {**found.meta, "reports": {}}
    save_artifact(
        path, kind=module.SHARD, config=found.config, seed=0, tensors=found.tensors, meta=meta
    )
    with pytest.raises(StoreError, match=r"not a whole shard \(.*every subject needs a report"):
        read_shard(tmp_path, PLAN[0].name)


# --- what is refused -----------------------------------------------------------------------------


def forged(folder: Path, **changes: Any) -> None:
    """The manifest with other values in its meta, under the right hash."""
    found = load_artifact(folder / module.MANIFEST, module.KIND)
    meta = {**found.meta, **changes}
    save_artifact(
        folder / module.MANIFEST, kind=module.KIND, config=found.config, seed=0, meta=meta
    )


def test_a_folder_without_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"holds no corpus: there is no manifest.json in it"
    ):
        read_manifest(tmp_path)


def test_a_corpus_of_another_version(tmp_path: Path) -> None:
    begun(tmp_path)
    forged(tmp_path, corpus=2)
    with pytest.raises(
        StoreError, match=r"a corpus of version 2, .* which has version 1: build it"
    ):
        read_manifest(tmp_path)


def test_a_corpus_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path)
    monkeypatch.setattr(module, "__version__", "9.9")
    found = read_manifest(tmp_path)
    with pytest.raises(StoreError) as caught:
        check_settings(tmp_path, found, CONFIG)
    assert f"was written by graphcircuits {__version__}, and this is 9.9" in str(caught.value)
    assert f"pip install graphcircuits=={__version__}" in str(caught.value)


def test_a_corpus_of_other_settings(tmp_path: Path) -> None:
    found = begun(tmp_path)
    check_settings(tmp_path, found, CONFIG)
    other = replace(CONFIG, natural=5, build=replace(BUILD, inputs=64))
    with pytest.raises(StoreError) as caught:
        check_settings(tmp_path, found, other)
    assert "(natural was 4, is 5, build.inputs was 32, is 64); give the same" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"plan": [{"name": "../../x", "members": [], "n_bytes": 0}]},
            "is not the name of a shard",
        ),
        ({"kept": {"a/b": {"sha256": "", "passed": 0, "failed": 0, "refused": 0}}}, "not the name"),
        ({"plan": 3}, "not a whole manifest"),
        ({"plan": [{"name": "x"}]}, "missing key 'members'"),
        ({"kept": {"x": {"sha256": 3}}}, "'sha256' must be str, got 3"),
    ],
)
def test_a_forged_manifest(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    begun(tmp_path)
    forged(tmp_path, **changes)
    with pytest.raises(StoreError, match=text):
        read_manifest(tmp_path)


def test_a_manifest_that_is_cut_off(tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / module.MANIFEST
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match="is not complete JSON"):
        read_manifest(tmp_path)
    path.write_text(json.dumps({"format": "graphcircuits"}))
    with pytest.raises(StoreError, match="format version None"):
        read_manifest(tmp_path)
