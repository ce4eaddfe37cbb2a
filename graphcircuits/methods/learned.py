"""Graph Circuit Learning: a trained predictor reads the circuit off in one pass.

A clean run of the subject, a corrupted one, and one between them with its backward pass give every
edge its features; the predictor turns them into scores. It was trained on many subjects: by their
circuits where these are known, else by how faithful the circuits are that it proposes. The shipped
ones are in `graphcircuits.methods.shipped`; `graphcircuits train` makes others.

No case that is recognized is scored by a predictor that was trained on it, or on one related to it:
`choose_predictor` takes a shipped one that was not, and any other is refused. `corpus.recognize`
says how a case is recognized, and what is not.

`predict` gives all that a predictor says: scores and, where its file holds what it takes, the
probabilities that they stand for, and whether the case is like those of the training. `finding`
puts the latter into words; a case that is not like them is a `BeyondTraining` warning.

`gcl` is our system. `gcl_paper` is the paper's own: its aligner, its graph learner and the logits
as they are, without a search to start from, paths, trust or probabilities (docs/predictor.md). Its
predictors are `paper/default` and `paper/fold-0` to `paper/fold-4`, kept from cases
as ours are.

`gcl_blind` and `gcl_paper_blind` are floors: the same predictors, blind to all that is measured of
a case. What they reach, the shape of the graph and the kinds of its components give by themselves.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.cases.case import DEFAULT_LABELS
from graphcircuits.cases.multitask import multi_records
from graphcircuits.cases.recognize import case_of, planted_case
from graphcircuits.methods.method import Finding, KnownMethod, Options
from graphcircuits.methods.prepare import placed
from graphcircuits.methods.shipped import (
    PAPER,
    SHIPPED,
    blind_to,
    find_ensemble,
    kind_of,
    seen_related,
)
from graphcircuits.predictor.ensemble import Ensemble, Prediction, blinded
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

LEAST_TRUST = 0.1
"""The share of the correction that must count for probabilities to be said: with less, scores are
those of a search, and nobody measured what these mean on a model that the network does not know."""


class BeyondTraining(UserWarning):
    """The case is not like those that the predictor was trained on."""


def gcl(
    subject: Transformer,
    pairs: Pairs,
    *,
    predictor: str | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " edge"]:
    """The predictor's logit of every edge: above 0 where it holds the edge for likely.

    `predictor` is `default`, `fold-0` to `fold-4` (trained without the cases of a fold), or a file
    that `graphcircuits train` wrote; None takes `default`, or the fold that is blind to the case.
    `generator` draws the contexts of predictors that look at single ones; without it the seed is 0.
    """
    generator = generator or torch.Generator().manual_seed(0)
    return predict(subject, pairs, predictor, generator=generator).logits


def gcl_paper(
    subject: Transformer,
    pairs: Pairs,
    *,
    predictor: str | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " edge"]:
    """The logit of every edge by the paper's own system; larger means more likely in the circuit.

    `predictor` and `generator` as in `gcl`; a file must hold a predictor with the paper's aligner.
    """
    generator = generator or torch.Generator().manual_seed(0)
    return predict(subject, pairs, predictor, generator=generator, system=PAPER).logits


def gcl_blind(
    subject: Transformer,
    pairs: Pairs,
    *,
    predictor: str | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " edge"]:
    """The logits of `gcl` where every feature has the value that it has on average in training."""
    generator = generator or torch.Generator().manual_seed(0)
    return predict(subject, pairs, predictor, generator=generator, blind=True).logits


def gcl_paper_blind(
    subject: Transformer,
    pairs: Pairs,
    *,
    predictor: str | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " edge"]:
    """The logits of `gcl_paper` where every feature is zero."""
    generator = generator or torch.Generator().manual_seed(0)
    return predict(subject, pairs, predictor, generator=generator, system=PAPER, blind=True).logits


def predict(
    subject: Transformer,
    pairs: Pairs,
    predictor: str | None,
    *,
    generator: torch.Generator,
    system: str = "",
    blind: bool = False,
) -> Prediction:
    """What the predictor says of a case, which is read once; the arguments are those of `gcl`.

    `system` is what the names of its shipped predictors begin with. With `blind` it does not see
    what was measured.
    """
    pairs = placed(subject, pairs)
    name = choose_predictor(subject, pairs, predictor, system)
    ensemble = find_ensemble(name)
    aligner = ensemble.config.aligner
    if system == PAPER and aligner != "tabpfn":
        raise ValueError(
            f"gcl-paper takes predictors with the aligner tabpfn, the paper's, and {name!r} has "
            f"{aligner}; that is one for gcl."
        )
    if pairs.needs_targets and (ensemble.config.share == 1 or aligner == "tabpfn"):
        raise ValueError(
            f"the predictor {name!r} reads the gradient of the loss at the clean run, but these "
            f"{pairs.loss_name} pairs have no targets of their own: their loss is the distance to "
            "that very run, and flat there; give the right answers as targets, or use eap-ig or "
            "exact."
        )
    _refuse_leak(name, ensemble, case_of(subject, pairs), system)
    ensemble = (blinded(ensemble) if blind else ensemble).to(subject.device)
    return ensemble.predict_case(subject, pairs, generator=generator, kind=kind_of(subject))


def finding(subject: Transformer, predictor: str, prediction: Prediction) -> Finding:
    """A prediction with what is to be said of it."""
    remarks: tuple[str | Warning, ...] = ()
    familiarity = prediction.familiarity
    if familiarity is not None and familiarity.known:
        remarks = (
            "the predictor knows cases like this one: it is at least as typical as "
            f"{familiarity.share:.0%} of the cases in the training",
        )
    elif familiarity is not None:
        unseen = find_ensemble(predictor).unseen(subject)
        words = f" (none of them had: {', '.join(unseen)})" if unseen else ""
        told = f"this case is not like those that the predictor was trained on{words}: "
        remarks = (BeyondTraining(f"{told}{familiarity.why()}"),)
    if prediction.trust < 0.5:
        remarks += (
            "gcl adds a correction by its network to the scores of a gradient search; here only "
            f"{prediction.trust:.0%} of the correction is added, because on other cases that look "
            "like this one it seldom helped",
        )
    remarks += _other_labels(subject, predictor)
    probabilities = prediction.probabilities
    known = familiarity is None or familiarity.known
    if probabilities is not None and not (known and prediction.trust >= LEAST_TRUST):
        probabilities = None
        remarks += ("gcl gives no probabilities here: they would mean nothing on such a model",)
    return Finding(prediction.logits, probabilities, remarks)


def _other_labels(subject: Transformer, predictor: str) -> tuple[str, ...]:
    """That the predictor learned from labels by which this circuit is another one, if so."""
    id = planted_case(subject)
    learned = DEFAULT_LABELS if id is None else find_ensemble(predictor).labels
    if id is None or id in multi_records() or learned == DEFAULT_LABELS:
        return ()
    truth, taught = (load_case(id).labels(x, subject.graph) for x in (DEFAULT_LABELS, learned))
    if truth == taught:
        return ()
    apart = ", ".join((truth - taught) | (taught - truth))
    return (
        f"the predictor learned from {learned} labels; the true circuit is given by "
        f"{DEFAULT_LABELS} labels, and differs in {apart}",
    )


def choose_predictor(
    subject: Transformer, pairs: Pairs, given: str | None = None, system: str = ""
) -> str:
    """The predictor that was named, or else a shipped one that is blind to the case."""
    if given is not None:
        return system + given if given in SHIPPED else given
    case = case_of(subject, pairs)
    return system + ("default" if case is None else blind_to(case))


def _refuse_leak(name: str, ensemble: Ensemble, case: str | None, system: str) -> None:
    if case is None:
        return
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


# What is known of it


def _fill(subject: Transformer, pairs: Pairs, options: Options) -> Options:
    return {**options, "predictor": choose_predictor(subject, pairs, options["predictor"])}


def _remarks(subject: Transformer, pairs: Pairs, options: Options) -> Iterator[str | Warning]:
    """Whether the predictor was trained without the case; if its file does not describe the
    training cases, which parts of the subject's architecture it has never met."""
    name = options["predictor"]
    case = case_of(subject, pairs)
    if case is not None and name.removeprefix(PAPER).startswith("fold-"):
        yield f"predictor {name}, which was trained without this case ({case})"
    ensemble = find_ensemble(name)
    unseen = ensemble.unseen(subject)
    if unseen and ensemble.known is None:
        yield BeyondTraining(
            f"beyond what the predictor was trained on: {', '.join(unseen)}; how good the scores "
            "are there has not been measured"
        )


def _find(
    subject: Transformer, pairs: Pairs, options: Options, generator: torch.Generator
) -> Finding:
    name = options["predictor"]
    return finding(subject, name, predict(subject, pairs, name, generator=generator))


def _files(options: Options) -> Iterator[str]:
    yield find_ensemble(options["predictor"]).sha256


def _fill_paper(subject: Transformer, pairs: Pairs, options: Options) -> Options:
    return {**options, "predictor": choose_predictor(subject, pairs, options["predictor"], PAPER)}


GCL = KnownMethod(run=gcl, threshold=0.0, fill=_fill, remarks=_remarks, find=_find, files=_files)
GCL_PAPER = KnownMethod(run=gcl_paper, fill=_fill_paper, remarks=_remarks, files=_files)
GCL_BLIND = KnownMethod(run=gcl_blind, fill=_fill, files=_files)
GCL_PAPER_BLIND = KnownMethod(run=gcl_paper_blind, fill=_fill_paper, files=_files)
