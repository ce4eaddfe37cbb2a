"""What `graphcircuits localize` makes of a result: the circuit it proposes, and what it prints.

1. `conclude` settles how many edges the circuit has: what was typed, else those more likely in it
   than not, where the method gives probabilities, else where the method's scores draw the line,
   else a fixed number where the true circuit is known to compare with, and where none is, as few
   as keep most of the behaviour. It measures how faithful the circuit is, on the pairs that it was
   found on and on fresh ones.
2. `tell` prints that, for the eye or as JSON, and warns of a subject that gets the task wrong.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphcircuits.commands.output import print_json, print_table, say

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.compare.proposal import Proposal
    from graphcircuits.result import Result
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

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

    @property
    def circuit(self) -> "Circuit":
        return self.proposal.circuit


def conclude(
    result: "Result",
    subject: "Transformer",
    pairs: "Pairs",
    *,
    edges: int | None,
    truth: "Circuit | None",
    level: str,
    fresh: "Pairs | None",
    drawn: int | None,
    kept: bool = False,
) -> Conclusion:
    """The circuit of a result; `drawn` is the seed of the pairs, where one drew them.

    A result that is `kept` comes with its curve, for those who look at circuits of other sizes.
    """
    from dataclasses import replace

    from graphcircuits.compare.evaluate import auroc
    from graphcircuits.compare.proposal import propose, recorded_curve
    from graphcircuits.task.accuracy import has_answers, share_right

    size = _size(result, edges, known=truth is not None)
    proposal = propose(result, subject, pairs, edges=size, fresh=fresh, seed=drawn)
    curve = proposal.curve
    if kept and curve is None and not proposal.problems:
        size = len(proposal.circuit)
        curve = recorded_curve(result, subject, pairs, size=size, seed=drawn)
    return Conclusion(
        result=replace(result, curve=curve),
        proposal=proposal,
        truth=truth,
        auroc=None if truth is None else auroc(result, truth, level),
        level=level,
        n_pairs=len(pairs),
        right=share_right(subject, pairs) if has_answers(pairs) else None,
        rows=len(proposal.circuit) if edges is not None else min(ROWS, len(proposal.circuit)),
    )


def _size(result: "Result", edges: int | None, *, known: bool) -> int | None:
    """How many edges the circuit gets, at least one, at most all; None leaves it open."""
    from graphcircuits.compare.proposal import EDGES
    from graphcircuits.methods import find_method

    if edges is None and result.probabilities is not None:
        edges = int((result.probabilities > 0.5).sum())
    if edges is None:
        line = find_method(result.method).threshold
        if line is None and not known:
            return None
        edges = EDGES if line is None else int((result.scores > line).sum())
    return max(1, min(edges, result.graph.n_edges))


def tell(found: Conclusion, *, as_json: bool) -> None:
    """Print a conclusion."""
    from graphcircuits.task.accuracy import LEAST_RIGHT, wrong_text

    if as_json:
        print_json(_record(found))
    else:
        _show(found)
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
    if found.rows < len(circuit):
        say(f"... and {len(circuit) - found.rows:,} more, which --json and --out give")
    say(f"{len(circuit):,} of {result.graph.n_edges:,} edges in the circuit")
    for sentence in found.proposal.sentences():
        say(sentence)
    if truth is not None:
        true_edges = len(circuit & truth.on(result.graph))
        say(f"{true_edges} of the {len(truth)} true edges are among them")
        say(f"AUROC {found.auroc:.4f} ({found.level} level)")
