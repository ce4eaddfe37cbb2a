"""Tables escape what they are given."""

import pytest

from graphcircuits.evaluation.text_tables import markdown_table, with_spread
from graphcircuits.io.files import csv_text


def test_numbers() -> None:
    assert with_spread((0.5, 0.12345), None) == ["0.500", "0.123"]
    assert with_spread((0.5, 1.0), (0.01, 0.0), "+-") == ["0.500+-0.010", "1.000+-0.000"]


def test_markdown() -> None:
    text = markdown_table(["a|b", "c"], [["<b>\nx", "1"]])
    assert text == "| a\\|b | c |\n| --- | ---: |\n| &lt;b> x | 1 |"
    assert "| --- | --- |" in markdown_table(["a", "b"], [], left=2)


@pytest.mark.parametrize("cell", ["a,b", 'say "b"', "two\nlines"])
def test_csv(cell: str) -> None:
    import csv
    import io

    assert list(csv.reader(io.StringIO(csv_text([[cell, 1]]), newline=""))) == [[cell, "1"]]
