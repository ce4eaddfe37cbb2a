"""Tasks for language models: prompt pairs with templates and word lists of our own.

`tasks.ioi(tokenizer, n=64, seed=0)` draws pairs for a model with that tokenizer; so do all others.
`names()` lists them and `find` takes one by its name. docs/tasks.md shows them.

Example:
    pairs = gc.tasks.ioi(subject.tokenizer, n=64, seed=0)
"""

from difflib import get_close_matches

from graphcircuits.tasks.code import (
    attributes,
    comprehensions,
    identifiers,
    keyword_arguments,
    keywords,
    nesting,
    types,
    verbs,
)
from graphcircuits.tasks.context import (
    acronyms,
    brackets,
    colored_objects,
    docstring,
    induction,
    quotes,
)
from graphcircuits.tasks.grammar import agreement, capitalize, past_tense, plurals
from graphcircuits.tasks.knowledge import antonyms, capitals, hypernyms, languages
from graphcircuits.tasks.numbers import arithmetic, greater_than, successor
from graphcircuits.tasks.people import binding, ioi, pronouns, reflexives
from graphcircuits.tasks.task import Task, TextPair

__all__ = [
    "Task",
    "TextPair",
    "acronyms",
    "agreement",
    "antonyms",
    "arithmetic",
    "attributes",
    "binding",
    "brackets",
    "capitalize",
    "capitals",
    "colored_objects",
    "comprehensions",
    "docstring",
    "find",
    "greater_than",
    "hypernyms",
    "identifiers",
    "induction",
    "ioi",
    "keyword_arguments",
    "keywords",
    "languages",
    "names",
    "nesting",
    "past_tense",
    "plurals",
    "pronouns",
    "quotes",
    "reflexives",
    "successor",
    "types",
    "verbs",
]

_ORDER = str.split("""
ioi greater_than agreement induction capitals pronouns docstring arithmetic successor antonyms
hypernyms languages plurals past_tense capitalize reflexives binding colored_objects acronyms
brackets quotes nesting keywords attributes keyword_arguments comprehensions identifiers verbs types
""")
_TASKS: dict[str, Task] = {name.replace("_", "-"): globals()[name] for name in _ORDER}


def names() -> list[str]:
    """The names of all tasks."""
    return list(_TASKS)


def find(name: str) -> Task:
    """A task by its name, such as `greater-than`."""
    known = name.strip().lower().replace("_", "-")
    if known not in _TASKS:
        near = get_close_matches(known[:50], _TASKS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown task {name[:50]!r}; {hint}({', '.join(_TASKS)})")
    return _TASKS[known]
