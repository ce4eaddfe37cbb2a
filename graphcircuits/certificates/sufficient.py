"""Is the circuit enough? What it keeps on fresh prompts when all other edges are cut.

The answer is faithfulness by output with cut edges carrying corrupted values. Beside it stand the
loss of the pairs, which a circuit can win at without doing the job, the share of right answers, and
the same by output with other values on the edges that are cut: means, zeros, and the values of
other prompts' corruption, where the prompts are of one shape.
"""

from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from graphcircuits.certificates.certificate import Line
from graphcircuits.certificates.judging import Judge
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.evaluation.proposal import resampled_interval
from graphcircuits.task.accuracy import has_answers, wrong_answers
from graphcircuits.task.pairs import Pairs


def sufficient(judge: Judge, pairs: Pairs, circuit: Circuit, least: float) -> Line:
    """Whether the circuit keeps at least so much, nineteen times of twenty."""
    runs = judge.runs
    value, interval = _figure(runs, circuit)
    others = {
        "by loss": CircuitRuns(runs.subject, pairs, by="loss"),
        "mean ablation": CircuitRuns(runs.subject, pairs, "mean"),
        "zero ablation": CircuitRuns(runs.subject, pairs, "zero"),
    }
    if (other := other_corruption(pairs)) is not None:
        others["other corruption"] = CircuitRuns(runs.subject, other)
    details: dict[str, Any] = {}
    for name, some in others.items():
        judge.clock.check()
        try:
            one, ends = _figure(some, circuit)
            details[name] = {"value": one, "interval": ends and list(ends)}
        except ValueError as error:
            details[name] = {"value": None, "why": str(error)}
    if has_answers(pairs):
        details["accuracy"] = _accuracy(runs.subject, pairs, circuit)
    low = value if interval is None else interval[0]
    told = f"keeps {value:.2f} of the subject's output on {len(pairs)} fresh prompts"
    if "accuracy" in details:
        told += "; right on {circuit:.0%} of them, the subject on {subject:.0%}".format(
            **details["accuracy"]
        )
    few = interval is None
    return Line(
        name="sufficient",
        passed=low >= least and not few,
        value=value,
        interval=interval,
        asked=f"interval from {least:g} up",
        sentence=told + ("; too few prompts to be sure of anything" if few else ""),
        details=details,
    )


def _figure(runs: CircuitRuns, circuit: Circuit) -> tuple[float, tuple[float, float] | None]:
    (value,) = runs([circuit])
    return value, resampled_interval(runs.losses([circuit]))


def other_corruption(pairs: Pairs) -> Pairs | None:
    """Every clean prompt beside the corrupted one of another pair; None where scored positions
    differ, so that prompts may not be of one shape."""
    if len(pairs) < 4 or not (pairs.scored == pairs.scored[:1]).all():
        return None
    return replace(pairs, corrupted=pairs.corrupted.roll(1, 0))


def _accuracy(subject: Any, pairs: Pairs, circuit: Circuit) -> dict[str, float]:
    """The share of prompts with the right answer: under the circuit, and of the subject."""

    def wrong(logits: Tensor, some: Pairs) -> Float[Tensor, " prompt"]:
        return wrong_answers(logits, replace(some, loss_name=pairs.loss_name))

    runs = CircuitRuns(subject, replace(pairs, loss_name=wrong), by="loss")
    _, clean, under = (1 - runs.losses([circuit])).mean(1).tolist()
    return {"circuit": under, "subject": clean}
