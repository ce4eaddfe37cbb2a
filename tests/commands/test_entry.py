"""The entry point: whatever goes wrong in a command is one line, an exit code, and no more."""

import io
import os
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from graphcircuits import methods
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.shell import Command, Ended


def fail_with(error: BaseException) -> Any:
    """A method that ends in an error."""

    def method(subject: Transformer, pairs: Pairs) -> Tensor:
        raise error.with_traceback(None)  # tracebacks add up

    return method


FAILING = ("localize", "ib-3", "--method", "failing", "--pairs", "2")


def test_an_error_of_ours_is_one_line_and_a_traceback_behind_debug(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cast(dict[str, Any], methods.METHODS)
    monkeypatch.setitem(known, "failing", fail_with(KeyError("a\x1b[31m\nb")))
    line = (
        r"error: internal error: KeyError: 'a\x1b[31m\nb'; run with graphcircuits --debug for the "
        "traceback, and report it.\n"
    )
    assert command(*FAILING) == Ended(70, "", line)
    ended = command("--debug", *FAILING)
    assert (ended.code, ended.out) == (70, "")
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert "in method\n    raise error.with_traceback" in ended.err
    assert ended.err.endswith(line)
    # The option holds for one call only.
    assert command(*FAILING).err == line
    monkeypatch.setenv("GRAPHCIRCUITS_DEBUG", "1")
    assert command(*FAILING).err == ended.err


def test_debug_shows_where_a_mistake_was_found(command: Command) -> None:
    ended = command("--debug", "localize", "IB-3")
    assert ended.code == 2
    assert ended.err.startswith("Traceback")
    assert "\nerror: unknown case 'IB-3'; did you mean ib-3" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 1, "out of memory; give fewer prompts"),
        (MemoryError("out of memory on cuda:0 with 8 prompts"), 1, "out of memory on cuda"),
        (RuntimeError("CUDA out of memory. Tried"), 1, "out of memory; give fewer prompts"),
        (RuntimeError("can't allocate memory: you"), 1, "out of memory; give fewer prompts"),
        (ValueError("two\nlines"), 2, "two lines\n"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "a/b: permission denied\n"),
        (RecursionError("too deep"), 70, "internal error: RecursionError: too deep; run with"),
    ],
)
def test_exit_codes(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    said: str,
) -> None:
    monkeypatch.setitem(cast(dict[str, Any], methods.METHODS), "failing", fail_with(error))
    ended = command(*FAILING)
    assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
    assert ended.err.startswith(f"error: {said}")


def test_an_interrupt_ends_with_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    known = cast(dict[str, Any], methods.METHODS)
    monkeypatch.setitem(known, "failing", fail_with(KeyboardInterrupt()))
    assert command(*FAILING) == Ended(130, "", "interrupted: there is no result yet.\n")


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(subject: Transformer, pairs: Pairs) -> Tensor:
        warnings.warn("look\x1b[31m out", stacklevel=1)
        return torch.zeros(subject.graph.n_edges)

    monkeypatch.setitem(cast(dict[str, Any], methods.METHODS), "failing", warns)
    ended = command(*FAILING)
    assert (ended.code, ended.err) == (0, "warning: look\\x1b[31m out\n")


def test_a_terminal_without_the_characters_gets_them_written_out(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / os.fsdecode("✓".encode() + b"\xff.py")  # and a byte that is no character
    path.write_text("from graphcircuits import rasp\nx = rasp.Map(str, rasp.tokens)\n")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", stream)
    ended = command("compile", path, "--vocab", "1,2", "--max-seq-len", "3")
    stream.flush()
    shown = stream.buffer.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert (ended.code, ended.err) == (0, "")
    assert shown.startswith(b"x (" + os.fsencode(tmp_path) + b"/\\u2713\\udcff.py)\n")
