"""How good scores are: against a known circuit, and by ablation on any pairs.

1. `auroc`, `auprc` and `precision_recall` compare scores with a true circuit, at head level (the
   official InterpBench reading: the best of q, k and v counts, `input->logits` is left out) or with
   q, k and v apart. Ties are never broken: they get half or shared credit.
2. `summarize` gives minimum, quartiles and maximum over cases, after averaging seeds in each case,
   and how far each of the five varies from seed to seed, as in the paper's table.
3. `faithfulness` ablates everything outside a circuit and says which part of the gap between the
   corrupted and the clean run is closed. `faithfulness_curve` does so for the best edges at growing
   sizes, MIB's or log-spaced; its areas are CPR (larger is better) and CMD (smaller is better).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.adapters.mib import PARTS, best_counts
from graphcircuits.circuit import Circuit
from graphcircuits.drawing.curves import curve_figure
from graphcircuits.drawing.notebook import facts_html, framed, table_html
from graphcircuits.engine.circuits import CutRun, circuit_logits
from graphcircuits.engine.masked import ABLATIONS
from graphcircuits.engine.memory import Footprint, at_once, explained
from graphcircuits.engine.relaxed import log_sizes
from graphcircuits.result.result import Result
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Level = Literal["head", "qkv"]
LEVELS: tuple[str, ...] = get_args(Level)
QUANTILES = ("min", "q1", "median", "q3", "max")
FRACTIONS = (*PARTS, 1.0)
"""MIB's circuit sizes, as parts of all edges."""
CURVE_ROWS = 24
"""Sizes of a curve that notebooks show."""

Scores = Result | Float[Tensor, " edge"]


# Against a known circuit


def auroc(scores: Scores, circuit: Circuit, level: str = "head") -> float:
    """The chance that an edge of the circuit outscores one outside it; a tie counts one half."""
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
    found, taken = _cumulative(*_items(scores, circuit, level))
    added = found.diff(prepend=found.new_zeros(1))
    return float((added * found / taken).sum() / found[-1])


def precision_recall(
    scores: Scores, circuit: Circuit, level: str = "head", *, size: int | None = None
) -> tuple[float, float]:
    """Precision and recall of the `size` best edges, by default as many as the circuit has.

    At the true size the two are equal. Where the cut falls into a tie, the expectation over the
    orders of the tied edges is returned.
    """
    values, truth = _items(scores, circuit, level)
    n_true = int(truth.sum())
    size = n_true if size is None else size
    if not 1 <= size <= len(values):
        raise ValueError(f"size must be in 1..{len(values)}, got {size}.")
    found, taken = _cumulative(values, truth)
    # Between two distinct scores the expected number of true edges grows linearly.
    hits = float(np.interp(size, [0, *taken.tolist()], [0, *found.tolist()]))
    return hits / size, hits / n_true


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
            f"{level} level to be told apart, got {n_true}."
        )
    return values, truth


def _cumulative(
    values: Float[Tensor, " item"], truth: Bool[Tensor, " item"]
) -> tuple[Float[Tensor, " distinct"], Int[Tensor, " distinct"]]:
    """True edges and edges that score at least so much, from the largest distinct score down."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    true_sizes = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, group, truth.double())
    return true_sizes.flip(0).cumsum(0), sizes.flip(0).cumsum(0)


# Over cases and seeds


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Five quantiles over cases, in the order of QUANTILES."""

    quantiles: tuple[float, ...]
    spread: tuple[float, ...] | None
    """Standard deviation of each quantile over seeds (n - 1); None below two common seeds."""
    n_cases: int
    n_seeds: int
    """Seeds that every case has."""


