"""Damaged and forged files of every kind, by the hundred: what readers make of them.

Each try gives a reader one file: with damaged bytes, forged with values of other types and sizes
under a right hash, or with a number that is not finite. A reader may refuse it with an error of its
own, within ten seconds and two gigabytes. Counted are

    refused    by an error of the reader's own, with a printable text
    accepted   read as if nothing were: a fault where every byte is under a hash, and where a number
               is not finite
    foreign    another error
    hung       no answer in time
    died       the process ended

    python -m tests.fuzz --files 200

Any fault is told with its number, by which it can be tried again (--only, --attack, --first), and
makes the exit code 1.
"""

import argparse
import os
import random
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.damage import BYTES, SECONDS, bend
from tests.file_formats import FORMATS, Opened

ATTACKS = ("damaged", "forged", "not finite")
OUTCOMES = ("refused", "accepted", "foreign", "hung", "died")


def spoil(opened: Opened, attack: str, rng: random.Random) -> None:
    """Put one bad file in place."""
    if attack == "damaged":
        path = rng.choice(opened.files)
        whole = path.read_bytes()
        while (data := bend(whole, rng)) == whole:
            pass
        path.write_bytes(data)
        return
    write = opened.forge if attack == "forged" else opened.not_finite
    assert write is not None
    write(rng)


def answer(opened: Opened, *, damaged: bool) -> str:
    """What a reader makes of the file: an outcome, and what the error said."""
    try:
        opened.read()
    except opened.errors as error:
        text = str(error)
        if "allocate memory" in text or len(text) > 10_000:
            return f"foreign {text[:200]}"
        return "refused" if all(c.isprintable() or c in "\n\t" for c in text) else "foreign escapes"
    except BaseException as error:  # noqa: BLE001  whatever it is, it is counted
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"foreign {type(error).__name__} in {where}: {str(error)[:100]}"
    return "accepted in spite of its hash" if damaged and opened.sealed else "accepted"


def attempts(name: str, attack: str, numbers: range, folder: Path, out: int) -> None:
    """In a process of its own: a line for every try, before and after it."""
    opened = FORMATS[name](folder)
    whole = {path: path.read_bytes() for path in opened.files}
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for number in numbers:
        for path, data in whole.items():
            path.write_bytes(data)
        spoil(opened, attack, random.Random(f"{name}/{attack}/{number}"))
        os.write(out, b"begun\n")
        found = answer(opened, damaged=attack == "damaged").replace("\n", " ")
        os.write(out, f"{found}\n".encode(errors="backslashreplace"))


def outcomes(name: str, attack: str, numbers: range) -> Iterator[tuple[int, str]]:
    """What became of every try; a process that hangs or dies is followed by another."""
    while numbers:
        with tempfile.TemporaryDirectory() as folder:
            lines, out = os.pipe()
            process = os.fork()
            if not process:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
                try:
                    attempts(name, attack, numbers, Path(folder), out)
                except BaseException:  # noqa: BLE001  the child must not go on as its parent
                    os.write(out, f"broken {traceback.format_exc()[-300:]!r}\n".encode())
                os._exit(0)
            os.close(out)
            done = 0
            for found in _watched(process, lines):
                if found.startswith("broken"):
                    raise SystemExit(f"{name}, {attack}: the program itself failed: {found}")
                yield numbers[done], found
                done += 1
            numbers = numbers[done:]


def _watched(process: int, lines: int) -> Iterator[str]:
    """The outcomes that a process writes, and at last that it hung or died, if it did."""
    begun, text = False, b""
    try:
        while True:
            ready, _, _ = select.select([lines], [], [], SECONDS if begun else 120)
            data = os.read(lines, 65536) if ready else b""
            if not data:
                if begun or not ready:
                    yield "died" if ready else "hung"
                return
            *whole, text = (text + data).split(b"\n")
            for line in whole:
                begun = line == b"begun"
                if not begun:
                    yield line.decode()
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(lines)


def tried(name: str, attack: str, numbers: range) -> tuple[Counter[str], list[str]]:
    """How many tries came to what, and the faults in words."""
    counts: Counter[str] = Counter()
    faults = []
    for number, found in outcomes(name, attack, numbers):
        kind = found.split(" ")[0]
        counts[kind] += 1
        harmless = kind == "refused" or (found == "accepted" and attack != "not finite")
        if not harmless:
            faults.append(f"{name}, {attack}, number {number}: {found}")
    return counts, faults


def attacks_on(name: str) -> list[str]:
    """The attacks that a format has."""
    with tempfile.TemporaryDirectory() as folder:
        opened = FORMATS[name](Path(folder))
    has = {"damaged": True, "forged": opened.forge, "not finite": opened.not_finite}
    return [attack for attack in ATTACKS if has[attack]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--files", type=int, default=200, help="of each format and attack")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--only", choices=FORMATS, help="one format")
    parser.add_argument("--attack", choices=ATTACKS, help="one attack")
    given = parser.parse_args()
    torch.set_num_threads(1)
    numbers = range(given.first, given.first + given.files)
    total: Counter[tuple[str, str]] = Counter()
    faults = []
    header = f"{'format':25}{'attack':12}" + "".join(f"{name:>10}" for name in OUTCOMES)
    sys.stdout.write(f"{header}\n")
    for name in [given.only] if given.only else FORMATS:
        for attack in attacks_on(name):
            if given.attack in (None, attack):
                counts, found = tried(name, attack, numbers)
                faults += found
                total.update({(attack, kind): count for kind, count in counts.items()})
                row = "".join(f"{counts[outcome]:>10}" for outcome in OUTCOMES)
                sys.stdout.write(f"{name:25}{attack:12}{row}\n")
                sys.stdout.flush()
    for attack in ATTACKS:
        row = "".join(f"{total[attack, outcome]:>10}" for outcome in OUTCOMES)
        sys.stdout.write(f"{'all':25}{attack:12}{row}\n")
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
