"""Rankings, and what becomes of them when they are refined: how small circuits by output are.

A row is a method, `METHOD[:NAME=VALUE,...]`, which may be refined, `METHOD@NAME=VALUE,...`: for
`steps` by the loop of this file, all of whose parts can be exchanged (the fields of `Trial`), or
for `seconds` by `refine` itself, whose defaults the fields of `Trial` have too.

Subjects are trained on their task alone, for programs that predictors and settings may learn from,
and kept in FOLDER: `chosen` are those that settings were chosen on, `fresh` others; MODEL#TASK is a
task of a language model (`python -m lab.factory language`). A circuit is found on `--pairs` pairs
and judged on 64 others: the mean of `log_area`, geometric means of `edges_for` .8, .9 and .95 (all
edges where a curve stays below), and what `edges_for` .9 is in the mean of those of `eap-ig` and of
the method before refining, with the interval that holds 95% over subjects (Student's t on logs).

python -m lab.benchmarks.refine FOLDER eap-ig ig-own:rate=0.5 eap-ig@steps=200,rate=0.2
python -m lab.benchmarks.refine FOLDER --subjects fresh eap-ig@seconds=1 eap-ig@seconds=10
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import geometric_mean, mean

import numpy as np
import torch
from torch import Tensor

from graphcircuits import load_model, tasks
from graphcircuits.cases import load_case
from graphcircuits.commands.options import method_options
from graphcircuits.engine.relaxed import ranks, stratified
from graphcircuits.evaluation.evaluate import CROSSINGS, faithfulness_curve
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods import localize
from graphcircuits.methods.departure import Objective, Recipe
from graphcircuits.methods.prepare import prepare
from graphcircuits.methods.refine import rank_logits, refinement, sort_by_rank
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.benchmarks.language_models import draw

CHOSEN = {
    "ib-2": "plain",
    "ib-67": "llama",
    "tb-histogram": "gpt2",
    "new-count-distinct": "neox",
    "new-pointer-fixed-point": "llama-gqa",
    "tb-sum-with-next": "rms",
    "new-mirror-match-fraction": "plain",
    "new-sort-descending-gap": "rotary",
}
"""Cases of the pool and the architectures of their subjects: 82 to 761 edges."""
FRESH = {
    "ib-113": "llama",
    "tb-sort": "gpt2",
    "new-pointer-hop-2": "neox",
    "tb-count-less-freq": "rms",
    "new-occurrence-number": "rotary",
    "tb-swap-min-max": "plain",
    "new-induction-next-token": "llama-gqa",
    "tb-rank": "relu",
    "new-most-frequent-token": "llama",
    "new-argsort": "gpt2",
}
"""Others, on which no setting was chosen."""
QUARTERS = 4
"""Of the way, after each of which the ranking of a trial is judged."""
SEED, N_FRESH = 1000, 64
"""Of the prompts that circuits are judged on."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How a ranking is refined."""

    steps: int = 200
    seed: int = 0
    seconds: float = 0.0
    """By `refine` itself."""
    rule: str = "one"
    """The mean gradient over one scale for all edges, over that of each (`adam`), its `sign`."""
    unit: bool = True
    """Whether the gradient of every mask is divided by its own size."""
    rate: float = 0.1
    spread: float = 0.3
    last_spread: float = 0.0
    """To which it goes in equal ratios, unless 0."""
    masks: int = 4
    prompts: int = 16
    schedule: str = "linear"
    back: float = 0.0
    """How near to the threshold gradients reach values, if another than `spread`."""
    focus: float = 0.0
    """The share of masks whose size is near the crossing as it was at the last look."""
    low: float = 0.3
    high: float = 0.03
    """Between what departures that is."""
    restart: bool = False
    """Whether each quarter of the way begins at the best ranking so far."""
    judge: str = "area"
    """What is best: of the least `area`, or the `last`."""
    paths: bool = False
    """Whether edges count along paths in the end."""
    eliminate: int = 0
    """Rounds of removing edges from the circuit at the crossing, and ranking them behind."""
    exact: bool = False
    """Whether by measured removals instead of the gradient."""
    margin: float = 1.5
    """How much larger than at the crossing the circuit is from which edges are removed."""
    down: float = 4.0
    """How many times smaller than that it is in the end."""


