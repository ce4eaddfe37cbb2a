"""Cases by id: programs whose circuit is known, in families.

A family is a module with a function `cases()`; it is imported when a case of it is asked for.
`ib` are InterpBench's 84 RASP cases, `tb` 59 tasks of TracrBench, `new` 47 cases of our own, deeper
ones. The split is the paper's, of `ib` alone: `test` is held out, `pool` is for training,
`discarded` is too close to a test case for either.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from graphcircuits.benchmark.case import Case, SubjectDims

__all__ = ["FAMILIES", "SPLITS", "Case", "SubjectDims", "case_ids", "load_case"]

FAMILIES = {
    "ib": "graphcircuits.benchmark.interpbench",
    "tb": "graphcircuits.benchmark.tracrbench",
    "new": "graphcircuits.benchmark.extra",
}
SPLITS = ("test", "pool", "discarded")


def case_ids(family: str | None = None, split: str | None = None) -> list[str]:
    """Ids of all cases, family by family, in number order; of one family or split where given."""
    _require_choice("family", family, tuple(FAMILIES))
    _require_choice("split", split, SPLITS)
    return [
        case.id
        for name in FAMILIES
        if family in (None, name)
        for case in _cases(name).values()
        if split in (None, case.split)
    ]


def load_case(id: str) -> Case:
    """The case of that id."""
    family = id.partition("-")[0]
    if family in FAMILIES and id in _cases(family):
        return _cases(family)[id]
    raise ValueError(f"unknown case {id!r}; {_suggestion(id)}")


@cache
def _cases(family: str) -> Mapping[str, Case]:
    return {case.id: case for case in import_module(FAMILIES[family]).cases()}


def _require_choice(what: str, given: str | None, choices: tuple[str, ...]) -> None:
    if given is not None and given not in choices:
        raise ValueError(f"unknown {what} {given!r}; choose from {', '.join(choices)}.")


def _suggestion(wanted: str) -> str:
    """Cases whose id or name is near to what was asked for, the nearest first."""
    known = [case for family in FAMILIES for case in _cases(family).values()]
    texts = dict.fromkeys(text for case in known for text in (case.id, case.name))
    near = [
        f"{case.id} ({case.name})"
        for text in get_close_matches(wanted, texts, n=3)
        for case in known
        if text in (case.id, case.name)
    ]
    return f"did you mean {', '.join(near)}?" if near else "case_ids() lists all cases."
