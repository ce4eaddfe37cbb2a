"""The 59 tasks of TracrBench that have a program, as cases. Our programs, TracrBench's tasks.

`REPEATS` names the cases that compute the same as another one; a corpus wants one of each. The
output of four cases (index-parity, length, position, set-to-index) depends on positions only: on
inputs of one length it never changes, so no intervention there can show what their subjects do.
"""

from graphcircuits.cases.case import Case
from graphcircuits.cases.idioms import cases_in
from graphcircuits.cases.tracrbench import counting, ranking, reading

REPEATS = {
    "tb-count-frequency": "ib-7",
    "tb-count-occurrences": "ib-7",
    "tb-histogram": "ib-7",
    "tb-replace-small-tokens": "ib-91",
    "tb-rescale-by-max": "ib-97",
    "tb-set-to-median": "tb-compute-median",
    "tb-sort": "tb-sorting",
    "tb-sort-unique": "tb-sorting",
}
"""Case -> the case that it repeats, up to vocabulary, thresholds and the treatment of ties."""


def cases() -> tuple[Case, ...]:
    """All cases, the ones without attention first."""
    return tuple(cases_in(reading, counting, ranking))
