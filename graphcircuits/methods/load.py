"""A user's own method, from a Python file and a name in it."""

from pathlib import Path

from graphcircuits.methods.method import Method, check_signature
from graphcircuits.rasp.load import find_name, run_file


def load_method(path: Path, name: str) -> Method:
    """The function of this name in a Python file, as `localize` takes it.

    The file is run, as `python file.py` would: only load files that you trust.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no Python file at {path}; give your method as path/to/file.py:name."
        )
    found = find_name(path, run_file(path), name)
    problem = check_signature(found)
    if problem:
        raise ValueError(
            f"{name!r} in {path} is no method: {problem}; a method is a function of a subject and "
            "pairs, with options as keywords that have defaults, which returns one score per edge."
        )
    return found
