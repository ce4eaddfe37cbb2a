"""What commands print holds nothing that steers a terminal; files that fail cost no results."""

import json
import unicodedata
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.commands import output
from graphcircuits.commands.output import (
    in_words,
    print_json,
    print_table,
    printable,
    save,
    say,
    say_error,
)

ESCAPE = "a\x1b[31mred\x07\r\x9b2J\u202eb\udc80\n"
SHOWN = r"a\x1b[31mred\x07\r\x9b2J\u202eb\udc80\n"


@given(st.text(st.characters()))
def test_printable_text_is_one_line_that_steers_nothing(text: str) -> None:
    found = printable(text)
    assert not {unicodedata.category(letter) for letter in found} & {"Cc", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.bidirectional(x) in {"RLO", "LRO", "RLI", "PDF"} for x in found)
    assert len((found + ".").splitlines()) == 1
    found.encode()


@given(st.text(st.characters(categories=["L", "N", "P", "S", "M", "Zs"])))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_lines_tables_and_errors_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    say(ESCAPE)
    print_table(["column"], [[ESCAPE], [":smile: [red]x[/red]"]])
    say_error(f"first\nsecond {ESCAPE}")
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.split("\n")]
    assert lines == [SHOWN, "column", SHOWN, ":smile: [red]x[/red]", ""]
    assert err == f"error: first second {SHOWN.removesuffix(chr(92) + 'n')} \n"


def test_json_is_clean_and_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    record = {ESCAPE: [ESCAPE, "ä", {"x": 1.5}], "line\nline": None}
    print_json(record)
    out = capsys.readouterr().out
    assert json.loads(out) == record
    assert all(printable(line) == line for line in out.split("\n"))
    assert "ä" in out


def test_errors_of_the_system_lose_their_number(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "absent").read_text()
    assert in_words(caught.value) == f"{tmp_path / 'absent'}: no such file or directory"
    assert in_words(OSError(28, "No space left on device")) == "no space left on device"
    assert in_words(FileNotFoundError("no subject at x.")) == "no subject at x."
    assert in_words(ValueError("wrong")) == "wrong"


def test_a_file_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path) + ".tmp")

    def nothing(path: Path) -> list[Path]:
        return []

    good, several = tmp_path / "good", tmp_path / "several"
    saved = save(
        {
            tmp_path / "full": full,
            None: full,
            good: lambda path: output.write(path, "text"),
            several: lambda folder: [folder / "a", folder / "b"],
            tmp_path / "nothing": nothing,
        }
    )
    assert good.read_text() == "text"
    with pytest.raises(typer.Exit) as caught:
        saved.tell()
    assert caught.value.exit_code == 1
    out, err = capsys.readouterr()
    assert out == f"wrote {good}\nwrote {several / 'a'}\nwrote {several / 'b'}\n"
    assert err == f"error: cannot write {tmp_path / 'full'}: no space left on device\n"
    save({good: lambda path: None}).tell(quiet=True)
    assert capsys.readouterr().out == ""
