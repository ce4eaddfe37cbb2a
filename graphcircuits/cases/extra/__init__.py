"""Cases of our own, most of them deep: programs of up to seven layers, on small vocabularies.

The public benchmarks are shallow: of InterpBench's 84 cases four need four layers or more. These
chain sorting, counting, looking back and mirroring, so that a circuit has long paths.
"""

from graphcircuits.cases.case import Case
from graphcircuits.cases.extra import counting, moving, ranking
from graphcircuits.cases.idioms import cases_in


def cases() -> tuple[Case, ...]:
    """All cases, by what their heads do."""
    return tuple(cases_in(counting, moving, ranking))
