"""What refining gains on natural subjects: CMD on fresh prompts, before and after.

Subjects of one fold of a corpus (`python -m lab.factory corpus`), drawn at random; scores are
found and refined on pairs of seed 0 and judged on those of seed 1000, over log-spaced sizes.

python -m lab.benchmarks.refine CORPUS --fold 1 --subjects 16 --seconds 10
python -m lab.benchmarks.refine CORPUS --fold 1 --subjects 16 --steps 300 --rate 0.1 --spread 0.2
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from graphcircuits import faithfulness_curve, load_corpus
from graphcircuits.cases.collection import CorpusEntry
from graphcircuits.engine.relaxed import Gates, concrete, hard_concrete
from graphcircuits.methods import localize
from graphcircuits.methods.departure import Recipe
from graphcircuits.methods.refine import refinement
from lab.benchmarks.estimators import soft, straight_through

FRESH = 1000
GATES: dict[str, Gates] = {
    "concrete": concrete,
    "hard-concrete": hard_concrete,
    "soft": soft,
    "straight-through": straight_through,
}


@dataclass(frozen=True)
class Found:
    """One subject: CMD on fresh prompts of the start and refined, and on the prompts it saw."""

    start: float
    refined: float
    own: float
    steps: int
    seconds: float

    @property
    def ratio(self) -> float:
        return self.refined / self.start


def measured(entry: CorpusEntry, options: argparse.Namespace) -> Found:
    subject, own, fresh = (
        entry.subject(),
        entry.pairs(options.pairs, 0),
        entry.pairs(options.pairs, FRESH),
    )
    start = localize(subject, own, options.method).scores
    began = time.perf_counter()
    refined = refinement(
        subject,
        own,
        start,
        steps=options.steps,
        seconds=options.seconds,
        recipe=Recipe(
            learning_rate=options.rate,
            masks=options.masks,
            prompts=options.prompts,
            spread=options.spread,
            gates=GATES[options.gates],
        ),
    )
    seconds = time.perf_counter() - began
    before, after, seen = (
        faithfulness_curve(subject, pairs, scores, by="loss", crossings=()).cmd
        for scores, pairs in ((start, fresh), (refined.scores, fresh), (refined.scores, own))
    )
    return Found(before, after, seen, refined.steps, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    plain = Recipe()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--fold", type=int, default=1)
    parser.add_argument("--subjects", type=int, default=16)
    parser.add_argument("--skip", type=int, default=0, help="of the subjects in their drawn order")
    parser.add_argument("--method", default="eap-ig")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--rate", type=float, default=plain.learning_rate)
    parser.add_argument("--masks", type=int, default=plain.masks)
    parser.add_argument("--prompts", type=int, default=plain.prompts)
    parser.add_argument("--spread", type=float, default=plain.spread)
    parser.add_argument("--gates", choices=GATES, default="concrete")
    options = parser.parse_args()
    torch.set_num_threads(1)
    entries = [entry for entry in load_corpus(options.corpus) if entry.fold == options.fold]
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(0))
    chosen = order[options.skip : options.skip + options.subjects].tolist()
    print("| subject | start | refined | ratio | on its own prompts | steps | s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    all_found = []
    for place in chosen:
        found = measured(entries[place], options)
        all_found.append(found)
        print(
            f"| {entries[place].order.id} | {found.start:.4f} | {found.refined:.4f} | "
            f"{found.ratio:.2f} | {found.own:.4f} | {found.steps} | {found.seconds:.1f} |",
            flush=True,
        )
    means = [
        statistics.mean(getattr(each, name) for each in all_found)
        for name in ("start", "refined", "own", "steps", "seconds")
    ]
    start, refined, own, steps, seconds = means
    print(
        f"| mean of {len(all_found)} | {start:.4f} | {refined:.4f} | {refined / start:.2f} | "
        f"{own:.4f} | {steps:.0f} | {seconds:.1f} |"
    )
    ratios = [each.ratio for each in all_found]
    better = sum(ratio < 1 for ratio in ratios)
    print(
        f"\nbetter on {better} of {len(ratios)}, median ratio {statistics.median(ratios):.2f}, "
        f"worst {max(ratios):.2f}"
    )


if __name__ == "__main__":
    main()
