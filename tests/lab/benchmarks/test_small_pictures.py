"""Pictures get smaller and look the same."""

from pathlib import Path

import numpy as np
from PIL import Image

from lab.benchmarks.small_pictures import FAR, shorten, shrink

ORANGE = (213, 94, 0)


def test_a_picture_is_smaller_and_looks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    plain = np.full((200, 200, 3), 255, np.uint8)
    plain[:, 100:] = (np.arange(200)[:, None, None] // 2 + 60).astype(np.uint8)
    plain[50, 10:14] = ORANGE  # rare, and all that tells one line from another
    Image.fromarray(plain).save(path, compress_level=0)
    before = path.stat().st_size
    assert shrink(path) == before - path.stat().st_size > 0
    with Image.open(path) as small:
        found = np.asarray(small.convert("RGB")).astype(int)
    assert np.abs(found - plain).max() <= FAR
    assert np.abs(found[50, 10:14] - ORANGE).max() <= 2
    # Once more there is nothing to gain, and nothing is touched.
    data = path.read_bytes()
    assert shrink(path) == 0
    assert path.read_bytes() == data


def test_a_picture_that_would_look_otherwise_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "noise.png"
    noise = np.random.default_rng(0).integers(0, 256, (120, 120, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, compress_level=0)
    data = path.read_bytes()
    assert shrink(path) == 0
    assert path.read_bytes() == data


def test_paths_of_a_drawing_have_two_decimals(tmp_path: Path) -> None:
    path = tmp_path / "one.svg"
    drawn = '<path id="a.12345" d="M {} 3.25 L 100 -0.001234" transform="scale(0.015625)"/>'
    path.write_text(drawn.format("12.345678"))
    assert shorten(path) > 0
    # What rounds to nothing keeps its sign, which draws the same.
    assert path.read_text() == drawn.format("12.35").replace("-0.001234", "-0")
    assert shorten(path) == 0
