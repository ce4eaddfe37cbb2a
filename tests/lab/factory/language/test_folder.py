"""The folder of models: whole models, nobody else's, of one version."""

import json
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.io.files import StoreError, read_json, write_json
from lab.factory.language import folder as folders
from tests.lab.factory.language.test_report import FAILED, LEARNED

SETTINGS = {"steps": 10, "seed": 0}
TEXT = {"sha256": "ab"}


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    folders.begin(tmp_path / "models", SETTINGS, TEXT)
    return tmp_path / "models"


def kept(folder: Path, name: str = "gpt2-1x32-chars") -> dict[str, Any]:
    """A model of a few bytes."""
    with folders.staged(folder, name) as place:
        (place / folders.WEIGHTS).write_bytes(b"weights")
        return folders.keep_model(place, folder, LEARNED | {"model": name})


def test_a_model_is_there_when_it_is_complete(begun: Path) -> None:
    def broken_off() -> None:
        with folders.staged(begun, "gpt2-1x32-chars") as place:
            (place / folders.WEIGHTS).write_bytes(b"wei")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert [path.name for path in begun.iterdir()] == [folders.MANIFEST]
    assert folders.finished(begun, "gpt2-1x32-chars") is None
    report = kept(begun)
    assert folders.finished(begun, "gpt2-1x32-chars") == report
    assert sorted(path.name for path in begun.iterdir()) == ["gpt2-1x32-chars", folders.MANIFEST]


@pytest.mark.parametrize(
    "damage", ["weights", "no weights", "cut report", "another report", "less"]
)
def test_a_damaged_model_is_made_again(begun: Path, damage: str) -> None:
    report = kept(begun)
    place = begun / "gpt2-1x32-chars"
    match damage:
        case "weights":
            (place / folders.WEIGHTS).write_bytes(b"weighty")
        case "no weights":
            (place / folders.WEIGHTS).unlink()
        case "cut report":
            (place / folders.REPORT).write_text("{")
        case "another report":
            write_json(place / folders.REPORT, report | {"model": "gpt2-2x32-chars"})
        case "less":
            del report["layers"]
            write_json(place / folders.REPORT, report)
    assert folders.finished(begun, "gpt2-1x32-chars") is None
    assert kept(begun) == folders.finished(begun, "gpt2-1x32-chars")


def test_a_failure_is_known(begun: Path) -> None:
    report = FAILED | {"model": "gpt2-1x32-chars"}
    assert folders.keep_failure(begun, report) == report
    assert folders.finished(begun, "gpt2-1x32-chars") == report


def test_what_a_killed_run_left_goes(begun: Path) -> None:
    left = begun / ".staged-gpt2-1x32-chars-ab"
    left.mkdir()
    (left / "config.json").write_text("{")
    with folders.held(begun):
        assert not left.exists()
        with (
            pytest.raises(ValueError, match=r"another run is writing to .*models; wait for it\."),
            folders.held(begun),
        ):
            pass
    with folders.held(begun):
        pass


def test_a_folder_of_which_nothing_came_is_removed(tmp_path: Path) -> None:
    with folders.held(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()


def test_folders_that_are_refused(begun: Path, tmp_path: Path) -> None:
    assert folders.check_begun(begun, SETTINGS) is not None
    assert folders.check_begun(tmp_path / "new", SETTINGS) is None
    with pytest.raises(ValueError, match=r"begun with --steps 10, not 20; --seed 0, not 1: give"):
        folders.check_begun(begun, {"steps": 20, "seed": 1})
    with pytest.raises(ValueError, match="begun with another text: packages have been installed"):
        folders.begin(begun, SETTINGS, {"sha256": "cd"})
    folders.begin(begun, SETTINGS, TEXT)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"full holds other things, such as 'thesis.tex'; name a"):
        folders.check_begun(tmp_path / "full", SETTINGS)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"layout": 7}, r"by graphcircuits '.*' in layout 7, and this version has layout 1; name"),
        ({"version": 99}, "has format version 99"),
        ({"format": "other"}, "was not written by graphcircuits"),
        ({"settings": []}, r"language\.json is not whole; name another folder"),
        ({"text": None}, r"language\.json is not whole; name another folder"),
    ],
)
def test_folders_of_another_version(begun: Path, change: dict[str, Any], error: str) -> None:
    path = begun / folders.MANIFEST
    path.write_text(json.dumps(read_json(path) | change))
    with pytest.raises(StoreError, match=error):
        folders.check_begun(begun, SETTINGS)
