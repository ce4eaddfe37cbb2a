"""What methods have over each other and over floors, from the runs that a bench wrote.

1. AUROC apart for circuits that are one of a kind in the table and for those that several cases
   share: where several share one, a ranking that knows nothing but names of edges does well.
2. Differences of mean AUROC between methods and floors; where no circuit is known, by how much less
   the mean log area is, and how many edges fewer keep 0.9 (geometric means), or, in files that do
   not have these, CMD. With 95% intervals over cases (paired bootstrap, seeds averaged).

The sections are printed as Markdown; pages in docs/results have them below the table of the bench.

python -m lab.benchmarks.contrasts docs/results/test-cases.csv [--labels complete] [--level head]
"""

import argparse
import csv
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

import numpy as np
from jaxtyping import Float

from graphcircuits.cases.case import DEFAULT_LABELS, LABELINGS
from graphcircuits.compare.selection import Unit
from graphcircuits.evaluation.auroc import LEVELS
from graphcircuits.evaluation.text_tables import markdown_table
from lab.intervals import Interval, Means, bootstrap

NEEDED = "edges_for_0.9"
ALONE, SHARED = "one of a kind", "shared"
OVER_FLOORS = (
    ("gcl", "gcl-blind", "What features add to a network that sees the shape of the graph"),
    ("gcl", "edge-frequency", "Features and message passing, beyond the names of edges"),
    ("gcl", "eap-ig", "The same, beyond a search along gradients"),
    ("gcl", "eap-ig+paths", "The same, beyond that search along paths"),
    ("gcl-paper", "gcl-paper-blind", "What features add to the paper's network"),
    ("gcl-paper", "edge-frequency", "The paper's network, beyond the names of edges"),
)
"""What is compared where circuits are known."""
OVER_SEARCHES = (
    ("gcl", "eap-ig", "In all"),
    ("gcl", "eap-ig+paths", "Without what counting along paths gives to any method"),
    ("eap-ig+paths", "eap-ig", "Counting along paths alone"),
    ("gcl", "ig-own", "Beyond gradients at one's own circuits, which learn nothing"),
)
"""What is compared where they are not."""

Rows = Sequence[Mapping[str, str]]


