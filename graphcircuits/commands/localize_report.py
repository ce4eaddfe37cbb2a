"""What `graphcircuits localize` makes of a result: the circuit it proposes, and what it prints.

1. `conclude` takes the circuit that `proposal` proposes, or as many edges as were typed,
   how faithful it is, and what there is to say of the prompts.
2. `tell` prints that, for the eye or as JSON, and warns of a subject that gets the task wrong.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphcircuits.commands.output import print_json, print_table, say

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.commands.localize_inputs import Inputs
    from graphcircuits.evaluation.proposal import Proposal
    from graphcircuits.methods import Progress
    from graphcircuits.result.result import Result

ROWS = 20
"""Of the table, where nobody asked for more edges."""


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """A result, its circuit, and how good that is."""

    result: "Result"
    proposal: "Proposal"
    truth: "Circuit | None"
    auroc: float | None
    level: str
    n_pairs: int
    right: float | None
    """Share of the prompts that the subject answers rightly, where there are right answers."""
    rows: int
    """Of the table."""
    warnings: tuple[str, ...] = ()
    """Those among the notes of the result that must not be overlooked."""

    @property
    def circuit(self) -> "Circuit":
        return self.proposal.circuit


def conclude(
    result: "Result",
    inputs: "Inputs",
    *,
    edges: int | None,
    keep: float,
    level: str,
    drawn: int | None,
    kept: bool = False,
    progress: "Progress | None" = None,
) -> Conclusion:
    """The circuit of a result; `drawn` is the seed of the pairs, where one drew them.

    A result that is `kept` comes with its curve, for those who look at circuits of other sizes.
    """
    from dataclasses import replace

    from graphcircuits.evaluation.evaluate import auroc
    from graphcircuits.evaluation.proposal import LARGE, propose, recorded_curve
    from graphcircuits.task.accuracy import has_answers, share_right

    subject, pairs, truth = inputs.subject, inputs.pairs, inputs.truth
    n_edges, warned = result.graph.n_edges, []
    if edges is not None and edges > n_edges:
        warned.append(f"--edges {edges} is more than there are: the circuit has all {n_edges:,}")
    proposal = propose(
        result,
        subject,
        pairs,
        keep=keep,
        edges=None if edges is None else min(edges, n_edges),
        fresh=inputs.fresh,
        seed=drawn,
        progress=progress,
    )
    curve = proposal.curve
    # On a large graph the sizes that were tried must do.
    if kept and not proposal.problems and (curve is None or n_edges < LARGE):
        curve = recorded_curve(result, subject, pairs, size=proposal.best, seed=drawn)
    warned += proposal.warnings()
    notes = (*result.notes, *inputs.notes)
    return Conclusion(
        result=replace(result, curve=curve, chosen=proposal.circuit, notes=(*notes, *warned)),
        proposal=proposal,
        truth=truth,
        auroc=None if truth is None else auroc(result, truth, level),
        level=level,
        n_pairs=len(pairs),
        right=share_right(subject, pairs) if has_answers(pairs) else None,
        rows=proposal.best if edges is not None else min(ROWS, proposal.best),
        warnings=tuple(warned),
    )


def tell(found: Conclusion, *, as_json: bool) -> None:
    """Print a conclusion."""
    from graphcircuits.task.accuracy import LEAST_RIGHT, wrong_text

    if as_json:
        print_json(_record(found))
    else:
        _show(found)
    for text in found.warnings:
        say(f"warning: {text}", err=True)
    if found.right is not None and found.right < LEAST_RIGHT:
        say(f"warning: {wrong_text(found.right, found.n_pairs)}", err=True)


def _record(found: Conclusion) -> dict[str, Any]:
    """All there is to know, as JSON values."""
    result = found.result
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
        "pairs": found.n_pairs,
        "seconds": result.seconds,
        "right": found.right,
        "auroc": found.auroc,
        "level": found.level,
        "faithfulness": found.proposal.record(),
        "circuit": list(found.circuit),
        "ranking": ranking,
    }


def _show(found: Conclusion) -> None:
    """Print the best edges and what there is to say of them."""
    result, circuit, truth = found.result, found.circuit, found.truth
    say(f"{result.subject}: {result.task}" if result.task else result.subject)
    say(f"{result.method}, {found.n_pairs} pairs, seed {result.seed}, {result.seconds:.2f} s")
    for note in result.notes:
        if note not in found.warnings:
            say(note)
    if found.right is not None:
        say(f"the subject is right on {found.right:.0%} of the prompts")
    rows, likely = [], result.top_probabilities(found.rows)
    for place, (edge, score) in enumerate(result.top(found.rows)):
        rows.append([str(place + 1), edge, f"{score:.4g}"])
        if likely is not None:
            rows[-1].append(f"{likely[place]:.0%}")
        if truth is not None:
            rows[-1].append("yes" if edge in truth else "")
    marks = [] if likely is None else ["probability"]
    marks += [] if truth is None else ["in the true circuit"]
    print_table(["rank", "edge", "score", *marks], rows)
    if found.rows < found.proposal.best:
        say(f"... and {found.proposal.best - found.rows:,} more, which --json and --out give")
    for sentence in found.proposal.sentences():
        say(sentence)
    if truth is not None:
        true_edges = len(circuit & truth.on(result.graph))
        say(f"{true_edges} of the {len(truth)} true edges are among them")
        say(f"AUROC {found.auroc:.4f} ({found.level} level)")
