"""Every method that finds circuits, behind one protocol.

1. A `Method` scores all edges of a subject on given pairs, larger meaning more likely in the
   circuit; its options are keyword-only.
2. `METHODS` lists them by name; `options_of` gives a method's options and their defaults.
3. `localize` checks name and options, runs a method under a seed, and returns a `Result`. Where no
   method is named, `default_method` chooses one by what the subject is. `settle_options` gives the
   options of a run; a learned method never gets a predictor that was trained on the case.

Iterative methods take a `generator` and a `progress` callback (see `graphcircuits.methods.prepare`
for how to stop them); `localize` makes the former from its seed and hands on the latter.
"""

import inspect
import time
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.benchmark import Case
from graphcircuits.benchmark.recognize import case_of
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods import acdc, eap, exact, floor, learned, pgexplainer, probing, pruning
from graphcircuits.methods.learned import BeyondTraining
from graphcircuits.methods.prepare import Progress, Stop
from graphcircuits.result import Result
from graphcircuits.task import Pairs
from graphcircuits.transformer import Transformer

__all__ = [
    "METHODS",
    "BeyondTraining",
    "Method",
    "Progress",
    "Stop",
    "default_method",
    "localize",
    "options_of",
    "settle_options",
]


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

_SUPPLIED = ("generator", "progress")
"""Parameters that are not options: `localize` fills them in."""


def options_of(method: str) -> dict[str, Any]:
    """The options of a method with their defaults."""
    parameters = _parameters(method)
    return {name: p.default for name, p in parameters.items() if name not in _SUPPLIED}


def localize(
    subject: Transformer,
    pairs: Pairs,
    method: str | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Score every edge of a subject; the result records the method, all its options and the seed.

    Without a method it is the one of `default_method`, and the result's notes say why. They also
    say where a subject has what no subject of a predictor's training had, as does a
    `BeyondTraining` warning. `progress` is called with (steps done, steps in all) by methods that
    iterate.
    """
    _check_arguments(subject, pairs, method)
    notes = []
    if method is None:
        method, reason = default_method(subject, pairs)
        notes.append(reason)
    try:
        settled = settle_options(method, subject, pairs, options)
    except ValueError as error:
        # Options are of a method; whoever named none must learn which one they met.
        raise ValueError("; ".join([str(error), *notes])) from None
    supplied = {"generator": torch.Generator().manual_seed(seed), "progress": progress}
    taken = {name: supplied[name] for name in _SUPPLIED if name in _parameters(method)}
    start = time.perf_counter()
    scores = METHODS[method](subject, subject.graph, pairs, **taken, **settled)
    scores = scores.cpu()
    seconds = time.perf_counter() - start
    if method == "gcl":
        blind = learned.blindness(subject, pairs, settled["predictor"])
        beyond = learned.beyond_training(subject, settled["predictor"])
        notes += filter(None, (blind, beyond))
        if beyond:
            text = f"{beyond}; how good the scores are there has not been measured."
            warnings.warn(text, BeyondTraining, stacklevel=2)
    return Result(
        graph=subject.graph,
        scores=scores,
        method=method,
        options=settled,
        seed=seed,
        seconds=seconds,
        d_model=subject.config.d_model,
        notes=tuple(notes),
    )


def default_method(subject: Transformer, pairs: Pairs) -> tuple[str, str]:
    """The method to use where none is named, and why.

    `gcl` for planted subjects, trained to follow the program of a case, which it was trained on and
    measured on; `eap-ig` for all others, and for pairs that `gcl` cannot use.
    """
    case = case_of(subject)
    if case is None:
        return "eap-ig", (
            "no method was named: eap-ig, because this is not known to be a planted subject, and "
            "gcl has been measured on those only"
        )
    if pairs.needs_targets:
        return "eap-ig", "no method was named: eap-ig, because gcl needs pairs with targets"
    return "gcl", f"no method was named: gcl, because this is a planted subject ({case})"


def settle_options(
    method: str, subject: Transformer, pairs: Pairs, given: Mapping[str, Any]
) -> dict[str, Any]:
    """All options of a run: those given, the defaults, and the predictor that is blind to it."""
    known = options_of(method)
    for name in given:
        if name not in known:
            raise ValueError(_unknown(f"option of {method}", name, known))
    settled = known | dict(given)
    if method == "gcl":
        chosen = learned.choose_predictor(subject, pairs, settled["predictor"])
        settled["predictor"] = chosen
    return settled


# Refusals


def _check_arguments(subject: object, pairs: object, method: object) -> None:
    """Refuse what is not a subject, pairs and a name, and say how to get them."""
    if isinstance(subject, Pairs) and isinstance(pairs, Transformer):
        raise TypeError("the subject comes first: call localize(subject, pairs), not the reverse.")
    problems = []
    if not isinstance(subject, Transformer):
        name = type(subject).__name__
        problems.append(f"subject must be a Transformer, got {name}: {_subject_hint(subject)}")
    if not isinstance(pairs, Pairs):
        problems.append(f"pairs must be Pairs, got {type(pairs).__name__}: {_pairs_hint(pairs)}")
    if not isinstance(method, str | None):
        problems.append(f"method must be a name of METHODS, got {method!r}")
    if problems:
        raise TypeError("; ".join(problems) + ".")


def _subject_hint(given: object) -> str:
    if isinstance(given, Case):
        return "give case.subject()"
    if isinstance(getattr(given, "transformer", None), Transformer):
        return "give its .transformer"
    if isinstance(given, str | Path):
        return (
            "load_case(id).subject() is that of a case, store.load_transformer(path) reads a file "
            "of ours, adapters.hf.from_hf(path) a Hugging Face folder and "
            "adapters.interpbench.import_interpbench(path).transformer one of InterpBench"
        )
    return "convert a Hugging Face model with graphcircuits.adapters.hf.from_hf(model)"


def _pairs_hint(given: object) -> str:
    if isinstance(given, Case):
        return "give case.pairs(64)"
    if isinstance(given, str | Path):
        return "read a file with Pairs.load(path)"
    return "draw those of a case with case.pairs(64), or make them with Pairs(clean=..., ...)"


def _parameters(method: str) -> dict[str, inspect.Parameter]:
    if method not in METHODS:
        raise ValueError(_unknown("method", method, METHODS))
    parameters = inspect.signature(METHODS[method]).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.lower(), list(known), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {name!r}; {hint}({', '.join(sorted(known)) or 'it has none'})"
