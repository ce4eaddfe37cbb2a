"""Pictures get smaller and look the same."""

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.small_pictures import shrink


def test_a_picture_is_smaller_and_looks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    ramp = np.linspace(0, 255, 200).astype(np.uint8)
    colours = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], 255 - ramp[:, None]), -1)
    plain = np.where(np.indices((200, 200)).sum(0)[..., None] % 50 < 25, colours // 64 * 64, 255)
    Image.fromarray(plain.astype(np.uint8)).save(path, compress_level=0)
    before = path.stat().st_size
    assert shrink(path) == before - path.stat().st_size > 0
    assert [found.name for found in tmp_path.iterdir()] == ["one.png"]
    with Image.open(path) as small:
        difference = np.abs(np.asarray(small.convert("RGB")).astype(int) - plain)
    assert difference.max() <= 8
    # Once more there is nothing to gain, and nothing is touched.
    data = path.read_bytes()
    assert shrink(path) == 0
    assert path.read_bytes() == data
