"""Bias and variance of gradients of the expected distance from faithfulness, by the scores.

A one-layer subject with two heads, trained here, has 13 edges, so all 8,192 circuits can be run:

1. *Independent gates*: an edge is kept with the probability sigmoid(location). The expected
   distance and its gradient are sums over all circuits.
2. *Best edges*: the circuit holds the k best edges after logistic noise on their values, k uniform
   over 1..13. Its gradient is the mean of distance * (slope of the log density of the noise), over
   millions of draws: distances are looked up.

For each estimator: how far its mean is from the true gradient, how far an estimate from 4 masked
runs is from that mean, both in parts of the gradient's length, and the cosine of such an estimate
with the truth. Then what refining by it reaches: CMD on fresh prompts of three trained subjects
with 110 edges.

python -m lab.benchmarks.estimators [--out docs/figures/estimators.png] [--steps 150]
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from graphcircuits import (
    Case,
    Pairs,
    Transformer,
    TransformerConfig,
    faithfulness_curve,
    localize,
    rasp,
)
from graphcircuits.engine.relaxed import Gates, concrete, hard_concrete, window
from graphcircuits.methods.departure import Objective, Recipe
from graphcircuits.methods.prepare import to_clean_output
from graphcircuits.methods.refine import RefineState, advance, rank_logits, sort_by_rank

MASKS = 4
"""Masked runs of one estimate."""
GROUPS = 1024
"""Estimates from which bias and variance are taken."""
DRAWS = 2**21
"""Draws of noise behind the true gradient of the second objective."""
SPREADS = (0.3, 1.0)
"""Widths of the noise: as in `refine`, and wide."""


# Subjects


def counting(name: str) -> Case:
    """How many tokens compare so with this one."""
    kinds = {
        "same": rasp.Comparison.EQ,
        "smaller": rasp.Comparison.LT,
        "larger": rasp.Comparison.GT,
    }
    program = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.tokens, kinds[name]))
    return Case(id=name, program=program, vocab=(0, 1, 2, 3), max_seq_len=6)


def trained(case: Case, n_layers: int, n_heads: int, steps: int = 400) -> Transformer:
    """A subject that has learned the task, by Adam on random prompts."""
    codec = case.codec
    config = TransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=16,
        d_head=16 // n_heads,
        d_mlp=64,
        n_ctx=case.max_seq_len,
        d_vocab=codec.d_vocab,
        d_vocab_out=codec.d_vocab_out,
        causal=case.causal,
    )
    start = Transformer.random(config, torch.Generator().manual_seed(0), codec)
    weights = {name: w.float().clone().requires_grad_() for name, w in start.weights.items()}
    subject = Transformer(config, weights, codec)
    optimizer = torch.optim.Adam(weights.values(), lr=1e-2)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    prompts = case.pairs(2048, seed=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        some = prompts[torch.randint(len(prompts), (128,), generator=generator)]
        optimizer.zero_grad()
        some.loss(subject.logits(some.clean)).mean().backward()
        optimizer.step()
        falling.step()
    return Transformer(config, {name: w.detach() for name, w in weights.items()}, codec)


# Estimators


@dataclass(frozen=True)
class Estimator:
    """Draws masks, and makes gradients by location of their losses and slopes."""

    name: str
    draw: Gates
    score_function: bool = False
    baseline: bool = False


def soft(locations: Tensor, generator: torch.Generator) -> Tensor:
    return locations.sigmoid()


def straight_through(locations: Tensor, generator: torch.Generator) -> Tensor:
    """Kept or cut, with the gradient of the probability."""
    kept = locations.sigmoid()
    uniform = torch.rand(locations.shape, generator=generator, dtype=torch.float64)
    return (uniform.to(kept) < kept).to(kept) + kept - kept.detach()


def uniform_sampling(locations: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of every gate as in `ugs`."""
    flat = window(locations.flatten(), 1, generator)
    return flat.unflatten(1, locations.shape).squeeze(0)


ESTIMATORS = (
    Estimator("straight-through", straight_through),
    Estimator("soft mask, no noise", soft),
    Estimator("concrete, temperature 0.25", partial(concrete, temperature=0.25)),
    Estimator("concrete, temperature 0.5", partial(concrete, temperature=0.5)),
    Estimator("concrete, temperature 1", concrete),
    Estimator("concrete, temperature 2", partial(concrete, temperature=2.0)),
    Estimator("hard concrete, temperature 2/3", hard_concrete),
    Estimator("uniform gradient sampling", uniform_sampling),
    Estimator("score function", straight_through, score_function=True),
    Estimator("score function, baseline", straight_through, score_function=True, baseline=True),
)

