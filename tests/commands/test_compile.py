"""`graphcircuits compile`: cases and files are told apart, and what it refuses."""

import json
from pathlib import Path

import pytest

from graphcircuits.cases import load_case
from tests.shell import Command, refused
from tests.viewer.reading import data_of

ONE = "from graphcircuits import rasp\ndoubled = rasp.Map(lambda x: 2 * x, rasp.tokens)\n"
TWO = ONE + "more = doubled + 1\n"
OWN = ["--vocab", "0,1", "--max-seq-len", "4"]


def test_a_file_with_one_program_needs_no_name(command: Command, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(ONE)
    ended = command("compile", "prog.py", *OWN)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("doubled (prog.py)\n")
    assert command("compile", "prog.py:doubled", *OWN).out == ended.out
    assert command("compile", "prog.py:", *OWN).out == ended.out
    (tmp_path / "prog.py").write_text(TWO)
    refused(
        command("compile", "prog.py", *OWN),
        "prog.py defines several programs; choose one: prog.py:doubled, prog.py:more.",
    )


def test_a_case_is_a_case_and_a_path_is_a_path(command: Command, tmp_path: Path) -> None:
    (tmp_path / "ib-3").write_text(ONE)
    assert command("compile", "ib-3").out.startswith("ib-3 prefix-fraction-x: ")
    assert command("compile", "./ib-3", *OWN).out.startswith("doubled (ib-3)\n")
    assert command("compile", tmp_path / "ib-3", *OWN).out.startswith("doubled (")
    # No case of that name: then a file without a suffix will do.
    (tmp_path / "ib-3000").write_text(ONE)
    assert command("compile", "ib-3000", *OWN).out.startswith("doubled (ib-3000)\n")


def test_what_each_component_does(command: Command, tmp_path: Path) -> None:
    ended = command("compile", "ib-3", "--html", "a.html")
    assert ended.code == 0, ended.err
    lines = ended.out.partition("what each component does:\n")[2].splitlines()
    assert lines[:2] == [
        "  m0 (map): computes `is_x_3` from the token "
        "('a' gives 0, 'b' gives 0, 'c' gives 0, 'x' gives 1)",
        "  a1.h0 (uniform): averages `is_x_3` over all positions up to here (`frac_prevs_1`)",
    ]
    told = {name: role.text for name, role in load_case("ib-3").roles.items()}
    assert data_of((tmp_path / "a.html").read_text())["component_roles"] == told
    record = json.loads(command("compile", "ib-3", "--json").out)
    assert {name: one["text"] for name, one in record["roles"].items()} == told
    assert [one["kind"] for one in record["roles"].values()] == ["map", "uniform"]
    # Of a task it compiles the program alone.
    task = json.loads(command("compile", "mt-7@ib-13", "--json").out)
    assert list(task["roles"]) == [one["component"] for one in task["components"]]


@pytest.mark.parametrize("id", ["IB-3", "ib3", "ib_3", "Ib 3", "Prefix-Fraction-X"])
def test_a_case_that_is_spelled_otherwise(command: Command, id: str) -> None:
    said = f"unknown case {id!r}; did you mean ib-3 (prefix-fraction-x)? `graphcircuits cases` list"
    refused(command("compile", id), said)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["absent.py", *OWN], "no Python file at absent.py; give your program as path/to/file.py"),
        ([".", *OWN], "no Python file at .; give"),
        (["prog.py"], "your own program needs --vocab and --max-seq-len."),
        (
            ["prog.py", "--vocab", "a", "--max-seq-len", "1"],
            "--max-seq-len must be in 2..1000, g",
        ),
        (
            ["prog.py", "--vocab", " ", "--max-seq-len", "3"],
            "--vocab must hold at least one tok",
        ),
        (["prog.py:more", *OWN], "prog.py defines no 'more'; did you mean "),
        (
            ["ib-3", "--labels", "paper"],
            "--labels must be one of complete, interpbench, got 'pa",
        ),
        (["ib-3", "--html", "a.svg"], "--html must end in .html, .htm, got a.svg."),
        (["ib-3", "--dot", "."], "--dot must be a file, but . is a folder."),
        (
            ["ib-3", "--dot", "x.html", "--html", "x.html"],
            "--dot and --html are the same file, x",
        ),
        (["ib-3", "--dot", "prog.py/x"], "prog.py is not a folder."),
    ],
)
def test_refusals(command: Command, tmp_path: Path, given: list[str], text: str) -> None:
    (tmp_path / "prog.py").write_text(ONE)
    refused(command("compile", *given), text)
    assert [path.name for path in tmp_path.iterdir()] == ["prog.py"]


def test_names_in_a_program_do_not_steer_the_terminal(command: Command, tmp_path: Path) -> None:
    name = "\\x1b[31mred\\u202e"
    text = f'doubled = rasp.Map(lambda x: 2 * x, rasp.tokens).named("{name}")\n'
    path = tmp_path / "a\x1b[2J.py"
    path.write_text(f"from graphcircuits import rasp\n{text}")
    ended = command("compile", path, *OWN, "--html", "a.html")
    assert ended.code == 0, ended.err
    assert not set(ended.out) & {"\x1b", "\u202e"}
    assert r"\x1b[31mred\u202e" in ended.out
    assert r"a\x1b[2J.py" in ended.out
    page = (tmp_path / "a.html").read_text()
    assert not set(page) & {"\x1b", "\u202e"}
    record = command("compile", path, *OWN, "--json").out
    assert not set(record) & {"\x1b", "\u202e"}
    writes = [one for part in json.loads(record)["components"] for one in part["writes"]]
    assert writes == ["\x1b[31mred\u202e_1"]
    refused(command("compile", tmp_path / "no\x1b[2J.py", *OWN), r"no\x1b[2J.py")


def test_the_circuit_is_printed_even_if_its_picture_cannot_be_written(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", f".{path}.tmp")

    monkeypatch.setattr("graphcircuits.io.store.write_atomic", full)
    ended = command("compile", "ib-3", "--dot", "a.dot", "--html", "a.html")
    assert ended.code == 1
    assert "circuit (complete), 5 of" in ended.out
    assert "wrote" not in ended.out
    assert ended.err == (
        "error: cannot write a.dot: no space left on device\n"
        "error: cannot write a.html: no space left on device\n"
    )
