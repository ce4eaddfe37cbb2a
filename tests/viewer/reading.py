"""Pages of the viewer, and what they hold, read back: data, tables from base64, tags."""

import base64
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.result.result import Result
from graphcircuits.viewer.page import viewer_page
from graphcircuits.viewer.payload import circuit_payload, result_payload


def result_page(results: Sequence[Result], **options: Any) -> str:
    """The viewer with results."""
    return viewer_page(result_payload(results, **options))


def circuit_page(circuit: Circuit, **options: Any) -> str:
    """The viewer with a circuit alone."""
    return viewer_page(circuit_payload(circuit, **options))


def data_of(page: str) -> dict[str, Any]:
    """The JSON that the page's script reads."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def floats(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype="<f4").copy())


def bits(text: str, n_edges: int) -> Tensor:
    """By the definition: edge i is bit i % 8 of byte i // 8."""
    data = base64.b64decode(text)
    assert len(data) == (n_edges + 7) // 8
    return torch.tensor([bool(data[edge // 8] >> edge % 8 & 1) for edge in range(n_edges)])


def patterns(text: str, *shape: int) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).view(shape)


class Tags(HTMLParser):
    """The tags of a page with their attributes, in order, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inside.append((self._open, data))
            self._open = ""
