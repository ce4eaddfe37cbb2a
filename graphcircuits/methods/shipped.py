"""The predictors of the package, and which of them a case may be given to.

1. `default` learned from every case of the pool, `fold-0` to `fold-4` from all but those of one
   fold. `paper/default` and `paper/fold-0` to `paper/fold-4` are the same for the paper's own
   system, of which the first ships. `find_ensemble` gives one of them, or that of a file.
2. `blind_to` names the one that has seen neither a given case nor one related to it; `seen_related`
   tells for any predictor what it has seen of a case.
3. `kind_of` is what predictors call subjects such as the one at hand.
"""

from functools import cache
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from graphcircuits.cases import N_FOLDS
from graphcircuits.cases.recognize import planted_case
from graphcircuits.cases.relations import fold_of, groups_of
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble
from graphcircuits.subject.transformer import Transformer

SHIPPED = ("default", *(f"fold-{fold}" for fold in range(N_FOLDS)))
PAPER = "paper/"
"""What the names of predictors of the paper's own system begin with."""
FOLDER: Traversable = files("graphcircuits").joinpath("data/predictors")


def find_ensemble(name: str) -> Ensemble:
    """A shipped predictor by name, or that of a file."""
    if name.removeprefix(PAPER) in SHIPPED:
        return shipped(name)
    if not Path(name).is_file():
        raise ValueError(
            f"there is no predictor {name!r}: give the path of a file that graphcircuits train "
            f"wrote, or one of {', '.join(SHIPPED)}."
        )
    return load_ensemble(name)


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
        return load_ensemble(path)


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


def kind_of(subject: Transformer) -> str:
    """What predictors call such subjects where they say what was measured: language, or a fleet,
    natural where nothing else is known, with `-multitask` where a task token says what to do."""
    if subject.tokenizer is not None:
        return "language"
    planted = planted_case(subject) is not None
    fleet = (subject.fleet or "planted") if planted else "natural"
    several = subject.codec is not None and bool(subject.codec.tasks)
    return f"{fleet}-multitask" if several else fleet
