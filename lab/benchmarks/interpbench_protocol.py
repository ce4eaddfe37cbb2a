"""How InterpBench scored methods, beside how they are scored here: what its EAP's 0.000 comes from.

InterpBench's figure 9 has a median AUROC of 0.000 for EAP; on our subjects EAP has 1.000. Its code
(github.com/FlyingPumba/circuits-benchmark, branches `main` and `cybershiptrooper/new_experiments`)

1. scores edges by the gradient of the loss in a mask at the clean run, added up over prompts with
   their signs: cross-entropy with the program's answer, summed over positions, or the mean absolute
   error; integrated gradients average it over ten points;
2. takes as a circuit the edges that score *above* each of 19 fixed thresholds, from 0 to 1000, by
   their signed scores, unless asked for absolute ones by an option that came later;
3. has an edge into a head if one into q, k or v is there, and counts true and false positives;
4. adds up the stairs below these points from (0, 0) on, never above them, and nothing between the
   last point and (1, 1): a true edge that no threshold takes counts as if it came after all others.

So an edge whose score is negative, or so small that no threshold but 0 tells it from others, is
lost. `staircase_auroc` is steps 2 to 4, written anew. Here the same effects are read in five ways:
absolute values pooled over prompts and ranked (`ours`), absolute values of the sum ranked
(`summed`), the signed sum ranked (`signed`), and the last two at InterpBench's 19 thresholds. The
scores of other methods are read in two. `--sharpen` multiplies logits: a surer subject.

python -m lab.benchmarks.interpbench_protocol [--fleet public] [--subjects DIR] [--pairs 1000]
    [--methods eap,eap-ig,acdc,sp-edge] [--out build/protocol.json]
python -m lab.benchmarks.interpbench_protocol --train DIR   subjects stopped at InterpBench's 99.5%
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits import Circuit, Pairs, Transformer, auroc, load_case, localize
from graphcircuits.cases import case_ids
from graphcircuits.cases.build import BuildConfig, build
from graphcircuits.cases.orders import Order
from graphcircuits.compare.figures import QUANTILES, quantiles
from graphcircuits.compare.selection import Unit
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.io.store import write_json
from graphcircuits.methods.eap import effects, points

THRESHOLDS = (
    *(0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.025, 0.05, 0.1, 0.2, 0.5),
    *(0.8, 1.0, 10.0, 20.0, 50.0, 70.0, 100.0, 200.0, 1000.0),
)
"""InterpBench's."""
IG_STEPS = 10
STOPPED = SiitConfig(
    edge_weight=0.0,
    strict_weight=0.4,
    lr=1e-3,
    final_lr=1e-3,
    clip=0.1,
    steps=12000,
    check_every=50,
    enough_accuracy=0.995,
    enough_interchange=0.995,
    enough_strict=0.995,
)
"""InterpBench's losses, rate, weights and rule to stop."""


# The reading


def staircase_auroc(
    scores: Float[Tensor, " edge"], circuit: Circuit, thresholds: Sequence[float] = THRESHOLDS
) -> float:
    """The area below the stairs of the circuits that score above each threshold, at head level."""
    graph = circuit.graph
    best, truth = graph.promote(scores.double()), graph.promote(circuit.mask)
    rates = []
    for threshold in thresholds:
        taken = best > threshold
        hits, alarms = int((taken & truth).sum()), int((taken & ~truth).sum())
        rates.append((alarms / int((~truth).sum()), hits / int(truth.sum())))
    return staircase(rates)


def staircase(rates: Sequence[tuple[float, float]]) -> float:
    """The area below points of false and true positive rates, none of it between two points."""
    area, height = 0.0, 0.0
    for alarms, hits in sorted(rates):
        if hits > height:
            area += (1 - alarms) * (hits - height)
            height = hits
    return area


def every_threshold(scores: Float[Tensor, " edge"]) -> list[float]:
    """Thresholds below, between and above all scores, so that each edge is taken at some."""
    return [float(scores.min()) - 1.0, *scores.double().unique().tolist()]


# What is read


def mask_gradients(subject: Transformer, pairs: Pairs, method: str) -> Float[Tensor, "prompt edge"]:
    """Signed effects of noising each edge on each prompt's loss as InterpBench takes it."""
    rule, steps = ("right", 1) if method == "eap" else ("endpoints", IG_STEPS)
    shares, weights = points(rule, steps)
    found = effects(subject, pairs, "inputs", (shares,), weights)[0]
    # Ours is the mean over positions; InterpBench adds up cross-entropies.
    return found * (pairs.scored.sum(1, keepdim=True) if pairs.loss_name == "kl" else 1)


