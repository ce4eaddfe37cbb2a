"""How long a new process takes to import the package and to answer `--help`."""

import subprocess
import sys
from collections.abc import Iterator

from lab.benchmarks import Measurement, best_of


def measure() -> Iterator[Measurement]:
    programs = {
        "start of Python alone": ("pass", None),
        "import graphcircuits": ("import graphcircuits", None),
        "graphcircuits --help": ("from graphcircuits.cli import main; main()", 0.5),
    }
    for what, (code, limit) in programs.items():
        command = [sys.executable, "-c", code, "--help"]
        seconds = best_of(lambda run=command: subprocess.run(run, capture_output=True, check=True))
        yield Measurement(what, seconds, "s", limit)
