"""How faithful the best edges of a result are, from few of them to many, with areas and a plot.

A result may come with such a curve, `faithfulness_curve` measures one, and a bench has one for each
run. `edges_for` says how many edges it takes to keep a share of the behaviour, and `log_area` how
far all sizes are from it, a circuit of ten edges counting as much as one of ten thousand. CPR and
CMD are the areas that MIB (Mueller et al. 2025) ranks methods by: over the share of edges, in which
small circuits hardly count. Files of results hold sizes, faithfulness, what it is measured by, the
number of pairs and the seed: the rest follows from the graph.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from graphcircuits.drawing.curves import KEEP, curve_figure
from graphcircuits.drawing.notebook import facts_html, framed, table_html
from graphcircuits.io.files import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES = ("output", "loss")
"""By the distance from the subject's own output, or by the loss of the pairs, as MIB has it."""
CROSSINGS = (0.8, 0.9, 0.95)
"""Shares of the behaviour for which curves say how many edges it takes."""
ROWS = 24
"""Sizes that notebooks show."""


@dataclass(frozen=True, kw_only=True)
class FaithfulnessCurve:
    """Faithfulness of the best edges at growing numbers of them."""

    n_edges: int
    """How many edges the whole graph has."""
    sizes: Sequence[int]
    """Numbers of best edges, from few to many; on small graphs several may be equal."""
    faithfulness: Sequence[float]
    """Of the best edges at each size."""
    n_pairs: int
    """How many prompt pairs it was measured on."""
    by: str = "output"
    """What faithfulness is measured by, one of MEASURES."""
    seed: int | None = None
    """The seed that drew these pairs, where one did."""
    fractions: Sequence[float] = ()
    """The share of all edges at each size, over which the areas are taken. If left out, the sizes
    divided by `n_edges`; MIB has round shares, and counts an edge into a group of heads several
    times."""
    pruned_sizes: Sequence[int] = ()
    """Edges of each circuit that lie on a path from input to logits; empty where not counted."""

    def __post_init__(self) -> None:
        sizes, values = tuple(self.sizes), tuple(self.faithfulness)
        if min(sizes, default=0) < 0 or any(a > b for a, b in pairwise(sizes)):
            raise ValueError(
                f"the sizes of a curve must be growing numbers from 0, got {short(sizes)}."
            )
        if max(sizes, default=0) > self.n_edges:
            raise ValueError(
                f"the curve has a circuit of {max(sizes)} edges, but there are {self.n_edges}."
            )
        if len(values) != len(sizes) or not all(map(math.isfinite, values)):
            raise ValueError(
                f"a curve must have a finite faithfulness for each of {len(sizes)} sizes, "
                f"got {short(values)}."
            )
        if self.by not in MEASURES:
            raise ValueError(
                f"a curve is measured by one of {', '.join(MEASURES)}, got {short(self.by)}."
            )
        if self.n_pairs < 1:
            raise ValueError(
                f"a curve is measured on at least one pair, got {short(self.n_pairs)}."
            )
        fractions = tuple(self.fractions) or tuple(size / self.n_edges for size in sizes)
        pruned = tuple(self.pruned_sizes)
        if len(fractions) != len(sizes) or len(pruned) not in (0, len(sizes)):
            raise ValueError(
                f"a curve must have a fraction, and a pruned size or none, for each of "
                f"{len(sizes)} sizes, got {len(fractions)} and {len(pruned)}."
            )
        for name, value in (
            ("sizes", sizes),
            ("faithfulness", values),
            ("fractions", fractions),
            ("pruned_sizes", pruned),
        ):
            object.__setattr__(self, name, value)

    def edges_for(self, share: float) -> int | None:
        """The smallest size at which, and at all larger ones, faithfulness is `share` or more.

        None where the largest size does not reach it. A size that reaches it by luck, with larger
        ones that do not, is passed over. It is one of `sizes`.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}.")
        enough = None
        for size, value in zip(reversed(self.sizes), reversed(self.faithfulness), strict=True):
            # The whole subject may miss 1 by a rounding.
            if value < share - 1e-9:
                break
            enough = size
        return enough

    @property
    def log_area(self) -> float:
        """The mean over log sizes of 1 - faithfulness, held within 0..1; smaller is better."""
        points = [point for point in zip(self.sizes, self.faithfulness, strict=True) if point[0]]
        x = [math.log(size) for size, _ in points]
        if len(set(x)) < 2:
            raise ValueError(
                f"log_area needs two sizes above 0, got {short(self.sizes)}; measure more sizes."
            )
        y = [1 - min(1.0, max(0.0, value)) for _, value in points]
        return _area(x, y) / (x[-1] - x[0])

    @property
    def cpr(self) -> float:
        """Circuit performance ratio: the area under the curve; larger is better."""
        return _area(self.fractions, self.faithfulness)

    @property
    def cmd(self) -> float:
        """Circuit-model distance: the area between the curve and 1, on either side; smaller is
        better."""
        return _area(self.fractions, [abs(1 - value) for value in self.faithfulness])

    @property
    def areas(self) -> dict[str, float | None]:
        """`log_area`, CPR and CMD by name; None where there are too few sizes for an area."""
        several, logarithms = len(self.sizes) > 1, len({*self.sizes} - {0}) > 1
        return {
            "log_area": self.log_area if logarithms else None,
            "cpr": self.cpr if several else None,
            "cmd": self.cmd if several else None,
        }

    @property
    def crossings(self) -> dict[str, int | None]:
        """`edges_for` each of CROSSINGS, by the share as text."""
        return {f"{share:g}": self.edges_for(share) for share in CROSSINGS}

    def to_json(self) -> dict[str, Any]:
        """What files of results and pages hold of it: each size once."""
        by_size = dict(zip(self.sizes, self.faithfulness, strict=True))
        return {
            "sizes": list(by_size),
            "faithfulness": list(by_size.values()),
            "by": self.by,
            "pairs": self.n_pairs,
            "seed": self.seed,
        }

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Draw it over the sizes, on `ax` or on a figure of its own; needs matplotlib."""
        enough = self.edges_for(KEEP)
        return curve_figure(self.sizes, self.faithfulness, by=self.by, enough=enough, ax=ax)

    def _repr_html_(self) -> str:
        pruned = [f"{size:,}" for size in self.pruned_sizes] or [""] * len(self.sizes)
        columns = zip(self.sizes, self.fractions, pruned, self.faithfulness, strict=True)
        rows = [
            [f"{size:,}", f"{share:.3%}", on_paths, f"{value:.4f}"]
            for size, share, on_paths, value in columns
        ]
        needed = {f"edges for {k}": f"{v:,}" for k, v in self.crossings.items() if v is not None}
        names = {"log_area": "log area", "cpr": "CPR", "cmd": "CMD"}
        areas = {names[k]: f"{v:.4f}" for k, v in self.areas.items() if v is not None}
        header = ["edges", "of all", "on paths", f"faithfulness by {self.by}"]
        shown = table_html(header, rows[:ROWS], total=len(rows))
        return framed(facts_html("Faithfulness of the best edges", needed | areas), shown)


def _area(x: Sequence[float], y: Sequence[float]) -> float:
    """By the trapezoid rule."""
    points = torch.tensor([x, y], dtype=torch.float64)
    return float(torch.trapezoid(points[1], points[0]))
