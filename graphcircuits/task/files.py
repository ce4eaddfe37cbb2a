"""Prompt pairs in CSV and JSONL files, with the columns in common use.

A line holds one pair:
  clean, corrupted  the prompts: token ids, or text where a tokenizer is given
  correct           the right answer: a word, or a token id     (optional)
  incorrect         the answer to be told apart from it         (optional)
  correct_idx       the right class, as a number: 4, or 4.0     (optional)
  incorrect_idx     the class to be told apart from it          (optional)
  target            a number, or in JSONL also a distribution   (optional)
  scored            positions, negative ones from the end       (optional; default: the last)
  loss              the name of the loss, the same in all lines (optional)
Other columns are let be. Lists are JSON lists or text with spaces between. Where several positions
are scored, a column holds one value for all of them or one for each, in the order of `scored`.
Answers in words need a tokenizer and stand as they would behind the prompt, with the space in
front; where a tokenizer is given, a text is always a word ("4" too). Columns in which EAP-IG keeps
two classes (ALIASES) are read as correct_idx and incorrect_idx.

1. `read_prompts` reads the lines, turns prompts and answers into ids (`graphcircuits.task.text`),
   brings them to one length, and spreads the values over the scored positions. Every error is a
   StoreError and names the file and the line; what it quotes is escaped, so that no file can steer
   a terminal.
2. `write_prompts` writes the same table with token ids.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcircuits.engine.losses import OF_CLASSES
from graphcircuits.io.files import StoreError, csv_text, parse_json, read_text, write_atomic
from graphcircuits.io.files import short as quoted
from graphcircuits.subject.codec import Codec
from graphcircuits.task.text import (
    PromptTable,
    answer_id,
    check_aligned,
    lacks_space,
    padding_id,
    prompt_ids,
    table_of,
    warn_of_missing_spaces,
)

if TYPE_CHECKING:
    from graphcircuits.task.pairs import Pairs

MAX_CELLS = 2**26
"""Numbers in one column of a table: half a GiB. A short line can ask for a wide table, since every
prompt is as long as the longest, and every position has room for a distribution."""

ANSWERS = ("correct", "incorrect", "correct_idx", "incorrect_idx")
COLUMNS = ("clean", "corrupted", *ANSWERS, "target", "scored", "loss")

ALIASES = (
    ("clean_answer_idx", "corrupted_answer_idx"),
    ("country_idx", "corrupted_country_idx"),
    ("capital_idx", "corrupted_capital_idx"),
)
"""Columns of EAP-IG's files with the right answers to the clean and to the corrupted prompt."""

Tokenizer = Codec | Callable[[str], Any]
"""A Codec, for symbols with spaces between, or a function from text to ids or to a mapping with
`input_ids`, such as a Hugging Face tokenizer."""


def read_prompts(
    path: str | Path, *, tokenizer: Tokenizer | None = None, pad: int | None = None
) -> PromptTable:
    """Read a file of pairs.

    `pad` fills shorter prompts on the right; a tokenizer of Hugging Face's interface names its own.
    That is sound for causal subjects only: there no scored position sees the filling.
    """
    pad = padding_id(tokenizer) if pad is None else pad
    lines = _lines(path)
    rows = []
    for number, cells in lines:
        try:
            rows.append(_row(cells, tokenizer))
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"{path}, line {number}: {error}") from error
        if rows[-1]["classes"] != rows[0]["classes"]:
            raise StoreError(
                f"{path}, line {number}: target must be of the same form in all lines: numbers, "
                "or distributions over the same classes."
            )
    if tokenizer is not None and not isinstance(tokenizer, Codec):
        answers = [(c["clean"], c[k]) for _, c in lines for k in ("correct", "incorrect") if k in c]
        warn_of_missing_spaces([word for at, word in answers if lacks_space(tokenizer, at, word)])
    lengths = [len(row["clean"]) for row in rows]
    length = max(lengths)
    if pad is None and min(lengths) < length:
        short, long = lengths.index(min(lengths)), lengths.index(length)
        raise StoreError(
            f"{path}: prompts must have one length, but line {lines[short][0]} has "
            f"{lengths[short]} tokens and line {lines[long][0]} has {length}; split the file by "
            "length or, in Python and for a causal subject, name a token to pad with."
        )
    cells = len(rows) * length * (rows[0]["classes"] or 1)
    if cells > MAX_CELLS:
        raise StoreError(
            f"{path}: {len(rows)} prompts of {length} tokens"
            + (f" with {rows[0]['classes']} classes" if rows[0]["classes"] else "")
            + f" make a table of {cells} numbers, at most {MAX_CELLS} are read; split the file."
        )
    return table_of(rows, pad)


