"""How well components are labelled: claims of what they compute, against what they carry.

A claim is right if its values and those of the component's variables determine each other. Their
mutual information, over all positions of inputs that the case draws, is divided by the larger of
the two entropies. Values in few positions agree by chance too, so few inputs inflate it.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, log
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from graphcircuits.fleets.exchange import BATCH, written_variables
from graphcircuits.rasp import RASPExpr, SOp, Value, evaluate
from graphcircuits.rasp.lookup import run

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case

Claim = SOp | Callable[[list[Value]], Iterable[Value]]


@dataclass(frozen=True)
class RoleScores:
    """How much of what each component carries was claimed: 1 the same up to renaming, 0 nothing."""

    by_component: Mapping[str, float]
    """All components of the true circuit, in running order; 0 where nothing was claimed."""
    wrong: tuple[str, ...]
    """Components that something was claimed of, and that are in no part of the circuit."""

    @property
    def mean(self) -> float:
        return fsum(self.by_component.values()) / len(self.by_component)


def score_roles(
    case: "Case", claims: Mapping[str, Claim], n: int = 256, seed: int = 0
) -> RoleScores:
    """How well claims of what the components of a case compute fit what they do compute.

    Args:
        case: A case; those of a program of your own will do.
        claims: By component, such as `a0.h0`, a RASP expression over the case's tokens, or a
            function from a list of tokens to as many values.
        n: Inputs drawn; few of them make a wrong claim look better than it is.
        seed: Of the draw.

    Returns:
        For each component of the true circuit, the normalized mutual information of the claimed
        values and its variables, several of them taken together.

    Example:
        >>> import graphcircuits as gc
        >>> from graphcircuits.rasp import tokens
        >>> gc.score_roles(gc.load_case("ib-8"), {"m0": tokens}).by_component
        {'m0': 1.0}

    See docs/rasp.md.
    """
    _check(case, claims, n)
    tables = case.tables
    inputs = case.sample(n, torch.Generator().manual_seed(seed))
    code = {token: number for number, token in enumerate(tables.vocab)}
    codes = np.array([[code[token] for token in xs] for xs in inputs])
    traces = [run(tables, codes[start : start + BATCH]).columns for start in range(0, n, BATCH)]
    scores = {}
    for name, sops in written_variables(tables, case.layout).items():
        columns = (np.concatenate([trace[sop] for trace in traces]) for sop in sops)
        true = zip(*(np.nan_to_num(one, nan=np.inf).round(9).flat for one in columns), strict=True)
        claimed = [value for xs in inputs for value in _values(case, name, claims.get(name), xs)]
        scores[name] = _shared([*true], claimed) if name in claims else 0.0
    return RoleScores(scores, tuple(name for name in claims if name not in scores))


def _check(case: "Case", claims: Mapping[str, Any], n: int) -> None:
    known = set(case.graph.writer_names) - {"input"}
    problems = [f"n must be at least 1 input, got {n}"] * (n < 1)
    problems += [f"there is no component {name!r}" for name in claims if name not in known]
    problems += [
        f"the claim for {name!r} must be a sequence expression of graphcircuits.rasp or a function "
        f"of a list of tokens, got {claim!r}"
        for name, claim in claims.items()
        if not isinstance(claim, SOp) and (isinstance(claim, RASPExpr) or not callable(claim))
    ]
    if not case.layout.components:
        problems.append("its circuit has no component")
    if problems:
        raise ValueError(f"case {case.id!r}, of {case.graph.in_words}: {'; '.join(problems)}.")


def _values(case: "Case", name: str, claim: Claim | None, xs: list[Value]) -> list[Hashable]:
    """What is claimed at each position of an input."""
    if claim is None:
        return []
    given = evaluate(claim, xs, causal=case.causal) if isinstance(claim, SOp) else claim([*xs])
    values = getattr(given, "tolist", lambda: list(given))()
    if len(values) != len(xs):
        raise ValueError(f"the claim for {name!r} gives {len(values)} values for {len(xs)} tokens.")
    return [round(value, 9) if isinstance(value, float) else value for value in values]


def _shared(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Mutual information by the larger entropy; 1 where both are constant."""
    first, second, both = map(_entropy, (one, other, [*zip(one, other, strict=True)]))
    largest = max(first, second)
    return max(0.0, first + second - both) / largest if largest else 1.0


def _entropy(values: Sequence[Hashable]) -> float:
    counts = Counter(values).values()
    return fsum(-count / len(values) * log(count / len(values)) for count in counts)
