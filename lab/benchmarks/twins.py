"""Whether a predictor profits from twins: cases of the pool that have one mask in several folds.

The split keeps related cases in one fold, but it tells the token and the position embedding apart,
and a mask cannot: some cases have the labels of a case in another fold (`corpus.relations.twins`).
Whoever selects by cross-validation learns from the one and validates on the other. To see what that
is worth:

1. For every fold that holds such a case, predictors are trained on the other folds as they are,
   without the twins of what is validated, and, to tell the twins from the mere number of cases,
   without as many others, drawn at random from cases of the same sizes where there are any.
2. All are scored on the cases that have twins: AUROC with q, k and v apart.

The predictors start from no search (`prior`) and count no paths, so that all they know is learned.

python -m lab.benchmarks.twins [--seeds 2] [--steps 40] [--pairs 16]
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import mean, stdev

import torch

from graphcircuits.cases import N_FOLDS, load_case
from graphcircuits.cases.relations import twins
from graphcircuits.compare.selection import select_cases
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example
from graphcircuits.training.members import train_predictor
from lab.examples import read_examples

WAYS = ("as they are", "without twins", "without others")


@dataclass(frozen=True)
class Fold:
    """What is validated of a fold, and what the rest of the pool holds for it."""

    number: int
    twinned: tuple[str, ...]
    """Cases of the fold with a twin in another one."""
    others: tuple[str, ...]
    """Cases of the other folds."""

    @cached_property
    def seen(self) -> frozenset[str]:
        """Of the others those that are twins."""
        return frozenset(id for id in self.others if twins(id).intersection(self.twinned))

    def left(self, way: str, seed: int) -> list[str]:
        """What is learned from."""
        dropped = {"as they are": frozenset(), "without twins": self.seen}
        gone = dropped[way] if way in dropped else self._alike(seed)
        return [id for id in self.others if id not in gone]

    def _alike(self, seed: int) -> frozenset[str]:
        """As many cases as there are twins, of graphs as large where there are enough."""
        draw = Random(seed)
        found: set[str] = set()
        for id in sorted(self.seen):
            free = [x for x in self.others if x not in self.seen and x not in found]
            size = load_case(id).graph.n_edges
            found.add(draw.choice([x for x in free if load_case(x).graph.n_edges == size] or free))
        return frozenset(found)


def folds(ids: Sequence[str]) -> Iterator[Fold]:
    """The folds that hold a case with a twin in another fold."""
    for number in range(N_FOLDS):
        inside = [id for id in ids if load_case(id).fold == number]
        others = tuple(id for id in ids if id not in inside)
        twinned = tuple(id for id in inside if twins(id).intersection(others))
        if twinned:
            yield Fold(number, twinned, others)


def scores(
    fold: Fold, way: str, examples: dict[str, Example], config: TrainConfig, seed: int
) -> dict[str, float]:
    """AUROC of the cases with twins after the last step."""
    learned = [examples[id] for id in fold.left(way, seed)]
    watched = [examples[id] for id in fold.twinned]
    trained = train_predictor(learned, config, seed=seed, validation=watched)
    cases = trained.history[config.steps]["cases"]
    return {id: cases[id]["qkv"] for id in fold.twinned}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=16, help="prompt pairs of a case")
    given = parser.parse_args()
    torch.set_num_threads(1)
    predictor = PredictorConfig(width=32, layers=2, prior=False, paths=False)
    config = TrainConfig(
        predictor=predictor, steps=given.steps, every=given.steps, pairs=given.pairs, views=1
    )
    ids, _ = select_cases("pool")
    examples = {example.case: example for example in read_examples(ids, config)}
    found: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    for fold in folds(ids):
        print(f"fold {fold.number}: {len(fold.twinned)} cases with {len(fold.seen)} twins")
        for way in WAYS:
            for seed in range(given.seeds):
                for id, value in scores(fold, way, examples, config, seed).items():
                    found[way].setdefault(id, []).append(value)
    print("\n| Learned from the other folds | Mean AUROC | of single seeds | Lowest case |")
    print("| --- | ---: | ---: | ---: |")
    for way, cases in found.items():
        seeds = [mean(values[seed] for values in cases.values()) for seed in range(given.seeds)]
        single = ", ".join(f"{value:.4f}" for value in seeds)
        worst = min(mean(values) for values in cases.values())
        print(f"| {way} | {mean(seeds):.4f} | {single} | {worst:.4f} |")
    gaps = [mean(found[WAYS[0]][id]) - mean(found[WAYS[1]][id]) for id in found[WAYS[0]]]
    spread = stdev(gaps) / len(gaps) ** 0.5
    said = f"twins are worth {mean(gaps):+.4f}, standard error {spread:.4f}"
    print(f"\n{said} over {len(gaps)} cases")


if __name__ == "__main__":
    main()
