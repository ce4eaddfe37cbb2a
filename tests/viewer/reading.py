"""What a page holds, read back: its data, tables from base64, its tags."""

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