def summarize(values: Mapping[str, Mapping[int, float]]) -> Summary:
    """Quantiles over cases of `values[case][seed]`, seeds averaged within a case first.

    Quantiles between two cases are interpolated.
    """
    if not values or not all(values.values()):
        empty = [case for case, by_seed in values.items() if not by_seed]
        raise ValueError(f"every case needs a value, and there must be a case; empty: {empty}.")
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in values.values())))
    means = [float(np.mean(list(by_seed.values()))) for by_seed in values.values()]
    spread = None
    if len(seeds) > 1:
        by_seed = [quantiles([values[case][seed] for case in values]) for seed in seeds]
        spread = tuple(np.std(by_seed, axis=0, ddof=1).tolist())
    return Summary(
        quantiles=quantiles(means), spread=spread, n_cases=len(values), n_seeds=len(seeds)
    )


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Minimum, quartiles and maximum."""
    return tuple(np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist())


# By ablation


@dataclass(frozen=True, kw_only=True)
class FaithfulnessCurve:
    """Faithfulness of the best edges, from few of them to many."""

    fractions: tuple[float, ...]
    """The part of all edges that each circuit takes: the axis of the areas."""
    sizes: tuple[int, ...]
    """That part in edges of ours; an edge into a group of heads is several of MIB's."""
    kept: tuple[int, ...]
    """Those of them that lie on a path from input to logits, if the circuits were pruned."""
    faithfulness: tuple[float, ...]
    pairs: int = field(default=0, compare=False)
    """How many prompt pairs it was measured on; 0 where nobody said."""

    @property
    def cpr(self) -> float:
        """Circuit performance ratio: the area under the curve."""
        return _area(self.fractions, self.faithfulness)

    @property
    def cmd(self) -> float:
        """Circuit-model distance: the area between the curve and 1, on either side."""
        return _area(self.fractions, [abs(1 - value) for value in self.faithfulness])

    def plot(self, ax: "Axes | None" = None) -> "Figure":
        """Draw it over the sizes, on `ax` or on a figure of its own; needs matplotlib."""
        return curve_figure(self.sizes, self.faithfulness, ax=ax)

    def _repr_html_(self) -> str:
        rows = [
            [f"{size:,}", f"{part:.3%}", f"{kept:,}", f"{value:.4f}"]
            for size, part, kept, value in zip(
                self.sizes, self.fractions, self.kept, self.faithfulness, strict=True
            )
        ]
        several = len(rows) > 1
        areas = {"CPR": f"{self.cpr:.4f}", "CMD": f"{self.cmd:.4f}"} if several else {}
        header = ["edges", "of all", "on paths", "faithfulness"]
        shown = table_html(header, rows[:CURVE_ROWS], total=len(rows))
        return framed(facts_html("Faithfulness of the best edges", areas), shown)


def _area(x: Sequence[float], y: Sequence[float]) -> float:
    """By the trapezoid rule."""
    points = torch.tensor([x, y], dtype=torch.float64)
    return float(torch.trapezoid(points[1], points[0]))


def faithfulness(
    subject: Transformer,
    pairs: Pairs,
    circuits: Sequence[Circuit],
    *,
    ablation: str = "corrupted",
    memory_limit: int | None = None,
) -> list[float]:
    """(loss of the ablated run - loss of the circuit) / (loss of the ablated - of the clean run).

    1 where the circuit alone does as well as the whole subject, 0 where it does as badly as with
    every edge cut. Losses are means over the pairs. Cut edges carry what `ablation` says. Memory
    stays below `memory_limit` bytes where one circuit and one prompt allow it.
    """
    own = [circuit.on(subject.graph) for circuit in circuits]
    return CircuitRuns(subject, pairs, ablation, memory_limit)(own)


def faithfulness_curve(
    scores: Scores,
    subject: Transformer,
    pairs: Pairs,
    *,
    sizes: str | Sequence[int] = "mib",
    prune: bool = True,
    ablation: str = "corrupted",
    memory_limit: int | None = None,
) -> FaithfulnessCurve:
    """Faithfulness of the best edges; `prune` drops those on no path from input to logits.

    `sizes` is "mib", which takes the FRACTIONS of all edges, rounded down, counting an edge into a
    group of heads once for each head, as MIB does; "log", which takes numbers of edges from one to
    all in equal ratios and suits small graphs; or growing numbers of edges. `ablation` and
    `memory_limit` are as in `faithfulness`.
    """
    graph = subject.graph
    result = scores if isinstance(scores, Result) else Result(graph=graph, scores=scores)
    if result.graph != graph:
        raise ValueError(f"the scores are of {result.graph}, the subject of {graph}.")
    if sizes == "mib":
        taken = best_counts(result, FRACTIONS)
    else:
        taken = log_sizes(graph.n_edges) if sizes == "log" else _own_sizes(sizes, graph.n_edges)
    circuits = [result.circuit(edges=count) for count in taken]
    circuits = [circuit.pruned() for circuit in circuits] if prune else circuits
    return FaithfulnessCurve(
        fractions=FRACTIONS if sizes == "mib" else tuple(size / graph.n_edges for size in taken),
        sizes=tuple(taken),
        kept=tuple(map(len, circuits)),
        faithfulness=tuple(CircuitRuns(subject, pairs, ablation, memory_limit)(circuits)),
        pairs=len(pairs),
    )


def shown(value: float, digits: int = 2) -> str:
    """A faithfulness in so many digits; what rounds to zero has no sign."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def mib_sizes(n_edges: int) -> list[int]:
    """MIB's parts of so many edges in whole edges; on a small graph several are the same."""
    # As `Result.circuit` rounds them.
    return [math.floor(fraction * n_edges + 1e-9) for fraction in FRACTIONS]


def _own_sizes(sizes: str | Sequence[int], n_edges: int) -> list[int]:
    counts = [] if isinstance(sizes, str) else list(sizes)
    if (
        not all(isinstance(count, int) and 0 <= count <= n_edges for count in counts)
        or counts != sorted(set(counts))
        or len(counts) < 2
    ):
        raise ValueError(
            f"sizes must be 'mib', 'log' or two or more growing numbers in 0..{n_edges}, "
            f"got {sizes!r}."
        )
    return counts


