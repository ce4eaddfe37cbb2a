"""A user's own program from a file, and a vocabulary from the command line."""

from pathlib import Path

import pytest

from graphcircuits.rasp import RaspError
from graphcircuits.rasp.load import load_program, parse_vocab

SOURCE = """
from graphcircuits import rasp

doubled = rasp.Map(lambda x: 2 * x, rasp.tokens)
number = 3

def shifted():
    back = rasp.Select(rasp.indices, rasp.indices, lambda k, q: k == q - 1)
    return rasp.Aggregate(back, rasp.tokens)

def needs(argument):
    return argument
"""


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
        ("needs", r"'needs' in .* must be callable without arguments"),
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


def test_a_broken_json_vocabulary_is_refused():
    with pytest.raises(RaspError, match=r"is no JSON list"):
        parse_vocab('["a", ')
