"""Programs of a user's own: `path/to/file.py:name`, with the vocabulary and length they need."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphcircuits.commands.checks import in_range, refuse

if TYPE_CHECKING:
    from graphcircuits.rasp import SOp, Value

LONGEST = 1000
"""Tokens of an input, BOS included."""


@dataclass(frozen=True)
class OwnProgram:
    """A program from a file, and what it runs on."""

    path: Path
    name: str
    program: "SOp"
    vocab: "tuple[Value, ...]"
    max_seq_len: int


def own_program(target: str, vocab: str | None, max_seq_len: int | None) -> OwnProgram:
    """The program that `path/to/file.py:name` means, or `path/to/file.py` if it holds but one."""
    from graphcircuits.rasp.load import load_program, parse_vocab

    if vocab is None or max_seq_len is None:
        raise ValueError("your own program needs --vocab and --max-seq-len.")
    refuse(in_range("--max-seq-len", max_seq_len, 2, LONGEST))
    tokens = parse_vocab(vocab)
    if not tokens:
        raise ValueError(f"--vocab must hold at least one token, got {vocab!r}.")
    path, name = _split(target)
    name, program = load_program(path, name)
    return OwnProgram(path, name, program, tokens, max_seq_len)


def is_program(target: str) -> bool:
    """Whether a target means a file with a program, not a case."""
    from graphcircuits.commands.subjects import is_path

    return ":" in target or is_path(target)


def _split(target: str) -> tuple[Path, str | None]:
    # A path may hold a colon itself.
    path, colon, name = target.rpartition(":")
    if not colon or Path(target).is_file():
        return Path(target), None
    return Path(path), name or None
