"""The frame of every page: one file that opens from disk and is forbidden to reach the network.

1. `page` puts a title and a text above finished content, such as heat maps. Nothing of it runs.
2. `viewer_page` is the circuit viewer: markup, style and script from `app/`, and the data
   (`payload.py`) as JSON that is not run.

A content-security policy names the page's own styles and its own script by their hashes, so that
nothing else can run or be loaded, whatever stands in the data. It also stops `style` attributes.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from graphcircuits.viewer import app as viewer_files

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1c1c22; background: #fff; }
h1 { font-size: 1.3rem; margin: 0 0 .2rem; } p { margin: .2rem 0 1rem; max-width: 60rem; }
svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { body { color: #ececf1; background: #18181c; } }
"""


class App(NamedTuple):
    """The circuit viewer but for its data."""

    markup: str
    style: str
    script: str


def page(content: str, *, title: str, text: str) -> str:
    """HTML around `content`, which is taken as it is; title and text are escaped."""
    # A picture inside may have styles of its own.
    styles = [_STYLE, *re.findall(r"<style>(.*?)</style>", content, re.DOTALL)]
    body = f"<h1>{_escaped(title)}</h1><p>{_escaped(text)}</p>{content}"
    return _framed(body, title=title, style=_STYLE, policy=policy(styles))


def viewer_page(payload: Mapping[str, Any]) -> str:
    """The circuit viewer with what `result_payload` or `circuit_payload` gives."""
    app = viewer_app()
    body = (
        f'{app.markup}<script type="application/json" id="data">{data_text(payload)}</script>'
        f"<script>{app.script}</script>"
    )
    rules = policy([app.style], [app.script])
    return _framed(body, title=payload["title"], style=app.style, policy=rules)


def viewer_app() -> App:
    """The viewer's files; no part of them may end the tag it stands in."""
    folder = files(viewer_files)
    markup, style, *scripts = (
        folder.joinpath(name).read_text("utf-8")
        for name in ("page.html", "style.css", *viewer_files.SCRIPTS)
    )
    app = App(markup, style, "\n".join(scripts))
    assert "</script" not in app.script, "the script would end early"
    assert "<!--" not in app.script, "the script would hide its end"
    assert "</style" not in app.style, "the style would end early"
    return app


def data_text(payload: Mapping[str, Any]) -> str:
    """JSON that can stand in a script tag: without `<`, no tag and no comment begins in it."""
    # ASCII only, so that U+2028 and halves of characters are escaped too.
    return json.dumps(payload, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def policy(styles: Iterable[str], scripts: Iterable[str] = ()) -> str:
    """A content-security policy that allows these inline styles and scripts and nothing else."""
    rules = ["default-src 'none'"]
    for name, texts in (("script-src", scripts), ("style-src", styles)):
        if hashes := [_hash(text) for text in texts]:
            rules.append(f"{name} {' '.join(hashes)}")
    # Pictures are drawn by the page itself.
    return "; ".join([*rules, "img-src data: blob:", "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _framed(body: str, *, title: str, style: str, policy: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(title)}</title><style>{style}</style>{body}</html>\n"
    )


def _escaped(text: str) -> str:
    """Text in HTML; halves of characters, as undecodable paths have them, are written out."""
    return escape(text.encode("utf-8", "backslashreplace").decode())
