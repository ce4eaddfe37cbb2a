"""Tables as LaTeX, from cells that are plain text: nothing in a cell can begin a command."""

from collections.abc import Sequence

from lab.intervals import MINUS

_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    "\n": " ",
}

Block = tuple[str, Sequence[Sequence[str]]]
"""A heading, which may be empty, and the rows below it."""


def latex_table(
    columns: Sequence[str], blocks: Sequence[Block], *, caption: str, left: int = 1
) -> str:
    """A table with the rules of `booktabs`, one rule between blocks."""
    layout = "l" * left + "r" * (len(columns) - left)
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \begin{{tabular}}{{@{{}}{layout}@{{}}}}",
        r"    \toprule",
        "    " + _tex_row(columns),
    ]
    for heading, rows in blocks:
        lines.append(r"    \midrule")
        if heading:
            cell = rf"\textit{{{escape_tex(heading)}}}"
            lines.append(rf"    \multicolumn{{{len(columns)}}}{{@{{}}l}}{{{cell}}} \\")
        lines += ["    " + _tex_row(row) for row in rows]
    lines += [r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{escape_tex(caption)}}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _tex_row(row: Sequence[str]) -> str:
    return " & ".join(map(escape_tex, row)) + r" \\"


def escape_tex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_TEX.get(sign, sign) for sign in text)