@dataclass(frozen=True)
class Row:
    """Of one subject."""

    area: float
    edges: tuple[int, ...]
    seconds: float
    steps: int = 0


class Refining:
    """The steps of a trial."""

    def __init__(self, objective: Objective, start: Tensor, trial: Trial) -> None:
        self.objective, self.trial = objective, trial
        self.values = rank_logits(start)
        self.generator = torch.Generator().manual_seed(trial.seed)
        self.first, self.second = torch.zeros_like(start), torch.zeros_like(start)
        self.best, self.area = self.values.clone(), math.inf
        self.band = (0.0, math.log(len(start)))

    def run(self) -> Tensor:
        steps = self.trial.steps
        for step in range(steps):
            if step % max(1, steps // QUARTERS) == 0:
                self.look()
            self.step(step, step / steps)
        self.look()
        found = self.values if self.trial.judge == "last" else self.best
        if self.trial.eliminate:
            found = self.eliminated(found)
        return along_paths(rank_logits(found), self.graph) if self.trial.paths else found

    @property
    def graph(self) -> ComponentGraph:
        return self.objective.subject.graph

    def errors(self, values: Tensor, sizes: Tensor, rows: Tensor) -> Tensor:
        with torch.no_grad():
            masks = (ranks(values) < sizes[:, None]).to(values)
            return self.objective.departures(masks, rows, rows).clamp(0, 1)

    def look(self) -> None:
        objective = self.objective
        area = objective.judge(self.values)[0]
        if area < self.area:
            self.area, self.best = area, self.values.clone()
        elif self.trial.restart:
            self.values = self.best.clone()
        if self.trial.focus:
            errors = self.errors(self.values, objective.sizes, objective.judges)
            x = objective.sizes.double().log()
            above = [int((errors > t).nonzero().max()) for t in (self.trial.low, self.trial.high)]
            lower, upper = float(x[above[0]]), float(x[min(above[1] + 1, len(x) - 1)])
            self.band = (lower, upper)

    def sizes(self) -> Tensor:
        n_masks = self.trial.masks
        near = round(self.trial.focus * n_masks)
        n = len(self.values)
        parts = []
        for count, (low, high) in ((n_masks - near, (0.0, math.log(n))), (near, self.band)):
            uniform = torch.rand(count, generator=self.generator, dtype=torch.float64)
            parts.append((low + (high - low) * stratified(uniform)).exp().long())
        return torch.cat(parts).clamp(1, n - 1)

    def step(self, step: int, share: float) -> None:
        trial, objective = self.trial, self.objective
        spread = trial.spread
        if trial.last_spread:
            spread *= (trial.last_spread / spread) ** share
        rows, partners = objective.prompts_for_step(self.generator)
        best = self.values.sort(descending=True).values
        last = self.sizes() - 1
        thresholds = (best[last] + best[last + 1]) / 2
        above = ((self.values - thresholds[:, None]) / spread).requires_grad_()
        masks = objective.recipe.gates(above, self.generator)
        _, by_mask = objective.losses.gradients(masks, rows, partners)
        if trial.back:
            above = above.detach() * spread / trial.back
            slopes = by_mask * above.sigmoid() * (1 - above.sigmoid())
        else:
            (slopes,) = torch.autograd.grad(masks, above, by_mask)
        with torch.no_grad():
            if trial.unit:
                near = 4 * (above.sigmoid() * (1 - above.sigmoid())).sum(-1)
                unit = (slopes.square().sum(-1) / near.clamp(min=1)).sqrt()
                slopes = slopes / unit.clamp(min=1e-30)[:, None]
            gradient = slopes.sum(0)
            self.move(gradient, step + 1, trial.rate * fall(trial.schedule, share))

    def move(self, gradient: Tensor, step: int, rate: float) -> None:
        self.first.mul_(0.9).add_(gradient, alpha=0.1)
        square = gradient.square()
        square = square if self.trial.rule == "adam" else square.mean().expand_as(square)
        self.second.mul_(0.999).add_(square, alpha=0.001)
        along = self.first / (1 - 0.9**step)
        if self.trial.rule == "sign":
            along = along.sign()
        else:
            along = along / (self.second / (1 - 0.999**step)).sqrt().clamp(min=1e-30)
        self.values = self.values - rate * along

    def eliminated(self, values: Tensor) -> Tensor:
        """Backward elimination from a circuit larger than what it takes at the crossing."""
        objective, trial = self.objective, self.trial
        rows = torch.arange(len(objective.pairs))
        errors = self.errors(values, objective.sizes, objective.judges)
        enough = int((errors > 0.1).nonzero().max()) + 1
        crossing = int(objective.sizes[min(enough, len(errors) - 1)])
        size = min(len(values) - 1, int(trial.margin * crossing))
        order = values.argsort(descending=True)
        kept, removed = order[:size], [order[size:]]
        counts = np.geomspace(size, max(1, size / trial.down), trial.eliminate + 1)[1:]
        for n_left in counts.round().astype(int).tolist():
            if n_left >= len(kept):
                continue
            mask = torch.zeros_like(values)
            mask[kept] = 1
            if trial.exact:
                masks = mask.repeat(len(kept), 1)
                masks[torch.arange(len(kept)), kept] = 0
                with torch.no_grad():
                    cost = torch.cat(
                        [objective.departures(some, rows, rows) for some in masks.split(16)]
                    )
            else:
                _, by_mask = objective.losses.gradients(mask[None], rows, rows)
                cost = -by_mask[0, kept]
            by_cost = kept[cost.argsort(descending=True, stable=True)]
            kept, gone = by_cost[:n_left], by_cost[n_left:]
            kept = kept[values[kept].argsort(descending=True)]
            removed.insert(0, gone)
        found = torch.empty_like(values)
        found[torch.cat([kept, *removed])] = values.sort(descending=True).values
        return found if objective.judge(found)[0] < objective.judge(values)[0] else values


def fall(schedule: str, share: float) -> float:
    """The learning rate, as a share of the first."""
    return (1 + math.cos(math.pi * share)) / 2 if schedule == "cosine" else 1 - share


# Subjects and rows


@cache
def subject_and_pairs(folder: Path, id: str, n_pairs: int) -> tuple[Transformer, Pairs, Pairs]:
    """A subject, trained if the folder has none; pairs to find circuits on, and others."""
    if "#" in id:
        model, task = id.split("#")
        subject = load_model(model)
        found, fresh = draw(tasks.find(task), subject.tokenizer, N_FRESH, 0)
        return subject, found[:n_pairs], fresh
    architecture = (CHOSEN | FRESH)[id]
    path = folder / f"{id}.{architecture}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_transformer(path, load_case(id).train("natural", architecture, steps=4000).subject)
    case = load_case(id)
    return load_transformer(path), case.pairs(n_pairs, seed=0), case.pairs(N_FRESH, seed=SEED)


@cache
def found(folder: Path, id: str, method: str, n_pairs: int) -> tuple[Tensor, float]:
    """The scores of a method, and the seconds that it took."""
    name, _, options = method.partition(":")
    subject, pairs, _ = subject_and_pairs(folder, id, n_pairs)
    given = method_options(name, options.split(",") if options else [])
    began = time.perf_counter()
    scores = localize(subject, pairs, name, keep_prompts=0, **given).scores
    return scores, time.perf_counter() - began


def refined(subject: Transformer, pairs: Pairs, scores: Tensor, trial: Trial) -> tuple[Tensor, int]:
    if trial.seconds:
        outcome = refinement(subject, pairs, scores, seconds=trial.seconds)
        return outcome.scores, outcome.steps
    ready = prepare(subject, pairs.by_output(subject.config.d_vocab_out))
    recipe = Recipe(masks=trial.masks, prompts=trial.prompts)
    objective = Objective.of(subject, ready, recipe, None)
    return sort_by_rank(scores, Refining(objective, scores, trial).run()), trial.steps


@cache
def measured(folder: Path, id: str, row: str, n_pairs: int) -> Row:
    method, _, options = row.partition("@")
    subject, pairs, fresh = subject_and_pairs(folder, id, n_pairs)
    scores, seconds = found(folder, id, method, n_pairs)
    steps = 0
    if options:
        began = time.perf_counter()
        scores, steps = refined(subject, pairs, scores, trial_of(options))
        seconds += time.perf_counter() - began
    curve = faithfulness_curve(subject, fresh, scores)
    edges = tuple(curve.edges_for(share) or subject.graph.n_edges for share in CROSSINGS)
    return Row(curve.log_area, edges, seconds, steps)


def trial_of(options: str) -> Trial:
    """`steps=100,rule=adam` as a trial."""
    kinds = {each.name: type(each.default) for each in fields(Trial)}
    given = dict(option.split("=") for option in options.split(","))
    if unknown := set(given) - set(kinds):
        wrong = ", ".join(sorted(unknown))
        raise ValueError(f"trials have no {wrong}; they have {', '.join(kinds)}.")
    values = {
        name: value in ("true", "True", "1") if kinds[name] is bool else kinds[name](value)
        for name, value in given.items()
    }
    return replace(Trial(), **values)


T = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 12: 2.20}


