"""Running entry points as a shell would; the fixtures `command` are in `tests/conftest.py` and, for
programs of the laboratory, in `tests/lab/conftest.py`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# What only means something to who reads Python: arguments, calls, classes of errors, tracebacks.
PYTHON = re.compile(r"\b[a-z_]+=(?=[\s.,;)]|$)|\b[a-z_]+\(\)|Traceback|Errno|\w(Error|Exception)\b")


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


def runs(
    program: str,
    main: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """A function that runs a program with the words that it is given."""

    def call(*args: str | Path) -> Ended:
        monkeypatch.setattr("sys.argv", [program, *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        code = caught.value.code
        return Ended(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


def refused(ended: Ended, text: str) -> None:
    """One line on standard error in the words of a shell, nothing else, and exit code 2."""
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert text in ended.err
    assert PYTHON.search(ended.err) is None, ended.err
