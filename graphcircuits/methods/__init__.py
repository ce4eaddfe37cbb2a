"""Every method that finds circuits, behind one signature.

1. A method scores all edges of a subject on given pairs (`graphcircuits.methods.method`). `METHODS`
   holds those of the package by name, each with what is known of it.
2. `localize` takes the name of one, or any function of that shape, settles its options, runs it
   under a seed, and returns a `Result`. Where no method is given, `default_method` chooses one by
   what the subject is. Those who can wait have the scores refined on the very case.
"""

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphcircuits.corpus import Case
from graphcircuits.corpus.recognize import planted_case
from graphcircuits.methods import (
    acdc,
    eap,
    eap_gp,
    exact,
    floor,
    learned,
    nodes,
    pgexplainer,
    probing,
    pruning,
    relp,
    shortlist,
    ugs,
)
from graphcircuits.methods.learned import BeyondTraining
from graphcircuits.methods.method import (
    KnownMethod,
    Method,
    check_scores,
    known,
    name_of,
    options_of,
    settle,
    supplied_to,
    unknown,
)
from graphcircuits.methods.prepare import Progress, Stop
from graphcircuits.methods.refine import check_length, refinement
from graphcircuits.methods.shortlist import LongRun
from graphcircuits.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

__all__ = [
    "METHODS",
    "BeyondTraining",
    "KnownMethod",
    "LongRun",
    "Method",
    "Progress",
    "Stop",
    "default_method",
    "find_method",
    "localize",
    "options_of",
    "settle",
]

METHODS: Mapping[str, KnownMethod] = {
    "acdc": KnownMethod(
        run=acdc.acdc, forecast=shortlist.search_forecast, remarks=shortlist.restriction
    ),
    "eap": KnownMethod(run=eap.eap),
    "eap-gp": KnownMethod(run=eap_gp.eap_gp),
    "eap-ig": KnownMethod(run=eap.eap_ig),
    "edge-pruning": KnownMethod(run=pruning.edge_pruning),
    "exact": KnownMethod(
        run=exact.exact, forecast=shortlist.single_edges_forecast, remarks=shortlist.restriction
    ),
    "gcl": learned.GCL,
    "nap": KnownMethod(run=nodes.nap),
    "pgexplainer": KnownMethod(run=pgexplainer.pgexplainer),
    "random": KnownMethod(run=floor.random_scores),
    "relp": KnownMethod(run=relp.relp),
    "sp-edge": KnownMethod(run=probing.sp_edge),
    "sp-node": KnownMethod(run=probing.sp_node),
    "ugs": KnownMethod(run=ugs.ugs),
}


def find_method(name: str) -> KnownMethod:
    """A method of the table."""
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return known(METHODS[name])


def localize(
    subject: Transformer,
    pairs: Pairs,
    method: str | Method | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    refine_steps: int | None = None,
    refine_seconds: float | None = None,
    refine_checkpoint: str | Path | None = None,
    **options: Any,
) -> Result:
    """Score every edge of a subject; the result records the method, all its options and the seed.

    `method` is a name of METHODS or any function of a subject and pairs that returns one score per
    edge; its keyword-only parameters are its options. Without one it is that of `default_method`,
    and the result's notes say why. They also say what is to be known of the scores; what must not
    be overlooked is a warning as well. A run that would take long is announced by a `LongRun`
    warning before it begins. `progress` is called with (steps done, steps in all) by
    methods that iterate.

    With `refine_steps` or `refine_seconds` the scores are then refined on these pairs for so long
    (`graphcircuits.refine`): `progress` hears of those steps as well, and `refine_checkpoint` is a
    file to go on from. The result's options record it, its seconds count all of it.
    """
    _check_arguments(subject, pairs, method)
    refining = {"steps": refine_steps, "seconds": refine_seconds, "checkpoint": refine_checkpoint}
    check_length(**refining, prefix="refine_")
    length = {"refine_steps": refine_steps, "refine_seconds": refine_seconds}
    length = {name: value for name, value in length.items() if value is not None}
    notes = []
    if method is None:
        method, reason = default_method(subject, pairs)
        notes.append(reason)
    name, chosen = _named(method)
    try:
        settled = settle(chosen, subject, pairs, options, name=name)
    except ValueError as error:
        # Options are of a method; whoever named none must learn which one they met.
        raise ValueError("; ".join([str(error), *notes])) from None
    for warning in chosen.forecast(subject, pairs, settled):
        warnings.warn(warning, stacklevel=2)
    supplies = {"generator": torch.Generator().manual_seed(seed), "progress": progress}
    start = time.perf_counter()
    scores = chosen(subject, pairs, **supplied_to(chosen, supplies), **settled)
    scores = check_scores(scores, subject, name)
    if length:
        refined = refinement(subject, pairs, scores, **refining, **supplies)
        scores = refined.scores
        notes.append(refined.told())
    scores = scores.cpu()
    seconds = time.perf_counter() - start
    for remark in chosen.remarks(subject, pairs, settled):
        notes.append(str(remark))
        if isinstance(remark, Warning):
            warnings.warn(remark, stacklevel=2)
    return Result(
        graph=subject.graph,
        scores=scores,
        method=name,
        options=settled | length,
        seed=seed,
        seconds=seconds,
        d_model=subject.config.d_model,
        notes=tuple(notes),
    )


