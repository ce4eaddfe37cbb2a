"""Cases by id: programs whose circuit is known, in families.

A family is a module with a function `cases()`; it is imported when a case of it is asked for.
`ib` are InterpBench's 84 RASP cases and the mended program of one of them, `tb` 59 tasks of
TracrBench, `new` 47 cases of our own, deeper ones. `rnd` are random programs, one per seed
(`random_programs`), and `mt` models that run several programs (`multitask`); these two are found by
id, and not listed. So are calls of planted language models, `plm` (`language`), unless asked for.

`data/split.json` divides all that are listed: `test` is held out, `pool` is for training, in the
validation folds `fold-0` to `fold-4`, and `discarded` is for neither, most of it being related to a
test case. `held-out` is for measuring too, but not among the 16 cases of `test`. `split` says by
which checks, and writes the file. `paper` are the 84 cases that the paper itself divided, into
`paper-test`, `paper-pool` and `paper-discarded`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from graphcircuits.cases.case import Case as Case
from graphcircuits.cases.case import SubjectDims as SubjectDims

FAMILIES = {
    "ib": "graphcircuits.cases.interpbench",
    "tb": "graphcircuits.cases.tracrbench",
    "new": "graphcircuits.cases.extra",
}
MULTITASK = "mt"
"""The family of models with several tasks, which `multitask` makes of the others."""
LANGUAGE, LANGUAGE_MODELS = "language", "plm"
"""The fleet of language models with programs planted in them, and the family of their cases."""
RANDOM = "rnd"
"""The family of random programs, one for each seed: `rnd-17`. Too many to list."""
RANDOM_SEEDS = 2**32
"""Seeds are below this: the generator that they start takes no more bits."""
N_FOLDS = 5
SPLITS = (
    "test",
    "pool",
    "discarded",
    "held-out",
    *(f"fold-{fold}" for fold in range(N_FOLDS)),
    "paper",
    "paper-test",
    "paper-pool",
    "paper-discarded",
)


def case_ids(family: str | None = None, split: str | None = None) -> list[str]:
    """Ids of the listed cases, family by family, in number order.

    Random programs are not among them: `graphcircuits.random_ids` gives those of a split.

    Args:
        family: Only cases of `ib` (InterpBench), `tb` (TracrBench), `new` (our own), or `plm`
            (programs in language models), which are not listed without.
        split: Only cases of that part of the benchmark, such as `test`, `pool` or `fold-0`.

    Returns:
        Ids for `load_case`.

    Example:
        >>> import graphcircuits as gc
        >>> gc.case_ids("ib")[0]
        'ib-2'

    See docs/benchmark.md for the families and the split.
    """
    if family == RANDOM:
        raise ValueError(
            f"random programs, {RANDOM}-0, {RANDOM}-1, ..., are too many to list; "
            "graphcircuits.random_ids(split, n) gives the first ones of a split, and so does "
            "graphcircuits cases --random N."
        )
    _require_choice("family", family, (*FAMILIES, LANGUAGE_MODELS))
    _require_choice("split", split, SPLITS)
    if family == LANGUAGE_MODELS:
        from graphcircuits.cases.language import language_ids

        return language_ids(split)
    return [
        case.id
        for name in FAMILIES
        if family in (None, name)
        for case in _cases(name).values()
        if split is None or split in _splits_of(case)
    ]


def _splits_of(case: Case) -> set[str]:
    """The names of SPLITS that hold the case."""
    names = {case.split, f"fold-{case.fold}"} & set(SPLITS)
    return names | ({"paper", f"paper-{case.paper_split}"} if case.paper_split else set())


def load_case(id: str) -> Case:
    """The case of that id.

    Args:
        id: A listed case, such as `ib-3`; the random program of a seed, such as `rnd-17`; a task
            of a model that has several, such as `mt-7@ib-4`; or a program in a language model, such
            as `plm-3@count`.

    Returns:
        The program with its inputs, its true circuit and its subjects.

    Example:
        >>> import graphcircuits as gc
        >>> gc.load_case("ib-3")
        Case('ib-3', 'prefix-fraction-x', split='test')

    See docs/benchmark.md, and Gupta et al. 2024, InterpBench (arXiv:2407.14494).
    """
    family = id.partition("-")[0]
    if family == MULTITASK:
        from graphcircuits.cases.multitask import load_task

        return load_task(id)
    if family == LANGUAGE_MODELS:
        from graphcircuits.cases.language import load_call

        return load_call(id)
    if (seed := random_seed(id)) is not None:
        from graphcircuits.cases.random_programs import random_case

        return random_case(seed)
    if family in FAMILIES and id in _cases(family):
        return _cases(family)[id]
    raise ValueError(f"unknown case {id!r}; {_suggestion(id)}")


def random_seed(id: str) -> int | None:
    """The seed of a random program's id; None if it is no such id."""
    family, _, digits = id.partition("-")
    if family != RANDOM or not (digits.isascii() and digits.isdecimal()) or len(digits) > 10:
        return None
    # One program has one id: rnd-017 is none.
    seed = int(digits)
    return seed if digits == str(seed) and seed < RANDOM_SEEDS else None


@cache
def _cases(family: str) -> Mapping[str, Case]:
    cases = import_module(FAMILIES[family]).cases()
    return {case.id: replace(case, **_split_fields(case.id)) for case in cases}


def _split_fields(id: str) -> dict[str, Any]:
    """The fields of a case that the split gives it; none for a case that is newer than the file."""
    record = split_records().get(id, {})
    return {name: record[name] for name in ("split", "fold", "group") if name in record}


@cache
def stored(name: str) -> Any:
    """What a JSON file among the package's data says."""
    return json.loads(files("graphcircuits").joinpath(f"data/{name}.json").read_text("utf-8"))


def split_records() -> Mapping[str, Mapping[str, Any]]:
    """What `data/split.json` says about every case, by id: the fields of `split.Place`."""
    return stored("split")


def _require_choice(what: str, given: str | None, choices: tuple[str, ...]) -> None:
    if given is not None and given not in choices:
        raise ValueError(f"unknown {what} {given!r}; choose from {', '.join(choices)}.")


def _suggestion(wanted: str) -> str:
    """Cases whose id or name is what was asked for but for its spelling, or else near to it."""
    if wanted.partition("-")[0] == RANDOM:
        return f"random programs are {RANDOM}-0, {RANDOM}-1, ... {RANDOM}-{RANDOM_SEEDS - 1}."
    known = [case for family in FAMILIES for case in _cases(family).values()]
    texts = dict.fromkeys(text for case in known for text in (case.id, case.name))
    same = [text for text in texts if _letters(text) == _letters(wanted)]
    near = [
        f"{case.id} ({case.name})"
        for text in same or get_close_matches(wanted.lower(), texts, n=3)
        for case in known
        if text in (case.id, case.name)
    ]
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return f"{hint}`graphcircuits cases` lists all cases."


def _letters(text: str) -> str:
    """Letters and digits only: IB_3 and ib3 are ib-3."""
    return "".join(filter(str.isalnum, text.lower()))
