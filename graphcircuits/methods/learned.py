"""Graph Circuit Learning: a trained predictor reads the circuit off in one pass.

A clean run of the subject, a corrupted one, and one between them with its backward pass give every
edge its features; the predictor turns them into scores. It was trained on many subjects: by their
circuits where these are known, else by how faithful the circuits are that it proposes. The shipped
ones are in `graphcircuits.methods.shipped`; `graphcircuits train` makes others.

`gcl` is our system. `gcl-paper` is the paper's own: its aligner, its graph learner and the logits
as they are, without a search to start from, paths, trust or probabilities (docs/predictor.md).
`gcl-blind` and `gcl-paper-blind` are floors: the same predictors, blind to all that is measured of
a case. What they reach, the shape of the graph and the kinds of its components give by themselves.

`default_method` says which method to use where none is named. The predictor that is blind to the
case decides, by what its file has:

- `Ensemble.measured`: how `gcl` and `eap-ig` did on subjects of this kind that were left out of the
  training. Where `gcl` was not measured, or was not as good, the choice is `eap-ig`.
- `Ensemble.known`: whether this very case is like those of the training. That is known after the
  predictor has run; its scores are then those of the choice, if it is `gcl`.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.cases.case import DEFAULT_LABELS
from graphcircuits.cases.multitask import multi_records
from graphcircuits.methods.method import KnownMethod, Options, Scored
from graphcircuits.methods.prepare import Progress, on_device
from graphcircuits.methods.shipped import PAPER, ChosenPredictor, choose_predictor
from graphcircuits.predictor.ensemble import Ensemble, Prediction, blinded
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

LEAST_TRUST = 0.1
"""The share of the correction that must count for probabilities to be said: with less, scores are
those of a search, and nobody measured what these mean on a model that the network does not know."""


class BeyondTraining(UserWarning):
    """The case is not like those that the predictor was trained on."""


@dataclass(frozen=True, kw_only=True)
class LearnedMethod(KnownMethod):
    """The scores that a trained predictor gives."""

    system: str = ""
    """What the names of its shipped predictors begin with."""
    blind: bool = False
    """Whether it does not see what is measured of a case."""

    def run(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        subject: Transformer,
        pairs: Pairs,
        *,
        predictor: str | Path | Ensemble | ChosenPredictor | None = None,
        looks: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " edge"]:
        """The predictor's logit of every edge: above 0 where it says that the edge is likely.

        `predictor` is one that `graphcircuits.load_predictor` read, its file, or the name of one
        that ships; None takes the one that ships and is blind to the case. `looks` are rounds of
        looking at the circuits that it proposes, 0 for none; None makes those that the predictor
        makes on such subjects. `generator` draws what the paper's aligner takes at random; without
        it the seed is 0.
        """
        generator = generator or torch.Generator().manual_seed(0)
        options = self.fill(subject, pairs, {"predictor": predictor, "looks": looks})
        return self.predict(subject, pairs, options, generator).logits

    @property
    def annotations(self) -> dict[str, Any]:
        """The types of the options as they can be typed: a predictor by its name or path."""
        return {**super().annotations, "predictor": str | None, "looks": int | None}

    def fill(self, subject: Transformer, pairs: Pairs, options: Options) -> Options:
        """The options with the predictor chosen, read and checked, and its rounds of looking."""
        chosen, looks = options["predictor"], options["looks"]
        if not isinstance(chosen, ChosenPredictor):
            chosen = self._choose(subject, pairs, chosen)
        if looks is None:
            # What was planted is more than the smallest circuit that does the job.
            proposes = self.blind or chosen.recognized.planted is not None
            looks = 0 if proposes else chosen.ensemble.usual_looks(chosen.kind)
        return {**options, "predictor": chosen, "looks": looks}

    def _choose(
        self, subject: Transformer, pairs: Pairs, given: str | Path | Ensemble | None
    ) -> ChosenPredictor:
        """A predictor that may score the case and can read it."""
        chosen = choose_predictor(subject, pairs, given, self.system)
        aligner = chosen.ensemble.config.aligner
        if self.system == PAPER and aligner != "tabpfn":
            raise ValueError(
                f"gcl-paper takes predictors with the aligner tabpfn, the paper's, and "
                f"{chosen.name!r} has {aligner}; that is one for gcl."
            )
        if pairs.needs_targets and needs_targets(chosen.ensemble):
            raise ValueError(
                f"the predictor {chosen.name!r} reads the gradient of the loss at the clean run, "
                f"but these {pairs.loss_name} pairs have no targets of their own: their loss is "
                "the distance to that very run, and flat there; give the right answers as targets, "
                "or use eap-ig or exact."
            )
        return chosen

    def recorded(self, options: Options) -> dict[str, object]:
        """The options with the name of the predictor, and how often it looks if it does."""
        known = {name: value for name, value in options.items() if name != "looks" or value}
        return {**known, "predictor": options["predictor"].name}

    def files(self, options: Options) -> Iterator[str]:
        yield options["predictor"].ensemble.sha256

    def score(
        self,
        subject: Transformer,
        pairs: Pairs,
        options: Options,
        *,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Scored:
        paths, others = self._without_paths(options)
        prediction = self.predict(subject, pairs, others, generator)
        scored = self.describe(subject, others["predictor"], prediction)
        if not paths:
            return scored
        # Probabilities belong to the scores as they were.
        along = along_paths(scored.scores, subject.graph)
        return replace(scored, scores=along, probabilities=None)

    def predict(
        self,
        subject: Transformer,
        pairs: Pairs,
        options: Options,
        generator: torch.Generator,
    ) -> Prediction:
        """What the predictor among the options says of a case, which is read once."""
        pairs, chosen = on_device(subject, pairs), options["predictor"]
        ensemble = blinded(chosen.ensemble) if self.blind else chosen.ensemble
        return ensemble.to(subject.device).predict_case(
            subject, pairs, generator=generator, kind=chosen.kind, looks=options["looks"]
        )

    def describe(
        self, subject: Transformer, chosen: ChosenPredictor, prediction: Prediction
    ) -> Scored:
        """A prediction with what is to be said of it; probabilities where they mean something."""
        if self.blind:
            return Scored(prediction.logits)
        remarks = [*_about_training(subject, chosen)]
        if self.system == PAPER:
            return Scored(prediction.logits, remarks=tuple(remarks))
        familiarity = prediction.familiarity
        if familiarity is not None and familiarity.known:
            remarks.append(
                "the predictor knows cases like this one: it is at least as typical as "
                f"{familiarity.share:.0%} of the cases in the training"
            )
        elif familiarity is not None:
            unseen = chosen.ensemble.unseen(subject)
            words = f" (none of them had: {', '.join(unseen)})" if unseen else ""
            text = f"this case is not like those that the predictor was trained on{words}: "
            remarks.append(BeyondTraining(f"{text}{familiarity.why()}"))
        if prediction.trust < 0.5:
            remarks.append(
                "gcl adds a correction by its network to the scores of a gradient search; here "
                f"only {prediction.trust:.0%} of the correction is added, because on other cases "
                "that look like this one it seldom helped"
            )
        remarks += _other_labels(subject, chosen)
        probabilities = prediction.probabilities
        known = familiarity is None or familiarity.known
        if probabilities is not None and not (known and prediction.trust >= LEAST_TRUST):
            probabilities = None
            remarks.append(
                "gcl gives no probabilities here: they would mean nothing on such a model"
            )
        return Scored(prediction.logits, probabilities, remarks=tuple(remarks))


GCL = LearnedMethod(name="gcl", revision=3, threshold=0.0)


def needs_targets(ensemble: Ensemble) -> bool:
    """Whether it reads the gradient at the clean run, where a distance to that run is flat."""
    return ensemble.config.share == 1 or ensemble.config.aligner == "tabpfn"


def _about_training(subject: Transformer, chosen: ChosenPredictor) -> Iterator[str | Warning]:
    """Whether the predictor was trained without the case; if its file does not describe the
    training cases, what of the subject's architecture it has never met."""
    case, ensemble = chosen.recognized.case, chosen.ensemble
    if case is not None and chosen.name.removeprefix(PAPER).startswith("fold-"):
        yield f"predictor {chosen.name}, which was trained without this case ({case})"
    unseen = ensemble.unseen(subject)
    if unseen and ensemble.known is None:
        yield BeyondTraining(
            f"beyond what the predictor was trained on: {', '.join(unseen)}; how good the scores "
            "are there has not been measured"
        )


