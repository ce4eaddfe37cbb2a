"""`bench`: methods side by side on many subjects, as one call."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphcircuits.cases.case import DEFAULT_LABELS
from graphcircuits.compare.report import Report
from graphcircuits.compare.runs import BenchRun, Failure, run
from graphcircuits.compare.selection import BenchConfig, select_subjects
from graphcircuits.methods import Method, find_method
from graphcircuits.methods.method import name_of


def bench(
    methods: str | Method | Sequence[str | Method] | Mapping[str, str | Method],
    cases: str | Sequence[str] = "test",
    *,
    seeds: int = 1,
    n_pairs: int = 64,
    fleet: str = "planted",
    labels: str = DEFAULT_LABELS,
    level: str = "head",
    by: str = "output",
    certify: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compare methods on subjects whose circuit is known, or that are `natural`.

    What fails is in the report, and warned of; it does not stop the rest.

    Args:
        methods: Names of METHODS (`eap-ig+paths`: with the option `paths`) and functions of subject
            and pairs that give one score per edge; in a mapping, by the names that the report has.
        cases: A word (test, pool, deep-pool, deep-test, all, multitask) or ids.
        seeds: How many; each draws prompts and seeds the methods.
        n_pairs: Prompt pairs that a method sees; as many others are for the curve of faithfulness.
        fleet: How the subjects were trained: planted, public, or natural, which have no known
            circuit, so that curves of faithfulness are compared.
        labels: Which edges count as true: complete, interpbench or paper.
        level: "head", or "qkv" for edges with q, k and v apart.
        by: What faithfulness is measured by, "output" or "loss", as in `faithfulness`.
        certify: Whether the circuit that the scores of each run lead to gets a certificate.
        options: Options of a method by its name, such as `{"eap-ig": {"steps": 10}}`.
        device: Where subjects are run.
        out: A folder of finished runs; those of the package's methods are not computed again.
        progress: Called with the number of runs that are done, and of all.

    Returns:
        The report: `rows()` are the figures, `markdown()` the table, `plot()` the box plot,
        `write(folder)` files of all of them.

    Example:
        `gc.bench(["eap", "gcl", my_method], "test", seeds=3).markdown()`

    Reference:
        Tan et al. 2026, "Preliminary Evidence and Discussion", for the table; docs/methods.md.
    """
    named = _named(methods)
    ids, _ = select_subjects(cases if isinstance(cases, str) else ",".join(cases), fleet)
    config = BenchConfig(
        cases=tuple(ids),
        methods=tuple(named),
        functions={name: x for name, x in named.items() if not _is_shipped(name, x)},
        seeds=tuple(range(seeds)),
        n_pairs=n_pairs,
        labels=labels,
        level=level,
        by=by,
        certify=certify,
        options=options or {},
        device=device,
    )
    steps = iter(range(1, config.n_runs + 1))

    def count(_: BenchRun | Failure) -> None:
        if progress is not None:
            progress(next(steps), config.n_runs)

    report = finished(config, out, heard=count)
    if report.failures:
        warnings.warn(
            f"{len(report.failures)} of {config.n_runs} runs failed, the first on "
            f"{report.failures[0]}",
            stacklevel=2,
        )
    return report


def finished(
    config: BenchConfig,
    out: str | Path | None,
    *,
    heard: Callable[[BenchRun | Failure], None],
    command: str = "",
    **how: Any,
) -> Report:
    """The report of a bench, after running what is missing in the folder `out`.

    `heard` is called with each run as it is finished; `how` are the other arguments of `runs.run`.
    """
    outcomes = []
    for outcome in run(config, out, **how):
        outcomes.append(outcome)
        heard(outcome)
    return Report.of(config, outcomes, command=command)


def _named(
    methods: str | Method | Sequence[str | Method] | Mapping[str, str | Method],
) -> dict[str, Method]:
    """Methods by the name that the report has for them."""
    if not isinstance(methods, Mapping):
        several = [methods] if isinstance(methods, str) or callable(methods) else methods
        names = [method if isinstance(method, str) else name_of(method) for method in several]
        if len(set(names)) < len(names):
            raise ValueError(
                f"methods must have distinct names, got {', '.join(names)}; give them others in a "
                "mapping from name to method."
            )
        methods = dict(zip(names, several, strict=True))
    for given in methods.values():
        if not (isinstance(given, str) or callable(given)):
            raise TypeError(f"a method must be a name of METHODS or a function, got {given!r}.")
    return {name: find_method(x) if isinstance(x, str) else x for name, x in methods.items()}


def _is_shipped(name: str, method: Method) -> bool:
    """Whether this is the package's method of that name."""
    try:
        return find_method(name) == method
    except ValueError:
        return False
