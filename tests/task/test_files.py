"""Prompt files: what people's columns mean, round trips, and every error with its line."""

import json
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphcircuits.io.files import StoreError
from graphcircuits.subject.codec import Codec
from graphcircuits.task.files import ALIASES, read_prompts, write_prompts
from graphcircuits.task.text import PromptTable
from tests import text
from tests.damage import limits


def write(folder: Path, text: str, suffix: str = ".csv") -> Path:
    path = folder / f"pairs{suffix}"
    path.write_text(text, encoding="utf-8")
    return path


def jsonl(folder: Path, *rows: Any) -> Path:
    return write(folder, "".join(json.dumps(row) + "\n" for row in rows), ".jsonl")


def same(left: PromptTable, right: PromptTable) -> bool:
    for name in ("clean", "corrupted", "scored", "correct", "incorrect", "target"):
        a, b = getattr(left, name), getattr(right, name)
        if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
            return False
    return left.loss == right.loss


# What is read


def test_the_usual_csv(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "clean,corrupted,corrupted_hard,correct_idx,incorrect_idx\n"
        "5 6 7,5 6 8,1 1 1,3,4\n\n7 7 7,8 8 8,1 1 1,0,1\n",
    )
    table = read_prompts(path)
    assert table.clean.tolist() == [[5, 6, 7], [7, 7, 7]]
    assert table.corrupted.tolist() == [[5, 6, 8], [8, 8, 8]]
    assert table.scored.tolist() == [[False, False, True]] * 2
    assert table.correct is not None
    assert table.incorrect is not None
    assert table.correct[table.scored].tolist() == [3, 0]
    assert table.incorrect[table.scored].tolist() == [4, 1]
    assert table.target is None
    assert table.loss is None


def test_the_same_in_jsonl(tmp_path: Path) -> None:
    text = write(tmp_path, "clean,corrupted,correct_idx,scored\n1 2 3,1 2 4,5 6,0 -1\n")
    lists = {"clean": [1, 2, 3], "corrupted": "1 2 4", "correct_idx": [5, 6], "scored": [0, -1]}
    table = read_prompts(text)
    assert same(table, read_prompts(jsonl(tmp_path, lists | {"id": "more"})))
    assert table.correct is not None
    assert table.correct.tolist() == [[5, 0, 6]]


def test_values_follow_the_order_of_scored(tmp_path: Path) -> None:
    row = {"clean": [1, 2, 3], "corrupted": [1, 2, 4], "target": [0.5, 7], "scored": [-1, 0]}
    table = read_prompts(jsonl(tmp_path, row))
    assert table.target is not None
    assert table.target.tolist() == [[7.0, 0.0, 0.5]]


def test_distributions(tmp_path: Path) -> None:
    row = {"clean": [1, 2], "corrupted": [1, 3], "target": [[0.1, 0.9]]}
    table = read_prompts(jsonl(tmp_path, row))
    assert table.target is not None
    assert table.target.tolist() == [[[0.0, 0.0], [0.1, 0.9]]]


def test_codec_reads_symbols(tmp_path: Path) -> None:
    codec = Codec(("a", 1, "x"))
    by_text = read_prompts(write(tmp_path, "clean,corrupted\na 1 x,x x x\n"), tokenizer=codec)
    assert by_text.clean.tolist() == [[0, 2, 3, 4]]
    assert by_text.corrupted.tolist() == [[0, 4, 4, 4]]
    row = {"clean": ["a", 1, "x"], "corrupted": ["x", "x", "x"]}
    assert same(by_text, read_prompts(jsonl(tmp_path, row), tokenizer=codec))


def test_the_first_word_names_the_task_of_a_model_with_several(tmp_path: Path) -> None:
    codec = Codec(("a", "x"), None, ("copy", "count"))
    path = write(tmp_path, "clean,corrupted\ncount a x,count x x\n")
    assert read_prompts(path, tokenizer=codec).clean.tolist() == [[5, 2, 3]]
    with pytest.raises(ValueError, match="one of the tasks 'copy', 'count'; got None"):
        read_prompts(write(tmp_path, "clean,corrupted\na x,x x\n"), tokenizer=codec)


