"""Tables as Markdown, LaTeX and CSV, from cells that are plain text; each format escapes its own.

A cell may hold ± and may come from a file: nothing in it can end a row or begin a command.
"""

import csv
import io
from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
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


def with_spread(
    values: Sequence[float], spread: Sequence[float] | None, plus_minus: str = " ± "
) -> list[str]:
    """Numbers in three digits, each with its deviation where there is one."""
    if spread is None:
        return [f"{value:.3f}" for value in values]
    both = zip(values, spread, strict=True)
    return [f"{value:.3f}{plus_minus}{deviation:.3f}" for value, deviation in both]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table; the first `left` columns are text, the others numbers."""
    rule = [*["---"] * left, *["---:"] * (len(columns) - left)]
    lines = [list(map(escape_markdown, columns)), rule, *(map(escape_markdown, r) for r in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escape_markdown(text: str) -> str:
    """Text in a cell: no bar ends it, no line breaks it, and no HTML begins in it."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


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


def csv_text(lines: Sequence[Sequence[object]]) -> str:
    """Lines as CSV."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()
