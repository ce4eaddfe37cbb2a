"""How good a predictor is on examples that it did not learn from.

Scores are those that `localize` uses: the mean logit of the members, by the best path of each edge.

1. AUROC at the q/k/v level, as in the paper, and at head level, where the circuit is known.
2. CMD over log-spaced sizes, on prompts that the predictor has not read, where there is a subject
   to run.

Readings of one case are averaged. `search_figures` are those of another method on the same prompts.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.stack import MASKS_AT_ONCE, Stack
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.methods import METHODS
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.model import Predictor
from graphcircuits.predictor.paths import along_paths
from graphcircuits.training.batches import ExampleGroup, grouped, scores_of
from graphcircuits.training.data import Example

LEVELS = ("qkv", "head")


@torch.no_grad()
def figures_of(
    members: Sequence[Predictor], groups: Sequence[ExampleGroup]
) -> dict[str, dict[str, float]]:
    """The figures of each case, by their names (qkv, head and cmd), from groups made once."""
    for member in members:
        member.eval()
    by_case: dict[str, dict[str, list[float]]] = {}
    for group in groups:
        limit = group.at_once(MASKS_AT_ONCE, grad=False)
        for start in range(0, len(group), limit):
            index = range(start, min(start + limit, len(group)))
            scores = _mean_scores(members, group.readings(index))
            if members[0].config.paths:
                scores = _by_paths(scores, [group.examples[number] for number in index])
            stack = group.stack_of(index)
            areas = None if stack is None else stack.cmd(scores).tolist()
            for row, number in enumerate(index):
                example = group.examples[number]
                figures = by_case.setdefault(example.case, {})
                if example.circuit is not None:
                    values = scores[row].cpu().double()
                    for level in LEVELS:
                        area = auroc(values, example.circuit, level)
                        figures.setdefault(level, []).append(area)
                if areas is not None:
                    figures.setdefault("cmd", []).append(areas[row])
    return {case: {name: mean(x) for name, x in own.items()} for case, own in by_case.items()}


def _by_paths(
    scores: Float[Tensor, "case edge"], examples: Sequence[Example]
) -> Float[Tensor, "case edge"]:
    results = []
    for row, example in zip(scores, examples, strict=True):
        if example.reading.graph is None:
            raise ValueError(f"{example.case} does not say its graph, and scores go by its paths.")
        results.append(along_paths(row, example.reading.graph))
    return torch.stack(results)


def _mean_scores(
    members: Sequence[Predictor], readings: Sequence[Any]
) -> Float[Tensor, "case edge"]:
    """The mean logit of every edge; every reading draws as if it were alone."""
    by_member = []
    for member in members:
        alone = [scores_of(member, [x], torch.Generator().manual_seed(0)) for x in readings]
        by_member.append(torch.cat(alone))
    return torch.stack(by_member).mean(0)


def validate(
    predictor: Predictor | Ensemble, examples: Sequence[Example]
) -> dict[str, dict[str, float]]:
    """AUROC of each case at both levels where its circuit is known, and CMD where it can be run."""
    members = predictor.members if isinstance(predictor, Ensemble) else (predictor,)
    device = members[0].readout.weight.device
    return figures_of(members, grouped(examples, members[0].config, device))


def search_figures(
    examples: Sequence[Example],
    method: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    pairs: int,
    device: torch.device | str = "cpu",
) -> dict[str, dict[str, float]]:
    """The figures of each case by a search that sees the prompts that predictors read first."""
    by_case = {}
    for case, example in {example.case: example for example in reversed(examples)}.items():
        assert example.source is not None
        subject = example.subject()
        seen = example.source.pairs(subject, pairs, 0)
        scores = METHODS[method](subject.to(device), seen, **options)
        figures: dict[str, float] = {}
        if example.circuit is not None:
            figures = {x: auroc(scores.cpu().double(), example.circuit, x) for x in LEVELS}
        if example.item is not None:
            figures["cmd"] = float(Stack.of([example.item], device).cmd(scores[None].to(device))[0])
        by_case[case] = figures
    return by_case


def means(cases: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean over cases of each figure, of those that have it."""
    names = [name for name in (*LEVELS, "cmd") if any(name in own for own in cases.values())]
    return {name: mean(own[name] for own in cases.values() if name in own) for name in names}


def quality(cases: Mapping[str, Mapping[str, float]]) -> float | None:
    """What the best step is chosen by, larger is better: CMD where there is one, else AUROC."""
    overall = means(cases)
    return -overall["cmd"] if "cmd" in overall else overall.get("qkv")
