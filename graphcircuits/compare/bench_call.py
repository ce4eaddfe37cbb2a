"""`bench`: methods side by side on many subjects, as one call.

1. Methods are names of the package's, functions of one's own, or both; cases are those of the
   command, a word such as `test` or ids.
2. They run in this process (`graphcircuits.compare.bench`), and a `Report` comes back: rows, a
   table, a box plot.

What failed is in the report, and warned of. `graphcircuits bench` does the same with methods of the
package, and can have several processes or a cluster work on it.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphcircuits.cases.case import DEFAULT_LABELS
from graphcircuits.compare.bench import BenchConfig, run
from graphcircuits.compare.report import Report
from graphcircuits.compare.runs import BenchRun, Failure
from graphcircuits.compare.selection import select_subjects
from graphcircuits.methods import Method, find_method
from graphcircuits.methods.method import name_of

Runs = Callable[[int, int], None]
"""Called with the runs that are done, and how many there are."""


def bench(
    methods: str | Method | Sequence[str | Method] | Mapping[str, str | Method],
    cases: str | Sequence[str] = "test",
    *,
    seeds: int = 1,
    pairs: int = 64,
    fleet: str = "planted",
    labels: str = DEFAULT_LABELS,
    level: str = "head",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
    progress: Runs | None = None,
) -> Report:
    """Compare methods on subjects whose circuit is known, or that are `natural`.

    A method is a name of METHODS (`eap-ig+paths`: with the option `paths`) or a function of subject
    and pairs that gives one score per edge; as a mapping they are given the names that the report
    has. `cases` is a word (test, pool, deep-pool, deep-test, all, multitask) or ids. Each of the
    `seeds` draws so many `pairs` of prompts, and others that faithfulness is measured on. `labels`
    and `level` say what AUROC compares with, `options` has those of a method by its name. Runs of
    the package's methods that are in the folder `out` are not run again. `report.rows()` are the
    figures, `report.markdown()` the table, `report.plot` draws the boxes, `report.write(folder)`
    files of all of them.
    """
    named = _named(methods)
    own = {name: method for name, method in named.items() if not _is_shipped(name, method)}
    word = cases if isinstance(cases, str) else ",".join(cases)
    ids, _ = select_subjects(word, fleet)
    config = BenchConfig(
        cases=tuple(ids),
        methods=tuple(named),
        own=own,
        seeds=tuple(range(seeds)),
        n_pairs=pairs,
        labels=labels,
        level=level,
        options=options or {},
        device=device,
    )
    found: list[BenchRun | Failure] = []
    for one in run(config, out):
        found.append(one)
        if progress is not None:
            progress(len(found), config.n_runs)
    counts = [(len(named), "method"), (len(ids), "case" if fleet == "planted" else "subject")]
    title = " on ".join(f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counts)
    report = Report.of(config, found, title=title)
    if report.failures:
        failed = len(report.failures)
        warnings.warn(
            f"{failed} of {config.n_runs} runs failed, the first on {report.failures[0]}",
            stacklevel=2,
        )
    return report


def _named(
    methods: str | Method | Sequence[str | Method] | Mapping[str, str | Method],
) -> dict[str, Method]:
    """Methods by the name that the report has for them."""
    if isinstance(methods, Mapping):
        return {name: _method(method) for name, method in methods.items()}
    several = [methods] if isinstance(methods, str) or callable(methods) else methods
    names = [method if isinstance(method, str) else name_of(method) for method in several]
    if len(set(names)) < len(names):
        raise ValueError(
            f"methods must have distinct names, got {', '.join(names)}; give them others in a "
            "mapping from name to method."
        )
    return {name: _method(method) for name, method in zip(names, several, strict=True)}


def _is_shipped(name: str, method: Method) -> bool:
    """Whether this is the package's own method of that name."""
    try:
        return find_method(name) == method
    except ValueError:
        return False


def _method(given: str | Method) -> Method:
    if not (isinstance(given, str) or callable(given)):
        raise TypeError(f"a method must be a name of METHODS or a function, got {given!r}.")
    return find_method(given) if isinstance(given, str) else given
