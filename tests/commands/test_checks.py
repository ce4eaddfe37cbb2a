"""Each check lets through what is right and says what is wrong in the words that were typed."""

import os
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.commands.checks import (
    above,
    device_there,
    distinct,
    in_range,
    one_of,
    refuse,
    suffix,
    writable,
    writable_folders,
)


def test_numbers() -> None:
    assert in_range("--n", None, 1) == in_range("--n", 1, 1) == in_range("--n", 10**30, 1) == []
    assert in_range("--n", 1, 1, 3) == in_range("--n", 3, 1, 3) == above("--n", 1e-9, 0) == []
    assert in_range("--n", 0, 1) == ["--n must be at least 1, got 0"]
    assert in_range("--n", 4, 1, 3) == in_range("--n", 4, 1, 3) == ["--n must be in 1..3, got 4"]
    assert in_range("--n", 0, 1, 3) == ["--n must be in 1..3, got 0"]
    assert above("--n", 0, 0) == ["--n must be above 0, got 0"]
    for value in (float("nan"), float("inf"), -float("inf")):
        expected = [f"--n must be a finite number, got {value}"]
        assert in_range("--n", value, 0) == in_range("--n", value, 0, 5) == expected
        assert above("--n", value, 0) == expected


def test_all_problems_are_told_at_once() -> None:
    refuse([], [])
    with pytest.raises(ValueError, match=r"^first; second; third\.$"):
        refuse(["first"], [], ["second", "third"])


def test_words() -> None:
    assert one_of("--level", "head", ("head", "qkv")) == []
    assert one_of("--level", "", ("a", "b")) == ["--level must be one of a, b, got ''"]
    assert distinct("--cases", ["b", "a"]) == []
    assert distinct("--cases", ["b", "a", "c", "b", "a"]) == ["--cases names b, a twice"]
    assert suffix("--out", None, ".csv") == suffix("--out", Path("a.csv"), ".csv") == []
    assert suffix("--out", Path("a"), ".csv", ".dot") == ["--out must end in .csv, .dot, got a"]


@pytest.mark.parametrize("device", ["foo", "", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "meta"])
def test_a_device_that_is_none(device: str) -> None:
    expected = [f"--device must be cpu, cuda or cuda:NUMBER, got {device!r}"]
    assert device_there(device) == expected


def test_a_gpu_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_there("cpu") == []
    for device in ("cuda", "cuda:1"):
        said = f"--device {device} was asked for, but PyTorch finds no GPU here"
        assert device_there(device) == [said]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert device_there("cuda") == device_there("cuda:1") == []
    said = "--device cuda:2 was asked for, but PyTorch finds only 2 GPUs, from 0"
    assert device_there("cuda:2") == [said]


def test_files_that_can_be_written(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("old")
    files = {"--out": there, "--html": tmp_path / "new" / "deep" / "a.html", "--dot": None}
    assert writable(files, read=[None, tmp_path / "pairs.csv"]) == []
    assert writable_folders({"--out": tmp_path / "new" / "deep", "--logs": None}) == []
    assert there.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    file, pipe, link = tmp_path / "file", tmp_path / "pipe", tmp_path / "link"
    file.write_text("")
    os.mkfifo(pipe)
    link.symlink_to(file)
    for path, problem in {
        tmp_path: f"--out must be a file, but {tmp_path} is a folder",
        pipe: f"--out must be a file, but {pipe} is a device or a pipe",
        file / "x": f"--out cannot be written: {file} is not a folder",
        Path("x" * 300): f"--out cannot be written: {'x' * 300}: file name too long",
    }.items():
        assert writable({"--out": path}) == [problem]
    assert writable({"--out": link}, read=[file]) == [
        f"--out would overwrite {link}, which is read"
    ]
    same = writable({"--dot": file, "--html": link})
    assert same == [f"--dot and --html are the same file, {link}"]
    assert writable_folders({"--out": file}) == [f"--out cannot be written: {file} is not a folder"]


def test_a_folder_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(**given: Any) -> None:
        raise PermissionError(13, "Permission denied", str(given["dir"]))

    monkeypatch.setattr("tempfile.TemporaryFile", locked)
    said = [f"--out cannot be written: {tmp_path}: permission denied"]
    assert writable({"--out": tmp_path / "new" / "a.json"}) == said
    assert writable_folders({"--out": tmp_path / "new"}) == said