def by_subject(rows: Rows, method: str, figure: str) -> dict[str, float]:
    """A figure of every subject, seeds averaged; those without it are left out."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row["method"] == method and row[figure]:
            values.setdefault(row["case"], []).append(float(row[figure]))
    return {case: mean(some) for case, some in values.items()}


def interval(one: Mapping[str, float], other: Mapping[str, float], *, ratio: bool) -> Interval:
    """The difference of two means, or by what share the first is below the second."""
    tables = [{case: {0: value} for case, value in each.items()} for each in (one, other)]
    return bootstrap(tables, less_by if ratio else _difference)


def _difference(of: Sequence[Means]) -> Float[np.ndarray, " draw"]:
    return of[0].mean(1) - of[1].mean(1)


def less_by(of: Sequence[Means]) -> Float[np.ndarray, " draw"]:
    """By what share the mean of the first is below that of the second."""
    return 1 - of[0].mean(1) / of[1].mean(1)


def fewer(one: Mapping[str, float], other: Mapping[str, float]) -> Interval:
    """By what share the geometric mean of the first is below that of the second."""
    logarithms = [{case: {0: math.log(v)} for case, v in each.items()} for each in (one, other)]
    return bootstrap(logarithms, lambda of: 1 - np.exp(_difference(of)))


def area_of(rows: Rows) -> str:
    """The area that natural subjects are compared by: CMD in files from before the log area."""
    return "log_area" if rows[0].get("log_area") else "cmd"


def in_percent(interval: Interval) -> str:
    """A share with its interval."""
    value, low, high = (100 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:.1f}% [{low:.1f}, {high:.1f}]"


def kinds_of(cases: Sequence[str], labels: str, level: str) -> dict[str, str]:
    """Whether the circuit of a case is that of no other, by the names of its edges."""
    circuits = {}
    for case in cases:
        circuit = Unit.of(case).case.labels(labels)
        graph, mask = circuit.graph, circuit.mask
        if level == "head":
            edges = graph.promote(mask).nonzero().flatten().tolist()
            circuits[case] = frozenset(graph.head_edges[edge] for edge in edges)
        else:
            circuits[case] = frozenset(graph.names_of(mask.nonzero().flatten()))
    counts = Counter(circuits.values())
    return {case: ALONE if counts[circuits[case]] == 1 else SHARED for case in cases}


def kinds_text(rows: Rows, kinds: Mapping[str, str]) -> str:
    """A table: of each kind the median, mean and minimum of every method, the best first."""
    sizes = Counter(kinds.values())
    columns = ["Method"]
    for kind in (ALONE, SHARED):
        columns += [f"Median, {kind} ({sizes[kind]})", "Mean", "Min."]
    values = {name: by_subject(rows, name, "auroc") for name in {row["method"] for row in rows}}
    good = {name: (median(x.values()), mean(x.values())) for name, x in values.items()}
    best = sorted(sorted(values), key=good.__getitem__, reverse=True)
    table = []
    for method in best:
        cells = [method]
        for kind in (ALONE, SHARED):
            some = [value for case, value in values[method].items() if kinds[case] == kind]
            three = (median(some), mean(some), min(some)) if some else ()
            cells += [f"{value:.3f}" for value in three] or [""] * 3
        table.append(cells)
    return (
        "AUROC by whether another case of the table has the same true circuit, in brackets how "
        f"many cases they are:\n\n{markdown_table(columns, table)}"
    )


def contrasts_text(rows: Rows, kinds: Mapping[str, str] | None) -> str:
    """Each difference in words, with its intervals; empty where none of the methods ran."""
    labelled = any(row["auroc"] for row in rows)
    figure = "auroc" if labelled else area_of(rows)
    ran = {row["method"] for row in rows}
    noun = "cases" if rows[0].get("fleet") in ("planted", "language") else "subjects"
    lines = []
    for method, other, words in OVER_FLOORS if labelled else OVER_SEARCHES:
        if not {method, other} <= ran:
            continue
        one, base = (by_subject(rows, x, figure) for x in (method, other))
        groups = {noun: set(one)}
        if kinds is not None:
            groups |= {kind: {c for c in one if kinds[c] == kind} for kind in (ALONE, SHARED)}
        parts = []
        for name, cases in groups.items():
            both = [{c: v for c, v in each.items() if c in cases} for each in (one, base)]
            if both[0].keys() & both[1].keys():
                found = interval(both[0], both[1], ratio=not labelled)
                parts.append(f"{len(both[0])} {name}: {found if labelled else in_percent(found)}")
        if figure == "log_area":
            needed = (by_subject(rows, x, NEEDED) for x in (method, other))
            parts.append(f"edges for 0.9 fewer by {in_percent(fewer(*needed))}")
        lines.append(f"- {words} (`{method}` against `{other}`). {'; '.join(parts)}.")
    what = f"By how much less the mean {'log area' if figure == 'log_area' else 'CMD'} is"
    what = "Differences of mean AUROC" if labelled else what
    about = f"{what}, seeds averaged, in brackets 95% intervals over {noun} (paired bootstrap)"
    return "\n".join([f"{about}:", "", *lines]) if lines else ""


def sections(rows: Rows, *, labels: str = DEFAULT_LABELS, level: str = "head") -> str:
    """All that there is to say of these runs, as Markdown."""
    kinds = None
    if any(row["auroc"] for row in rows):
        kinds = kinds_of(list(dict.fromkeys(row["case"] for row in rows)), labels, level)
        kinds = kinds if len(set(kinds.values())) > 1 else None
    texts = [] if kinds is None else [kinds_text(rows, kinds)]
    return "\n\n".join([*texts, *filter(None, [contrasts_text(rows, kinds)])]) + "\n"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--labels", default=DEFAULT_LABELS, choices=LABELINGS)
    parser.add_argument("--level", default="head", choices=LEVELS)
    words = parser.parse_args(given)
    rows = list(csv.DictReader(words.file.read_text().splitlines()))
    sys.stdout.write(sections(rows, labels=words.labels, level=words.level))


if __name__ == "__main__":
    main()
