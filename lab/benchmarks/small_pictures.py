"""Smaller pictures for the docs: they travel with every clone.

PNG gets a palette, a third of its size; paths of SVG get DECIMALS, a hundredth of a point. The
palette covers all colours, rare ones too: a thin line in a colour of its own keeps it. A
picture of which a pixel would be farther off than `FAR` is left as it is.

python -m lab.benchmarks.small_pictures docs/figures
"""

import argparse
import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

from graphcircuits.io.files import write_atomic

DECIMALS = 2
COLOURS = 256
FAR = 24
"""Of 255, in any of red, green and blue."""


def shrink(path: Path) -> int:
    """Write the picture with a palette where that is smaller; gives the bytes that it saves."""
    with Image.open(path) as picture:
        plain = picture.convert("RGB")
    flat = plain.quantize(
        COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE
    )
    off = np.abs(np.asarray(flat.convert("RGB")).astype(int) - np.asarray(plain))
    made = io.BytesIO()
    flat.save(made, format="PNG", optimize=True)
    saved = path.stat().st_size - len(made.getvalue())
    if saved <= 0 or off.max() > FAR:
        return 0
    write_atomic(path, made.getvalue())
    return saved


def shorten(path: Path) -> int:
    """Write the numbers in the paths of a drawing with DECIMALS; gives the bytes that it saves.

    Others, such as those that scale letters, stay as they are.
    """
    before = path.read_text("utf-8")

    def rounded(number: re.Match[str]) -> str:
        return f"{float(number[0]):.{DECIMALS}f}".rstrip("0").rstrip(".")

    after = re.sub(
        r'(?<= d=")[^"]*', lambda numbers: re.sub(r"-?\d+\.\d{3,}", rounded, numbers[0]), before
    )
    if after != before:
        write_atomic(path, after.encode())
    return len(before) - len(after)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    for path in sorted(parser.parse_args().folder.iterdir()):
        if smaller := {".png": shrink, ".svg": shorten}.get(path.suffix):
            print(f"{path}: {smaller(path):,} bytes saved")


if __name__ == "__main__":
    main()
