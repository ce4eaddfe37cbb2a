"""The circuit viewer in pictures, for the docs: pages written by the commands of the README, and
Chromium.

1. `viewer.png`: the page of the README's first command, exactly as it opens.
2. `viewer-dark.png`: the same page in the dark, by query, key and value, with a head selected.
3. `viewer-two.png`: two methods side by side, as the page opens but for its colours: where they
   differ.
4. `viewer-large.png`: a result on a language model, where one is given, at fewer edges than it
   proposes. That in the docs is of the task `ioi`, by EAP-IG on 8 pairs:

graphcircuits localize --model build/models/smollm2.gguf --task ioi --pairs 8 --method eap-ig \\
  --out build/smollm2.safetensors
python -m lab.benchmarks.screenshots --out docs/figures [--large build/smollm2.safetensors]

Pictures are written with a palette where that is smaller (`lab.benchmarks.small_pictures`).
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from lab.benchmarks.small_pictures import shrink

FIRST = "graphcircuits localize ib-13 --html circuit.html"
"""The README's first command, whose page `viewer.png` shows."""
TWO = (
    "graphcircuits localize ib-13 --out circuit.json",
    "graphcircuits localize ib-13 --method eap-ig --out eap-ig.json",
    "graphcircuits view circuit.json eap-ig.json --truth ib-13 --out both.html",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1280, 860)
FEW = 30
"""Edges of a large graph in a picture of this size."""
LARGEST = 250_000
"""Bytes of a picture: it travels with every clone."""


@dataclass(frozen=True)
class Shot:
    """A picture: the file of the page, and what is done there before it is taken."""

    name: str
    page: Path
    dark: bool = False
    select: str | None = None
    colour: str | None = None
    edges: int | None = None


def find_browser() -> str:
    """The path of Chromium, as the Makefile looks for it."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(
        f"pages are driven in Chromium, and none of {', '.join(BROWSERS)} is installed; "
        "install it with: make browser"
    )


@contextmanager
def running() -> Iterator[Browser]:
    """Chromium; a sandbox is not to be had by the superuser."""
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=find_browser(), args=arguments)
        yield started
        started.close()


def shots(folder: Path, large: Path | None) -> Iterator[Shot]:
    """All pictures, their pages written into the folder."""
    for command in (FIRST, *TWO):
        run_command(command, folder)
    page = folder / "circuit.html"
    yield Shot("viewer.png", page)
    yield Shot("viewer-dark.png", page, dark=True, colour="kind", select="a0.h1")
    yield Shot("viewer-two.png", folder / "both.html", colour="difference")
    if large is not None:
        page = folder / "large.html"
        run_command(
            shlex.join(["graphcircuits", "view", f"{large.resolve()}", "--out", page.name]), folder
        )
        yield Shot("viewer-large.png", page, edges=FEW)


def run_command(command: str, folder: Path) -> None:
    """Run a command of the package in a folder."""
    words = shlex.split(command)[1:]
    subprocess.run([sys.executable, "-m", "graphcircuits.cli", *words], cwd=folder, check=True)


def take(browser: Browser, shot: Shot, out: Path) -> int:
    """Draw the page, take its picture, and return how many bytes that has."""
    scheme = "dark" if shot.dark else "light"
    width, height = SIZE
    context = browser.new_context(
        offline=True, color_scheme=scheme, viewport={"width": width, "height": height}
    )
    page = context.new_page()
    page.goto(shot.page.as_uri())
    if shot.colour is not None:
        page.select_option("#colour", shot.colour)
    if shot.edges is not None:
        page.fill("#edges-number", str(shot.edges))
        page.press("#edges-number", "Enter")
    if shot.select is not None:
        page.evaluate("name => window.graphcircuits.select(name)", shot.select)
    page.wait_for_timeout(1500)  # what is drawn in slices stands by then
    data = page.screenshot()
    context.close()
    if len(data) > LARGEST:
        raise ValueError(f"{shot.name} has {len(data):,} bytes, at most {LARGEST:,} are wanted.")
    out.mkdir(parents=True, exist_ok=True)
    (out / shot.name).write_bytes(data)
    return len(data) - shrink(out / shot.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--large", type=Path, help="a result on a language model")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running() as browser:
        for shot in shots(Path(folder), given.large):
            print(f"{given.out / shot.name}: {take(browser, shot, given.out):,} bytes")


if __name__ == "__main__":
    main()
