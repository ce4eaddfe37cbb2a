"""InterpBench's 84 RASP cases: programs written here, facts of the released subjects from a file.

The numbers in the ids are InterpBench's own. `ib-13` is the program before the public benchmark
mended it, which released subject and published figures are of; `ib-13-fixed` is the mended one, and
no case of the paper's. `data/interpbench.json` holds for each case the
sizes of its released subject, its place and group in the paper's split, the edge list published for
it (`paper`) or, where we do not have that, `worked_out` by rule, and for a case of the paper's pool
its fold, which is ours (`cases.relations`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphcircuits.cases import stored
from graphcircuits.cases.case import Case, SubjectDims
from graphcircuits.cases.idioms import cases_in
from graphcircuits.cases.interpbench import counting, maps, moving

CASES = {
    case.id: case
    for case in sorted(
        cases_in(maps, counting, moving),
        key=lambda case: (case.id.count("-"), int(case.id.split("-")[1])),
    )
}


def released() -> Mapping[str, Mapping[str, Any]]:
    """What is known about every case's released subject, by id."""
    return stored("interpbench")


def cases() -> tuple[Case, ...]:
    """All cases in the order of their numbers, with the facts of their released subjects."""
    return tuple(_with_facts(case, released().get(case.id)) for case in CASES.values())


def _with_facts(case: Case, facts: Mapping[str, Any] | None) -> Case:
    if facts is None:
        return case
    return replace(
        case,
        paper_split=facts["split"],
        released_dims=SubjectDims(*facts["subject"]),
        published=tuple(facts["paper"].split()) if "paper" in facts else None,
        worked_out=tuple(facts["worked_out"].split()) if "worked_out" in facts else None,
    )