def _other_labels(subject: Transformer, chosen: ChosenPredictor) -> list[str]:
    """That the predictor learned from labels by which this circuit is another one, if so."""
    case, labels = chosen.recognized.planted, chosen.ensemble.labels
    if case is None or case in multi_records() or labels == DEFAULT_LABELS:
        return []
    truth, taught = (load_case(case).labels(x, subject.graph) for x in (DEFAULT_LABELS, labels))
    if truth == taught:
        return []
    apart = ", ".join((truth - taught) | (taught - truth))
    return [
        f"the predictor learned from {labels} labels; the true circuit is given by "
        f"{DEFAULT_LABELS} labels, and differs in {apart}"
    ]


# Where no method is named


@dataclass(frozen=True, eq=False)
class DefaultMethod:
    """The method to use for a subject and its pairs where none was named."""

    name: str
    reason: str
    """Why this one, in a sentence for the notes of a result."""
    predictor: ChosenPredictor | None = None
    """That of `gcl`."""
    scored: Scored | None = None
    """The run of `gcl`, by which it is known that the case is like those of the training."""
    seconds: float = 0.0
    """That the run took."""


def default_method(subject: Transformer, pairs: Pairs, *, seed: int = 0) -> DefaultMethod:
    """The method to use where none is named, and why; `seed` is that of the run to come."""
    chosen = choose_predictor(subject, pairs)
    ensemble, kind = chosen.ensemble, chosen.kind
    if pairs.needs_targets and needs_targets(ensemble):
        return _search("gcl needs pairs with targets")
    text, won = _compared(ensemble, kind)
    if not text:
        return _search(f"gcl has not been measured on {kind} subjects")
    if not won:
        return _search(f"on {kind} subjects gcl had {text}")
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    options = GCL.fill(subject, pairs, {"predictor": chosen, "looks": None})
    prediction = GCL.predict(subject, pairs, options, generator)
    familiarity, looked = prediction.familiarity, options["looks"]
    if not looked and (familiarity is None or not familiarity.known):
        why = "" if familiarity is None else f": {familiarity.why()}"
        return _search(f"this case is not like those that gcl was trained on{why}")
    scored = GCL.describe(subject, chosen, prediction)
    why = f"on {kind} subjects it had {text}"
    if not looked:
        why = f"this case is like those that it was trained on, and {why}"
    reason = f"no method was named: gcl, because {why}"
    return DefaultMethod("gcl", reason, chosen, scored, time.perf_counter() - start)


COMPARED = (
    ("edges", -1, "eap-ig+paths", "{:.0f} edges for .9 of the output, {} {:.0f}"),
    ("auroc", 1, "eap-ig", "a mean AUROC of {:.3f}, and {} one of {:.3f}"),
    ("cmd", -1, "eap-ig", "a mean CMD of {:.3f}, and {} one of {:.3f}"),
)
"""Figures by which `gcl` is chosen, the first that there is: whether more is better, the search it
is compared with, and both in words. Edges are geometric means."""


def _compared(ensemble: Ensemble, kind: str) -> tuple[str, bool]:
    """What was measured on such subjects, in words, and whether `gcl` was as good as a search."""
    for figure, sign, search, words in COMPARED:
        means = ensemble.measured.get(kind, {}).get(figure, {})
        if {"gcl", search} <= means.keys():
            ours, other = means["gcl"], means[search]
            return words.format(ours, search, other), sign * ours >= sign * other
    return "", False


def _search(reason: str) -> DefaultMethod:
    return DefaultMethod("eap-ig", f"no method was named: eap-ig, because {reason}")
