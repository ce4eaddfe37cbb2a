"""The text that models are trained on: what is taken, in which order, and what is held out."""

from pathlib import Path

import pytest

from lab.factory.language import text as texts
from lab.factory.language.text import collect, installed_roots, read_plain
from tests.lab.factory.language.texts import write_texts


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


def test_every_file_is_taken_once(root: Path) -> None:
    found = collect([root], 10.0)
    written = {path.read_text("ascii") for path in root.rglob("*.py")}
    assert set(found.train) | set(found.held_out) == written
    assert len(found.train) + len(found.held_out) == len(written)
    assert found.held_out
    assert found.size == sum(map(len, written))
    assert list(found.groups) == ["package0", "package1", "package2"]


def test_the_text_depends_on_paths_below_the_root_and_on_contents(
    root: Path, tmp_path: Path
) -> None:
    found = collect([root], 10.0)
    assert collect([write_texts(tmp_path / "elsewhere")], 10.0) == found
    changed = write_texts(tmp_path / "changed")
    path = next(changed.rglob("*.py"))
    path.write_text(path.read_text("ascii") + "more\n", "ascii")
    assert collect([changed], 10.0).sha256 != found.sha256


def test_groups_take_turns_until_there_is_enough(root: Path) -> None:
    least = texts.LEAST_TEXT + 40_000
    found = collect([root], least / 2**20)
    assert least - 7000 < found.size <= least
    assert max(found.groups.values()) - min(found.groups.values()) <= 7000


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a = 1\r\n\tb = 2\n", "a = 1\n    b = 2\n"),
        (b"caf\xc3\xa9\n", None),
        (b"\x00\x01", None),
        (b" \n", None),
        (b"x" * 500, None),
        (b"x\n" * 2**17, "x\n" * 2**17),
        (b"x\n" * (2**17 + 1), None),
    ],
)
def test_plain_files(data: bytes, expected: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(data)
    assert read_plain(path) == expected


def test_what_is_left_out(root: Path, tmp_path: Path) -> None:
    again = write_texts(tmp_path / "again")
    copy = again / "package0" / "copy.py"
    copy.write_bytes((again / "package0" / "module0.py").read_bytes())
    for name in ("notes.csv", "site-packages/a.py", ".git/b.py", "__pycache__/c.py"):
        path = again / "package0" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("left out\n", "ascii")
    (again / "package1" / "link.py").symlink_to(again / "package0" / "notes.csv")
    assert collect([again], 10.0).size == collect([root], 10.0).size
    (again / "LICENSE").write_text("May be read.\n", "ascii")
    assert collect([again], 10.0).groups["."] == 13


def test_too_little_text(tmp_path: Path) -> None:
    few = write_texts(tmp_path / "few", files=3)
    with pytest.raises(ValueError, match=r"too little text: \d+ bytes to train on, at least "):
        collect([few], 10.0)
    one = tmp_path / "one"
    one.mkdir()
    for number in range(3):
        (one / f"a{number}.txt").write_text(f"line {number}\n" * 15000, "ascii")
    with pytest.raises(ValueError, match="0 bytes to hold out, at least 4096 are needed; plain"):
        collect([one], 10.0)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no text in .*nowhere: there is no such folder\."):
        collect([tmp_path / "nowhere"], 1.0)


@pytest.mark.slow
def test_every_machine_has_text() -> None:
    """This one has: enough of it, from many packages, and the same twice."""
    found = collect(installed_roots(), 1.0)
    assert 0.9 * 2**20 < found.size <= 2**20
    assert len(found.groups) > 20
    assert collect(installed_roots(), 1.0) == found
