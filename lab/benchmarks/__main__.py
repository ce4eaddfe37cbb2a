"""Run every benchmark and print one table; exit with 1 if a limit is broken."""

import pkgutil
from importlib import import_module

from rich.console import Console
from rich.table import Table

import lab.benchmarks


def main() -> int:
    table = Table("what", "measured", "limit", "", title="Benchmarks")
    all_kept = True
    for module in pkgutil.iter_modules(lab.benchmarks.__path__, "lab.benchmarks."):
        if module.name == "lab.benchmarks.__main__" or module.ispkg:
            continue
        measure = getattr(import_module(module.name), "measure", lambda: ())
        for found in measure():
            limit = "" if found.limit is None else f"{found.limit:g} {found.unit}"
            verdict = "" if found.kept else "too much"
            table.add_row(found.what, f"{found.value:.3g} {found.unit}", limit, verdict)
            all_kept &= found.kept
    Console().print(table)
    return 0 if all_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
