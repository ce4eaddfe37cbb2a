"""How good scores are where the circuit is known: AUROC, average precision, precision.

They are compared at head level (the official InterpBench reading) or with q, k and v apart. Ties
are never broken: they get half or shared credit.
"""

from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.result.result import Result

Level = Literal["head", "qkv"]
LEVELS: tuple[str, ...] = get_args(Level)

Scores = Result | Float[Tensor, " edge"]


def auroc(scores: Scores, circuit: Circuit, level: str = "head") -> float:
    """The chance that an edge of the circuit outscores one outside it; a tie counts one half.

    Args:
        scores: A result, or one score for each edge of the circuit's graph.
        circuit: The true circuit.
        level: "head", where the best of q, k and v counts and `input->logits` is left out, or
            "qkv", which compares every edge.

    Returns:
        The area under the ROC curve, computed exactly from ranks: 1 is a perfect ranking, 0.5 what
        chance gives.

    Raises:
        ValueError: If the circuit has none or all of the edges.

    Example:
        `gc.auroc(gc.localize(case.subject(), case.pairs(64)), case.circuit)`

    Reference:
        Gupta et al. 2024, "InterpBench", whose official reading is the level "head".
    """
    values, truth = _items(scores, circuit, level)
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    # Tied items share the mean of their ranks. All sums stay below 2^53, so they are exact.
    mean_rank = sizes.cumsum(0).double() - (sizes - 1) / 2
    n_true = int(truth.sum())
    n_false = len(truth) - n_true
    wins = mean_rank[group][truth].sum() - n_true * (n_true + 1) / 2
    return float(wins) / (n_true * n_false)


def auprc(scores: Scores, circuit: Circuit, level: str = "head") -> float:
    """Average precision: precision at every distinct score, weighted by the recall it adds."""
    hits, taken = _cumulative(*_items(scores, circuit, level))
    added = hits.diff(prepend=hits.new_zeros(1))
    return float((added * hits / taken).sum() / hits[-1])


def precision_at_size(scores: Scores, circuit: Circuit, level: str = "head") -> float:
    """Precision of as many of the best edges as the circuit has, which is their recall as well.

    Where the cut falls into a tie, the expectation over the orders of the tied edges is returned.
    """
    values, truth = _items(scores, circuit, level)
    n_true = int(truth.sum())
    hits, taken = _cumulative(values, truth)
    # Between two distinct scores the expected number of true edges grows linearly.
    return float(np.interp(n_true, [0, *taken.tolist()], [0, *hits.tolist()])) / n_true


def _items(
    scores: Scores, circuit: Circuit, level: str
) -> tuple[Float[Tensor, " item"], Bool[Tensor, " item"]]:
    """Scores in float64 and membership, of the edges that the level counts."""
    graph = circuit.graph
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}.")
    if isinstance(scores, Result):
        if scores.graph != graph:
            raise ValueError(
                f"the scores are of {scores.graph}, the circuit of {graph}; "
                "bring it over with circuit.on(graph)."
            )
        scores = scores.scores
    if scores.shape != (graph.n_edges,):
        raise ValueError(
            f"scores must be one number for each of {graph.n_edges} edges, "
            f"got shape {tuple(scores.shape)}."
        )
    values, truth = scores.detach().to("cpu", torch.float64), circuit.mask
    if level == "head":
        values, truth = graph.promote(values), graph.promote(truth)
    if values.isnan().any():
        raise ValueError(f"scores must be numbers, got {int(values.isnan().sum())} NaN.")
    n_true = int(truth.sum())
    if n_true in (0, len(truth)):
        raise ValueError(
            f"the true circuit must have some and not all of the {len(truth)} edges at the "
            f"{level} level, so that a ranking can be judged, got {n_true}."
        )
    return values, truth


def _cumulative(
    values: Float[Tensor, " item"], truth: Bool[Tensor, " item"]
) -> tuple[Float[Tensor, " distinct"], Int[Tensor, " distinct"]]:
    """True edges and edges that score at least so much, from the largest distinct score down."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    true_sizes = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, group, truth.double())
    return true_sizes.flip(0).cumsum(0), sizes.flip(0).cumsum(0)