def readings(method: str, subject: Transformer, pairs: Pairs, circuit: Circuit) -> dict[str, float]:
    """AUROC of a method's scores under each reading."""
    if method not in ("eap", "eap-ig"):
        scores = localize(subject, pairs[:64], method=method).scores
        return {
            "ours": auroc(scores, circuit),
            "19 thresholds": staircase_auroc(scores, circuit),
        }
    by_prompt = mask_gradients(subject, pairs, method)
    pooled, signed = by_prompt.abs().mean(0), by_prompt.mean(0)
    return {
        "ours": auroc(pooled, circuit),
        "summed": auroc(signed.abs(), circuit),
        "signed": auroc(signed, circuit),
        "summed, 19 thresholds": staircase_auroc(signed.abs(), circuit),
        "signed, 19 thresholds": staircase_auroc(signed, circuit),
    }


@dataclass(frozen=True)
class Reading:
    """One method on one subject."""

    case: str
    method: str
    auroc: Mapping[str, float]
    clean_loss: float


def sharpened(pairs: Pairs, factor: float) -> Pairs:
    """The same pairs with the cross-entropy of logits times a factor, as a subject that was trained
    for longer has them; numbers stay as they are."""
    targets = pairs.targets
    if pairs.loss_name != "kl" or targets is None or factor == 1:
        return pairs

    def loss(logits: Tensor, some: Pairs) -> Tensor:
        assert some.targets is not None
        parts = -(some.targets * (factor * logits).log_softmax(-1)).sum(-1)
        return (parts * some.scored).sum(-1)

    return replace(pairs, loss_name=loss)


def measure(
    ids: Sequence[str],
    methods: Sequence[str],
    *,
    fleet: str,
    folder: Path | None,
    n: int,
    factor: float,
) -> list[Reading]:
    """All readings on the subjects of some cases."""
    found = []
    for id in ids:
        unit = Unit.of(Order(id, fleet).id)
        subject, pairs = unit.subject(folder), sharpened(unit.case.pairs(n, 0), factor)
        circuit = unit.case.labels("interpbench", subject.graph)
        with torch.no_grad():
            loss = float(pairs.loss(subject.logits(pairs.clean)).mean())
        for method in methods:
            found.append(Reading(id, method, readings(method, subject, pairs, circuit), loss))
    return found


def table(found: Sequence[Reading]) -> str:
    """Quantiles over cases of every reading, and on how many cases it is zero."""
    rows = []
    for method in dict.fromkeys(one.method for one in found):
        own = [one.auroc for one in found if one.method == method]
        for name in own[0]:
            values = [each[name] for each in own]
            five = [f"{value:.3f}" for value in quantiles(values)]
            rows.append([method, name, *five, f"{sum(value == 0 for value in values)}"])
    return markdown_table(("Method", "Reading", *QUANTILES, "zero"), rows, left=2)


# Subjects that stop at InterpBench's rule


def train(folder: Path, ids: Sequence[str], device: str) -> None:
    """Train subjects with InterpBench's losses until all three accuracies are 99.5%."""
    orders = [Order(id, "public") for id in ids]
    for made in build(orders, folder, BuildConfig(siit=STOPPED), device=device):
        print(made.id, "passed" if made.passed else "failed", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fleet", default="planted", choices=("planted", "public"))
    parser.add_argument("--subjects", type=Path, help="a folder of subjects; shipped ones if not")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--methods", default="eap,eap-ig,acdc,sp-edge")
    parser.add_argument("--cases", default="", help="ids with commas between; the 16 tests if not")
    parser.add_argument("--sharpen", type=float, default=1.0, help="times all logits of classes")
    parser.add_argument("--train", type=Path, help="train subjects into this folder instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="where to write every reading, as JSON")
    given = parser.parse_args()
    ids = [load_case(id).id for id in given.cases.split(",") if id] or case_ids(split="test")
    if given.train is not None:
        train(given.train, ids, given.device)
        return
    found = measure(
        ids,
        given.methods.split(","),
        fleet=given.fleet,
        folder=given.subjects,
        n=given.pairs,
        factor=given.sharpen,
    )
    print(table(found))
    if given.out is not None:
        write_json(given.out, [asdict(one) for one in found])


if __name__ == "__main__":
    main()
