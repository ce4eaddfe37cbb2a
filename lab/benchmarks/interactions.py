"""Two gates and a slope: where single edge effects fail to add up, in numbers and a picture.

1. An OR: `tb-pairwise-max` computes the larger of this and the previous token. On constant
   prompts one of the two is enough, so each edge into m0 alone looks useless.
2. An AND: `tb-product-with-next` multiplies the token with the next one. Against zeros both are
   needed, so each edge into m2 alone looks as if all depended on it.
3. The loss is the probability of a wrong answer, which has a largest value as a gate's output has;
   with KL, which has none, the AND's joint effect grows beyond the sum.
4. The OR's local interaction, message changes shrunk step by step: the error falls as a cube.
5. Both gates again on the cases' own random prompts.

python -m lab.benchmarks.interactions [--json] [--svg docs/figures/gates.svg]
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits import load_case
from graphcircuits.cases.case import Case
from graphcircuits.interactions import SharedRead, decay, edge_interactions, first_order
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

GATES = {
    "OR": ("tb-pairwise-max", ("input->m0", "a0.h0->m0")),
    "AND": ("tb-product-with-next", ("input->m2", "a2.h0->m2")),
}


def wrong(logits: Tensor, pairs: Pairs) -> Tensor:
    """The probability of a wrong answer, averaged over scored positions."""
    assert pairs.targets is not None
    right = logits.softmax(-1).gather(-1, pairs.targets.argmax(-1)[..., None]).squeeze(-1)
    return 1 - right.where(pairs.scored, 0.0).sum(-1) / pairs.scored.sum(-1)


def gate_prompts(name: str) -> list[tuple[list[int], list[int]]]:
    """Clean and corrupted sequences that put a gate to the test, of eight tokens."""
    if name == "OR":
        return [([high] * 8, [low] * 8) for low, high in combinations(range(6), 2)]
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(1, 6, (15, 8), generator=generator).tolist()
    return [(clean, [0] * 8) for clean in factors]


def gate_pairs(case: Case, prompts: Sequence[tuple[list[int], list[int]]]) -> Pairs:
    """The prompts with the program's answers as targets."""
    subject = case.subject()
    assert subject.codec is not None
    assert case.outputs is not None
    clean, corrupted = (
        torch.stack([subject.codec.encode(sequence) for sequence in side])
        for side in zip(*prompts, strict=True)
    )
    scored = torch.ones(clean.shape, dtype=torch.bool)
    scored[:, 0] = False
    targets = torch.zeros(*clean.shape, len(case.outputs))
    for row, (sequence, _) in zip(targets, prompts, strict=True):
        for position, value in enumerate(case.evaluate(sequence), start=1):
            row[position, case.outputs.index(value)] = 1.0
    return Pairs(clean=clean, corrupted=corrupted, scored=scored, loss_name="kl", targets=targets)


def measured(subject: Transformer, pairs: Pairs, edges: tuple[str, str]) -> dict[str, Any]:
    """Single and joint effects, their interaction, and the sum that EAP predicts."""
    found = edge_interactions(subject, pairs, edges)
    read = SharedRead.of(subject, pairs, edges[0].partition("->")[2], edges=edges)
    single = found.single.mean(-1)
    interaction = found.interaction[0, 1]
    return {
        "single": single.tolist(),
        "sum of single": single.sum().item(),
        "sum of EAP": first_order(read).sum((0, 1)).mean().item(),
        "joint": found.joint[0, 1].mean().item(),
        "interaction": interaction.mean().item(),
        "mean |interaction|": interaction.abs().mean().item(),
    }


def report() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (id, edges) in GATES.items():
        case = load_case(id)
        subject = case.subject().to(torch.float64)
        pairs = gate_pairs(case, gate_prompts(name))
        drawn = case.pairs(64)
        found[name] = {
            "case": id,
            "edges": edges,
            "wrong": measured(subject, replace(pairs, loss_name=wrong), edges),
            "kl": measured(subject, pairs, edges),
            "random prompts, wrong": measured(subject, replace(drawn, loss_name=wrong), edges),
        }
        if name == "OR":
            read = SharedRead.of(subject, drawn[:8], "m0", edges=edges)
            fit = decay(read)
            found["decay"] = {"scales": fit.scales, "errors": fit.errors, "slope": fit.slope}
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Bars for the gates, a line for the slope."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text and the file is the same every time.
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "gates", "font.size": 9}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 3), layout="constrained")
    panels = figure.subplots(1, 3)
    for panel, name in zip(panels, GATES, strict=False):
        gate = found[name]
        bars = {
            f"{gate['edges'][0]}": gate["wrong"]["single"][0],
            f"{gate['edges'][1]}": gate["wrong"]["single"][1],
            "sum of both": gate["wrong"]["sum of single"],
            "EAP's sum": gate["wrong"]["sum of EAP"],
            "joint": gate["wrong"]["joint"],
        }
        colours = ["#8fb8d8", "#8fb8d8", "#0173b2", "#de8f05", "#1c1c22"]
        panel.bar(list(bars), list(bars.values()), color=colours)
        panel.tick_params(axis="x", rotation=30)
        for label in panel.get_xticklabels():
            label.set_horizontalalignment("right")
        for place, value in enumerate(bars.values()):
            panel.text(place, value, f"{value:.2g}", ha="center", va="bottom", fontsize=8)
        panel.set_title(f"{name}: {gate['case']}")
        panel.set_ylim(0, 2.2)
    panels[0].set_ylabel("added probability of error")
    scales, errors = found["decay"]["scales"], found["decay"]["errors"]
    panels[2].loglog(scales, errors, "o-", color="#0173b2", label="|finite - local|")
    cube = [errors[-1] * (scale / scales[-1]) ** 3 for scale in scales]
    panels[2].loglog(scales, cube, "--", color="#56565e", label="third power")
    panels[2].set_title(f"local form, slope {found['decay']['slope']:.2f}")
    panels[2].minorticks_off()
    panels[2].set_xticks(scales, [f"{scale:g}" for scale in scales], rotation=30)
    panels[2].set_xlabel("share of the message change")
    panels[2].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print all numbers")
    parser.add_argument("--svg", type=Path, help="write the picture")
    options = parser.parse_args()
    found = report()
    if options.svg is not None:
        draw(found, options.svg)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name in GATES:
        print(f"{name}, {found[name]['case']}, {' and '.join(found[name]['edges'])}")
        for metric in ("wrong", "kl", "random prompts, wrong"):
            values = {key: value for key, value in found[name][metric].items() if key != "single"}
            first, second = found[name][metric]["single"]
            words = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
            print(f"  {metric}: single {first:.4g} and {second:.4g}, {words}")
    print(f"slope of the local form's error: {found['decay']['slope']:.3f}")


if __name__ == "__main__":
    main()
