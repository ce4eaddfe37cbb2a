"""How faithful circuits are: their edges carry the clean run's values, all others those of another.

`faithfulness` measures circuits, `faithfulness_curve` the best edges of a ranking at growing sizes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.adapters.mib import PARTS, best_counts
from graphcircuits.circuit import Circuit
from graphcircuits.engine.circuits import CutRun, circuit_logits
from graphcircuits.engine.masked import ABLATIONS
from graphcircuits.engine.memory import Footprint, at_once, explained
from graphcircuits.engine.relaxed import log_sizes
from graphcircuits.result.curve import CROSSINGS, MEASURES, FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

FRACTIONS = (*PARTS, 1.0)
"""MIB's circuit sizes, as shares of all edges."""
OVERFLOW = "compute in float32 or bfloat16, whose numbers reach further than those of float16."
CLOSE = 0.05
"""How near sizes lie to each other around a crossing, as a ratio."""


def faithfulness(
    subject: Transformer,
    pairs: Pairs,
    circuits: Sequence[Circuit],
    *,
    by: str = "output",
    ablation: str = "corrupted",
    memory_limit: int | None = None,
) -> list[float]:
    """How much of the subject's behaviour each circuit has by itself.

    (loss of the ablated run - loss of the circuit) / (loss of the ablated - of the clean run): 1
    where the circuit alone does as well as the whole subject, 0 where it does as badly as with
    every edge cut. Losses are means over the pairs.

    By output the loss is the distance from what the subject itself puts out at the scored
    positions: the divergence KL(subject || circuit), or the distance of numbers. It needs no
    answers and cannot exceed 1. By loss it is that of the pairs, which a circuit can win at: one
    that answers more surely than the subject has more than 1, whatever else it destroys.

    Args:
        subject: The transformer that is explained.
        pairs: Prompt pairs, which should be others than those the circuits were found on.
        circuits: Circuits of the subject's graph, or of one with the same names of edges.
        by: "output", the subject's own output, or "loss", the loss of the pairs, as MIB has it.
        ablation: What cut edges carry: "corrupted" (the corrupted prompt's values), "mean" (their
            mean over the pairs) or "zero".
        memory_limit: Bytes that runs may take, where one circuit and one prompt allow it; by
            default what the device has free.

    Returns:
        One number for each circuit.

    Raises:
        ValueError: If clean and ablated run do not differ, so that there is nothing to measure.

    Example:
        `gc.faithfulness(subject, case.pairs(64, seed=1), [result.circuit(), case.circuit])`

    Reference:
        Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark", and docs/evaluate.md.
    """
    subject_first("faithfulness", subject, "circuits")
    on_graph = [circuit.on(subject.graph) for circuit in circuits]
    return CircuitRuns(subject, pairs, ablation, memory_limit, by)(on_graph)


def faithfulness_curve(
    subject: Transformer,
    pairs: Pairs,
    scores: Result | Float[Tensor, " edge"],
    *,
    by: str = "output",
    sizes: str | Sequence[int] = "log",
    crossings: Sequence[float] = CROSSINGS,
    prune: bool = True,
    ablation: str = "corrupted",
    memory_limit: int | None = None,
) -> FaithfulnessCurve:
    """Faithfulness of the best edges at growing numbers of them.

    Args:
        subject: The transformer that is explained.
        pairs: Prompt pairs, which should be others than those the scores were computed on.
        scores: A result, or one score for each edge of the subject's graph.
        by: As in `faithfulness`.
        sizes: "log", numbers of edges from one to all in equal ratios; "mib", the FRACTIONS of all
            edges, rounded down, counting an edge into a group of heads once for each head, as MIB
            does; or growing numbers of edges.
        crossings: With "log", shares of the behaviour around which more sizes are measured, so that
            `edges_for` them is known to 5% of its size.
        prune: Whether to drop edges on no path from input to logits first.
        ablation: As in `faithfulness`.
        memory_limit: As in `faithfulness`.

    Returns:
        The curve: `edges_for(0.9)` and `log_area` (smaller is better), and MIB's areas `cpr`
        (larger is better) and `cmd` (smaller is better), which are MIB's own by loss at its sizes.

    Example:
        `gc.faithfulness_curve(subject, case.pairs(64, seed=1), result).edges_for(0.9)`

    Reference:
        Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark", and docs/evaluate.md.
    """
    subject_first("faithfulness_curve", subject, "scores")
    graph = subject.graph
    result = scores if isinstance(scores, Result) else Result(graph=graph, scores=scores)
    if result.graph != graph:
        raise ValueError(f"the scores are of {result.graph}, the subject of {graph}.")
    grids = size_grids(sizes, result)
    if len(grids) > 1 or len(grids.get("given", FRACTIONS)) < 2:
        raise ValueError(
            f"sizes must be 'mib', 'log' or two or more growing numbers of edges, got {sizes!r}."
        )
    ((grid, counts),) = grids.items()
    runs = CircuitRuns(subject, pairs, ablation, memory_limit, by)
    near = crossings if grid == "log" else ()
    return runs.curve(result, counts, grid=grid, prune=prune, crossings=near)


