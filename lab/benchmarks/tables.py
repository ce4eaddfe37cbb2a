"""All tables of methods in docs/results, each by one command, from one folder of runs.

A page and the CSV file beside it come of a single `graphcircuits bench`, with every method and the
floors. Methods that train or search for seconds run with one seed; on models of several tasks those
that train gates are left out, which would take over an hour there. `--quick` leaves out all that
take seconds. Runs that are in the folder are not made again, so this can be stopped and goes on,
and folders of several machines can be put together.

python -m lab.benchmarks.tables --processes 2 [--only test natural] [--quick] [--out build/bench]
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PAPERS = ("gcl-paper", "gcl-paper-blind")
"""They learned from planted subjects alone, and do not run on natural ones."""
QUICK = ("gcl", "eap", "eap-ig", "eap-ig+paths", "eap-gp", "ig-own", "relp", "nap", "exact")
FLOORS = ("random", "edge-frequency", "gcl-blind")
GATES = ("sp-edge", "sp-node", "edge-pruning", "ugs", "mattr", "pgexplainer")
FEW = (*QUICK, *PAPERS, *FLOORS, "acdc")
ONE_EACH = (
    *("plm-0@count", "plm-1@predict", "plm-2@carry", "plm-3@sort", "plm-4@change", "plm-5@tally"),
    *("plm-6@flip", "plm-7@alike"),
)
"""A call of each planted language model that ships, for methods that take half a minute each."""
TABLES = {
    "test": ("--cases test --seeds 3", (*FEW, *GATES)),
    "deep-test": ("--cases deep-test --seeds 2", (*FEW, *GATES)),
    "deep": ("--cases deep-pool --seeds 2", (*FEW, *GATES)),
    "public": ("--fleet public --seeds 3 --pairs 32", (*FEW, *GATES)),
    "multitask": ("--cases multitask --seeds 1 --pairs 32", FEW),
    "planted-language": ("--fleet language --cases test --seeds 3", (*QUICK, *FLOORS, "acdc")),
    "planted-language-gates": (
        f"--fleet language --cases {','.join(ONE_EACH)} --seeds 1 --pairs 32",
        ("gcl", "eap-ig", "eap-ig+paths", *FLOORS, *GATES),
    ),
    "natural": ("--fleet natural --seeds 3 --pairs 32", (*QUICK, *FLOORS, "acdc", *GATES)),
}
"""By page: the cases, and the methods."""


def command(page: str, out: Path, processes: int, quick: bool = False) -> list[str]:
    """The words that make a page and its data."""
    cases, methods = TABLES[page]
    slow = [name for name in methods if name in ("acdc", *GATES)]
    if quick:
        methods, slow = tuple(name for name in methods if name not in slow), []
    words = ["graphcircuits", "bench", *shlex.split(cases), "--methods", ",".join(methods)]
    words += ["--once", ",".join(slow)] if slow else []
    words += ["--processes", str(processes), "--out", out.as_posix()]
    return [*words, "--markdown", f"docs/results/{page}.md"]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=tuple(TABLES), default=list(TABLES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of the runs")
    parser.add_argument("--quick", action="store_true", help="leave out what takes seconds")
    parser.add_argument("--show", action="store_true", help="print the commands alone")
    words = parser.parse_args(given)
    failed = []
    for page in words.only:
        line = command(page, words.out, words.processes, words.quick)
        sys.stdout.write(f"{shlex.join(line)}\n")
        sys.stdout.flush()
        beside = Path(sys.executable).with_name(line[0])
        if not words.show and subprocess.run([beside, *line[1:]], check=False).returncode:
            failed.append(page)
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