Distances = Callable[[Tensor], Tensor]
"""From masks (mask, edge) to distances from faithfulness (mask)."""


def estimates(
    estimator: Estimator, locations: Tensor, distances: Distances, generator: torch.Generator
) -> Tensor:
    """One estimate by location per mask; (mask, edge) in and out."""
    leaf = locations.detach().requires_grad_()
    masks = estimator.draw(leaf, generator)
    if not estimator.score_function:
        return torch.autograd.grad(distances(masks).sum(), leaf)[0]
    kept = masks.detach()
    found = distances(kept).detach()
    if estimator.baseline:
        # The mean of the other masks of the same estimate leaves no bias.
        groups = found.unflatten(0, (-1, MASKS))
        others = (groups.sum(1, keepdim=True) - groups) / (MASKS - 1)
        found = (groups - others).flatten()
    return found[:, None] * (kept - locations.sigmoid())


@dataclass(frozen=True)
class Quality:
    """An estimator against the true gradient, in parts of its length."""

    bias: float
    spread: float
    """Root mean square distance of an estimate from its mean."""
    cosine: float
    """Mean cosine of an estimate with the truth."""


def quality(found: Tensor, truth: Tensor) -> Quality:
    """`found` (estimate, edge)."""
    mean, size = found.mean(0), truth.norm()
    noise = (found - mean).square().sum(1).mean()
    # What is left of the noise in the mean of all estimates is not bias.
    bias = ((mean - truth).square().sum() - noise / len(found)).clamp(min=0).sqrt()
    cosine = torch.cosine_similarity(found, truth[None], dim=1).mean()
    return Quality(float(bias / size), float(noise.sqrt() / size), float(cosine))


# True gradients


def all_masks(n_edges: int) -> Tensor:
    return torch.tensor(list(product((0.0, 1.0), repeat=n_edges)))


def independent_gradient(locations: Tensor, distances: Tensor) -> Tensor:
    """Of the expected distance, by location, given the distances of all masks."""
    leaf = locations.double().requires_grad_()
    kept, masks = leaf.sigmoid(), all_masks(len(locations)).double()
    chances = torch.where(masks > 0, kept, 1 - kept).prod(1)
    return torch.autograd.grad((chances * distances.double()).sum(), leaf)[0]


