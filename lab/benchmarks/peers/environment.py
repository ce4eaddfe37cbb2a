"""Another package in an environment of its own, and as a process that answers line by line.

`environment` makes the environment on the first call, with the torch version that runs here, so
that only the packages differ. `Peer` starts a module of this repository in it; what the module
reads and writes on standard input and output is up to the module.
"""

import os
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from lab import ROOT

STEADY = 2.0
"""Largest ratio of the slowest to the fastest repeat at which a comparison means something."""


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of the environment build/peers/NAME with these requirements."""
    folder = ROOT / "build" / "peers" / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = "\n".join([*requirements, f"torch=={torch.__version__.split('+')[0]}", ""])
    # Made again whenever something else is wanted.
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making {folder.relative_to(ROOT)} with {', '.join(requirements)}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        listed = folder / "requirements.txt"
        listed.write_text(wanted)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", listed], check=True)
        ready.write_text(wanted)
    return python


class Peer:
    """A module in another process, asked and answering in lines."""

    def __init__(
        self,
        python: Path,
        module: str,
        arguments: Sequence[str | Path],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        # As a module from the root: a script's own folder would hide packages of the same name.
        self.module = module
        self.process = subprocess.Popen(
            [python, "-W", "ignore", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | dict(settings or {}),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions: IO[str] = self.process.stdin
        self.answers: IO[str] = self.process.stdout

    def answer(self) -> str:
        """The next line it writes."""
        line = self.answers.readline()
        if not line:
            raise SystemExit(f"the other side of {self.module} stopped; its error is above")
        return line

    def ask(self, question: str) -> str:
        """The line it writes after reading this one."""
        self.questions.write(question + "\n")
        self.questions.flush()
        return self.answer()

    def close(self) -> None:
        self.questions.close()
        self.process.wait()


def own_output() -> IO[str]:
    """Standard output for answers alone: what other code prints goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    return answers


def now() -> Tensor:
    """Seconds on the wall, and of CPU."""
    return torch.tensor([time.perf_counter(), time.process_time()], dtype=torch.float64)
