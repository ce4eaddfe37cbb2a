"""Readers that trust no file: what is read, what is refused unread, and what an error may say."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from graphcircuits.io.files import (
    MAX_DEPTH,
    MAX_TOML,
    StoreError,
    parse_json,
    parse_toml,
    printable,
    read_bytes,
    read_json,
    read_text,
    read_toml,
    short,
)
from tests.damage import limits, nested


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("read", [read_bytes, read_text, read_json, read_toml])
def test_only_regular_files_are_opened(read: object, tmp_path: Path, pipe: Path) -> None:
    assert callable(read)
    for path, words in (
        (pipe, "a pipe"),
        ("/dev/zero", "a pipe, a device"),
        (tmp_path, "a folder"),
    ):
        with limits(), pytest.raises(StoreError, match=f"is {words}.*; expected a regular file"):
            read(path)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link") == b"content"
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="zero is a pipe, a device or the like"):
        read_bytes(tmp_path / "zero")


def test_the_limit_counts_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_bytes(path, limit=10) == b"x" * 10
    with pytest.raises(StoreError, match="file holds more than 9 bytes"):
        read_bytes(path, limit=9)
    path.write_bytes(b"#" * (MAX_TOML + 1))
    with pytest.raises(StoreError, match=f"holds more than {MAX_TOML} bytes"):
        read_toml(path)


@pytest.mark.parametrize("text", ["[" * 100_000, nested(100_000), nested(MAX_DEPTH + 1)])
def test_deep_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(StoreError, match=r"^is nested deeper than 100 levels"):
        parse_json(text)
    with pytest.raises(StoreError, match=r"^is nested deeper than 100 levels"):
        parse_json(text.replace("[", '{"a":[').replace("]", "]}"))
    path = tmp_path / "deep.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"deep\.json is nested deeper than 100 levels"):
        read_json(path)


def test_json_up_to_the_bound_is_read() -> None:
    assert parse_json(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    assert parse_json('[1, {"a": [2]}]') == [1, {"a": [2]}]
    assert parse_json("3") == 3


def test_other_json() -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json("[1,")
    with pytest.raises(StoreError, match=r"^holds the key 'a' twice in one object"):
        parse_json('{"a": 1, "a": 2}')
    with pytest.raises(StoreError, match=r"^holds a number that cannot be read: Exceeds the limit"):
        parse_json("9" * 5000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 50_000, "is nested deeper than 100 levels"),
        ("a = " + nested(MAX_DEPTH + 1), "is nested deeper than 100 levels"),
        ("\n" + "a." * 30_000 + "a = 1", "has more than 100 dots in line 2; break the line"),
        ("a = " + "9" * 5000, "holds a value that cannot be read: Exceeds the limit"),
    ],
)
def test_toml_that_takes_long_or_deep(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text)
    with limits(), pytest.raises(StoreError, match=rf"file\.toml {message}"):
        read_toml(path)


def test_other_toml() -> None:
    assert parse_toml("a = [[1]]\nb.c = 2") == {"a": [[1]], "b": {"c": 2}}
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml("a = ")


def test_texts_of_errors() -> None:
    assert printable("a\x1b[2J\x9b\u202e\ud800\n\tb") == "a\\x1b[2J\\x9b\\u202e\\ud800\n\tb"
    text = str(StoreError("begin" + "\x00" * 10**6 + "end"))
    assert text.startswith("begin\\x00")
    assert text.endswith("\\x00end")
    assert len(text) < 20_000
    assert len(short(["x" * 10**6] * 10**6)) < 1000
