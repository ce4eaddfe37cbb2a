"""What all pictures of matplotlib have in common: the library itself, colours, and their files.

matplotlib is imported where something is drawn, and never its pyplot: no window system, and no
state that outlives a call.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
COLOURS = (
    "#0173b2",
    "#de8f05",
    "#029e73",
    "#d55e00",
    "#cc78bc",
    "#ca9161",
    "#56565e",
    "#56b4e9",
    "#fbafe4",
    "#949494",
)
"""Told apart by people who see colours in any way; the same on white and on black."""
INK, FAINT, RULE = "#1c1c22", "#8a8a94", "#e4e4e8"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "graphcircuits",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
"""Fixed ids: the same values give the same file. Text stays text, which can be searched."""


def missing_library(what: str) -> list[str]:
    """The problem with a plot where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return [f"{what} needs matplotlib; install it with: pip install 'graphcircuits[plot]'"]
    return []


def need_library(what: str = "the plot") -> None:
    """Raise where matplotlib is not installed."""
    if problems := missing_library(what):
        raise ImportError(problems[0])


def known_suffix(path: str | Path) -> None:
    """Raise where a picture cannot be written to this file."""
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"a plot is written as {', '.join(SUFFIXES)}, got {path}.")


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure by its suffix; the same figure gives the same file."""
    known_suffix(path)
    import matplotlib

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    undated: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata=undated.get(Path(path).suffix), dpi=150)


def plain(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")