@pytest.mark.parametrize("wrap", [list, lambda ids: UserDict(input_ids=ids), torch.tensor])
def test_tokenizer_functions(tmp_path: Path, wrap: Any) -> None:
    path = write(tmp_path, 'clean,corrupted\n"When Ann, Bob","When Eve, Bob"\n')
    table = read_prompts(path, tokenizer=lambda text: wrap([ord(letter) for letter in text]))
    assert "".join(map(chr, table.clean[0].tolist())) == "When Ann, Bob"


def test_padding_fills_the_right(tmp_path: Path) -> None:
    path = write(tmp_path, "clean,corrupted,correct_idx\n1 2 3,1 2 4,5\n1,2,6\n")
    table = read_prompts(path, pad=9)
    assert table.clean.tolist() == [[1, 2, 3], [1, 9, 9]]
    assert table.corrupted.tolist() == [[1, 2, 4], [2, 9, 9]]
    assert table.scored.tolist() == [[False, False, True], [True, False, False]]
    assert table.correct is not None
    assert table.correct.tolist() == [[0, 0, 5], [6, 0, 0]]


def test_spreadsheet_quirks(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes('\ufeffclean,corrupted\r\n"1 2","1 3"\r\n'.encode())
    assert read_prompts(path).clean.tolist() == [[1, 2]]


# Round trips


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_round_trip(tmp_path: Path, seed: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch, pos = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    scored = torch.rand(batch, pos, generator=generator) < 0.5
    scored[:, -1] = True
    suffix = data.draw(st.sampled_from([".csv", ".jsonl"]))
    form = data.draw(st.sampled_from(["none", "classes", "both", "numbers", "distributions"]))

    def ids() -> torch.Tensor:
        return torch.randint(0, 99, (batch, pos), generator=generator)

    numbers = torch.randn(batch, pos, 3, generator=generator, dtype=torch.float64)
    if form == "distributions":
        suffix = ".jsonl"
    target = {"numbers": numbers[..., 0] * scored, "distributions": numbers * scored[..., None]}
    table = PromptTable(
        clean=ids(),
        corrupted=ids(),
        scored=scored,
        correct=ids() * scored if form in ("classes", "both") else None,
        incorrect=ids() * scored if form == "both" else None,
        target=target.get(form),
        loss=data.draw(st.sampled_from([None, "kl"])),
    )
    write_prompts(tmp_path / f"pairs{suffix}", table)
    assert same(read_prompts(tmp_path / f"pairs{suffix}"), table)


def test_only_the_two_forms(tmp_path: Path) -> None:
    table = read_prompts(write(tmp_path, "clean,corrupted\n1,2\n"))
    with pytest.raises(ValueError, match=r"pairs are saved as \.csv or \.jsonl, got .*pairs\.txt"):
        write_prompts(tmp_path / "pairs.txt", table)
    with pytest.raises(ValueError, match=r"are read from \.csv or \.jsonl files, got .*\.txt"):
        read_prompts(tmp_path / "pairs.txt")


# Refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"pairs\.csv: no column clean and corrupted; found none"),
        ("clean,corrupted\n", r"pairs\.csv holds no pairs"),
        ("clean,corupted\n1,2\n", "unknown column 'corupted'; did you mean 'corrupted'"),
        ("clean\n1\n", "no column corrupted; found clean"),
        ("clean,corrupted,correct_id\n1,2,3\n", "'correct_id'; did you mean 'correct_idx'"),
        ("clean,corrupted,incorrect_idx\n1,2,3\n", "incorrect_idx needs a column correct_idx"),
        ("clean,corrupted\n1,2\n1,2,3\n", "line 3: has 3 cells, the header 2; quote cells that"),
        ('clean,corrupted\n"1,2\n', "line 2: unexpected end of data"),
        (
            "clean,corrupted\n1,2\n1 x,2 3\n",
            "line 3: clean must be whole numbers, got '1 x'. Prompts in words need a ",
        ),
        ("clean,corrupted\n1 2,\n", "line 2: corrupted is empty"),
        (
            "clean,corrupted\n1 2,1\n",
            r"line 2: the clean prompt has 2 tokens \(1, 2\), the corrupted one 1 \(1\);",
        ),
        (
            "clean,corrupted\n1 2,1 3\n1,2\n",
            "prompts must have one length, but line 3 has 1 tokens and line 2 has 2; split",
        ),
        (
            "clean,corrupted,scored\n1 2,1 3,2\n",
            r"scored must name positions in -2\.\.1, got \[2\]",
        ),
        ("clean,corrupted,scored\n1 2,1 3,\n", r"scored must name positions in -2\.\.1, got none"),
        ("clean,corrupted,scored\n1 2,1 3,1 -1\n", r"scored names a position twice: \[1, -1\]"),
        (
            "clean,corrupted,correct_idx,scored\n1 2 3,1 3 3,1 2,0 1 2\n",
            "correct_idx needs one value or one for each of 3 scored positions, got 2",
        ),
        ("clean,corrupted,correct_idx\n1,2,1.5\n", "correct_idx must be whole numbers, got '1.5'"),
        ("clean,corrupted,target\n1,2,x\n", "line 2: target must be numbers, got 'x'"),
        (
            "clean,corrupted,loss\n1,2,kl\n1,2,l1\n",
            "line 3: the loss is 'l1', in line 2 it is 'kl'; split the file",
        ),
    ],
)
def test_csv_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_prompts(write(tmp_path, text))


