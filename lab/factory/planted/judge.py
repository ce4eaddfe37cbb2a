"""Whether each program is where it was planted, and what the model lost of text for it.

The weights are those that are stored, prompts and text are new. A case passes when behaviour, the
worst interchange, the worst strict share and the circuit alone, by output, all reach `ENOUGH`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from graphcircuits.cases.language import CallCase
from graphcircuits.evaluation.evaluate import faithfulness
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.verify import verify_fleet
from graphcircuits.subject.transformer import Transformer

ENOUGH = 0.97
MOST_LOST = 1.1
"""Perplexity on held-out text, over that of the twin."""
PAIRS, PAIR_SEED = 256, 10_000


def judge_calls(
    subject: Transformer,
    cases: Sequence[CallCase],
    unseen: Sequence[Exchange],
    generator: torch.Generator,
) -> dict[str, dict[str, Any]]:
    """By call: shares of right answers, the circuit alone by output, and whether it passes."""
    (verdicts,) = verify_fleet([subject], [unseen], generator)
    reports = {}
    for case, verdict in zip(cases, verdicts, strict=True):
        pairs = case.pairs(PAIRS, PAIR_SEED).to(generator.device)
        kept = faithfulness(subject, pairs, [case.circuit], by="output")
        report = {
            "accuracy": verdict.accuracy,
            "interchange": verdict.worst_interchange,
            "strict": verdict.worst_strict,
            "circuit": float(kept[0]),
            "circuit_accuracy": verdict.circuit,
        }
        reports[case.call.name] = report | {
            "edges": len(case.circuit),
            "passed": min(report[x] for x in ("accuracy", "interchange", "strict", "circuit"))
            >= ENOUGH,
        }
    return reports
