"""The circuit viewer in pictures, for the docs: pages made as users make them, and Chromium.

1. `viewer.png`: what `localize ib-13` finds beside the true circuit, and a head's attention.
2. `viewer-dark.png`: the same circuit in the dark, by query, key and value.
3. `viewer-two.png`: two methods side by side, and where they differ.
4. `viewer-large.png`: a result on a language model, where one is given, at fewer edges than it
   proposes. That in the docs is of the task `ioi`, by EAP-IG on 8 pairs:

graphcircuits localize --model build/models/smollm2.gguf --task ioi --pairs 8 --method eap-ig \\
  --out build/smollm2.safetensors
python -m benchmarks.screenshots --out docs/figures [--large build/smollm2.safetensors]
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from graphcircuits import load_case, localize
from graphcircuits.compare.proposal import recorded_curve
from graphcircuits.result import Result
from graphcircuits.viewer.page import result_page

CASE = "ib-13"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1280, 860)
FEW = 30
"""Edges of a large graph in a picture of this size."""
LARGEST = 250_000
"""Bytes of a picture: it travels with every clone."""


@dataclass(frozen=True)
class Shot:
    """A picture: the page, and what is done there before it is taken."""

    name: str
    page: str
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


def shots(large: Path | None) -> Iterator[Shot]:
    """All pictures, their pages made here."""
    case = load_case(CASE)
    subject, pairs = case.subject(), case.pairs(64)
    found = []
    for method in ("gcl", "eap-ig"):
        result = replace(localize(subject, pairs, method, seed=0), subject=case.id, task=case.task)
        size = len(case.circuit)
        curve = recorded_curve(result, subject, pairs, size=size, seed=0)
        found.append(replace(result, chosen=result.circuit(edges=size), curve=curve))
    page = result_page(found[:1], truth=case.circuit, notes=case.variables)
    yield Shot("viewer.png", page, select="a0.h1")
    yield Shot("viewer-dark.png", page, dark=True, colour="kind", edges=24)
    both = result_page(found, truth=case.circuit, notes=case.variables)
    yield Shot("viewer-two.png", both, colour="difference")
    if large is not None:
        yield Shot("viewer-large.png", result_page([Result.load(large)]), edges=FEW)


def take(browser: Browser, shot: Shot, out: Path) -> int:
    """Draw the page, take its picture, and return how many bytes that has."""
    scheme = "dark" if shot.dark else "light"
    width, height = SIZE
    context = browser.new_context(
        offline=True, color_scheme=scheme, viewport={"width": width, "height": height}
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(shot.page, encoding="utf-8")
        page = context.new_page()
        page.goto(path.as_uri())
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
    return len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--large", type=Path, help="a result on a language model")
    given = parser.parse_args()
    with running() as browser:
        for shot in shots(given.large):
            print(f"{given.out / shot.name}: {take(browser, shot, given.out):,} bytes")


if __name__ == "__main__":
    main()
