"""Methods side by side with auto-circuit, on the same weights, prompts and machine.

python -m lab.benchmarks.peers.auto_circuit [--repeats 5] [--steps 100] [--markdown FILE]

Both have the same component graph, with q, k and v apart, and patch with the corrupted run; edges
are matched by name, and the logits must agree. All prompts are one batch. Per method:

eap      the gradient of the mean cross-entropy at the clean run; both pool effects by their sum
eap-ig   the same averaged over five points. auto-circuit moves all edges from clean to corrupted
         at once and takes both ends, ours moves the inputs and takes midpoints: other scores
acdc     the divergence from the clean run, 16 thresholds. auto-circuit sees the edges into a layer
         in no particular order, ours backwards in edge order; on 110 edges two runs of auto-circuit
         agree with each other no better than with ours
sp-edge  Adam on the divergence from the clean run and ten times the share of open edges, as many
         steps, prompts and samples. auto-circuit draws gates for every prompt, ours for all at once

A time is that of one call on a loaded subject. The two take turns, a ratio is formed in each turn,
and the median over the turns counts. Rank correlation is Spearman's, of the last turn.

auto-circuit lives in an environment of its own under build/peers/auto-circuit. Three things are
done to it. It asks for `torch.optim.adam`, which newer PyTorch lacks: a stand-in holds Adam. Its
probing patches with the mean over corrupted prompts: here with the corrupted run. Weights ask for
no gradients and progress bars are off, which only makes it faster.
"""

import argparse
import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lab.benchmarks.peers.environment import Peer, environment, now, own_output

MODULE = "lab.benchmarks.peers.auto_circuit"
# The last versions that run with NumPy 1, which auto-circuit needs.
REQUIREMENTS = (
    "auto-circuit==1.0.1",
    "transformer-lens==2.18.*",
    "transformers==4.57.*",
    "numpy<2",
    "pyarrow<22",
)
CASES = ("ib-44", "ib-82")
"""Of the training pool: 2 layers with 110 edges, 4 layers with 479."""
PAIRS = 64
POINTS = 5
"""On the path of integrated gradients."""
TARGETS = {"eap": 3.0, "eap-ig": 3.0, "acdc": 15.0, "sp-edge": 3.0}
"""How many times faster ours has to be."""
SAME = {"eap": "same", "eap-ig": "other path", "acdc": "same but for the order", "sp-edge": "noisy"}
"""How the definitions compare."""
RATE, SPARSITY = 0.1, 10.0


# auto-circuit: runs in its own environment, which does not have graphcircuits