GOOD = {"clean": [1, 2], "corrupted": [1, 3]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], r"line 2: must be a JSON object, got \[1\]"),
        (GOOD | {"target": 1.0}, "line 2: has the columns clean, corrupted, target, line 1 has cl"),
        (
            {"clean": [1, True], "corrupted": [1, 3]},
            r"clean must be whole numbers, got \[1, True\]",
        ),
        ({"clean": [1, 2.5], "corrupted": [1, 3]}, r"clean must be whole numbers, got \[1, 2.5\]"),
        ({"clean": None, "corrupted": [1, 3]}, "clean must be whole numbers, got None"),
    ],
)
def test_jsonl_errors(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_prompts(jsonl(tmp_path, GOOD, row))


def test_jsonl_cut_short(tmp_path: Path) -> None:
    path = jsonl(tmp_path, GOOD, GOOD)
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ValueError, match=r"pairs\.jsonl, line 2: is not JSON \("):
        read_prompts(path)


def test_target_forms_must_agree(tmp_path: Path) -> None:
    numbers, pair = GOOD | {"target": 1.0}, GOOD | {"target": [[0.5, 0.5]]}
    with pytest.raises(ValueError, match="line 2: target must be of the same form in all lines"):
        read_prompts(jsonl(tmp_path, numbers, pair))
    ragged = GOOD | {"target": [[1.0], [0.5, 0.5]], "scored": [0, 1]}
    with pytest.raises(ValueError, match="line 1: target mixes distributions of different length"):
        read_prompts(jsonl(tmp_path, ragged))
    mixed = GOOD | {"target": [1.0, [0.5, 0.5]], "scored": [0, 1]}
    with pytest.raises(ValueError, match="line 1: target mixes distributions of different length"):
        read_prompts(jsonl(tmp_path, mixed))


def test_loss_must_be_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: loss must be a name, got 3"):
        read_prompts(jsonl(tmp_path, GOOD | {"loss": 3}))


def test_tokenizer_errors_name_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "clean,corrupted\na,b\na,zz\n")
    with pytest.raises(ValueError, match="line 3: symbols not in the vocabulary: 'zz'"):
        read_prompts(path, tokenizer=Codec(("a", "b")))
    with pytest.raises(ValueError, match="line 2: two symbols of the codec read the same as text"):
        read_prompts(path, tokenizer=Codec((1, "1")))
    with pytest.raises(ValueError, match=r"line 1: clean must be text for the tokenizer, got \[1"):
        read_prompts(jsonl(tmp_path, GOOD), tokenizer=len)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(b"clean,corrupted\n\xff\n")
    with pytest.raises(ValueError, match="is not a text file: byte 16 is not UTF-8"):
        read_prompts(path)
    torch.save([1], path)
    with pytest.raises(ValueError, match="is a pickle or a zip of pickles"):
        read_prompts(path)


