"""Probabilities of edges: fitted on fresh searches, and measured on what was held out.

1. `certainty_data` searches afresh in every case, and goes on where it was cut off.
2. Chances of being in a planted circuit are fitted on planted circuits of all kinds, and those of
   coming back on models whose circuits nobody knows (`certainty_fit`). Cases that the predictor
   does not know are left out of fits, as users get no probability there.
3. Everything is judged by fits that have seen nothing related; beside it stand fits of the pool
   alone.
4. `figures` are the expected calibration error and the Brier score, each case weighing the same,
   and how often edges that were given 0.9 or more are right, with an interval over models.

python -m lab.studies certainty DIR [--families pool multitask ...] [--mined build/mined]
    [--tasks 3] [--layers 4] [--collect] [--page docs/results/certainty.md]
    [--out graphcircuits/data/certainty.json]
"""

import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.certificates.probability import (
    FEATURES,
    KIND,
    LANGUAGE,
    NATURAL,
    PLANTED,
    Chances,
)
from graphcircuits.certificates.searching import Searches
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.store import save_artifact
from graphcircuits.methods import BeyondTraining
from graphcircuits.predictor.facts.calibration import case_weights
from lab.intervals import bootstrap
from lab.programs import parser
from lab.reliability import calibration_error, reliability
from lab.studies.certainty_data import (
    FAMILIES,
    METHODS,
    case_ids_of,
    collect,
    mined_tasks,
    read_found,
)
from lab.studies.certainty_fit import PULL, Case, fit_chances, held_out

SURE = 0.9
"""From which on an edge is called sure."""
AGAIN = ("came back", "rank", "inside")
"""Not the size of the circuit beside the graph: users' models are far larger than those at hand."""
USED = {PLANTED: FEATURES, NATURAL: AGAIN, LANGUAGE: AGAIN}
WITH_TRUTH = ("pool", "planted", "deep", "multitask", "language", "public")
WITHOUT = {"mined": LANGUAGE, "natural": NATURAL}
HELD_OUT = WITH_TRUTH[1:]
ASKED = ("planted", "deep", "multitask", "language")
"""Of these, the ones whose circuits were trained to do the task alone."""
CALLED = {
    "pool": "pool, planted",
    "planted": "test cases, planted",
    "deep": "deep test cases, planted",
    "multitask": "several tasks, planted",
    "language": "programs in language models",
    "public": "test cases, public losses",
    "mined": "small language models",
    "natural": "natural subjects",
}


# --- figures -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Said:
    """Probabilities of the edges of a case, and what was true."""

    model: str
    probabilities: Float[Tensor, " edge"]
    labels: Bool[Tensor, " edge"]
    met: Bool[Tensor, " edge"]
    """Edges that are in the circuit or came back: those that a certificate lists."""

    @classmethod
    def of(cls, case: Case, probabilities: Float[Tensor, " edge"]) -> "Said":
        met = case.found.circuit.mask | (case.searches.came_back > 0)
        return cls(case.found.model, probabilities, case.labels, met)


@dataclass(frozen=True)
class Figures:
    """How true probabilities are."""

    cases: int
    error: float
    """The expected calibration error."""
    listed: float
    """That of the edges that a certificate lists."""
    brier: float
    sure: int
    """Edges that were given SURE or more."""
    right: str
    """The share of these that is true, with its interval over models."""
    share: float
    recall: float
    """The share of true edges among the sure ones."""

    def row(self) -> list[str]:
        scores = (f"{self.error:.4f}", f"{self.listed:.3f}", f"{self.brier:.4f}")
        return [str(self.cases), *scores, str(self.sure), self.right, f"{self.recall:.2f}"]


COLUMNS = ("cases", "error", "error, listed", "Brier", "sure edges", "right", "of true edges")


