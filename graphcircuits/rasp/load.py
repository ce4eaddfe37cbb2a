"""A user's own program, from a Python file and a name in it."""

import inspect
import json
import reprlib
import runpy
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from graphcircuits import rasp
from graphcircuits.rasp.language import SOp
from graphcircuits.rasp.values import RaspError, Value


def load_program(path: Path, name: str | None = None) -> tuple[str, SOp]:
    """A program of a Python file and its name: a sequence expression, or a function giving one.

    Without a name the file must define exactly one. It is run, as `python file.py` would: only load
    files that you trust.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no Python file at {path}; give your program as path/to/file.py:name."
        )
    names = run_file(path)
    if name is None:
        name = _only(path, names)
    value = find_name(path, names, name)
    if callable(value) and not isinstance(value, SOp):
        if _required(value):
            raise RaspError(
                f"{name!r} in {path} must be callable without arguments, "
                f"but needs {', '.join(_required(value))}."
            )
        try:
            value = value()
        except Exception as error:
            raise RaspError(
                f"{name!r} in {path} raised {type(error).__name__}: {error}."
            ) from error
    if not isinstance(value, SOp):
        raise RaspError(
            f"{name!r} in {path} must be a sequence expression, got {reprlib.repr(value)}."
        )
    return name, value


def run_file(path: Path) -> dict[str, Any]:
    """The names of a Python file that was run."""
    try:
        return runpy.run_path(str(path))
    except SystemExit as error:
        raise RaspError(f"{path} ends the program (exit {error.code}) when it is run.") from error
    except Exception as error:
        raise RaspError(f"{path} raised {type(error).__name__}: {error}.") from error


def find_name(path: Path, names: dict[str, Any], name: str) -> Any:
    """What a file that was run calls so."""
    if name not in names:
        defined = [known for known in names if not known.startswith("_")]
        near = get_close_matches(name, defined, n=3) or sorted(defined)
        raise RaspError(f"{path} defines no {name!r}; did you mean {', '.join(near)}?")
    return names[name]


def _only(path: Path, names: dict[str, Any]) -> str:
    """The one name that may be a program."""
    shared = {id(value) for value in vars(rasp).values()}  # tokens, indices, ...
    programs = [
        name
        for name, value in names.items()
        if not name.startswith("_")
        and id(value) not in shared
        and (isinstance(value, SOp) or _is_recipe(value, names))
    ]
    if len(programs) == 1:
        return programs[0]
    if not programs:
        raise RaspError(
            f"{path} defines no program: no sequence expression, and no function that needs no "
            "arguments and could give one."
        )
    raise RaspError(
        f"{path} defines several programs; choose one: "
        + ", ".join(f"{path}:{name}" for name in programs)
        + "."
    )


def _is_recipe(value: Any, names: dict[str, Any]) -> bool:
    """Whether it is a function of this very file that can be called as it stands."""
    defined_here = inspect.isfunction(value) and value.__module__ == names["__name__"]
    return defined_here and not _required(value)


def _required(function: Any) -> list[str]:
    """The arguments that a call must give; none where that cannot be known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def parse_vocab(text: str) -> tuple[Value, ...]:
    """Tokens from a JSON list or a comma-separated one, in which numbers are numbers."""
    if text.lstrip().startswith("["):
        try:
            tokens = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RaspError(
                f"the vocabulary {reprlib.repr(text)} is no JSON list: {error}."
            ) from error
        for token in tokens:
            if not isinstance(token, str | int | float):
                raise RaspError(
                    "the tokens of a vocabulary must be text, numbers, true or false, "
                    f"got {reprlib.repr(token)}."
                )
        return tuple(tokens)
    return tuple(_token(token.strip()) for token in text.split(",") if token.strip())


def vocab_text(vocab: Iterable[Value]) -> str:
    """What `parse_vocab` reads as these tokens: with commas between, or as JSON where it must."""
    tokens = tuple(vocab)
    text = ",".join(map(str, tokens))
    read = () if text.lstrip().startswith("[") else parse_vocab(text)
    # 1, 1.0 and true are equal, and not the same.
    same = read == tokens and [*map(type, read)] == [*map(type, tokens)]
    return text if same else json.dumps(tokens, default=str)


def _token(text: str) -> Value:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