def best_edges_gradient(
    values: Tensor, spread: float, distances: Tensor, generator: torch.Generator, draws: int = DRAWS
) -> Tensor:
    """Of the mean distance of the k best edges after noise, by value, k uniform."""
    n, values = len(values), values.double()
    bits = 2 ** torch.arange(n - 1, -1, -1)
    total = torch.zeros(n, dtype=torch.float64)
    for _ in range(draws // 2**15):
        noise = torch.rand(2**15, n, generator=generator, dtype=torch.float64).logit() * spread
        order = (values + noise).argsort(dim=1, descending=True)
        found = distances.double()[bits[order].cumsum(1)].mean(1)
        slopes = (noise / (2 * spread)).tanh() / spread
        total += ((found - found.mean())[:, None] * slopes).mean(0)
    return total / (draws // 2**15)


# The two tables


@dataclass(frozen=True)
class Row:
    objective: str
    spread: float
    estimator: str
    quality: Quality


def compare(subject: Transformer, pairs: Pairs, start: Tensor) -> Iterator[Row]:
    """Every estimator on both objectives."""
    objective = Objective.of(subject, to_clean_output(subject, pairs), Recipe(), None)
    rows = torch.arange(len(pairs))

    def distances(masks: Tensor) -> Tensor:
        parts = masks.split(512)
        return torch.cat([objective.departures(part, rows, rows).abs() for part in parts])

    values, n = rank_logits(start), len(start)
    with torch.no_grad():
        table = distances(all_masks(n))
    ordered = values.sort(descending=True).values
    for spread in SPREADS:
        locations = (values - ordered[n // 2]) / spread
        truth = independent_gradient(locations, table)
        for each in ESTIMATORS:
            many = locations.expand(GROUPS * MASKS, -1)
            drawn = estimates(each, many, distances, torch.Generator().manual_seed(0))
            found = drawn.double().unflatten(0, (GROUPS, MASKS)).mean(1)
            yield Row("independent gates", spread, each.name, quality(found, truth))
        truth = best_edges_gradient(values, spread, table, torch.Generator().manual_seed(1))
        for each in ESTIMATORS:
            generator = torch.Generator().manual_seed(0)
            sizes = torch.randint(n, (GROUPS * MASKS,), generator=generator)
            many = (values - ordered[sizes][:, None]) / spread
            drawn = estimates(each, many, distances, generator) / spread
            found = drawn.double().unflatten(0, (GROUPS, MASKS)).mean(1)
            yield Row("best edges", spread, each.name, quality(found, truth))


def refined_cmd(
    estimator: Estimator, subject: Transformer, case: Case, start: Tensor, steps: int
) -> float:
    """CMD on fresh prompts after refining by the estimator, as `refine` does otherwise."""
    recipe = Recipe(gates=estimator.draw)
    objective = Objective.of(subject, to_clean_output(subject, case.pairs(32, 0)), recipe, None)
    _, turn = objective.judge(rank_logits(start))
    state = RefineState.at(rank_logits(start), 1.0, turn, torch.Generator().manual_seed(0))
    for step in range(steps):
        if estimator.score_function:
            gradient = _score_function(objective, estimator, state)
        else:
            gradient = objective.gradient(state.values, state.turn, state.generator)
        advance(state, gradient, recipe.learning_rate * (1 - step / steps))
    scores = sort_by_rank(start, state.values)
    return faithfulness_curve(subject, case.pairs(32, 1000), scores, by="loss", crossings=()).cmd


def _score_function(objective: Objective, estimator: Estimator, state: RefineState) -> Tensor:
    kept = objective.drawn_sizes(state.turn, state.generator)
    ordered = state.values.sort(descending=True).values
    locations = (state.values - ordered[kept - 1][:, None]) / objective.recipe.spread
    rows, partners = objective.prompts_for_step(state.generator)

    def distances(masks: Tensor) -> Tensor:
        return objective.departures(masks, rows, partners).abs()

    return estimates(estimator, locations, distances, state.generator).mean(0)


# Output


def table(rows: list[Row], reached: dict[str, float], started: float) -> Iterator[str]:
    """Markdown."""
    columns = [(name, spread) for name in ("independent gates", "best edges") for spread in SPREADS]
    heads = [f"{name}, width {spread:g}" for name, spread in columns]
    yield f"| estimator | {' | '.join(heads)} | CMD after refining |"
    yield f"| --- |{' --- |' * (len(heads) + 1)}"
    found = {(row.objective, row.spread, row.estimator): row.quality for row in rows}
    for each in ESTIMATORS:
        cells = []
        for name, spread in columns:
            q = found[name, spread, each.name]
            cells.append(f"{q.bias:.2f}, {q.spread:.2f}, {q.cosine:.2f}")
        yield f"| {each.name} | {' | '.join(cells)} | {reached[each.name]:.4f} |"
    yield f"| (EAP-IG, not refined) | {' | '.join([''] * len(heads))} | {started:.4f} |"


def plot(rows: list[Row], reached: dict[str, float], started: float, path: Path) -> None:
    """Bias against spread for the second objective, and what refining reaches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for marker, row in zip(
        "osv^D<>PX*",
        (r for r in rows if (r.objective, r.spread) == ("best edges", SPREADS[0])),
        strict=True,
    ):
        left.plot(row.quality.bias, row.quality.spread, marker, label=row.estimator)
    left.set(
        xlabel="bias / length of the true gradient",
        ylabel=f"spread of an estimate from {MASKS} runs",
        yscale="log",
        title=f"k best of 13 edges, noise of width {SPREADS[0]:g}",
    )
    left.legend(fontsize=7)
    names = [each.name for each in ESTIMATORS]
    right.barh(
        names, [reached[name] for name in names], color="0.6", label="refined, mean of the subjects"
    )
    right.axvline(started, color="black", linewidth=1, label="EAP-IG, not refined")
    right.invert_yaxis()
    right.set(xlabel="CMD on fresh prompts after refining, 110 edges")
    right.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/figures/estimators.png"))
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = counting("same")
    tiny, pairs = trained(case, 1, 2), case.pairs(8)
    rows = list(compare(tiny, pairs, localize(tiny, pairs, "eap-ig").scores))
    cases = [counting(name) for name in ("same", "smaller", "larger")]
    subjects = [trained(each, 2, 4) for each in cases]
    starts = [
        localize(subject, each.pairs(32, 0), "eap-ig").scores
        for subject, each in zip(subjects, cases, strict=True)
    ]
    three = list(zip(subjects, cases, starts, strict=True))
    started = statistics.mean(
        faithfulness_curve(subject, each.pairs(32, 1000), start, by="loss", crossings=()).cmd
        for subject, each, start in three
    )
    reached = {
        estimator.name: statistics.mean(
            refined_cmd(estimator, *each, steps=options.steps) for each in three
        )
        for estimator in ESTIMATORS
    }
    print("\n".join(table(rows, reached, started)))
    plot(rows, reached, started, options.out)
    print(f"\nwrote {options.out}")


if __name__ == "__main__":
    main()
