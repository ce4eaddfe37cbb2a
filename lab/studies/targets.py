"""Scores found case by case, for the objective `distill`: what a predictor is to give at once.

1. Subjects of one architecture are stacked, and the scores of all of them are refined together,
   from the prior of the predictor: Adam on the objective `faithfulness`, with a learning rate that
   falls to zero.
2. Scores are kept where they lowered CMD on the prompts that they were found on, and otherwise the
   prior is.

python -m lab.studies targets --out targets.safetensors --corpus DIR[,DIR]
    [--language DIR] [--config FILE] [--steps 100] [--lr 0.1] [--device cuda] [--processes 8]
"""

import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.stack import Stack
from graphcircuits.io.config import load_config
from graphcircuits.jobs.runner import runner_of
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.training.batches import ExampleGroup, grouped
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, mixed_seed, read, save_targets
from graphcircuits.training.objectives import faithfulness_loss
from graphcircuits.training.sources import corpus_sources, language_sources
from lab.programs import parser

log = logging.getLogger(__name__)

STEPS = 100
RATE = 0.1
BASE = TrainConfig(predictor=PredictorConfig(), faithfulness_weight=1.0, views=1, rows=0)


def find_targets(
    examples: Sequence[Example],
    config: TrainConfig,
    *,
    steps: int = STEPS,
    lr: float = RATE,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Float[Tensor, " edge"]]:
    """Refined scores by the id of their example; of several views the first counts."""
    first = {example.case: example for example in reversed(examples)}
    if any(x.item is None or x.reading.prior is None for x in first.values()):
        raise ValueError("scores are refined from a prior and by running subjects; read both.")
    found: dict[str, Tensor] = {}
    for group in grouped(list(first.values()), config.predictor, device):
        limit = group.at_once(config.masks, config.rows, grad=True)
        for begin in range(0, len(group), limit):
            index = range(begin, min(begin + limit, len(group)))
            stack, start = group.stack_of(index), _priors(group, index).to(device)
            assert stack is not None
            scores = _refined(stack, start, config, steps, lr, mixed_seed(seed, begin))
            better = stack.cmd(scores) < stack.cmd(start)
            kept = torch.where(better[:, None], scores, start).cpu()
            found |= {group.examples[n].case: x for n, x in zip(index, kept, strict=True)}
    return found


def _priors(group: ExampleGroup, index: Sequence[int]) -> Float[Tensor, "subject edge"]:
    priors = [group.examples[place].reading.prior for place in index]
    return torch.stack([prior for prior in priors if prior is not None])


def _refined(
    stack: Stack,
    start: Float[Tensor, "subject edge"],
    config: TrainConfig,
    steps: int,
    lr: float,
    seed: int,
) -> Float[Tensor, "subject edge"]:
    """Scores after some steps; each subject has a loss of its own, so Adam does not mix them."""
    scores = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([scores], lr=lr)
    generator = torch.Generator(start.device).manual_seed(seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        loss = faithfulness_loss(scores, stack, config, generator)
        loss.backward()
        optimizer.step()
    return scores.detach()


def main(arguments: Sequence[str]) -> None:
    words = parser("lab.studies targets", __doc__)
    words.add_argument("--out", type=Path, required=True, help="where to write the scores")
    words.add_argument("--corpus", default="", help="folders of subjects, with commas between")
    words.add_argument("--language", default="", help="folders of language models")
    words.add_argument("--config", type=Path, help="TOML file of the training's settings")
    words.add_argument("--steps", type=int, default=STEPS)
    words.add_argument("--lr", type=float, default=RATE)
    words.add_argument("--device", default="cpu")
    words.add_argument("--processes", type=int, default=1, help="processes that read subjects")
    given = words.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = BASE if given.config is None else load_config(TrainConfig, given.config)
    sources = [x for place in given.corpus.split(",") if place for x in corpus_sources(place)]
    sources += [x for place in given.language.split(",") if place for x in language_sources(place)]
    if not sources:
        raise SystemExit("give folders of subjects by --corpus or --language")
    result = read(sources, replace(config, views=1), runner=runner_of(given.processes))
    for id, why in result.left_out.items():
        log.warning("left out: %s: %s", id, why)
    own = {"steps": given.steps, "lr": given.lr, "device": given.device}
    found = find_targets(result.examples, config, **own)
    save_targets(given.out, found)
    sys.stdout.write(f"wrote {given.out}: scores of {len(found)} tasks\n")
