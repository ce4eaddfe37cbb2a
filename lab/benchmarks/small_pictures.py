"""The PNG pictures of the docs with a palette, a third of their size: they travel with every clone.

The palette covers all colours, rare ones too: a thin line in a colour of its own keeps it. A
picture of which a pixel would be farther off than `FAR` is left as it is.

python -m lab.benchmarks.small_pictures docs/figures
"""

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

from graphcircuits.io.files import write_atomic

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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    for path in sorted(parser.parse_args().folder.glob("*.png")):
        print(f"{path}: {shrink(path):,} bytes saved")


if __name__ == "__main__":
    main()
