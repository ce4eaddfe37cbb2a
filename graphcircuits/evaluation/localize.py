"""From a subject and its pairs to a circuit: what `localize` and `refine` do for users.

They stand above the methods, because a circuit is chosen by running circuits, which methods know
nothing of.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphcircuits import methods
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.evaluation.proposal import KEEP, NO_CIRCUIT, SHORT, TOO_LARGE, Proposal, propose
from graphcircuits.methods import Method, Progress
from graphcircuits.methods.refine import STEPS, refinement
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import has_answers, share_right
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.stored import MOST_PAIRS


def localize(
    subject: Transformer,
    pairs: Pairs,
    method: str | Method | None = None,
    *,
    keep: float | None = KEEP,
    seed: int = 0,
    progress: Progress | None = None,
    keep_prompts: int = MOST_PAIRS,
    **options: Any,
) -> Result:
    """Score every edge of a subject by a method, and propose a circuit.

    Args:
        subject: The transformer: `load_case(id).subject()`, or `load_model(source)`.
        pairs: Clean and corrupted prompts, which say what the task is.
        method: A name of `METHODS`, or a function of a subject and pairs that returns one score per
            edge. Without one it is `gcl` on subjects like those on which it was measured to win and
            `eap-ig` on others; the notes of the result say which and why.
        keep: The share of the subject's own output that the proposed circuit keeps on the pairs,
            all other edges corrupted. None proposes no circuit, which saves tens of runs.
        seed: Seeds the method, where it draws anything.
        progress: Called with (steps done, steps in all) by methods that iterate.
        keep_prompts: How many pairs at most are stored with the result, for the page that shows it.
        options: Those of the method, such as `steps=10`, or `predictor=load_predictor(path)`.

    Returns:
        The result: `scores` ranks all edges, `circuit()` is the proposed circuit, the smallest that
        was found to keep enough: the best edges, the likely ones where probabilities are known,
        without those it does not need; with subject, task, method, options, seed and notes.

    Example:
        >>> import graphcircuits as gc
        >>> case = gc.load_case("ib-3")
        >>> result = gc.localize(case.subject(), case.pairs(64))
        >>> result.method, list(result.circuit()) == list(case.circuit)
        ('gcl', True)
        >>> list(gc.localize(case.subject(), case.pairs(64), "eap-ig").circuit())
        ['input->m0', 'm0->a1.h0<v>', 'a1.h0->logits']

    Reference: docs/methods.md for the methods, docs/evaluate.md for the proposed circuit.
    """
    chosen = methods.choose_method(subject, pairs, method, seed=seed, **options)
    result = chosen.run(progress=progress, keep_prompts=keep_prompts)
    return _with_proposal(subject, pairs, result, keep, chosen.kind)


def refine(
    subject: Transformer,
    pairs: Pairs,
    result: Result,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    keep: float | None = KEEP,
    progress: Progress | None = None,
    memory_limit: int | None = None,
) -> Result:
    """Improve a ranking by gradient steps on faithfulness on the pairs, and propose a circuit.

    Args:
        subject: The transformer that the result is of.
        pairs: The prompts to refine on, as a rule those of the result.
        result: Scores of any method; `Result(graph=subject.graph, scores=scores)` makes one of a
            tensor.
        steps: How many steps to take; 300 where neither steps nor seconds are given.
        seconds: How long to refine instead.
        keep: The share of the behaviour that the proposed circuit keeps; None proposes none.
        progress: Called with (steps done, steps in all); raising `methods.Stop` ends refining with
            what it has reached, as Ctrl-C does.
        memory_limit: Bytes that activations may take, where one mask on one prompt allows it.

    Returns:
        A result with the same scores in an order whose best edges are closer to faithful, or in
        the same order if no better one was found. Its options record how long it refined, its notes
        what was gained. It has no probabilities and signs: these belong to the scores before.

    Example:
        >>> import graphcircuits as gc
        >>> case = gc.load_case("ib-3")
        >>> subject, pairs = case.subject("natural"), case.pairs(64)
        >>> result = gc.localize(subject, pairs, "eap-ig")
        >>> better = gc.refine(subject, pairs, result, steps=40)
        >>> better.curve.log_area < result.curve.log_area
        True

    Reference: docs/refine.md.
    """
    if not (isinstance(subject, Transformer) and isinstance(pairs, Pairs)):
        raise TypeError(
            "call refine(subject, pairs, result, steps=...): a Transformer, Pairs and a Result, "
            f"got {type(subject).__name__}, {type(pairs).__name__} and {type(result).__name__}."
        )
    if not isinstance(result, Result):
        raise TypeError(
            f"refine takes and returns a Result, got {type(result).__name__}: give scores as "
            "Result(graph=subject.graph, scores=scores), and take .scores of what comes back."
        )
    if result.graph != subject.graph:
        raise ValueError(f"the result is of {result.graph}, but the subject has {subject.graph}.")
    start = time.perf_counter()
    outcome = refinement(
        subject,
        pairs,
        result.scores,
        steps=steps,
        seconds=seconds,
        generator=torch.Generator().manual_seed(result.seed or 0),
        progress=progress,
        memory_limit=memory_limit,
    )
    length = {"refine_seconds": seconds} if steps is None else {"refine_steps": steps}
    if steps is None and seconds is None:
        length = {"refine_steps": STEPS}
    # What was said of the circuit before is not about the new one.
    notes = [note for note in result.notes if not note.startswith((NO_CIRCUIT, SHORT, TOO_LARGE))]
    better = replace(
        result,
        scores=outcome.scores,
        options={**result.options, **length},
        seconds=(result.seconds or 0.0) + time.perf_counter() - start,
        notes=(*notes, outcome.describe()),
        chosen=None,
        curve=None,
        probabilities=None,
        signed=None,
    )
    return _with_proposal(subject, pairs, better, keep)


def _with_proposal(
    subject: Transformer, pairs: Pairs, result: Result, keep: float | None, kind: str | None = None
) -> Result:
    if keep is None:
        return result
    proposal = propose(subject, pairs, result, keep=keep, kind=kind)
    notes = [f"{NO_CIRCUIT}{one}" for one in proposal.problems]
    return replace(
        result,
        chosen=None if proposal.problems else proposal.circuit,
        curve=proposal.curve,
        notes=(*result.notes, *notes, *proposal.warnings()),
    )


# What the command prints


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """A result with its circuit, and how good that is."""

    result: Result
    proposal: Proposal
    truth: Circuit | None
    auroc: float | None
    level: str
    n_pairs: int
    right: float | None
    """Share of the prompts that the subject answers rightly, where there are right answers."""
    warnings: tuple[str, ...] = ()
    """Those among the notes of the result that must not be overlooked."""

    def record(self) -> dict[str, Any]:
        """All there is to know, as JSON values."""
        result = self.result
        every = result.graph.n_edges
        ranking = [{"edge": edge, "score": score} for edge, score in result.top(every)]
        for row, probability in zip(ranking, result.top_probabilities(every) or (), strict=False):
            row["probability"] = probability
        return {
            "subject": result.subject,
            "task": result.task,
            "method": result.method,
            "options": dict(result.options),
            "notes": list(result.notes),
            "seed": result.seed,
            "pairs": self.n_pairs,
            "seconds": result.seconds,
            "right": self.right,
            "auroc": self.auroc,
            "level": self.level,
            "faithfulness": self.proposal.record(),
            "circuit": list(self.proposal.circuit),
            "ranking": ranking,
        }


def conclude(
    subject: Transformer,
    pairs: Pairs,
    result: Result,
    *,
    fresh: Pairs | None,
    truth: Circuit | None,
    edges: int | None,
    keep: float,
    level: str,
    seed: int | None,
    with_curve: bool,
    kind: str | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Conclusion:
    """The circuit of a result, of `edges` edges or as many as `keep` takes, and how good it is.

    `seed` is what drew the pairs, where one did; `kind` what predictors call the subject, where
    that was found out already; `notes` are about them. With `with_curve` a result
    whose number of edges is given comes with the faithfulness of other sizes too.
    """
    n_edges, warned = result.graph.n_edges, []
    if edges is not None and edges > n_edges:
        warned.append(f"--edges {edges} is more than there are: the circuit has all {n_edges:,}")
    proposal = propose(
        subject,
        pairs,
        result,
        keep=keep,
        edges=None if edges is None else min(edges, n_edges),
        fresh=fresh,
        with_curve=with_curve,
        seed=seed,
        kind=kind,
        progress=progress,
    )
    warned += proposal.warnings()
    notes = (*result.notes, *notes, *warned)
    return Conclusion(
        result=replace(result, curve=proposal.curve, chosen=proposal.circuit, notes=notes),
        proposal=proposal,
        truth=truth,
        auroc=None if truth is None else auroc(result, truth, level),
        level=level,
        n_pairs=len(pairs),
        right=share_right(subject, pairs) if has_answers(pairs) else None,
        warnings=tuple(warned),
    )
