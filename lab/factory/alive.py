"""Is the rest of a model with several tasks alive, when the circuit asked for is that of one?

1. For every task and every component, corrupt all that the component writes with values of another
   input of the same task: which components does the task need?
2. Of the components outside a task's circuit, how many does another task need? Those are what makes
   the model unlike one with a single circuit: they compute, on the same prompts, for nothing.
3. Let layer 0, which belongs to no circuit, write what it does under another task's token: how many
   answers stay right? If few, that is where the model reads its task.

    python -m lab.factory alive [MODEL ...] [--subjects DIR]
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from graphcircuits.cases.multitask import MultiCase, load_multi, multi_ids
from graphcircuits.cases.orders import Order, shipped_path
from graphcircuits.engine.masked import masked_logits
from graphcircuits.subject.files import load_transformer
from graphcircuits.subject.transformer import Transformer
from lab.factory.audit import BROKEN, PAIRS, right_shares
from lab.programs import parser


@dataclass(frozen=True, kw_only=True)
class Vitality:
    """Per task, the shares of right answers under interventions outside its circuit."""

    model: str
    plain: dict[str, float]
    without: dict[str, dict[str, float]]
    """By task and component: with all that the component writes corrupted."""
    circuits: dict[str, frozenset[str]]
    """By task: the components of its circuit."""
    misled: dict[str, float]
    """By task: with layer 0 as it is under the token of another task; the mean over those."""

    def needed(self, task: str) -> frozenset[str]:
        """The components that the task cannot do without."""
        least = self.plain[task] - BROKEN
        return frozenset(name for name, share in self.without[task].items() if share <= least)

    def summary(self) -> dict[str, Any]:
        """Means over tasks: components outside the circuit, how many of them another task needs and
        how many this one does, and answers kept when layer 0 reads another task."""
        outside = {task: self.without[task].keys() - own for task, own in self.circuits.items()}
        others = {
            task: frozenset().union(*(self.needed(other) for other in outside if other != task))
            for task in outside
        }
        return {
            "model": self.model,
            "tasks": len(outside),
            "outside": mean(len(names) for names in outside.values()),
            "outside_needed_by_another": mean(len(outside[t] & others[t]) for t in outside),
            "outside_needed_by_itself": mean(len(outside[t] & self.needed(t)) for t in outside),
            "answers_with_layer_0_of_another": round(mean(self.misled.values()), 3),
        }


@torch.no_grad()
def vitality(model: MultiCase, subject: Transformer, seed: int = 12345) -> Vitality:
    """What every task of a model needs, and where it is told which task it is."""
    graph, codec = subject.graph, model.codec
    names = graph.writer_names[1:]
    ones = torch.ones(1, graph.n_edges, dtype=torch.bool)
    single = torch.stack([graph.edge_writers != place for place in range(1, graph.n_writers)])
    masks = torch.cat([ones, single]).to(subject.dtype)
    first = [name.partition(".")[0] in ("a0", "m0") for name in graph.writer_names]
    above = ~torch.tensor(first)[graph.edge_writers][None]
    plain, without, misled = {}, {}, {}
    for task in model.tasks:
        pairs = task.pairs(PAIRS, seed=seed)
        corrupted = subject.run(pairs.corrupted).writers
        logits = masked_logits(subject, pairs.clean, masks, corrupted)
        name, (whole, *parts) = task.task_token, right_shares(logits, pairs, task.categorical)
        plain[name] = whole.item()
        without[name] = {part: share.item() for part, share in zip(names, parts, strict=True)}
        kept = []
        for other in model.names:
            if other != name:
                told = pairs.clean.clone()
                told[:, 0] = codec.first(other)
                given = subject.run(told).writers
                logits = masked_logits(subject, pairs.clean, above.to(subject.dtype), given)
                kept.append(right_shares(logits, pairs, task.categorical).item())
        misled[name] = mean(kept)
    circuits = {
        task.task_token: frozenset(part.name for part in task.layout.components)
        for task in model.tasks
    }
    return Vitality(model=model.id, plain=plain, without=without, circuits=circuits, misled=misled)


def main(arguments: Sequence[str]) -> None:
    words = parser("lab.factory alive", __doc__)
    words.add_argument("models", nargs="*", help="models such as mt-7; all that are there if none")
    words.add_argument("--subjects", type=Path, help="directory of a build; else what ships")
    options = words.parse_args(arguments)
    for id in options.models or multi_ids():
        path = options.subjects / f"{id}.safetensors" if options.subjects else None
        path = path or shipped_path(Order(id))
        if path.exists():
            found = vitality(load_multi(id), load_transformer(path).to(torch.float32))
            sys.stdout.write(json.dumps(found.summary()) + "\n")
