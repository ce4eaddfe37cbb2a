"""The predictors of the package, files of others, and which of them may score a case.

`default` learned from every case of the pool, `fold-0` to `fold-4` from all but those of one fold.
`paper/default` and `paper/fold-0` to `paper/fold-4` are the same for the paper's own system, of
which the first ships.

A predictor that has seen a case, or one related to it, would recall its circuit and say nothing
about a new subject, and is refused. `choose_predictor` decides all of that once for a run.
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from graphcircuits.cases import N_FOLDS
from graphcircuits.cases.recognize import Recognized, recognize
from graphcircuits.cases.relations import fold_of, groups_of
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

SHIPPED = ("default", *(f"fold-{fold}" for fold in range(N_FOLDS)))
PAPER = "paper/"
"""What the names of predictors of the paper's own system begin with."""
FOLDER: Traversable = files("graphcircuits").joinpath("data/predictors")


def load_predictor(source: str | Path) -> Ensemble:
    """Read a trained predictor, for `localize(..., predictor=...)`.

    Args:
        source: The path of a file that `graphcircuits train` wrote, or the name of a predictor
            that ships: `default`, or `fold-0` to `fold-4`, each trained without a fifth of the
            cases.

    Returns:
        The predictor: an ensemble of networks with what its training had and had not. It can be
        used for any number of subjects.

    Example:
        >>> import graphcircuits as gc
        >>> predictor = gc.load_predictor("fold-0")
        >>> case = gc.load_case("ib-3")
        >>> gc.localize(case.subject(), case.pairs(64), predictor=predictor).options
        {'predictor': 'fold-0'}

    Reference: docs/howto/own-predictor.md.
    """
    name = str(source)
    if name.removeprefix(PAPER) in SHIPPED:
        return shipped(name)
    if not Path(name).is_file():
        raise ValueError(
            f"there is no predictor {name!r}: give the path of a file that graphcircuits train "
            f"wrote, or one of {', '.join(SHIPPED)}."
        )
    return replace(load_ensemble(name), name=name)


@cache
def shipped(name: str) -> Ensemble:
    """A predictor of the package."""
    with as_file(FOLDER.joinpath(f"{name}.safetensors")) as path:
        if not path.is_file():
            makes = "python -m lab.paper predictors"
            makes = makes if name.startswith(PAPER) else "graphcircuits train"
            raise FileNotFoundError(
                f"this installation has no predictor {name!r}; name a file with one of its kind, "
                f"which {makes} writes."
            )
        return replace(load_ensemble(path), name=name)


# Which of them may score a case


@dataclass(frozen=True, eq=False)
class ChosenPredictor:
    """A predictor that was not trained on the case at hand, and what is known of the case."""

    ensemble: Ensemble
    name: str
    """What results record: a name or a path."""
    recognized: Recognized
    kind: str
    """What predictors call such subjects (`kind_of`)."""


def choose_predictor(
    subject: Transformer, pairs: Pairs, given: str | Path | Ensemble | None = None, system: str = ""
) -> ChosenPredictor:
    """The predictor that was given, or else a shipped one that is blind to the case.

    `system` is what the names of its shipped predictors begin with. A predictor that was trained on
    the case, or on one related to it, is refused.
    """
    recognized = recognize(subject, pairs)
    case = recognized.case
    if isinstance(given, Ensemble):
        ensemble, name = given, given.name or "a predictor that was not saved"
    else:
        if given is None:
            name = system + ("default" if case is None else blind_to(case))
        else:
            name = system + str(given) if given in SHIPPED else str(given)
        ensemble = load_predictor(name)
    if case is not None:
        check_leak(ensemble, name, case, system)
    kind = kind_of(subject, planted=recognized.planted is not None)
    return ChosenPredictor(ensemble, name, recognized, kind)


def check_leak(ensemble: Ensemble, name: str, case: str, system: str = "") -> None:
    """Refuse a predictor that was trained on a case or on one related to it."""
    # Whether others are related takes longer to say: random programs may have to be drawn.
    itself = case in ensemble.origin.get("cases", ())
    seen = [case] if itself else seen_related(ensemble, case)
    if not seen:
        return
    what = f"{case} itself" if case in seen else f"{seen[0]}, which is related to it"
    other = system + blind_to(case)
    raise ValueError(
        f"this is case {case}, and the predictor {name!r} was trained on {what}: its scores would "
        f"say nothing about a new subject; use {other!r}, which was not, or name none."
    )


def blind_to(case: str) -> str:
    """The shipped predictor whose training held neither the case nor one related to it."""
    # No fold divides a group, so whoever learned without the fold has seen nothing of it.
    fold = fold_of(case)
    return "default" if fold is None else f"fold-{fold}"


def seen_related(ensemble: Ensemble, case: str) -> list[str]:
    """What training saw of a case: itself or cases related to it, in order; none if blind."""
    groups = groups_of(case)
    known = ensemble.origin.get("groups")
    # The groups are recorded because random programs must be drawn to know theirs.
    if known is not None and groups.isdisjoint(known):
        return []
    return sorted(id for id in ensemble.origin.get("cases", ()) if groups & groups_of(id))


def kind_of(subject: Transformer, *, planted: bool | None = None) -> str:
    """What predictors call such subjects where they say what was measured: language, or a fleet,
    natural where nothing else is known, with `-multitask` where a task token says what to do.

    `planted` is whether its circuit is known, where that was found out already.
    """
    if subject.tokenizer is not None:
        return "language"
    planted = recognize(subject).planted is not None if planted is None else planted
    fleet = (subject.fleet or "planted") if planted else "natural"
    several = subject.codec is not None and bool(subject.codec.tasks)
    return f"{fleet}-multitask" if several else fleet