def write_prompts(path: str | Path, pairs: "Pairs") -> None:
    """Write pairs as `.csv` or `.jsonl`."""
    suffix = Path(path).suffix
    if suffix not in (".csv", ".jsonl"):
        raise ValueError(f"pairs are saved as .csv or .jsonl, got {path}.")
    if suffix == ".csv" and pairs.targets is not None and pairs.targets.ndim == 3:
        raise ValueError(f"CSV has no room for distributions; save as .jsonl instead of {path}.")
    right = "correct_idx" if pairs.loss_name in OF_CLASSES else "target"
    values = {right: pairs.targets, "incorrect_idx": pairs.incorrect}
    rows = []
    for index, scored in enumerate(pairs.scored):
        row: dict[str, Any] = {
            "clean": pairs.clean[index].tolist(),
            "corrupted": pairs.corrupted[index].tolist(),
        }
        row |= {name: x[index, scored].tolist() for name, x in values.items() if x is not None}
        row["scored"] = scored.nonzero().flatten().tolist()
        rows.append(row | {"loss": pairs.loss_name})
    if suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        lines = [
            [x if isinstance(x, str) else " ".join(map(repr, x)) for x in row.values()]
            for row in rows
        ]
        text = csv_text([rows[0], *lines])
    write_atomic(path, text.encode())


# Lines


