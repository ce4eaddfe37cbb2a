"""Cheap searches as starts of a predictor: how faithful their circuits are on held-out subjects.

Subjects of one fold of a corpus, which the fold's predictor has not learned from, are scored by
searches of one to six passes: EAP at either end, EAP-IG with 1, 2 and 5 points, RelP, and the
gradient by each edge's mask in a run between the two ends, for several shares of it
(`graphcircuits.engine.passes`); the last is what `gcl` starts from. Some are also counted along
paths (`graphcircuits.predictor.paths`). The table has the mean CMD on other prompts, and how often
and how far each is below EAP-IG with 5 points.

python -m lab.benchmarks.starts CORPUS [--fold 0] [--subjects 60] [--shares 0.5,0.75,0.9]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from statistics import mean, median

import torch
from torch import Tensor

from graphcircuits.cases.collection import CorpusEntry, load_corpus
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.methods.eap import eap, eap_ig
from graphcircuits.methods.relp import relp
from graphcircuits.methods.shipped import shipped
from graphcircuits.predictor.invariant import measure
from graphcircuits.predictor.model import start
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

Search = Callable[[Transformer, Pairs], Tensor]
JUDGE = "eap-ig, 5 points"
FRESH = 1000
"""The seed of the prompts that circuits are judged on."""


def searches(shares: Sequence[float], fold: int) -> dict[str, Search]:
    """All that is compared, by name."""
    found: dict[str, Search] = {
        "eap": eap,
        "eap, denoising": partial(eap, direction="denoising"),
        **{f"eap-ig, {n} points": partial(eap_ig, steps=n) for n in (1, 2, 5)},
        "relp": relp,
    }
    for share in shares:
        found[f"between, share {share:g}"] = partial(_between, share=share)
    for name in (JUDGE, f"between, share {shares[len(shares) // 2]:g}"):
        found[f"{name}, along paths"] = partial(_along_paths, found[name])
    found["gcl"] = partial(_gcl, fold)
    return found


def _between(subject: Transformer, pairs: Pairs, *, share: float) -> Tensor:
    return start(measure(subject, pairs, share=share))


def _along_paths(search: Search, subject: Transformer, pairs: Pairs) -> Tensor:
    scores = search(subject, pairs)
    # Effects may be tiny; only their order matters to paths.
    return along_paths(scores.argsort().argsort().to(torch.float64), subject.graph)


def _gcl(fold: int, subject: Transformer, pairs: Pairs) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return shipped(f"fold-{fold}").predict_case(subject, pairs, generator=generator).logits


def compare(
    entries: Sequence[CorpusEntry], pairs: int, shares: Sequence[float], fold: int
) -> dict[str, list[float]]:
    """The CMD of every search on every subject."""
    found: dict[str, list[float]] = {}
    for entry in entries:
        subject = entry.subject()
        own, fresh = (entry.pairs(pairs, seed) for seed in (0, FRESH))
        for name, search in searches(shares, fold).items():
            curve = faithfulness_curve(
                subject, fresh, search(subject, own), by="loss", crossings=()
            )
            found.setdefault(name, []).append(curve.cmd)
    return found


def table(found: dict[str, list[float]]) -> str:
    """Markdown."""
    lines = [
        "| search | mean CMD | by EAP-IG's | better on | median ratio | worst ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    base = found[JUDGE]
    for name, values in found.items():
        ratios = [x / y for x, y in zip(values, base, strict=True)]
        better = mean(ratio < 1 for ratio in ratios)
        lines.append(
            f"| {name} | {mean(values):.4f} | {mean(values) / mean(base):.3f} | {better:.0%} "
            f"| {median(ratios):.3f} | {max(ratios):.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus")
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--subjects", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--shares", default="0.5,0.75,0.9")
    words = parser.parse_args(given)
    entries = [entry for entry in load_corpus(words.corpus) if entry.fold == words.fold]
    drawn = Random(0).sample(entries, min(words.subjects, len(entries)))
    shares = [float(share) for share in words.shares.split(",")]
    found = compare(drawn, words.pairs, shares, words.fold)
    sys.stdout.write(f"{len(drawn)} subjects of fold {words.fold}\n\n{table(found)}")


if __name__ == "__main__":
    main()
