"""Every method that finds circuits, behind one signature.

1. A method scores all edges of a subject on given pairs (`graphcircuits.methods.method`). `METHODS`
   holds those of the package by name, each with what is known of it. `FLOORS` holds what methods
   are compared with in tables, and what is not meant to find circuits.
2. `find_method` gives either by its name; with `+paths` behind the name the option `paths` is on.
3. `localize` takes the name of one, or any function of that shape, settles its options, runs it
   under a seed, and returns a `Result`. Where no method is given, `default_method` chooses one.
   On request the scores are then refined on the same subject and pairs.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases import Case
from graphcircuits.methods import (
    acdc,
    eap,
    eap_gp,
    exact,
    floor,
    frequency,
    gates,
    learned,
    nodes,
    pgexplainer,
    relp,
    shortlist,
)
from graphcircuits.methods.default import ChosenMethod, default_method
from graphcircuits.methods.learned import BeyondTraining
from graphcircuits.methods.load import load_method
from graphcircuits.methods.method import (
    Finding,
    KnownMethod,
    Method,
    check_scores,
    known,
    name_of,
    options_of,
    settle,
    unknown,
)
from graphcircuits.methods.prepare import Progress, Stop
from graphcircuits.methods.refine import check_length, refinement
from graphcircuits.methods.shortlist import LongRun
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import prompt_hashes
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.stored import MOST_PAIRS, stored_prompts

__all__ = [
    "ALONG_PATHS",
    "FLOORS",
    "METHODS",
    "NAMED_ONLY",
    "BeyondTraining",
    "ChosenMethod",
    "Finding",
    "KnownMethod",
    "LongRun",
    "Method",
    "Progress",
    "Stop",
    "default_method",
    "find_method",
    "load_method",
    "localize",
    "name_of",
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
    "edge-pruning": KnownMethod(run=gates.edge_pruning),
    "exact": KnownMethod(
        run=exact.exact,
        independent=True,
        forecast=shortlist.single_edges_forecast,
        remarks=shortlist.restriction,
    ),
    "gcl": learned.GCL,
    "gcl-paper": learned.GCL_PAPER,
    "nap": KnownMethod(run=nodes.nap),
    "pgexplainer": KnownMethod(run=pgexplainer.pgexplainer),
    "random": KnownMethod(run=floor.random_scores),
    "relp": KnownMethod(run=relp.relp),
    "sp-edge": KnownMethod(run=gates.sp_edge),
    "sp-node": KnownMethod(run=gates.sp_node),
    "ugs": KnownMethod(run=gates.ugs),
}

FLOORS: Mapping[str, KnownMethod] = {
    "edge-frequency": frequency.EDGE_FREQUENCY,
    "gcl-blind": learned.GCL_BLIND,
    "gcl-paper-blind": learned.GCL_PAPER_BLIND,
}
"""What a ranking reaches that sees nothing of what the subject computes. With `random` they are the
floors that methods are compared with; nobody should look for circuits with them."""
ALONG_PATHS = "+paths"
"""Behind a method's name: the same with the option `paths`."""

NAMED_ONLY = frozenset({"gcl-paper", "gcl-paper-blind"})
"""Methods that run where they are named, and not where all are asked for: their predictors may be
missing, and making them takes a GPU."""


def find_method(name: str) -> KnownMethod:
    """A method of METHODS or FLOORS; that of `NAME+paths` counts edges along paths."""
    bare = name.removesuffix(ALONG_PATHS)
    entry = METHODS.get(bare) or FLOORS.get(bare)
    if entry is None:
        raise ValueError(unknown("method", name, METHODS))
    return known(entry) if bare == name else replace(known(entry), paths=True)


