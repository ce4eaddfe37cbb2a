"""Every method that finds circuits, behind one protocol.

1. A `Method` scores all edges of a subject on given pairs, larger meaning more likely in the
   circuit; its options are keyword-only.
2. `METHODS` lists them by name; `options_of` gives a method's options and their defaults.
3. `localize` checks name and options, runs a method under a seed, and returns a `Result`.

Iterative methods take a `generator` and a `progress` callback (see `graphcircuits.methods.prepare`
for how to stop them); `localize` makes the former from its seed and hands on the latter.
"""

import inspect
import time
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.methods import acdc, eap, exact, floor, learned, pgexplainer, probing, pruning
from graphcircuits.methods.prepare import Progress, Stop
from graphcircuits.result import Result
from graphcircuits.task import Pairs
from graphcircuits.transformer import Transformer

__all__ = ["DEFAULT_METHOD", "METHODS", "Method", "Progress", "Stop", "localize", "options_of"]


class Method(Protocol):
    """Scores in edge order, larger meaning more likely in the circuit.

    `args` only tells type checkers that any options may follow: all are keyword-only.
    """

    def __call__(
        self,
        subject: Transformer,
        graph: ComponentGraph,
        pairs: Pairs,
        *args: Any,
        **options: Any,
    ) -> Float[Tensor, " edge"]: ...


METHODS: Mapping[str, Method] = {
    "acdc": acdc.acdc,
    "eap": eap.eap,
    "eap-ig": eap.eap_ig,
    "edge-pruning": pruning.edge_pruning,
    "exact": exact.exact,
    "gcl": learned.gcl,
    "pgexplainer": pgexplainer.pgexplainer,
    "random": floor.random_scores,
    "sp-edge": probing.sp_edge,
    "sp-node": probing.sp_node,
}
DEFAULT_METHOD = "gcl"

_SUPPLIED = ("generator", "progress")
"""Parameters that are not options: `localize` fills them in."""


def options_of(method: str) -> dict[str, Any]:
    """The options of a method with their defaults."""
    parameters = _parameters(method)
    return {name: p.default for name, p in parameters.items() if name not in _SUPPLIED}


def localize(
    subject: Transformer,
    pairs: Pairs,
    method: str = DEFAULT_METHOD,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Score every edge of a subject; the result records the method, all its options and the seed.

    `progress` is called with (steps done, steps in all) by methods that iterate.
    """
    known = options_of(method)
    for name in options:
        if name not in known:
            raise ValueError(_unknown(f"option of {method}", name, known))
    supplied = {"generator": torch.Generator().manual_seed(seed), "progress": progress}
    taken = {name: supplied[name] for name in _SUPPLIED if name in _parameters(method)}
    start = time.perf_counter()
    scores = METHODS[method](subject, subject.graph, pairs, **taken, **options)
    scores = scores.cpu()
    return Result(
        graph=subject.graph,
        scores=scores,
        method=method,
        options=known | options,
        seed=seed,
        seconds=time.perf_counter() - start,
        d_model=subject.config.d_model,
    )


def _parameters(method: str) -> dict[str, inspect.Parameter]:
    if method not in METHODS:
        raise ValueError(_unknown("method", method, METHODS))
    parameters = inspect.signature(METHODS[method]).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.lower(), list(known), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {name!r}; {hint}({', '.join(sorted(known)) or 'it has none'})"