def subject_first(function: str, subject: object, third: str) -> None:
    """Refuse the order of arguments of the release before, which began with the results."""
    if not isinstance(subject, Transformer):
        raise TypeError(
            f"{function}() takes subject, pairs, {third}, in this order; the subject must be a "
            f"Transformer, got a {type(subject).__name__}."
        )


def size_grids(sizes: str | Sequence[int], result: Result) -> dict[str, list[int]]:
    """Numbers of best edges by grid: "mib", "log" or, where numbers were given, "given".

    "both" gives two grids.
    """
    n_edges = result.graph.n_edges
    if isinstance(sizes, str):
        if sizes not in ("mib", "log", "both"):
            raise ValueError(f"sizes must be mib, log, both or numbers of edges, got {sizes!r}.")
        names = ("log", "mib") if sizes == "both" else (sizes,)
        return {
            name: best_counts(result, FRACTIONS) if name == "mib" else log_sizes(n_edges)
            for name in names
        }
    counts = list(sizes)
    if (
        not counts
        or counts != sorted(set(counts))
        or any(type(count) is not int or not 0 <= count <= n_edges for count in counts)
    ):
        raise ValueError(f"sizes must be growing numbers in 0..{n_edges}, got {counts}.")
    return {"given": counts}


def shown(value: float, digits: int = 2) -> str:
    """A faithfulness in so many digits; what rounds to zero has no sign."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def mib_sizes(n_edges: int) -> list[int]:
    """MIB's shares of so many edges in whole edges; on a small graph several are the same."""
    # As `Result.circuit` rounds them.
    return [math.floor(fraction * n_edges + 1e-9) for fraction in FRACTIONS]