# Files that lie


@pytest.mark.parametrize("name", ["clean", "correct_idx", "note"])
def test_a_column_that_is_there_twice(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f"clean,corrupted,correct_idx,note,{name}\n1,2,3,4,5\n")
    message = rf"pairs\.csv: the header names '{name}' more than once; keep one column"
    with pytest.raises(StoreError, match=message):
        read_prompts(path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("clean,\x1b[2Jx\n1,2\n", r"found clean, \x1b[2Jx."),
        ("clean,corrupted,correct_\x9bidx\n1,2,3\n", r"unknown column 'correct_\x9bidx'; did"),
        ("clean,corrupted,a\x1b[2J,a\x1b[2J\n1,2,3,4\n", r"names 'a\x1b[2J' more than once"),
        ("clean,corrupted\n\x1b[2J,2\n", r"clean must be whole numbers, got '\x1b[2J'."),
        ("clean,corrupted,loss\n1,2,kl\n1,2,\x1b[2J\n", r"the loss is '\x1b[2J', in line 2 it"),
    ],
)
def test_escape_sequences_are_shown_as_text(tmp_path: Path, text: str, shown: str) -> None:
    with pytest.raises(StoreError) as caught:
        read_prompts(write(tmp_path, text))
    assert shown in str(caught.value)
    assert str(caught.value).isprintable()


def test_escape_sequences_in_what_a_tokenizer_says(tmp_path: Path) -> None:
    def tokenizer(text: str) -> list[int]:
        raise ValueError(f"no word {text}")

    path = write(tmp_path, "clean,corrupted\n\x1b[2J,2\n")
    with pytest.raises(StoreError, match=r"line 2: no word \\x1b\[2J$"):
        read_prompts(path, tokenizer=tokenizer)


def test_deep_lines_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, '{"clean": [1], "corrupted": [2]}\n' + "[" * 100_000, ".jsonl")
    with pytest.raises(StoreError, match=r"jsonl, line 2: is nested deeper than 100 levels"):
        read_prompts(path)