def localize(
    subject: Transformer,
    pairs: Pairs,
    method: str | Method | ChosenMethod | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    refine_steps: int | None = None,
    refine_seconds: float | None = None,
    refine_checkpoint: str | Path | None = None,
    keep_prompts: int = MOST_PAIRS,
    **options: Any,
) -> Result:
    """Score every edge of a subject; the result records the method, all its options and the seed.

    `method` is a name of METHODS or any function of a subject and pairs that returns one score per
    edge; its keyword-only parameters are its options. Without one it is that of `default_method`,
    or the choice that this function gave before, and the result's notes say why. They also say what
    is to be known of the scores; what must not be overlooked is a warning as well. A run that would
    take long is announced by a `LongRun` warning before it begins. `progress` is called with (steps
    done, steps in all) by methods that iterate.

    With `refine_steps` or `refine_seconds` the scores are then refined on these pairs for so long
    (`graphcircuits.refine`): `progress` hears of those steps as well, and `refine_checkpoint` is a
    file to go on from. The result's options record it, its seconds count all of it; probabilities
    belong to scores as they were predicted, so a refined result has none.

    The first pairs, at most `keep_prompts`, are kept with the result together with the attention
    patterns of a plain run on them, for the page that shows it; fewer or none where patterns would
    take more than 600 kB. That run is no part of the result's seconds.
    """
    _check_arguments(subject, pairs, method)
    refining = {"steps": refine_steps, "seconds": refine_seconds, "checkpoint": refine_checkpoint}
    check_length(**refining, prefix="refine_")
    if keep_prompts < 0:
        raise ValueError(f"keep_prompts must be at least 0, got {keep_prompts}.")
    length = {"refine_steps": refine_steps, "refine_seconds": refine_seconds}
    length = {name: value for name, value in length.items() if value is not None}
    method = default_method(subject, pairs, seed=seed) if method is None else method
    choice = method if isinstance(method, ChosenMethod) else None
    notes = [] if choice is None else [choice.reason]
    name, chosen = _named(method.method if isinstance(method, ChosenMethod) else method)
    try:
        settled = settle(chosen, subject, pairs, options, name=name)
    except ValueError as error:
        # Options are of a method; whoever named none must learn which one they met.
        raise ValueError("; ".join([str(error), *notes])) from None
    for warning in chosen.forecast(subject, pairs, settled):
        warnings.warn(warning, stacklevel=2)
    run = None if choice is None else choice.run
    start = time.perf_counter()
    if run is not None and run.answers(subject, pairs, settled, seed):
        found, start = run.found, start - run.seconds
    else:
        generator = torch.Generator().manual_seed(seed)
        found = chosen.finding(
            subject, pairs, settled, {"generator": generator, "progress": progress}
        )
    scores = check_scores(found.scores, subject, name)
    if length:
        generator = torch.Generator().manual_seed(seed)
        supplies = {"generator": generator, "progress": progress}
        refined = refinement(subject, pairs, scores, **refining, **supplies)
        scores = refined.scores
        notes.append(refined.told())
    if name.removesuffix(ALONG_PATHS) in FLOORS:
        notes.append(f"{name} is a floor to compare methods with, and no way to find circuits")
    scores = scores.cpu()
    seconds = time.perf_counter() - start
    if len(pairs) == 1:
        notes.append("found on one pair alone: the scores may be about that very prompt; give more")
    for remark in (*chosen.remarks(subject, pairs, settled), *found.remarks):
        notes.append(str(remark))
        if isinstance(remark, Warning):
            warnings.warn(remark, stacklevel=2)
    return Result(
        graph=subject.graph,
        scores=scores,
        subject=subject.name or subject.case or "",
        task=pairs.task,
        method=name,
        options=settled | length,
        seed=seed,
        seconds=seconds,
        d_model=subject.config.d_model,
        notes=tuple(notes),
        probabilities=None if length else found.probabilities,
        prompts=stored_prompts(subject, pairs, most=keep_prompts),
        prompt_hashes=prompt_hashes(pairs),
    )


def _named(method: str | Method) -> tuple[str, KnownMethod]:
    if isinstance(method, str):
        return method, find_method(method)
    chosen = known(method)
    names = [name for name, entry in METHODS.items() if entry.run is chosen.run]
    return names[0] if names else name_of(method), chosen


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
    if not (method is None or isinstance(method, str | ChosenMethod) or callable(method)):
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
