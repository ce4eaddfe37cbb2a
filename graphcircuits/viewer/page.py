"""The frame of every page: one file that opens from disk and is forbidden to reach the network."""

from html import escape

# Nothing may be loaded and nothing may run; the styles of the page stand in the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1c1c22; background: #fff; }
h1 { font-size: 1.3rem; margin: 0 0 .2rem; } p { margin: .2rem 0 1rem; max-width: 60rem; }
svg { max-width: 100%; height: auto; }
"""


def page(content: str, *, title: str, text: str, style: str = "") -> str:
    """HTML around `content`, which is taken as it is; title and text are escaped."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style>"
        f"<h1>{escape(title)}</h1><p>{escape(text)}</p>{content}</html>\n"
    )
