"""A browser for the tests of pages: Chromium, driven by Playwright, without any network.

One browser serves all tests here that a worker of pytest-xdist takes in a row, and each test gets a
context of its own. It does not outlive them: Playwright leaves an event loop running, in which no
test elsewhere could start another. On a machine without Chromium the tests fail and say what to do:
nothing is passed over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from lab.benchmarks.screenshots import running


@dataclass
class Opened:
    """A page in the browser, and what it said and asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    """Errors and warnings on the console, and errors that nobody caught."""
    asked: list[str] = field(default_factory=list)
    """Whatever was requested besides the file itself, and blobs and data of its own."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running() as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    yield made
    made.close()


@pytest.fixture
def opened(context: BrowserContext, tmp_path: Path) -> Callable[..., Opened]:
    """Opens the text of a page from a file, in a folder of its own."""

    def open_page(text: str, **settings: Any) -> Opened:
        path = tmp_path / f"page-{len(context.pages)}.html"
        path.write_text(text, encoding="utf-8")
        page = context.new_page()
        if settings:
            page.emulate_media(**settings)
        found = Opened(page)

        def asked(url: str) -> None:
            if not url.startswith(("blob:", "data:")):
                found.asked.append(url)

        page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: found.said.append(f"uncaught: {error}"))
        page.on("request", lambda request: asked(request.url))
        page.goto(path.as_uri())
        found.asked.remove(path.as_uri())
        return found

    return open_page