def figures(said: Sequence[Said]) -> Figures:
    """Of cases that weigh the same; sure edges are counted one by one."""
    p, y, numbers = joined(said)
    weights, met = case_weights(numbers), torch.cat([one.met for one in said])
    sure: dict[str, list[int]] = {}
    for one in said:
        chosen = one.probabilities >= SURE
        counts = sure.setdefault(one.model, [0, 0])
        counts[0] += int((chosen & one.labels).sum())
        counts[1] += int(chosen.sum())
    true, given = (sum(counts[place] for counts in sure.values()) for place in (0, 1))
    return Figures(
        cases=len(said),
        error=calibration_error(p, y, numbers),
        listed=calibration_error(p[met], y[met], numbers[met]) if met.any() else float("nan"),
        brier=float(weights @ (p.double() - y.double()) ** 2),
        sure=given,
        right=_right(sure) if given else "-",
        share=true / given if given else float("nan"),
        recall=true / max(1, int(y.sum())),
    )


def joined(said: Sequence[Said]) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities and labels of all edges, and the numbers of their cases."""
    numbers = [torch.full(one.labels.shape, n) for n, one in enumerate(said)]
    p, y = [one.probabilities for one in said], [one.labels for one in said]
    return torch.cat(p), torch.cat(y), torch.cat(numbers)


def _right(sure: dict[str, list[int]]) -> str:
    """True ones over given ones, models drawn again; by the rule of three where none is wrong."""
    true, given = ({m: {0: float(counts[k])} for m, counts in sure.items()} for k in (0, 1))
    found = bootstrap([true, given], lambda of: of[0].mean(1) / np.maximum(of[1].mean(1), 1e-9))
    all_given = sum(counts[1] for counts in sure.values())
    low = found.low if found.value < 1 else max(0.0, 1 - 3 / all_given)
    return f"{found.value:.3f} [{low:.3f}, {min(found.high, 1):.3f}]"


# --- the page ------------------------------------------------------------------------------------


def today(cases: Iterable[Case]) -> list[Said]:
    """What gcl's own results say, where they say it."""
    return [
        Said.of(case, case.found.said)
        for case in cases
        if case.found.method == "gcl" and case.found.said is not None
    ]


def of(judged: Sequence[tuple[Case, Tensor]], take: Callable[[Case], bool]) -> list[Said]:
    """What was said of the cases that are taken."""
    return [Said.of(case, p) for case, p in judged if take(case)]


def against_today(cases: Sequence[Case], judged: Sequence[tuple[Case, Tensor]]) -> str:
    """What is said today and what is said now, family by family; edges are `gcl`'s where today."""
    rows = []
    groups = {CALLED[family]: (family,) for family in _present(cases, WITH_TRUTH)}
    for name, families in {**groups, "held out, four kinds": ASKED}.items():
        some = [case for case in cases if case.found.family in families]
        asked = {m: len([case for case in some if case.found.method == m]) for m in METHODS}
        rows.append([name, "today, gcl", *_covered(today(some), asked["gcl"])])
        for method in METHODS:

            def take(case: Case, among: Sequence[str] = families, method: str = method) -> bool:
                return case.known and case.found.family in among and case.found.method == method

            rows.append([name, f"now, {method}", *_covered(of(judged, take), asked[method])])
    return markdown_table(["cases are", "said", "answered", *COLUMNS], rows, left=2)


def _covered(said: Sequence[Said], asked: int) -> list[str]:
    answered = f"{len(said) / max(1, asked):.0%}"
    return [answered, *figures(said).row()] if said else [answered, "0", *["-"] * 6]


def _present(cases: Iterable[Case], families: Sequence[str]) -> list[str]:
    there = {case.found.family for case in cases}
    return [family for family in families if family in there]


def by_answer(judged: Sequence[tuple[Case, Tensor]]) -> str:
    """What abstaining costs and saves."""
    rows = []
    for family in _present((case for case, _ in judged), HELD_OUT):
        kinds: dict[str, Callable[[Case], bool]] = {
            "all, if it never abstained": lambda case: True,
            "answered": lambda case: case.known,
            "abstained, had it answered": lambda case: not case.known,
        }
        for name, wanted in kinds.items():
            said = of(judged, lambda c, f=family, w=wanted: c.found.family == f and w(c))
            if said:
                rows.append([CALLED[family], name, *figures(said).row()])
    return markdown_table(["cases are", "which", *COLUMNS], rows, left=2)


