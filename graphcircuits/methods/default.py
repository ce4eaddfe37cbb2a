"""Which method to use where none is named, and why.

The predictor that is blind to the case says it, from its file:

1. `Ensemble.measured`: how `gcl` and `eap-ig` did on subjects of this kind that were left out of
   the training, by AUROC where circuits are known, else by CMD, of which less is better. Where
   `gcl` was not measured, or was not as good, the choice is `eap-ig`.
2. `Ensemble.familiarity`: whether this very case is like those of the training. If so, the choice
   is `gcl`, whose scores are known by then; if not, `eap-ig`.

Predictors that hold neither of them are taken for plain planted subjects of one task alone, which
those that came first were measured on.
"""

import time
from dataclasses import dataclass

import torch

from graphcircuits.cases.recognize import planted_case
from graphcircuits.methods.learned import choose_predictor, finding, predict
from graphcircuits.methods.method import Finding, Options
from graphcircuits.methods.shipped import find_ensemble, kind_of
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


@dataclass(frozen=True, eq=False)
class ChosenMethod:
    """A method for a subject and its pairs."""

    method: str
    reason: str
    """Why this one, in a sentence for the notes of a result."""
    run: "MethodRun | None" = None
    """That of the method, where it had to be run to choose it."""


@dataclass(frozen=True, eq=False)
class MethodRun:
    """What a method found, how, and how long it took."""

    subject: Transformer
    pairs: Pairs
    options: Options
    seed: int
    found: Finding
    seconds: float

    def answers(self, subject: Transformer, pairs: Pairs, options: Options, seed: int) -> bool:
        """Whether another run with these would give the same."""
        same = self.subject is subject and self.pairs is pairs
        return same and (self.options, self.seed) == (options, seed)


def default_method(subject: Transformer, pairs: Pairs, *, seed: int = 0) -> ChosenMethod:
    """The method to use where none is named, and why; `seed` is that of the run to come."""
    predictor = choose_predictor(subject, pairs)
    ensemble = find_ensemble(predictor)
    if pairs.needs_targets and ensemble.config.share == 1:
        return _searched("gcl needs pairs with targets")
    if ensemble.known is None:
        return _by_origin(subject)
    kind = kind_of(subject)
    told, won = _compared(ensemble, kind)
    if not told:
        return _searched(f"gcl has not been measured on {kind} subjects")
    if not won:
        return _searched(f"on {kind} subjects gcl had {told}")
    start = time.perf_counter()
    try:
        generator = torch.Generator().manual_seed(seed)
        prediction = predict(subject, pairs, predictor, generator=generator)
    except ValueError as error:
        return _searched(f"gcl cannot read this case: {str(error).rstrip('.')}")
    familiarity = prediction.familiarity
    if familiarity is None or not familiarity.known:
        why = "" if familiarity is None else f": {familiarity.why()}"
        return _searched(f"this case is not like those that gcl was trained on{why}")
    found, options = finding(subject, predictor, prediction), {"predictor": predictor}
    run = MethodRun(subject, pairs, options, seed, found, time.perf_counter() - start)
    reason = (
        "no method was named: gcl, because this case is like those that it was trained on, and on "
        f"{kind} subjects it had {told}"
    )
    return ChosenMethod("gcl", reason, run)


def _compared(ensemble: Ensemble, kind: str) -> tuple[str, bool]:
    """What was measured on such subjects, in words, and whether `gcl` was as good as `eap-ig`."""
    for figure, sign in (("auroc", 1), ("cmd", -1)):
        found = ensemble.measured.get(kind, {}).get(figure, {})
        if {"gcl", "eap-ig"} <= found.keys():
            own, other = found["gcl"], found["eap-ig"]
            told = f"a mean {figure.upper()} of {own:.3f}, and eap-ig one of {other:.3f}"
            return told, sign * own >= sign * other
    return "", False


def _searched(reason: str) -> ChosenMethod:
    return ChosenMethod("eap-ig", f"no method was named: eap-ig, because {reason}")


def _by_origin(subject: Transformer) -> ChosenMethod:
    """For predictors that know nothing of their training cases."""
    case = planted_case(subject)
    if case is None:
        return _searched(
            "this is not known to be a planted subject, and gcl has been measured on those only"
        )
    if not _is_plain(subject):
        return _searched(
            "gcl has been measured on planted subjects of the plain architecture and of one task "
            "only"
        )
    return ChosenMethod(
        "gcl", f"no method was named: gcl, because this is a planted subject ({case})"
    )


def _is_plain(subject: Transformer) -> bool:
    """Whether it is what the shipped planted subjects are."""
    config, codec = subject.config, subject.codec
    shape = (config.norm, config.positions, config.activation, config.gated_mlp, config.parallel)
    grouped = config.n_groups != config.n_heads
    several = codec is not None and bool(codec.tasks)
    return shape == ("none", "learned", "gelu", False, False) and not grouped and not several
