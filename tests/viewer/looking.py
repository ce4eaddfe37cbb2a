"""The circuit viewer in a browser: pages of made-up results, and waiting until they are drawn."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from playwright.sync_api import Page

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result
from tests.viewer.conftest import Opened

Open = Callable[..., Opened]
SVG = "{http://www.w3.org/2000/svg}"
GRAPHS = (
    ComponentGraph(1, 1),
    ComponentGraph(2, 4),
    ComponentGraph(3, 6, n_kv_heads=2),
    ComponentGraph(2, 3, parallel=True),
    ComponentGraph(3, 4, n_kv_heads=1, parallel=True),
)


def made(graph: ComponentGraph, seed: int = 0, **more: Any) -> Result:
    """Scores with ties and both signs."""
    generator = torch.Generator().manual_seed(seed)
    scores = (4 * torch.randn(graph.n_edges, generator=generator)).round() / 4
    return Result(graph=graph, scores=scores, **more)


def chosen(graph: ComponentGraph, edges: int, seed: int = 0) -> Circuit:
    """A circuit of random edges."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(graph.n_edges, dtype=torch.bool)
    mask[torch.randperm(graph.n_edges, generator=generator)[:edges]] = True
    return Circuit.from_mask(graph, mask)


def sizes(graph: ComponentGraph) -> dict[str, Any]:
    """A graph as the page is told it."""
    return {
        "n_layers": graph.n_layers,
        "n_heads": graph.n_heads,
        "n_kv_heads": graph.n_groups,
        "parallel": graph.parallel,
    }


def look(opened: Open, text: str, **settings: Any) -> Page:
    """The page, drawn; anything it says on the console is an error."""
    found = opened(text, **settings)
    settle(found.page)
    assert (found.said, found.asked) == ([], [])
    return found.page


def settle(page: Page, seconds: float = 30.0) -> None:
    """Waits until the page has nothing left to draw."""
    end = time.monotonic() + seconds
    while not page.evaluate("graphcircuits.idle && graphcircuits.complete !== null"):
        assert time.monotonic() < end, "the page is still drawing"
        page.wait_for_timeout(20)


def change(page: Page, **state: Any) -> None:
    page.evaluate("state => graphcircuits.set(state)", state)
    settle(page)


def drawn(page: Page, panel: int = 0) -> list[dict[str, Any]]:
    return page.evaluate("panel => graphcircuits.drawn(panel)", panel)


def names(links: list[dict[str, Any]]) -> set[str]:
    return {link["name"] for link in links}


def numbers(page: Page, place: str) -> Mapping[str, str]:
    """What an element says in its data attributes."""
    return page.locator(place).evaluate("one => ({...one.dataset})")
