"""Every method that finds circuits, behind one signature.

A method scores all edges of a subject on given pairs (`graphcircuits.methods.method`). `METHODS`
holds those of the package by name, `FLOORS` what they are compared with in tables.

`choose_method` makes every decision of a run, each once; what it gives runs under a seed. Decisions
come before the run because some need a look at the subject and some the predictor's file: whoever
decided again while running could come to something else.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases import Case
from graphcircuits.methods import (
    acdc,
    eap,
    eap_gp,
    exact,
    floors,
    gates,
    learned,
    matryoshka,
    nodes,
    own_circuits,
    pgexplainer,
    relp,
)
from graphcircuits.methods.learned import BeyondTraining, LearnedMethod
from graphcircuits.methods.method import (
    FunctionMethod,
    KnownMethod,
    Method,
    Options,
    Scored,
    check_scores,
    known,
    load_method,
    name_of,
    options_of,
    unknown,
)
from graphcircuits.methods.prepare import Progress, Stop
from graphcircuits.methods.shipped import PAPER, ChosenPredictor
from graphcircuits.methods.shortlist import EdgeByEdge, LongRun, search_seconds, single_edge_seconds
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
    "KnownMethod",
    "LongRun",
    "Method",
    "Progress",
    "Scored",
    "Stop",
    "choose_method",
    "find_method",
    "load_method",
    "localize",
    "name_of",
    "options_of",
]


METHODS: Mapping[str, KnownMethod] = {
    method.name: method
    for method in (
        EdgeByEdge(
            name="acdc", run=acdc.acdc, runs="at least one run for each", seconds=search_seconds
        ),
        FunctionMethod(name="eap", run=eap.eap),
        FunctionMethod(name="eap-gp", run=eap_gp.eap_gp),
        FunctionMethod(name="eap-ig", run=eap.eap_ig),
        FunctionMethod(name="edge-pruning", revision=2, run=gates.edge_pruning),
        EdgeByEdge(
            name="exact", run=exact.exact, runs="one run for each", seconds=single_edge_seconds
        ),
        learned.GCL,
        LearnedMethod(name="gcl-paper", system=PAPER),
        FunctionMethod(name="ig-own", revision=2, run=own_circuits.ig_own),
        FunctionMethod(name="mattr", run=matryoshka.mattr),
        FunctionMethod(name="nap", run=nodes.nap),
        FunctionMethod(name="pgexplainer", run=pgexplainer.pgexplainer),
        FunctionMethod(name="random", run=floors.random_scores),
        FunctionMethod(name="relp", run=relp.relp),
        FunctionMethod(name="sp-edge", revision=2, run=gates.sp_edge),
        FunctionMethod(name="sp-node", revision=2, run=gates.sp_node),
        FunctionMethod(name="ugs", revision=2, run=gates.ugs),
    )
}

FLOORS: Mapping[str, KnownMethod] = {
    floor.name: floor
    for floor in (
        FunctionMethod(name="edge-frequency", run=floors.edge_frequency),
        LearnedMethod(name="gcl-blind", blind=True),
        LearnedMethod(name="gcl-paper-blind", system=PAPER, blind=True),
    )
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


# One run


@dataclass(frozen=True, eq=False, kw_only=True)
class ChosenMethod:
    """A method with all its options, for one subject and its pairs: nothing is left to decide."""

    subject: Transformer
    pairs: Pairs
    seed: int
    name: str
    method: KnownMethod
    options: Options
    """As the method takes them; a predictor among them is read and checked."""
    reason: str = ""
    """Why this method, where none was named."""
    scored: Scored | None = None
    """Its run, where the choice took it."""
    seconds: float = 0.0
    """That this run took."""

    @property
    def recorded(self) -> dict[str, Any]:
        """The options as JSON values."""
        return self.method.recorded(self.options)

    @property
    def kind(self) -> str | None:
        """What predictors call the subject, where choosing one found that out."""
        predictor = self.options.get("predictor")
        return predictor.kind if isinstance(predictor, ChosenPredictor) else None

    def with_options(self, given: Options) -> "ChosenMethod":
        """The same method with some options as given."""
        if not given:
            return self
        try:
            merged = {**self.options, **given}
            options = self.method.complete(self.subject, self.pairs, merged, name=self.name)
        except ValueError as error:
            # Options are of a method; whoever named none must learn which one they met.
            raise ValueError("; ".join(filter(None, (str(error), self.reason)))) from None
        return replace(self, options=options, scored=None, seconds=0.0)

    def run(self, *, progress: Progress | None = None, keep_prompts: int = MOST_PAIRS) -> Result:
        """The scores of all edges, with what there is to know of them; arguments as in
        `localize`."""
        if keep_prompts < 0:
            raise ValueError(f"keep_prompts must be at least 0, got {keep_prompts}.")
        subject, pairs = self.subject, self.pairs
        for warning in self.method.forecast(subject, pairs, self.options):
            warnings.warn(warning, stacklevel=3)
        start = time.perf_counter() - self.seconds
        scored = self.scored
        if scored is None:
            generator = torch.Generator().manual_seed(self.seed)
            scored = self.method.score(
                subject, pairs, self.options, generator=generator, progress=progress
            )
        scores = check_scores(scored.scores, subject, self.name).cpu()
        seconds = time.perf_counter() - start
        notes = [self.reason] if self.reason else []
        if self.name.removesuffix(ALONG_PATHS) in FLOORS:
            notes.append(
                f"{self.name} is a floor to compare methods with, and no way to find circuits"
            )
        if len(pairs) == 1:
            notes.append(
                "found on one pair alone: the scores may be about that very prompt; give more"
            )
        for remark in scored.remarks:
            notes.append(str(remark))
            if isinstance(remark, Warning):
                warnings.warn(remark, stacklevel=3)
        return Result(
            graph=subject.graph,
            scores=scores,
            subject=subject.name or subject.case or "",
            task=pairs.task,
            method=self.name,
            options=self.recorded,
            seed=self.seed,
            seconds=seconds,
            d_model=subject.config.d_model,
            notes=tuple(notes),
            probabilities=scored.probabilities,
            signed=scored.signed,
            prompts=stored_prompts(subject, pairs, most=keep_prompts),
            prompt_hashes=prompt_hashes(pairs),
        )


def choose_method(
    subject: Transformer,
    pairs: Pairs,
    method: str | Method | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> ChosenMethod:
    """Every decision of a run of `localize`, which takes the same arguments."""
    _check_arguments(subject, pairs, method)
    given = {"subject": subject, "pairs": pairs, "seed": seed}
    if method is None and "predictor" in options:
        method = "gcl"  # whoever gives a predictor wants to hear it
    if method is None:
        default = learned.default_method(subject, pairs, seed=seed)
        entry = find_method(default.name)
        decided = {} if default.predictor is None else {"predictor": default.predictor}
        chosen = ChosenMethod(
            **given,
            name=default.name,
            method=entry,
            options=entry.complete(subject, pairs, decided, name=default.name),
            reason=default.reason,
            scored=default.scored,
            seconds=default.seconds,
        )
        return chosen.with_options(options)
    name, entry = (method, find_method(method)) if isinstance(method, str) else _named(method)
    completed = entry.complete(subject, pairs, options, name=name)
    return ChosenMethod(**given, name=name, method=entry, options=completed)


def localize(
    subject: Transformer,
    pairs: Pairs,
    method: str | Method | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    keep_prompts: int = MOST_PAIRS,
    **options: Any,
) -> Result:
    """Score every edge of a subject, as `graphcircuits.localize` does, without proposing a circuit.

    The notes of the result say what is to be known of the scores; what must not be overlooked is a
    warning as well. A run that would take long is announced by a `LongRun` warning before it
    begins. The attention patterns of a plain run on the first pairs, at most `keep_prompts`, are
    stored with the result; that run is no part of its seconds.
    """
    chosen = choose_method(subject, pairs, method, seed=seed, **options)
    return chosen.run(progress=progress, keep_prompts=keep_prompts)


def _named(method: Method) -> tuple[str, KnownMethod]:
    """A method that was given as a function or as an entry of the table, with its name."""
    names = [name for name, entry in METHODS.items() if getattr(entry, "run", None) is method]
    return (names[0], METHODS[names[0]]) if names else (name_of(method), known(method))


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