def _named(method: str | Method) -> tuple[str, KnownMethod]:
    if isinstance(method, str):
        return method, find_method(method)
    chosen = known(method)
    names = [name for name, entry in METHODS.items() if entry.run is chosen.run]
    return names[0] if names else name_of(method), chosen


def default_method(subject: Transformer, pairs: Pairs) -> tuple[str, str]:
    """The method to use where none is named, and why.

    `gcl` for planted subjects, trained to follow the program of a case, which it was trained on and
    measured on; `eap-ig` for all others, and for pairs that `gcl` cannot use. What has norms,
    rotary positions or several tasks is not what it was measured on.
    """
    case = planted_case(subject)
    if case is None:
        return "eap-ig", (
            "no method was named: eap-ig, because this is not known to be a planted subject, and "
            "gcl has been measured on those only"
        )
    if not _is_plain(subject):
        return "eap-ig", (
            "no method was named: eap-ig, because gcl has been measured on planted subjects of the "
            "plain architecture and of one task only"
        )
    if pairs.needs_targets:
        return "eap-ig", "no method was named: eap-ig, because gcl needs pairs with targets"
    return "gcl", f"no method was named: gcl, because this is a planted subject ({case})"


def _is_plain(subject: Transformer) -> bool:
    """Whether it is what the shipped planted subjects are."""
    config, codec = subject.config, subject.codec
    shape = (config.norm, config.positions, config.activation, config.gated_mlp, config.parallel)
    grouped = config.n_groups != config.n_heads
    several = codec is not None and bool(codec.tasks)
    return shape == ("none", "learned", "gelu", False, False) and not grouped and not several


# Refusals


def _check_arguments(subject: object, pairs: object, method: object) -> None:
    """Refuse what is not a subject, pairs and a method, and say how to get them."""
    if isinstance(subject, Pairs) and isinstance(pairs, Transformer):
        raise TypeError("the subject comes first: call localize(subject, pairs), not the reverse.")
    problems = []
    if not isinstance(subject, Transformer):
        name = type(subject).__name__
        problems.append(f"subject must be a Transformer, got {name}: {_subject_hint(subject)}")
    if not isinstance(pairs, Pairs):
        problems.append(f"pairs must be Pairs, got {type(pairs).__name__}: {_pairs_hint(pairs)}")
    if not (method is None or isinstance(method, str) or callable(method)):
        problems.append(f"method must be a name of METHODS or a function, got {method!r}")
    if problems:
        raise TypeError("; ".join(problems) + ".")


def _subject_hint(given: object) -> str:
    if isinstance(given, Case):
        return "give case.subject()"
    if isinstance(getattr(given, "transformer", None), Transformer):
        return "give its .transformer"
    if isinstance(given, str | Path):
        return (
            "load_case(id).subject() is that of a case, load_model(source) that of a file, a "
            "folder or a name on the Hugging Face hub"
        )
    return "convert a model of transformers or TransformerLens with graphcircuits.load_model(model)"


def _pairs_hint(given: object) -> str:
    if isinstance(given, Case):
        return "give case.pairs(64)"
    if isinstance(given, str | Path):
        return "read a file with Pairs.load(path)"
    return "draw those of a case with case.pairs(64), or make them with Pairs(clean=..., ...)"
