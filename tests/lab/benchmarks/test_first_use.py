"""The README's first commands work, and the time they take is said where it belongs."""

import shlex
from pathlib import Path

import pytest

from lab import ROOT
from lab.benchmarks.first_use import BEGIN, END, commands_of, timed, told
from tests.shell import Command

README = ROOT / "README.md"


@pytest.mark.slow
def test_what_newcomers_type_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = [shlex.split(line) for line in commands_of(README.read_text("utf-8"))]
    ours = [words[1:] for words in ours if words[0] == "graphcircuits"]
    assert [words[0] for words in ours] == ["localize", "localize", "view"]
    for words in ours:
        assert command(*words).code == 0
    assert {page.name for page in tmp_path.glob("*.html")} == {"circuit.html", "both.html"}


def test_commands_share_one_shell_and_are_timed(tmp_path: Path) -> None:
    seconds = timed(["word=kept", 'echo "$word" > said; pwd > place'], tmp_path, None)
    assert len(seconds) == 2
    assert (tmp_path / "said").read_text() == "kept\n"
    assert (tmp_path / "place").read_text().strip() == str(tmp_path)
    with pytest.raises(SystemExit, match="this failed: false"):
        timed(["true", "false", "true"], tmp_path, None)


def test_the_sentence_has_every_command(tmp_path: Path) -> None:
    page = tmp_path / "one.html"
    page.write_bytes(bytes(1500))
    text = told(["pip install x", "y z w"], [10.2, 0.4], [page], root=True)
    assert "11 seconds in all (`pip install` 10 s, `y z` 0 s)" in text
    assert "`one.html` 2 kB" in text


def test_a_readme_without_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a block of commands between"):
        commands_of(f"{BEGIN}\nnothing\n{END}\n")
