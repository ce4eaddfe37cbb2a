"""Errors that say the new name of an argument, for one release after it was renamed."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def renamed(**new_names: str) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """Decorate a function whose arguments were renamed: `@renamed(pairs="n_pairs")`.

    A call with an old name raises a TypeError that says the new one, before anything else happens.
    """

    def decorate(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        @wraps(function)
        def call(*args: Given.args, **options: Given.kwargs) -> Returned:
            for old in new_names.keys() & options.keys():
                raise TypeError(
                    f"{function.__name__}() has no argument {old!r} any more: it is "
                    f"{new_names[old]!r}."
                )
            return function(*args, **options)

        return call

    return decorate
