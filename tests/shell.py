"""Running the entry point as a shell would; the fixture `command` is in `tests/conftest.py`."""

import re
from collections.abc import Callable
from dataclasses import dataclass

# What only means something to who reads Python: arguments, calls, classes of errors, tracebacks.
PYTHON = re.compile(r"\b[a-z_]+=(?=[\s.,;)]|$)|\b[a-z_]+\(\)|Traceback|Errno|\w(Error|Exception)\b")


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


def refused(ended: Ended, text: str) -> None:
    """One line on standard error in the words of a shell, nothing else, and exit code 2."""
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert text in ended.err
    assert PYTHON.search(ended.err) is None, ended.err
