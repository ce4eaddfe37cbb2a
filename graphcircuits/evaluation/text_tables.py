"""Tables as Markdown, from cells that are plain text and may come from a file: nothing in a cell
can end a row."""

from collections.abc import Sequence


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
