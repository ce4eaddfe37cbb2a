"""Atomic writing: failures, kills, other writers, leftovers; and how often checkpoints come."""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from graphcircuits.io import files
from graphcircuits.io.files import seldom, write_atomic
from lab.files import hold, writing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_creates_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file.bin"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["file.bin"]


def test_written_file_has_ordinary_permissions(tmp_path: Path) -> None:
    write_atomic(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_write_goes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "file.bin"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


KILLED = """
import os, sys
from graphcircuits.io.files import write_atomic
os.replace = lambda *_: os._exit(9)
write_atomic(sys.argv[1], b"new" * 1000)
"""


def test_what_a_killed_writer_leaves_goes_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    write_atomic(path, b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == 9
    assert path.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2
    (tmp_path / ".notes.tmp").write_text("somebody else's")
    write_atomic(tmp_path / "other.bin", b"new")
    assert names(tmp_path) == [".notes.tmp", "file.bin", "other.bin"]


def test_a_write_in_progress_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer comes while the first is about to rename."""
    replace, seen = os.replace, []

    def late(source: Path, target: Path) -> None:
        if target.name == "slow.bin":
            write_atomic(tmp_path / "quick.bin", b"quick")
            seen.extend(names(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", late)
    write_atomic(tmp_path / "slow.bin", b"slow")
    assert len(seen) == 2
    assert names(tmp_path) == ["quick.bin", "slow.bin"]
    assert (tmp_path / "slow.bin").read_bytes() == b"slow"


def test_a_temporary_file_taken_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, made = os.open, []

    def taken(path: Path, *options: int) -> int:
        found = create(path, *options)
        if Path(path).suffix == ".tmp":
            made.append(Path(path))
            if len(made) == 1:
                Path(path).unlink()
        return found

    monkeypatch.setattr(os, "open", taken)
    write_atomic(tmp_path / "file.bin", b"new")
    assert len(made) == 2
    assert names(tmp_path) == ["file.bin"]
    assert (tmp_path / "file.bin").read_bytes() == b"new"


def test_without_locks_files_are_written_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    left = tmp_path / f".file.bin.{files.HOST}{'0' * 16}.tmp"
    left.write_bytes(b"")
    write_atomic(tmp_path / "file.bin", b"new")
    assert names(tmp_path) == [left.name, "file.bin"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError("odd")])
def test_a_disk_that_fails_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def full(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"{error.strerror or 'odd'}: '.*file\.bin'") as caught:
        write_atomic(tmp_path / "file.bin", b"new")
    assert caught.value.filename == str(tmp_path / "file.bin")


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(path: Path, mode: str) -> IO[Any]:
        return opened(Path("/dev/full") if path.suffix == ".tmp" else path, mode)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*file\.bin'"):
        write_atomic(tmp_path / "file.bin", b"new")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (RuntimeError("Error while serializing: I/O error: File too large (os error 27)"), 27),
        (OSError("389830 requested and 15296 written"), 28),
        (OSError(13, "Permission denied", "elsewhere"), 13),
    ],
)
def test_errors_of_other_writers_are_those_of_the_system(error: Exception, number: int) -> None:
    with pytest.raises(OSError, match=r"File too large|No space left|Permission") as caught:
        _raised(error)
    assert caught.value.errno == number
    assert caught.value.filename in ("models", "elsewhere")
    with pytest.raises(ValueError, match="something else"):
        _raised(ValueError("something else"))


def _raised(error: Exception) -> None:
    with writing("models"):
        raise error


def test_checkpoints_take_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = 0.0, []

    def write(value: int) -> None:
        nonlocal now
        written.append(value)
        now += 1.0

    monkeypatch.setattr(files.time, "perf_counter", lambda: now)
    perhaps = seldom(write, share=0.1)
    for second in range(40):
        perhaps(second)
        now += 1.0
    # A second of writing, then ten without.
    assert written == [0, 10, 20, 30]
    perhaps(40, force=True)
    assert written[-1] == 40


@pytest.mark.parametrize("name", ["", ".lock"])
def test_one_alone_holds_a_folder_until_it_ends(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with hold(path, "it is taken"):
        with pytest.raises(ValueError, match="it is taken"), hold(path, "it is taken"):
            pass
        code = f"import lab.files as d; d.hold(d.Path({str(path)!r}), '').__enter__()"
        assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode
    killed = f"{code}; import os; os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    with hold(path, "it is taken"):
        pass