@dataclass(frozen=True, eq=False)
class CircuitRuns:
    """Faithfulness of circuits on the same pairs: `CircuitRuns(subject, pairs)(circuits)`.

    What all circuits have in common, the clean run and what cut edges carry, is computed once where
    it fits into memory for all pairs, so that circuits may be asked for one after the other.
    """

    subject: Transformer
    pairs: Pairs
    ablation: str = "corrupted"
    memory_limit: int | None = None
    _losses: dict[Circuit, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.ablation not in ABLATIONS:
            raise ValueError(
                f"ablation must be one of {', '.join(ABLATIONS)}, got {self.ablation!r}."
            )
        pairs = self.pairs.to(self.subject.device)
        causal = self.subject.config.causal
        object.__setattr__(self, "pairs", pairs.up_to_last_column() if causal else pairs)

    @torch.no_grad()
    def __call__(self, circuits: Sequence[Circuit]) -> list[float]:
        """As `faithfulness` defines it."""
        graph = self.subject.graph
        none = torch.zeros(graph.n_edges, dtype=torch.bool)
        nothing, everything = (Circuit.from_mask(graph, mask) for mask in (none, ~none))
        # On small graphs several sizes give one circuit.
        wanted = dict.fromkeys([nothing, *circuits])
        new = [one for one in wanted if one not in self._losses and one != everything]
        if new:
            found = self._mean_losses(torch.stack([circuit.mask for circuit in new]))
            if not found.isfinite().all():
                bad = int((~found.isfinite()).sum())
                raise ValueError(
                    f"losses must be finite, {bad} of {len(found)} circuits have one that is not: "
                    "compute in float32 or bfloat16, whose numbers reach further than those of "
                    "float16."
                )
            self._losses.update(zip([everything, *new], found.tolist(), strict=True))
        empty, clean = self._losses[nothing], self._losses[everything]
        gap = empty - clean
        if not abs(gap) > 1e-9 * max(1.0, abs(empty)):
            raise ValueError(
                "faithfulness needs a clean and an ablated run that differ, got losses "
                f"{clean:.6g} and {empty:.6g}; give pairs whose corruption changes the output."
            )
        return [(empty - self._losses[circuit]) / gap for circuit in circuits]

    def _mean_losses(self, masks: Bool[Tensor, "mask edge"]) -> Float[Tensor, " run"]:
        """The loss of the clean run, then that under each mask; means over pairs.

        As many pairs at once as memory allows, then as many masks.
        """
        subject, pairs = self.subject, self.pairs
        prompts, held, each = self._sizes
        largest = prompts * max(pairs.clean.shape[1] * subject.config.d_mlp, self._size.writers)
        limits = {"taken": prompts * held, "largest": largest}
        rows = min(at_once(subject, prompts * each, self.memory_limit, **limits), len(masks))
        total = torch.zeros(1 + len(masks), dtype=torch.float64, device=subject.device)
        with explained(subject, "runs of circuits", prompts * rows, each + held // rows):
            for part, cut, clean in self._parts if prompts < len(pairs) else self._only_part:
                runs = (
                    circuit_logits(subject, part.clean, some, cut, part.columns)
                    for some in masks.split(rows)
                )
                losses = [part.loss_at_columns(logits).sum(-1) for logits in runs]
                total += torch.cat([clean, *losses])
        return total / len(pairs)

    @cached_property
    def _size(self) -> Footprint:
        columns = self.pairs.columns
        return Footprint(self.subject, self.pairs.clean.shape[1], columns.stop - columns.start)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """How many pairs go at once, and what each holds whatever the circuit, and for one."""
        held, each = self._size.states + self._size.passing, self._size.circuit
        prompts = at_once(self.subject, held + each, self.memory_limit)
        return min(len(self.pairs), prompts), held, each

    @cached_property
    def _only_part(self) -> list[tuple[Pairs, CutRun, Float[Tensor, "1"]]]:
        return list(self._parts)

    @property
    def _parts(self) -> Iterator[tuple[Pairs, CutRun, Float[Tensor, "1"]]]:
        """Pairs that go at once, what cut edges carry there, and the loss of the clean run."""
        subject, pairs, prompts = self.subject, self.pairs, self._sizes[0]

        def traced(tokens: Int[Tensor, "batch pos"], columns: slice) -> Trace:
            return subject.trace(subject.embed(tokens), columns)

        # Other than the corrupted run, what cut edges carry is the same for all prompts.
        shared = None
        if self.ablation == "zero":
            shared = CutRun.of_zeros(subject, pairs.clean.shape[1])
        if self.ablation == "mean":
            parts = pairs.corrupted.split(prompts)
            shared = CutRun.of_mean(traced(part, slice(1)) for part in parts)
        for part in pairs.split(prompts):
            if part.needs_targets:
                part = part.with_targets_from(subject.logits(part.clean))
            clean = part.loss_at_columns(traced(part.clean, part.columns).logits[None]).sum(-1)
            yield part, shared or CutRun.of_trace(traced(part.corrupted, part.columns)), clean