def diagram(cases: Sequence[Case], judged: Sequence[tuple[Case, Tensor]]) -> str:
    """What was said and what was true, in ten intervals, today and now."""
    rest = [case for case in cases if case.found.family in HELD_OUT]
    tables = {
        "today": today(rest),
        "now": of(judged, lambda case: case.known and case.found.family in HELD_OUT),
    }
    rows = []
    for name, said in tables.items():
        for row in reliability(*joined(said)) if said else ():
            bars = "".join("#" if n < round(20 * row.true) else "." for n in range(20))
            between, shown = f"{row.low:.1f} to {row.high:.1f}", f"`{bars}`"
            means = (f"{row.said:.3f}", f"{row.true:.3f}")
            rows.append([name, between, *means, shown, f"{row.weight:.2%}"])
    return markdown_table(["", "interval", "said", "true", "", "of edges"], rows, left=2)


def parts(cases: Sequence[Case]) -> str:
    """Fits of fewer features, and of fewer searches, on the pool."""
    pool = [case for case in cases if case.found.family == "pool" and case.known]
    four = [replace(case, searches=Searches(case.searches.results[:4])) for case in pool]
    network = ("network", "network rank")
    tried = {
        "all": (pool, FEATURES),
        "all, from 4 searches": (four, FEATURES),
        "searches alone": (pool, [name for name in FEATURES if name not in network]),
        "predictor alone": (pool, network),
        "share that came back alone": (pool, ("came back",)),
    }
    rows = []
    for name, (some, names) in tried.items():
        judged = list(held_out(some, names, pool))
        rows.append([name, *figures(of(judged, lambda case: True)).row()])
    return markdown_table(["fitted on", *COLUMNS], rows, left=1)


def coming_back(cases: Sequence[Case]) -> str:
    """Models without truth: the share that came back beside fits that have not seen the model."""
    rows = []
    both = list(held_out(cases, AGAIN))
    for family in _present(cases, [*WITHOUT]):
        some = [case for case in cases if case.found.family == family]
        ways = {
            "the share that came back": [(case, case.searches.came_back.float()) for case in some],
            "fitted on these": list(held_out(some, AGAIN)),
            "fitted on both": both,
        }
        for name, judged in ways.items():
            for method in METHODS:

                def take(case: Case, family: str = family, method: str = method) -> bool:
                    return case.found.family == family and case.found.method == method

                if said := of(judged, take):
                    rows.append([CALLED[family], f"{name}, {method}", *figures(said).row()])
    return markdown_table(["models are", "said", *COLUMNS], rows, left=2)


def formulas(chances: dict[str, Chances]) -> str:
    """The weights that ship."""
    rows = [
        [name, *(f"{one.weights.get(feature, 0):.3f}" for feature in FEATURES), f"{one.bias:.3f}"]
        for name, one in chances.items()
    ]
    return markdown_table(["of", *FEATURES, "bias"], rows, left=1)


