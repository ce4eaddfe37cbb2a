"""A user's own program from a file, and a vocabulary from the command line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.rasp import RaspError
from graphcircuits.rasp.load import load_program, parse_vocab, vocab_text

SOURCE = """
from graphcircuits import rasp

doubled = rasp.Map(lambda x: 2 * x, rasp.tokens)
number = 3

def shifted():
    back = rasp.Select(rasp.indices, rasp.indices, lambda k, q: k == q - 1)
    return rasp.Aggregate(back, rasp.tokens)

def needs(argument):
    return argument

def fails():
    raise KeyError("gone")
"""
ONE = "from graphcircuits.rasp import *\nfrom graphcircuits import rasp\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_program_is_an_expression_or_a_function_that_gives_one(source: Path):
    assert load_program(source, "doubled")[1]([1, 2]) == [2, 4]
    assert load_program(source, "shifted")[1](["a", "b"]) == [None, "a"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("doubld", r"defines no 'doubld'; did you mean doubled\?"),
        ("number", r"'number' in .* must be a sequence expression, got 3"),
        ("needs", r"'needs' in .* must be callable without arguments, but needs argument\."),
        ("fails", r"'fails' in .* raised KeyError: 'gone'\."),
    ],
)
def test_other_names_are_refused(source: Path, name: str, message: str):
    with pytest.raises(RaspError, match=message):
        load_program(source, name)


def test_a_missing_or_failing_file_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no Python file at .*absent\.py"):
        load_program(tmp_path / "absent.py", "x")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(RaspError, match=r"broken\.py raised ZeroDivisionError: division by zero"):
        load_program(broken, "x")


@pytest.mark.parametrize(
    "line",
    [
        "only = Map(lambda x: 2 * x, tokens)",
        "def only():\n    return Map(lambda x: 2 * x, tokens)",
        "def only(times=2):\n    return Map(lambda x: times * x, tokens)",
        # Imported, private, with arguments or no sequence: none of these is a program.
        "_part = tokens + 1\ndef make(n):\n    return tokens * n\nsame = tokens\nnumber = 3\n"
        "choice = Select(tokens, tokens, Comparison.EQ)\nonly = Map(lambda x: 2 * x, tokens)",
    ],
)
def test_the_only_program_of_a_file_needs_no_name(tmp_path: Path, line: str):
    path = tmp_path / "one.py"
    path.write_text(ONE + line)
    name, program = load_program(path)
    assert name == "only"
    assert program([1, 2]) == [2, 4]


def test_several_programs_are_listed_and_none_is_said(source: Path, tmp_path: Path):
    with pytest.raises(RaspError) as caught:
        load_program(source)
    listed = ", ".join(f"{source}:{name}" for name in ("doubled", "shifted", "fails"))
    assert str(caught.value) == f"{source} defines several programs; choose one: {listed}."
    empty = tmp_path / "empty.py"
    empty.write_text(ONE)
    with pytest.raises(RaspError, match=r"empty\.py defines no program: no sequence expression"):
        load_program(empty)


def test_a_file_that_ends_the_program_is_named(tmp_path: Path):
    path = tmp_path / "script.py"
    path.write_text("import sys; sys.exit(3)")
    with pytest.raises(RaspError, match=r"script\.py ends the program \(exit 3\) when it is run"):
        load_program(path)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a,b,c", ("a", "b", "c")),
        ("0, 1, 2.5", (0, 1, 2.5)),
        ("-1,x", (-1, "x")),
        ('["a", "1", 2]', ("a", "1", 2)),
        ("", ()),
    ],
)
def test_vocabularies(text: str, tokens: tuple[object, ...]):
    assert parse_vocab(text) == tokens


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (("a", "b"), "a,b"),
        ((0, 1.5, "x"), "0,1.5,x"),
        (("0", "a"), '["0", "a"]'),
        (("a,b",), '["a,b"]'),
        ((True, False), "[true, false]"),
    ],
)
def test_vocabularies_as_they_are_typed(tokens: tuple[object, ...], text: str):
    assert vocab_text(tokens) == text


@given(st.lists(st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans(), min_size=1))
def test_vocabularies_are_read_as_they_were_written(tokens: list[object]):
    read = parse_vocab(vocab_text(tokens))
    assert [(type(token), token) for token in read] == [(type(token), token) for token in tokens]


def test_a_broken_json_vocabulary_is_refused():
    for text in ('["a", ', "[" * 100_000):
        with pytest.raises(RaspError, match=r"is no JSON list") as caught:
            parse_vocab(text)
        assert len(str(caught.value)) < 200
    with pytest.raises(RaspError, match=r"must be text, numbers, true or false, got \[1\]\."):
        parse_vocab("[[1]]")
