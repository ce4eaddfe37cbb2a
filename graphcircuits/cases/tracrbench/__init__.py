"""The 59 tasks of TracrBench that have a program, as cases. Our programs, TracrBench's tasks.

The output of four cases (index-parity, length, position, set-to-index) depends on positions only:
on inputs of one length it never changes, so no intervention there can show what their subjects do.
Eight repeat another case: see docs/benchmark.md.
"""

from graphcircuits.cases.case import Case
from graphcircuits.cases.idioms import cases_in
from graphcircuits.cases.tracrbench import counting, ranking, reading


def cases() -> tuple[Case, ...]:
    """All cases, the ones without attention first."""
    return tuple(cases_in(reading, counting, ranking))
