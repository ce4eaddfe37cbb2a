"""A user's own program, from a Python file and a name in it."""

import json
import runpy
from difflib import get_close_matches
from pathlib import Path

from graphcircuits.rasp.language import SOp
from graphcircuits.rasp.values import RaspError, Value


def load_program(path: Path, name: str) -> SOp:
    """The program called `name` in a Python file: a sequence expression, or a function giving one.

    The file is run, as `python file.py` would: only load files that you trust.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no Python file at {path}; give your program as path/to/file.py:name."
        )
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise RaspError(f"{path} raised {type(error).__name__}: {error}.") from error
    if name not in names:
        defined = [known for known in names if not known.startswith("_")]
        near = get_close_matches(name, defined, n=3) or sorted(defined)
        raise RaspError(f"{path} defines no {name!r}; did you mean {', '.join(near)}?")
    found = names[name]
    if callable(found) and not isinstance(found, SOp):
        try:
            found = found()
        except TypeError as error:
            raise RaspError(
                f"{name!r} in {path} must be callable without arguments: {error}."
            ) from error
    if not isinstance(found, SOp):
        raise RaspError(f"{name!r} in {path} must be a sequence expression, got {found!r}.")
    return found


def parse_vocab(text: str) -> tuple[Value, ...]:
    """Tokens from a JSON list or a comma-separated one, in which numbers are numbers."""
    if text.lstrip().startswith("["):
        try:
            return tuple(json.loads(text))
        except json.JSONDecodeError as error:
            raise RaspError(f"the vocabulary {text!r} is no JSON list: {error}.") from error
    return tuple(_token(part.strip()) for part in text.split(",") if part.strip())


def _token(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
