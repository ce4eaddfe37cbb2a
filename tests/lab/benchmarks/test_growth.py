"""What a page of growth says can be drawn again: its tables are read as they were written."""

from argparse import Namespace
from pathlib import Path

from lab.benchmarks.growth import Point, read_page, report


def test_a_page_is_read_back(tmp_path: Path) -> None:
    trained = [
        Point("ib-3", 2, 24, 110, "eap", 0.0142, 9.0),
        Point("ib-3", 2, 24, 110, "acdc", 0.673, None),
        Point("ib-4", 7, 88, 1520, "eap", 116.0, 1284.0),
        Point("ib-4", 7, 88, 1520, "acdc", None, None),
    ]
    drawn = [Point("random 8x8", 8, 64, 6637, "eap", 1.2e6, 4.0)]
    page = tmp_path / "growth.md"
    options = Namespace(repeats=1, budget=15.0, threads=1, figure="growth.png")
    page.write_text(report([trained, drawn], options))
    # What was skipped has no number to draw.
    assert read_page(page) == [trained[:3], drawn]