def ratio(rows: Sequence[Row], others: Sequence[Row], place: int = 1) -> str:
    """The geometric mean of the ratio of `edges_for` .9, and its interval."""
    logs = [math.log(a.edges[place] / b.edges[place]) for a, b in zip(rows, others, strict=True)]
    half = T.get(len(logs), 2.1) * float(np.std(logs, ddof=1)) / len(logs) ** 0.5
    low, middle, high = (math.exp(mean(logs) + way * half) for way in (-1, 0, 1))
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def table(
    folder: Path, ids: Sequence[str], rows: Sequence[str], n_pairs: int, against: str | None
) -> Iterator[str]:
    shares = " | ".join(f"edges for {t:g}" for t in CROSSINGS)
    other = against or "the start"
    yield f"| ranking | log area | {shares} | .9, by eap-ig's | by {other}'s | steps | s |"
    yield f"| --- | --- | {'--- | ' * len(CROSSINGS)}--- | --- | --- | --- |"
    plain = [measured(folder, id, "eap-ig", n_pairs) for id in ids]
    for row in rows:
        all_found = [measured(folder, id, row, n_pairs) for id in ids]
        other = against or row.partition("@")[0]
        before = [measured(folder, id, other, n_pairs) for id in ids]
        edges = " | ".join(
            f"{geometric_mean(each):.1f}"
            for each in zip(*(one.edges for one in all_found), strict=True)
        )
        area = mean(one.area for one in all_found)
        steps = mean(one.steps for one in all_found)
        seconds = mean(one.seconds for one in all_found)
        by_both = f"{ratio(all_found, plain)} | {ratio(all_found, before)}"
        yield f"| `{row}` | {area:.4f} | {edges} | {by_both} | {steps:.0f} | {seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", nargs="+", metavar="METHOD[:NAME=VALUE,...][@NAME=VALUE,...]")
    parser.add_argument("--subjects", default="chosen", help="chosen, fresh, or ids as a,b,c")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--against", metavar="ROW", help="instead of the method before refining")
    options = parser.parse_args()
    torch.set_num_threads(1)
    groups = {"chosen": list(CHOSEN), "fresh": list(FRESH)}
    ids = groups.get(options.subjects) or options.subjects.split(",")
    for line in table(options.folder, ids, options.rows, options.pairs, options.against):
        print(line, flush=True)


if __name__ == "__main__":
    main()
