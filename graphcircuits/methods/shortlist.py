"""Methods that test edge by edge, on large graphs: some edges only, and what all would take.

A language model has tens of thousands of edges: who asks for one run each should know before, and
have a way to ask for less. The edges to test are the best ones by EAP-IG, or named ones; the others
are ranked below all of these, in EAP-IG's order, with scores from 0 down to -1. The tests check
that tested edges score as without a shortlist.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.resume import single_edge
from graphcircuits.methods.eap import eap_ig
from graphcircuits.methods.method import FunctionMethod, Options
from graphcircuits.methods.prepare import check_positive, for_scoring
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

LONG = 60.0
"""Seconds from which on a wait is announced."""
WORK = 4e12
"""Operations below which it is not even measured: less than that minute on one core."""
PROMPTS, EDGES = 8, 4
"""What is measured."""


class LongRun(UserWarning):
    """A method is about to take minutes or more."""


@dataclass(frozen=True)
class Shortlist:
    """The edges to test, and scores for all that are not."""

    edges: Int[Tensor, " chosen"]
    """In edge order."""
    below: Float[Tensor, " edge"]
    """Less than 0, in the order of EAP-IG."""
    signed: Float[Tensor, " edge"]
    """EAP-IG's effects with their signs."""

    def completed(
        self, values: Float[Tensor, " edge"], others: Float[Tensor, " edge"]
    ) -> Float[Tensor, " edge"]:
        """The values of the tested edges, and `others` for those that were not tested."""
        completed = others.to(values, copy=True)
        completed[self.edges] = values[self.edges]
        return completed


def shortlist(
    subject: Transformer,
    pairs: Pairs,
    top: int | None,
    edges: Sequence[str] | None,
    memory_limit: int | None = None,
) -> Shortlist | None:
    """The `top` best edges by EAP-IG, or the named `edges`; None where all are to be tested."""
    if top is None and edges is None:
        return None
    if top is not None and edges is not None:
        raise ValueError("give how many edges to test (top) or which (edges), not both.")
    named = None if edges is None else subject.graph.edge_indices(edges)
    if top is not None:
        check_positive(top=top)
    elif named is None or not len(named):
        raise ValueError("edges to test must be one or more names, got none.")
    signed: list[Tensor] = []
    with torch.enable_grad():
        cheap = eap_ig(subject, pairs, memory_limit=memory_limit, signed=signed.append)
    order = cheap.argsort(descending=True, stable=True)
    below = torch.empty(len(cheap), dtype=torch.float64)
    below[order.cpu()] = -torch.arange(1, len(cheap) + 1, dtype=torch.float64) / len(cheap)
    chosen = order[:top].cpu() if named is None else named.unique()
    return Shortlist(chosen.sort().values, below.to(cheap), signed[0])


# Methods that test edges, and how long they take


@dataclass(frozen=True, kw_only=True)
class EdgeByEdge(FunctionMethod):
    """A method that tests edges in runs of their own, all of them or a short list."""

    runs: str
    """How many runs it takes, in words."""
    seconds: Callable[[Transformer, Pairs], float]
    """Measures how long one edge takes on some pairs."""

    def remarks(self, subject: Transformer, pairs: Pairs, options: Options) -> Iterable[str]:
        """That only some edges were tested, if so."""
        if options["top"] is None and options["edges"] is None:
            return []
        tested = (
            f"the {len(set(options['edges']))} edges that were named"
            if options["top"] is None
            else f"the {options['top']} best edges by eap-ig"
        )
        return [f"only {tested} were tested; the others rank below them, in eap-ig's order"]

    @torch.no_grad()
    def forecast(self, subject: Transformer, pairs: Pairs, options: Options) -> Iterable[Warning]:
        """A warning where the method takes long."""
        n_edges, top, named = subject.graph.n_edges, options["top"], options["edges"]
        edges = n_edges if top is None else min(top, n_edges)
        edges = edges if named is None else len(named)
        # Of half a pass on all pairs: one multiplication and addition for each weight and token.
        layered = (w for name, w in subject.weights.items() if name not in ("W_E", "W_pos"))
        if edges * pairs.clean.numel() * sum(weight.numel() for weight in layered) < WORK:
            return []
        subject = for_scoring(subject)
        some = pairs[: min(PROMPTS, len(pairs))].to(subject.device)
        seconds = self.seconds(subject, some) * edges * len(pairs) / len(some)
        if seconds < LONG:
            return []
        text = (
            f"{self.name} on {edges:,} edges and {len(pairs)} pairs takes {self.runs}, about "
            f"{_words(seconds)} here; option top tests the best edges only, and eap-ig, relp or "
            "eap-gp take a few passes"
        )
        return [LongRun(text)]


def single_edge_seconds(subject: Transformer, pairs: Pairs) -> float:
    """How long a run takes in which one edge is changed."""
    base, other = subject.run(pairs.clean), subject.run(pairs.corrupted).writers
    spread = torch.linspace(0, subject.graph.n_edges - 1, EDGES + 1).long()

    def run(edges: Int[Tensor, " edge"]) -> float:
        return _seconds(lambda: single_edge(base, other, edges, metric=lambda x: x[..., 0, 0]))

    # The first also warms up; what is left of the difference is the edges.
    first = run(spread[:1])
    return max(0.0, run(spread) - min(first, run(spread[:1]))) / EDGES


def search_seconds(subject: Transformer, pairs: Pairs) -> float:
    """How long an edge takes in a search that decides edge after edge."""
    corrupted = subject.run(pairs.corrupted).writers
    mask = torch.ones(1, subject.graph.n_edges).to(corrupted)
    run = partial(masked_logits, subject, pairs.clean, mask, corrupted)
    # On average half of the subject follows an edge.
    return min(_seconds(run), _seconds(run)) / 2


def _seconds(call: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    result = call()
    if result.device.type == "cuda":
        torch.cuda.synchronize(result.device)
    return time.perf_counter() - start


def _words(seconds: float) -> str:
    """A duration to two digits in the unit that people would use."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} seconds"