def serve(folder: Path) -> None:
    """Answer every line on standard input, a method and its settings, with time and scores."""
    answers = own_output()
    methods, names = load(folder)
    print(json.dumps(names), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        start = now()
        scores = methods[question.pop("method")](**question)
        took = (now() - start).tolist()
        print(json.dumps({"took": took, "scores": scores()}), file=answers, flush=True)


def load(folder: Path) -> tuple[dict[str, Callable[..., Callable[[], list[float]]]], list[str]]:
    """The methods by our names, each giving its scores on demand, and the names of all edges."""
    torch.optim.adam = SimpleNamespace(Adam=torch.optim.Adam)  # pyright: ignore
    from auto_circuit.data import (  # pyright: ignore[reportMissingImports]
        PromptDataLoader,
        PromptDataset,
    )
    from auto_circuit.prune_algos import (  # pyright: ignore[reportMissingImports]
        ACDC,
        mask_gradient,
        subnetwork_probing,
    )
    from auto_circuit.types import AblationType  # pyright: ignore[reportMissingImports]
    from auto_circuit.utils.graph_utils import (  # pyright: ignore[reportMissingImports]
        patchable_model,
    )
    from transformer_lens import (  # pyright: ignore[reportMissingImports]
        HookedTransformer,
        HookedTransformerConfig,
    )

    # Written by our own exporter a moment ago.
    settings = pickle.loads((folder / "ll_model_cfg.pkl").read_bytes())
    hooked = HookedTransformer(HookedTransformerConfig.from_dict(settings))
    hooked.load_state_dict(torch.load(folder / "ll_model.pth", weights_only=True))
    hooked.eval().requires_grad_(False)
    rows = torch.load(folder / "rows.pt", weights_only=True)
    with torch.no_grad():
        gap = (hooked(rows["clean"]) - rows["logits"]).abs().max() / rows["logits"].abs().max()
    if gap > 1e-5:
        raise SystemExit(f"the two subjects differ: logits are {gap:.2g} of the largest apart")

    model = patchable_model(hooked, True, slice_output="not_first_seq", separate_qkv=True)
    answers = list(rows["classes"][:, 1:, None])
    prompts = PromptDataset(rows["clean"], rows["corrupted"], answers, answers)
    loader = PromptDataLoader(
        prompts, seq_len=None, diverge_idx=0, batch_size=len(prompts), shuffle=False
    )
    edges = sorted(model.edges, key=lambda edge: edge.name)
    ablations = subnetwork_probing.batch_src_ablations

    def corrupted_run(*arguments: Any, ablation_type: object) -> object:
        return ablations(*arguments, AblationType.RESAMPLE, clean_corrupt="corrupt")

    subnetwork_probing.batch_src_ablations = corrupted_run

    def gradients(**settings: Any) -> Any:
        return mask_gradient.mask_gradient_prune_scores(
            model, loader, None, grad_function="logprob", answer_function="avg_val", **settings
        )

    def acdc(thresholds: list[float]) -> Any:
        # A threshold is a base times ten to an exponent.
        return ACDC.acdc_prune_scores(model, loader, None, tao_exps=[0], tao_bases=thresholds)

    def probing(steps: int, start: float) -> Any:
        return subnetwork_probing.subnetwork_probing_prune_scores(
            model,
            loader,
            None,
            learning_rate=RATE,
            epochs=steps,
            regularize_lambda=SPARSITY,
            init_val=start,
            tree_optimisation=True,
        )

    def listed(method: Callable[..., Any]) -> Callable[..., Callable[[], list[float]]]:
        def run(**settings: Any) -> Callable[[], list[float]]:
            found = method(**settings)
            return lambda: [abs(float(edge.prune_score(found))) for edge in edges]

        return run

    methods = {
        "eap": lambda: gradients(mask_val=0.0),
        # Both ends are points: so many intervals.
        "eap-ig": lambda points: gradients(integrated_grad_samples=points - 1),
        "acdc": acdc,
        "sp-edge": probing,
    }
    return {name: listed(run) for name, run in methods.items()}, [edge.name for edge in edges]


# Ours


def our_name(edge: str) -> str:
    """Our name of an edge of auto-circuit's."""
    writer, reader = edge.split("->")
    writer = re.sub(r"A(\d+)\.(\d+)", r"a\1.h\2", writer)
    reader = re.sub(r"A(\d+)\.(\d+)\.([QKV])", lambda m: f"a{m[1]}.h{m[2]}<{m[3].lower()}>", reader)
    both = f"{writer}->{reader}".replace("MLP ", "m")
    return both.replace("Resid Start", "input").replace("Resid End", "logits")


@dataclass(frozen=True)
class Sides:
    """One method with the same settings twice."""

    ours: Callable[[], Tensor]
    """Gives scores in edge order."""
    peer: Mapping[str, Any]
    """The question that the peer answers with time and scores."""


def prepare(case_id: str, folder: Path, steps: int) -> tuple[list[str], dict[str, Sides]]:
    """Write the peer's files; give the names of our edges and both sides of every method."""
    from graphcircuits import load_case
    from graphcircuits.methods import METHODS
    from graphcircuits.methods.acdc import THRESHOLDS
    from graphcircuits.methods.gates import START
    from lab.benchmarks.interpbench_export import export_interpbench

    case = load_case(case_id)
    subject = case.subject()
    graph = subject.graph
    pairs = case.pairs(PAIRS, seed=0)
    if pairs.loss_name != "kl" or pairs.targets is None or not bool(pairs.scored[:, 1:].all()):
        raise SystemExit(f"{case_id} is not a task with a class at every position but the first")
    if bool(pairs.scored[:, 0].any()):
        raise SystemExit(f"{case_id} scores the first position, which auto-circuit leaves out")
    classes = pairs.targets.argmax(-1)
    labelled = replace(pairs, loss_name="cross-entropy", targets=classes)
    from_clean = replace(pairs, targets=None)
    rows = {
        "clean": pairs.clean,
        "corrupted": pairs.corrupted,
        "classes": classes,
        "logits": subject.logits(pairs.clean),
    }
    export_interpbench(folder, subject, case.circuit)
    torch.save(rows, folder / "rows.pt")
    gates = {"steps": steps, "prompts": PAIRS, "samples": 1}
    gates |= {"sparsity": SPARSITY, "learning_rate": RATE}

    def side(name: str, given: Any, options: dict[str, Any], settings: dict[str, Any]) -> Sides:
        def ours() -> Tensor:
            return METHODS[name](subject, given, **options)

        return Sides(ours, {"method": name, **settings})

    sides = {
        "eap": side("eap", labelled, {"pool": "sum"}, {}),
        "eap-ig": side("eap-ig", labelled, {"pool": "sum", "steps": POINTS}, {"points": POINTS}),
        "acdc": side("acdc", from_clean, {"thresholds": THRESHOLDS}, {"thresholds": THRESHOLDS}),
        # Its gates cut where ours keep: the same start has the other sign.
        "sp-edge": side("sp-edge", from_clean, gates, {"steps": steps, "start": -START}),
    }
    return graph.edge_names, sides


@dataclass(frozen=True)
class Row:
    """What one method took on one subject."""

    edges: int
    method: str
    ours: Tensor
    """Wall and CPU seconds of every turn."""
    peer: Tensor
    correlation: float

    @property
    def ratios(self) -> Tensor:
        return self.peer / self.ours

    @property
    def ratio(self) -> float:
        return median(self.ratios[:, 0].tolist())

    @property
    def met(self) -> bool:
        return self.ratio >= TARGETS[self.method]

    def cells(self) -> list[str]:
        wall = self.ratios[:, 0]
        return [
            str(self.edges),
            self.method,
            seconds(median(self.peer[:, 0].tolist())),
            seconds(median(self.ours[:, 0].tolist())),
            f"{self.ratio:.1f}",
            f"{wall.min():.1f} to {wall.max():.1f}",
            f"{median(self.ratios[:, 1].tolist()):.1f}",
            f"{TARGETS[self.method]:g}",
            "met" if self.met else "missed",
            f"{self.correlation:.3f}",
            SAME[self.method],
        ]


TITLES = (
    "edges",
    "method",
    "auto-circuit",
    "ours",
    "ratio",
    "range",
    "CPU ratio",
    "target",
    "",
    "rank correlation",
    "definitions",
)


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def spearman(first: Tensor, second: Tensor) -> float:
    """The rank correlation of two vectors, ties sharing their mean rank."""

    def ranks(values: Tensor) -> Tensor:
        below = (values[:, None] > values).double().sum(1)
        return below + (values[:, None] == values).double().sum(1) / 2

    return float(torch.corrcoef(torch.stack([ranks(first), ranks(second)]))[0, 1])


def compare(case_id: str, options: argparse.Namespace) -> list[Row]:
    """Both sides of every method in turns, on one subject."""
    with tempfile.TemporaryDirectory() as directory:
        names, sides = prepare(case_id, Path(directory), options.steps)
        arguments = ["--serve", directory, "--threads", str(options.threads)]
        settings = {"WANDB_MODE": "disabled", "TQDM_DISABLE": "1"}
        peer = Peer(environment("auto-circuit", REQUIREMENTS), MODULE, arguments, settings)
        theirs = [our_name(name) for name in json.loads(peer.answer())]
        if sorted(theirs) != sorted(names):
            raise SystemExit(f"{case_id}: {len(set(theirs) ^ set(names))} edges have no partner")
        place = {name: i for i, name in enumerate(theirs)}
        order = torch.tensor([place[name] for name in names])
        rows = []
        for name in options.methods:
            side = sides[name]
            times: dict[str, list[Tensor]] = {"ours": [], "peer": []}
            found, other = torch.empty(0), torch.empty(0)
            # The first turn is not counted.
            for turn in range(options.repeats + 1):
                answer = json.loads(peer.ask(json.dumps(side.peer)))
                start = now()
                found = side.ours()
                took = now() - start
                other = torch.tensor(answer["scores"], dtype=torch.float64)[order]
                if turn:
                    times["ours"].append(took)
                    times["peer"].append(torch.tensor(answer["took"], dtype=torch.float64))
            ours, theirs_took = (torch.stack(each) for each in times.values())
            correlation = spearman(found.double(), other)
            rows.append(Row(len(names), name, ours, theirs_took, correlation))
            print(f"{case_id}  " + "  ".join(rows[-1].cells()), flush=True)
        peer.close()
    return rows


def markdown(rows: list[Row], options: argparse.Namespace) -> str:
    lines = [
        "# Side by side with auto-circuit",
        "",
        f"`python -m {MODULE}`: one call on a loaded subject ({', '.join(options.cases)}), "
        f"{PAIRS} prompt pairs in one batch, {POINTS} integration points, 16 thresholds, "
        f"{options.steps} probing steps. torch {torch.__version__}, {options.threads} thread(s), "
        f"{options.repeats} turns; a ratio is the median over the turns of auto-circuit's time "
        "divided by ours in the same turn.",
        "",
        "| " + " | ".join(TITLES) + " |",
        "|" + " --- |" * len(TITLES),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Methods side by side with auto-circuit.")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--methods", nargs="+", default=tuple(TARGETS), choices=tuple(TARGETS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of probing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.serve is not None:
        serve(options.serve)
        return 0
    before = os.getloadavg()[0]
    rows = [row for case_id in options.cases for row in compare(case_id, options)]
    text = markdown(rows, options)
    print(f"\n{text}\nload {before:.1f} before and {os.getloadavg()[0]:.1f} after")
    if options.markdown is not None:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(text)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