def page(cases: Sequence[Case], chances: dict[str, Chances], command: str) -> str:
    """The page as Markdown."""
    true = [case for case in cases if case.target == PLANTED]
    again = [case for case in cases if case.target != PLANTED]
    judged = list(held_out(true, USED[PLANTED]))
    pool = [case for case in true if case.found.family == "pool"]
    others = [case for case in true if case.found.family in HELD_OUT]
    strict = list(held_out(others, USED[PLANTED], pool))
    counts = ", ".join(
        f"{len({c.found.id for c in cases if c.found.family == family})} {CALLED[family]}"
        for family in _present(cases, FAMILIES)
    )
    return "\n\n".join(
        [
            "# How true the probabilities of edges are",
            "A certificate (`graphcircuits.certify`) gives every edge a probability. Where the "
            "circuit was planted it is that of being in it (`complete` labels); elsewhere, where "
            "nobody knows the true circuit, that of coming back in one more search, on other "
            "prompts.",
            f"Tasks: {counts}. In each, `gcl` and `eap-ig` find a circuit on 64 prompt pairs (seed "
            "0) and search 8 times again as a certificate does (seeds 1 to 8, pairs drawn with "
            "repeats); tasks of small language models have 12 pairs. The predictor is the shipped "
            "one that is blind to the case.",
            "*Answered* are cases with probabilities. The *error* is the expected calibration "
            "error in ten equal intervals, and like the *Brier* score lets every case weigh the "
            "same. Most edges are in no circuit, and it is easy to say so: hence the error of "
            "edges that a certificate *listed*, those in the circuit or in that of a search. "
            f"*Sure edges* were given {SURE} or more; how many of them are *right* is counted edge "
            "by edge, with a 95% interval over models (by the rule of three over edges where none "
            "is wrong); *of true edges* is the share that is sure.",
            "## Being in the planted circuit",
            "*Today* is what `gcl` itself says, by its calibration. *Now* is said by fits that "
            "have seen nothing related: no case of the same fold of the pool, no model and no "
            "group of programs in common. Planted language models have nine programs together, so "
            "there it is the model that is held out. *Four kinds* are all that are held out but "
            "public losses, whose circuits keep half of the answers when alone.",
            against_today(true, judged),
            "The same by a fit of the pool alone, which has seen neither models with several tasks "
            "nor language models:",
            against_today(others, strict),
            "### What was said, and what was true",
            "All held-out cases of the first table together, by intervals:",
            diagram(true, judged),
            "### What abstaining costs and saves",
            "No probability is given where the predictor does not know the model: its networks "
            "disagree, or the features are far from those of the training "
            "([familiarity](../predictor.md#does-it-know-this-model)).",
            by_answer(judged),
            "### What it is made of",
            "On the pool, by the other folds; features were chosen there, and nowhere else.",
            parts(true),
            "## Coming back",
            "The same for models whose circuit nobody knows; right is an edge that is in the "
            "circuit of the further search. The share that came back, taken as a probability, is "
            "what a reader would do by hand. Fits have not seen the model, nor programs in common.",
            coming_back(again),
            "## The weights",
            "Logarithms of odds. What ships is fitted on all answered cases of the tables above, "
            "held-out ones among them; the tables are of fits that have not seen the case.",
            formulas(chances),
            f"By `{command}`; the weights are in `graphcircuits/data/certainty.json`, and "
            "[the log](../research/certainty.md) says what was tried and when which cases were "
            "looked at.",
        ]
    )


def read_cases(folder: Path, families: Sequence[str]) -> list[Case]:
    """What was collected, family by family."""
    cases = []
    for family in families:
        target = WITHOUT.get(family, PLANTED)
        for path in sorted((folder / family).glob("*.safetensors")):
            found = read_found(path)
            cases.append(Case(found, target, found.searches))
    return cases


def main(given: Sequence[str]) -> None:
    """Collect what is not there yet, fit, and write the weights and the page."""
    words = parser("lab.studies certainty", __doc__)
    words.add_argument("folder", type=Path, help="where the cases are kept")
    words.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    words.add_argument("--mined", type=Path, help="folder that `lab.factory mine` wrote")
    words.add_argument("--tasks", type=int, default=3, help="of a mined model, at most")
    words.add_argument("--layers", type=int, default=4, help="of a mined model, at most")
    words.add_argument("--collect", action="store_true", help="no more than search")
    words.add_argument("--page", type=Path, default=Path("docs/results/certainty.md"))
    words.add_argument("--out", type=Path, default=Path("graphcircuits/data/certainty.json"))
    chosen = words.parse_args(given)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BeyondTraining)
    for family in chosen.families:
        if family != "mined":
            collect(chosen.folder, family, case_ids_of(family))
        elif chosen.mined is not None:
            tasks = [*mined_tasks(chosen.mined, chosen.tasks, chosen.layers)]
            collect(chosen.folder, family, tasks)
    if chosen.collect:
        return
    cases = read_cases(chosen.folder, chosen.families)
    chances = {}
    for target in USED:
        known = [case for case in cases if case.target == target and case.known]
        if not known:
            raise FileNotFoundError(
                f"{chosen.folder} has no case to fit the chances of {target} subjects on: collect "
                "all families, and tasks of language models with --mined build/mined."
            )
        chances[target] = fit_chances(known, USED[target])
    command = shlex.join(["python", "-m", "lab.studies", "certainty", *given])
    save_artifact(
        chosen.out,
        kind=KIND,
        config={"families": list(chosen.families), "methods": list(METHODS), "pull": PULL},
        seed=0,
        meta={name: {"weights": one.weights, "bias": one.bias} for name, one in chances.items()},
        command=command,
    )
    chosen.page.write_text(page(cases, chances, command) + "\n")
    sys.stdout.write(f"wrote {chosen.page} and {chosen.out}\n")