def _lines(path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """The pairs of a file as (line number, known columns)."""
    suffix = Path(path).suffix
    if suffix not in (".csv", ".jsonl"):
        raise StoreError(f"pairs are read from .csv or .jsonl files, got {path}.")
    text = read_text(path)
    lines = _csv_lines(path, text) if suffix == ".csv" else _jsonl_lines(path, text)
    lines = [(number, _without_aliases(cells)) for number, cells in lines]
    if not lines:
        raise StoreError(f"{path} holds no pairs.")
    first, columns = lines[0][0], _known_columns(path, lines[0][1])
    for number, cells in lines[1:]:
        if (present := [name for name in COLUMNS if name in cells]) != columns:
            raise StoreError(
                f"{path}, line {number}: has the columns {', '.join(present)}, "
                f"line {first} has {', '.join(columns)}."
            )
        if cells.get("loss") != lines[0][1].get("loss"):
            raise StoreError(
                f"{path}, line {number}: the loss is {quoted(cells['loss'])}, in line {first} it "
                f"is {quoted(lines[0][1]['loss'])}; split the file."
            )
    return lines


def _csv_lines(path: str | Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        _known_columns(path, header)
        if twice := [name for name, count in Counter(header).items() if count > 1]:
            raise StoreError(
                f"{path}: the header names {', '.join(map(quoted, twice[:5]))} more than once; "
                "keep one column of each name."
            )
        lines = []
        for cells in reader:
            if cells and len(cells) != len(header):
                raise StoreError(
                    f"{path}, line {reader.line_num}: has {len(cells)} cells, "
                    f"the header {len(header)}; quote cells that hold commas."
                )
            if cells:
                lines.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise StoreError(f"{path}, line {reader.line_num}: {error}.") from error
    return lines


def _jsonl_lines(path: str | Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            cells = parse_json(line)
        except json.JSONDecodeError as error:
            raise StoreError(f"{path}, line {number}: is not JSON ({error}).") from error
        except StoreError as error:
            raise StoreError(f"{path}, line {number}: {error}") from error
        if not isinstance(cells, dict):
            raise StoreError(f"{path}, line {number}: must be a JSON object, got {quoted(cells)}.")
        lines.append((number, cells))
    return lines


def _known_columns(path: str | Path, names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """The columns we read, in our order; a missing or misspelt one is an error."""
    present = [name for name in COLUMNS if name in names]
    absent = [name for name in COLUMNS if name not in names]
    for name in names:
        # Misspelling an optional column would quietly change the loss. Longer names are no
        # misspellings, and comparing them takes long.
        known = name in COLUMNS or len(name) > 20
        if not known and (near := get_close_matches(name, absent, n=1, cutoff=0.85)):
            raise StoreError(f"{path}: unknown column {name!r}; did you mean {near[0]!r}?")
    if missing := [name for name in ("clean", "corrupted") if name in absent]:
        raise StoreError(
            f"{path}: no column {' and '.join(missing)}; "
            f"found {', '.join(list(names)[:20]) or 'none'}."
        )
    for name in ("incorrect", "incorrect_idx"):
        right = name.removeprefix("in")
        if name in present and not {"correct", "correct_idx"} & set(present):
            raise StoreError(f"{path}: {name} needs a column {right} beside it.")
    return present


def _without_aliases(cells: dict[str, Any]) -> dict[str, Any]:
    """The cells with our names in place of EAP-IG's, where none of ours is there."""
    for right, wrong in ALIASES:
        if right in cells and wrong in cells and not {"correct", "correct_idx"} & cells.keys():
            return cells | {"correct_idx": cells[right], "incorrect_idx": cells[wrong]}
    return cells


# Cells


def _row(cells: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """One pair: ids, scored positions, and for each other column one value per scored position."""
    row: dict[str, Any] = {
        side: _tokens(side, cells[side], tokenizer) for side in ("clean", "corrupted")
    }
    check_aligned(row["clean"], row["corrupted"], tokenizer)
    length = len(row["clean"])
    positions = _numbers("scored", cells["scored"], int) if "scored" in cells else [-1]
    outside = [position for position in positions if not -length <= position < length]
    if outside or not positions:
        got = quoted(outside) if outside else "none"
        raise ValueError(f"scored must name positions in {-length}..{length - 1}, got {got}.")
    row["scored"] = [position % length for position in positions]
    if len(set(row["scored"])) < len(positions):
        raise ValueError(f"scored names a position twice: {quoted(positions)}.")
    for name, kind in (("correct_idx", int), ("incorrect_idx", int), ("target", float)):
        if name in cells:
            row[name] = _each(name, _numbers(name, cells[name], kind), len(positions))
    for name in ("correct", "incorrect"):
        if name in cells:
            words = _each(name, _answers(name, cells, tokenizer), len(positions))
            ids = row.setdefault(f"{name}_idx", words)
            if ids != words:
                raise ValueError(
                    f"{name} is {quoted(cells[name])}, which is token {quoted(words)} here, but "
                    f"{name}_idx says {quoted(ids)}; keep the column that is right."
                )
    row["classes"] = _classes(row.get("target", [0.0]))
    if "loss" in cells:
        if not isinstance(cells["loss"], str):
            raise ValueError(f"loss must be a name, got {quoted(cells['loss'])}.")
        row["loss"] = cells["loss"]
    return row


def _each(name: str, values: list[Any], count: int) -> list[Any]:
    """One value per scored position, from one for all of them or one for each."""
    if len(values) not in (1, count):
        raise ValueError(
            f"{name} needs one value or one for each of {count} scored positions, "
            f"got {len(values)}."
        )
    return values * count if len(values) == 1 else values


def _tokens(side: str, cell: Any, tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is None:
        ids = _given_ids(side, cell, "Prompts")
    elif isinstance(tokenizer, Codec):
        symbols = {str(symbol): symbol for symbol in tokenizer.vocab}
        if len(symbols) < len(tokenizer.vocab):
            raise ValueError("two symbols of the codec read the same as text; use token ids.")
        words = cell.split() if isinstance(cell, str) else cell
        if not isinstance(words, list) or any(isinstance(word, list | dict) for word in words):
            raise ValueError(f"{side} must be symbols, got {quoted(cell)}.")
        # Where a model has several tasks, the first word says which.
        task = str(words[0]) if words and str(words[0]) in tokenizer.tasks else None
        given = words if task is None else words[1:]
        ids = tokenizer.encode([symbols.get(str(w), w) for w in given], task=task).tolist()
    else:
        if not isinstance(cell, str):
            raise ValueError(f"{side} must be text for the tokenizer, got {quoted(cell)}.")
        ids = prompt_ids(tokenizer, cell) if cell else []
    if not ids:
        raise ValueError(f"{side} is empty.")
    return ids


def _answers(name: str, cells: Mapping[str, Any], tokenizer: Tokenizer | None) -> list[int]:
    """The classes that the words of a cell stand for."""
    cell = cells[name]
    if tokenizer is None:
        return _given_ids(name, cell, "Answers")
    words = cell if isinstance(cell, list) else [cell]
    if not isinstance(tokenizer, Codec):
        return [answer_id(tokenizer, cells["clean"], word, name=name) for word in words]
    known = [str(symbol) for symbol in tokenizer.outputs or ()]
    if unknown := [word for word in words if known.count(str(word)) != 1]:
        raise ValueError(
            f"{name} must be one of the outputs {quoted(known)}, got {quoted(unknown[0])}; "
            f"give its class as a number in a column {name}_idx."
        )
    return [known.index(str(word)) for word in words]


def _given_ids(name: str, cell: Any, noun: str) -> list[int]:
    try:
        return _numbers(name, cell, int)
    except ValueError as error:
        raise ValueError(
            f"{error} {noun} in words need a tokenizer; commands take --words."
        ) from error


def _numbers(name: str, cell: Any, kind: type) -> list[Any]:
    """A cell as a list of numbers; a list of lists of numbers passes for distributions."""
    items = cell.split() if isinstance(cell, str) else cell
    items = items if isinstance(items, list) else [items]
    if kind is float and any(isinstance(item, list) for item in items):
        return [_flat_numbers(name, x, x, float) if isinstance(x, list) else x for x in items]
    return _flat_numbers(name, cell, items, kind)


def _flat_numbers(name: str, cell: Any, items: list[Any], kind: type) -> list[Any]:
    try:
        if any(isinstance(x, bool) for x in items):
            raise ValueError
        numbers = [_whole(item) if kind is int else kind(item) for item in items]
        if kind is int and any(not -(2**63) <= number < 2**63 for number in numbers):
            raise OverflowError
        return numbers
    except (ValueError, TypeError):
        words = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{name} must be {words}, got {quoted(cell)}.") from None
    except OverflowError:
        raise ValueError(f"{name} holds a number that is too large: {quoted(cell)}.") from None


def _whole(item: Any) -> int:
    """A whole number, also one that pandas wrote as 4.0; int() would cut 2.5."""
    if isinstance(item, str) and item.lstrip("+-").isdecimal():
        return int(item)
    if isinstance(item, int):
        return item
    number = float(item)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _classes(values: list[Any]) -> int | None:
    """How many classes the distributions of a row have; None for plain numbers."""
    sizes = {len(value) if isinstance(value, list) else None for value in values}
    if len(sizes) > 1:
        raise ValueError("target mixes distributions of different length, or with numbers.")
    if sizes == {0}:
        raise ValueError("target holds a distribution over no classes.")
    return sizes.pop()