def _halfway(curve: FaithfulnessCurve, share: float) -> list[int]:
    """The size to measure next on the way to `curve.edges_for(share)`; none where it is known."""
    enough = curve.edges_for(share)
    before = [size for size in curve.sizes if enough is None or size < enough]
    if enough is None or not before or enough <= max(before[-1] + 1, (1 + CLOSE) * before[-1]):
        return []
    return [min(enough - 1, max(before[-1] + 1, math.isqrt(before[-1] * enough)))]


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
    by: str = "output"
    _losses: dict[Circuit, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.ablation not in ABLATIONS:
            raise ValueError(
                f"ablation must be one of {', '.join(ABLATIONS)}, got {self.ablation!r}."
            )
        if self.by not in MEASURES:
            raise ValueError(f"by must be one of {', '.join(MEASURES)}, got {self.by!r}.")
        pairs = self.pairs.to(self.subject.device)
        if self.by == "output":
            pairs = pairs.by_output(self.subject.config.d_vocab_out)
        causal = self.subject.config.causal
        object.__setattr__(self, "pairs", pairs.up_to_last_column() if causal else pairs)

    def __call__(self, circuits: Sequence[Circuit]) -> list[float]:
        """As `faithfulness` defines it."""
        empty, clean, *losses = self.losses(circuits).mean(1).tolist()
        gap = empty - clean
        if not abs(gap) > 1e-9 * max(1.0, abs(empty)):
            raise ValueError(
                "faithfulness needs a clean and an ablated run that differ, got losses "
                f"{clean:.6g} and {empty:.6g}; give pairs whose corruption changes the output."
            )
        return [(empty - loss) / gap for loss in losses]

    @torch.no_grad()
    def losses(self, circuits: Sequence[Circuit]) -> Float[Tensor, "run prompt"]:
        """Of every prompt: with every edge cut, with none cut, and under each circuit."""
        graph = self.subject.graph
        none = torch.zeros(graph.n_edges, dtype=torch.bool)
        nothing, everything = (Circuit.from_mask(graph, mask) for mask in (none, ~none))
        # On small graphs several sizes give one circuit.
        wanted = dict.fromkeys([nothing, *circuits])
        new = [one for one in wanted if one not in self._losses and one != everything]
        if new:
            losses = self._run(torch.stack([circuit.mask for circuit in new]))
            if bad := int((~losses.isfinite().all(1)).sum()):
                raise ValueError(
                    f"losses must be finite, {bad} of {len(losses)} circuits have one that is not: "
                    f"{OVERFLOW}"
                )
            self._losses.update(zip([everything, *new], losses, strict=True))
        return torch.stack([self._losses[one] for one in (nothing, everything, *circuits)])

    def curve(
        self,
        result: Result,
        sizes: Sequence[int],
        *,
        grid: str = "",
        prune: bool = True,
        crossings: Sequence[float] = (),
        seed: int | None = None,
    ) -> FaithfulnessCurve:
        """Of the best edges of a result at these sizes; those of the grid "mib" are FRACTIONS.

        Between the last size that keeps less than one of the `crossings` and the next, ranges are
        halved in ratios until they are CLOSE.
        """
        circuits = [result.circuit(edges=size, prune=prune) for size in sizes]
        curve = FaithfulnessCurve(
            n_edges=self.subject.graph.n_edges,
            sizes=sizes,
            fractions=FRACTIONS if grid == "mib" else (),
            pruned_sizes=tuple(map(len, circuits)),
            faithfulness=self(circuits),
            n_pairs=len(self.pairs),
            by=self.by,
            seed=seed,
        )
        more = sorted({size for share in crossings for size in _halfway(curve, share)})
        if not more:
            return curve
        return self.curve(
            result, sorted({*sizes, *more}), prune=prune, crossings=crossings, seed=seed
        )

    def _run(self, masks: Bool[Tensor, "mask edge"]) -> Float[Tensor, "run prompt"]:
        """The losses of the clean run, then those under each mask.

        As many pairs at once as memory allows, then as many masks.
        """
        subject, pairs = self.subject, self.pairs
        prompts, held, each = self._sizes
        largest = prompts * max(pairs.clean.shape[1] * subject.config.d_mlp, self._size.writers)
        limits = {"taken": prompts * held, "largest": largest}
        rows = min(at_once(subject, prompts * each, self.memory_limit, **limits), len(masks))
        parts = []
        with explained(subject, "runs of circuits", prompts * rows, each + held // rows):
            for some, cut, clean in self._batches if prompts < len(pairs) else self._only_batch:
                runs = (
                    circuit_logits(subject, some.clean, few, cut, some.columns)
                    for few in masks.split(rows)
                )
                losses = [some.loss_at_columns(logits) for logits in runs]
                parts.append(torch.cat([clean, *losses]).double().cpu())
        return torch.cat(parts, 1)

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
    def _only_batch(self) -> list[tuple[Pairs, CutRun, Float[Tensor, "1 prompt"]]]:
        return list(self._batches)

    @property
    def _batches(self) -> Iterator[tuple[Pairs, CutRun, Float[Tensor, "1 prompt"]]]:
        """Pairs that go at once, what cut edges carry there, and the losses of the clean run."""
        subject, pairs, prompts = self.subject, self.pairs, self._sizes[0]

        def traced(tokens: Int[Tensor, "batch pos"], columns: slice) -> Trace:
            return subject.trace(subject.embed(tokens), columns)

        # Other than the corrupted run, what cut edges carry is the same for all prompts.
        shared = None
        if self.ablation == "zero":
            shared = CutRun.of_zeros(subject, pairs.clean.shape[1])
        if self.ablation == "mean":
            batches = pairs.corrupted.split(prompts)
            shared = CutRun.of_mean(traced(batch, slice(1)) for batch in batches)
        for some in pairs.split(prompts):
            if some.needs_targets:
                output = subject.logits(some.clean)
                if not output.isfinite().all():
                    raise ValueError(f"the subject's own output must be finite: {OVERFLOW}")
                some = some.with_targets_from(output)
            clean = some.loss_at_columns(traced(some.clean, some.columns).logits[None])
            yield some, shared or CutRun.of_trace(traced(some.corrupted, some.columns)), clean
