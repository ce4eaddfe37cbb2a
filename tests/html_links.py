"""What a folder of HTML pages refers to, and whether it is there.

1. `Page` reads a page: the ids in it, its links, and what the browser loads with it.
2. `broken` follows every link within the folder, to a file and to a place in it.
3. `from_outside` lists what pages would load from elsewhere.
"""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

LOADED = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("object", "data"),
    ("embed", "src"),
    ("use", "href"),
    ("image", "href"),
}
"""What the browser fetches when it shows a page, as tag and attribute."""
LINKS = {("a", "href"), ("area", "href"), ("form", "action")}
NOT_LOADED = {"canonical", "prev", "next", "alternate", "author", "license"}
"""Relations of a `link` that say something about a page and fetch nothing."""
STYLE = re.compile(r"@import\s+[\"']([^\"']+)|url\(\s*[\"']?([^\"')]+)")
BASE = "https://here.invalid/"


class Page(HTMLParser):
    """The ids, links and loaded things of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self._style = tag == "style"
        self.loaded += _in_style(given.get("style", ""))
        told = tag == "link" and set(given.get("rel", "").split()) & NOT_LOADED
        for name, value in given.items():
            if (tag, name) in LINKS or ((tag, name) in LOADED and told):
                self.links.append(value)
            elif (tag, name) in LOADED:
                several = name == "srcset"
                self.loaded += (
                    [part.split()[0] for part in value.split(",")] if several else [value]
                )

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loaded += _in_style(data)

    def handle_endtag(self, tag: str) -> None:
        self._style = False


def _in_style(text: str) -> list[str]:
    return [one or other for one, other in STYLE.findall(text)]


@cache
def pages_of(folder: Path) -> dict[str, Page]:
    return {
        path.relative_to(folder).as_posix(): Page(path.read_text("utf-8"))
        for path in sorted(folder.rglob("*.html"))
    }


def is_outside(address: str) -> bool:
    return not address.startswith("data:") and bool(
        urlsplit(address).scheme or address.startswith("//")
    )


def broken(folder: Path) -> list[str]:
    """Links and loaded things within the folder that lead nowhere, as `page -> address`."""
    pages = pages_of(folder)
    lost = []
    for name, page in pages.items():
        for address in [*page.links, *page.loaded]:
            if address.startswith("data:") or is_outside(address):
                continue
            split = urlsplit(urljoin(BASE + name, address))
            target = unquote(split.path.removeprefix("/"))
            target = f"{target}index.html" if target == "" or target.endswith("/") else target
            place = unquote(split.fragment)
            known = pages[target].ids if target in pages else set()
            if not (folder / target).is_file() or (place and place not in known):
                lost.append(f"{name} -> {address}")
    return lost


def from_outside(folder: Path) -> list[str]:
    """What pages and style sheets load from elsewhere, as `page -> address`."""
    found = [
        f"{name} -> {address}"
        for name, page in pages_of(folder).items()
        for address in page.loaded
        if is_outside(address)
    ]
    for sheet in sorted(folder.rglob("*.css")):
        used = _in_style(sheet.read_text("utf-8"))
        name = sheet.relative_to(folder).as_posix()
        found += [f"{name} -> {address}" for address in used if is_outside(address)]
    return found