def test_wide_tables_are_refused_unbuilt(tmp_path: Path) -> None:
    ids, shares = list(range(20_000)), [1.0] * 20_000
    path = jsonl(tmp_path, {"clean": ids, "corrupted": ids, "target": [shares]})
    message = "1 prompts of 20000 tokens with 20000 classes make a table of 400000000 numbers"
    with limits(), pytest.raises(StoreError, match=message):
        read_prompts(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"clean": [2**63]}, r"clean holds a number that is too large: \[9223372036854775808\]"),
        ({"target": [10**400]}, "target holds a number that is too large"),
        ({"target": [[[1.0]]]}, r"target must be numbers, got \[\[1.0\]\]"),
        ({"target": [[]]}, "target holds a distribution over no classes"),
    ],
)
def test_numbers_and_shapes_beyond_a_tensor(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        read_prompts(jsonl(tmp_path, {"clean": [1], "corrupted": [2]} | row))


@pytest.mark.parametrize("cell", [3, None, {"a": 1}, [["a"]]])
def test_symbols_that_are_none(tmp_path: Path, cell: Any) -> None:
    path = jsonl(tmp_path, {"clean": cell, "corrupted": "a"})
    with pytest.raises(StoreError, match="clean must be symbols, got "):
        read_prompts(path, tokenizer=Codec(("a",)))


# Text


WORDS = "clean,corrupted,correct,incorrect\n"


def test_answers_in_words(tmp_path: Path) -> None:
    tokenizer = text.single_digits()
    rows = '"When Mary met John, John saw","When Mary met John, Paul saw", Mary, John\nHe is,It is,'
    path = write(tmp_path, f"{WORDS}{rows} 4, the\n".replace(" 4,", "4,"))
    table = read_prompts(path, tokenizer=tokenizer)
    assert table.correct is not None
    assert table.incorrect is not None
    ids = [tokenizer(word)["input_ids"] for word in (" Mary", "4", " John", " the")]
    assert table.correct[table.scored].tolist() == [*ids[0], *ids[1]]
    assert table.incorrect[table.scored].tolist() == [*ids[2], *ids[3]]
    # Padded at the end without being asked, and scored at the last token.
    assert table.clean[1].tolist()[-1] == tokenizer.pad_token_id
    short = len(tokenizer("He is")["input_ids"])
    assert table.scored[1].nonzero().item() == short - 1


def test_answers_in_words_or_ids_in_jsonl(tmp_path: Path) -> None:
    tokenizer = text.single_digits()
    rows = [
        {"clean": "He is", "corrupted": "It is", "correct": " the", "incorrect": 7.0},
        {"clean": "It is", "corrupted": "He is", "correct": 9, "incorrect": " the"},
    ]
    table = read_prompts(jsonl(tmp_path, *rows), tokenizer=tokenizer)
    (the,) = tokenizer(" the")["input_ids"]
    assert table.correct is not None
    assert table.incorrect is not None
    assert table.correct[table.scored].tolist() == [the, 9]
    assert table.incorrect[table.scored].tolist() == [7, the]


def test_ids_as_pandas_writes_them(tmp_path: Path) -> None:
    path = write(tmp_path, "clean,corrupted,correct_idx,incorrect_idx\n1 2,1 3,4.0,-0.0\n")
    table = read_prompts(path)
    assert table.correct is not None
    assert table.incorrect is not None
    assert (table.correct[0, 1], table.incorrect[0, 1]) == (4, 0)
    row = {"clean": [1.0, 2], "corrupted": [1, 3], "correct": 4.0}
    assert read_prompts(jsonl(tmp_path, row)).correct.tolist() == [[0, 4]]  # pyright: ignore


@pytest.mark.parametrize("names", ALIASES)
def test_columns_of_eap_ig(tmp_path: Path, names: tuple[str, str]) -> None:
    path = write(tmp_path, f"clean,corrupted,{','.join(names)}\n1 2,1 3,5,6\n")
    plain = write(tmp_path, "clean,corrupted,correct_idx,incorrect_idx\n1 2,1 3,5,6\n")
    assert same(read_prompts(path), read_prompts(plain))
    ours = write(tmp_path, f"clean,corrupted,correct_idx,{','.join(names)}\n1 2,1 3,7,5,6\n")
    assert read_prompts(ours).incorrect is None


def test_a_codec_reads_answers(tmp_path: Path) -> None:
    codec = Codec(("a", "b"), outputs=("p", 1))
    path = write(tmp_path, f"{WORDS}a b,b b,1,p\n")
    table = read_prompts(path, tokenizer=codec)
    assert table.correct is not None
    assert table.incorrect is not None
    assert (table.correct[0, 2], table.incorrect[0, 2]) == (1, 0)
    other = r"line 2: correct must be one of the outputs \['p', '1'\], got 'x'; give its class as a"
    with pytest.raises(StoreError, match=other):
        read_prompts(write(tmp_path, f"{WORDS}a b,b b,x,p\n"), tokenizer=codec)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("correct\nHe is,It is, Maryland\n", r"splits the correct answer ' Maryland' into \d"),
        ("correct\nHe is,He was not, Mary\n", "the clean prompt has .* both need the same number"),
        ("correct_idx\nHe is,It is,4.5\n", "correct_idx must be whole numbers, got '4.5'"),
        ("incorrect\nHe is,It is, Mary\n", "incorrect needs a column correct beside it"),
        (
            "correct,correct_idx\nHe is,It is, Mary,3\n",
            r"correct is ' Mary', which is token \[\d+\] here, but correct_idx says \[3\]; keep",
        ),
    ],
)
def test_text_that_is_refused(tmp_path: Path, rows: str, problem: str) -> None:
    path = write(tmp_path, f"clean,corrupted,{rows}")
    with pytest.raises(StoreError, match=problem):
        read_prompts(path, tokenizer=text.single_digits())


def test_words_without_a_tokenizer(tmp_path: Path) -> None:
    problem = "correct must be whole numbers, got ' Mary'. Answers in words need a tokenizer; comm"
    with pytest.raises(StoreError, match=problem):
        read_prompts(write(tmp_path, "clean,corrupted,correct\n1 2,1 3, Mary\n"))
