"""Box plots: what is drawn, and that the file holds it."""

import random
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from lab.paper.boxes import Box, Slot, SlotGroup, draw_boxes
from lab.paper.published import BY_CONFIGURATION, HIGHLIGHTED


def test_the_box_of_cases() -> None:
    box = Box.of_cases([0.0, 0.5, 0.6, 0.7, 0.8, 1.0, 0.65])
    assert box.quantiles == pytest.approx((0.0, 0.55, 0.65, 0.75, 1.0))
    # The whiskers may reach from 0.25 to 1.05.
    assert box.whiskers == (0.5, 1.0)
    assert box.outliers == (0.0,)
    assert Box.of_cases([0.5]).whiskers == (0.5, 0.5)


def test_the_box_of_published_figures() -> None:
    acdc = Box.of_published(HIGHLIGHTED[3])
    assert (acdc.whiskers, acdc.outliers, acdc.published) == (
        (0.794109, 1.0),
        (0.441173, 0.441173),
        True,
    )
    # Of most configurations only the five quantiles are printed.
    assert Box.of_published(BY_CONFIGURATION["dagformer-line-none"]).whiskers == (0.504, 0.992)


@pytest.mark.slow
def test_boxes_are_those_of_matplotlib() -> None:
    from matplotlib.cbook import boxplot_stats

    luck = random.Random(0)
    for _ in range(50):
        values = [round(luck.betavariate(2, 0.6), 2) for _ in range(luck.randint(1, 20))]
        box, expected = Box.of_cases(values), boxplot_stats(values)[0]
        assert box.quantiles[1:4] == pytest.approx([expected[key] for key in ("q1", "med", "q3")])
        assert box.whiskers == pytest.approx((expected["whislo"], expected["whishi"]))
        assert sorted(box.outliers) == pytest.approx(sorted(expected["fliers"]))


@pytest.mark.slow
def test_the_picture_holds_its_words(tmp_path: Path) -> None:
    ours = Box.of_cases([0.1, 0.8, 0.85, 0.9, 0.95, 1.0], (0.1, 0.1, 0.1, 0.1, 0.0))
    slots = (
        Slot(label="a & b <c>, costs $5 -- more", boxes=(ours, Box.of_published(HIGHLIGHTED[0]))),
        Slot(label="ACDC", boxes=(Box.of_published(HIGHLIGHTED[3]),)),
    )
    groups = [
        SlotGroup(title="Ours & theirs", slots=slots),
        SlotGroup(title="empty", slots=()),
    ]
    for name in ("a.svg", "b.svg", "c.png"):
        draw_boxes(tmp_path / name, groups, title="<title> & $x_1$")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    words = " ".join("".join(text.itertext()) for text in root.iter() if text.tag.endswith("}text"))
    for expected in (
        "<title> & $x_1$",
        "Ours & theirs",
        "a & b <c>",
        "ACDC",
        "Edge AUROC",
        "ours (solid): the middle half of the cases",
        "published (dashed), on InterpBench's weights",
        "thick line: median over cases",
        "whiskers: to the last case within 1.5 interquartile ranges of the box",
        "dotted: each of the five quantiles ± 1 standard deviation over seeds",
        "circle: a case beyond the whiskers",
    ):
        assert expected in words
    assert "costs $5 --" in words
    assert "empty" not in words


def test_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slots = (Slot(label="a", boxes=(Box.of_cases([0.5]),)),)
    with pytest.raises(ValueError, match=r"written as \.svg, \.png, \.pdf, got .*a\.gif"):
        draw_boxes(tmp_path / "a.gif", [SlotGroup(title="", slots=slots)], title="")
    with pytest.raises(ValueError, match="a box plot needs at least one box, got none"):
        draw_boxes(tmp_path / "a.svg", [], title="")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'graphcircuits\[plot\]'"):
        draw_boxes(tmp_path / "a.svg", [SlotGroup(title="", slots=slots)], title="")
