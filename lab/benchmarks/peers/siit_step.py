"""One step of strict interchange training: our fleet trainer against TransformerLens.

python -m lab.benchmarks.peers.siit_step [--repeats 7] [--steps 20] [--threads 1]

TransformerLens does what InterpBench's trainer does with it: a plain run (behaviour), a cached run
and a run with hooks on one component of the circuit (interchange), the same on a component outside
(strict), then backward, clipping and Adam; with one summed loss, and with a loss at a time. Each
loss sees 256 rows. InterpBench also runs the compiled program for every interchange; that is left
out, and so are its logging and data loading.

Ours runs the same subject through `train_fleet`: with 512 rows, so that interchange and strict loss
see 256 each and the behaviour loss 512, and without the edge loss that InterpBench does not have;
with the default settings; and as a fleet of eight. Time per step is the difference between a long
and a short training, so that preparing and checking cancel. CPU time is given beside wall time:
where other programs run, it is the steadier of the two.

TransformerLens lives in an environment of its own under build/peers/tl, made on the first run with
the torch version that runs here. Both start from the same weights, and the logits must agree.
"""

import argparse
import os
import pickle
import string
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.benchmarks.peers.environment import STEADY, Peer, environment, now

MODULE = "lab.benchmarks.peers.siit_step"
REQUIREMENT = "transformer-lens==3.9.*"
ROWS = 256
GOAL = 5.0
"""How many times faster a step of ours has to be."""


# TransformerLens: runs in its own environment, which does not have graphcircuits


def serve(folder: Path) -> None:
    """Answer every line on standard input, `MODE STEPS`, with the time of a step."""
    from transformer_lens import (  # pyright: ignore[reportMissingImports]
        HookedTransformer,
        HookedTransformerConfig,
    )

    # Written by our own exporter a moment ago.
    settings = pickle.loads((folder / "ll_model_cfg.pkl").read_bytes())
    model = HookedTransformer(HookedTransformerConfig.from_dict(settings))
    model.load_state_dict(torch.load(folder / "ll_model.pth", weights_only=True))
    rows = torch.load(folder / "rows.pt", weights_only=True)
    with torch.no_grad():
        gap = (model(rows["base"]) - rows["logits"]).abs().max().item()
    print(gap, flush=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for line in sys.stdin:
        mode, steps = line.split()
        start = now()
        for step in range(int(steps)):
            hooked_step(model, optimizer, rows, step, summed=mode == "summed")
        print(*((now() - start) / int(steps)).tolist(), flush=True)


def hooked_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    rows: dict[str, Tensor],
    step: int,
    *,
    summed: bool,
) -> None:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, 1:].flatten(0, 1), targets.flatten())

    def patched(name: str, head: int | None) -> Tensor:
        """Logits of the base rows with one component's activation from the source rows."""
        _, cache = model.run_with_cache(rows["source"])

        def replace(own: Tensor, hook: Any) -> Tensor:
            if head is None:
                return cache[hook.name]
            kept = own.clone()
            kept[:, :, head] = cache[hook.name][:, :, head]
            return kept

        return model.run_with_hooks(rows["base"], fwd_hooks=[(name, replace)])

    def update(value: Tensor) -> None:
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    # The head of the circuit; then heads and the MLP of the second layer, which is outside.
    outside = ("blocks.1.mlp.hook_post", None) if step % 5 == 4 else ("", step % 5)
    parts: list[Callable[[], Tensor]] = [
        lambda: loss(patched("blocks.0.attn.hook_result", 0), rows["swapped"]),
        lambda: 0.4 * loss(patched(outside[0] or "blocks.1.attn.hook_result", outside[1]), kept),
        lambda: loss(model(rows["base"]), kept),
    ]
    kept = rows["targets"]
    if summed:
        update(sum((part() for part in parts), torch.zeros(())))
    else:
        for part in parts:
            update(part())


def start_peer(folder: Path, threads: int) -> Peer:
    """TransformerLens in another process, once its logits were found to be ours."""
    arguments = ["--serve", folder, "--threads", str(threads)]
    python = environment("tl", [REQUIREMENT])
    peer = Peer(python, MODULE, arguments, {"WANDB_MODE": "disabled"})
    gap = float(peer.answer())
    if gap > 1e-4:
        raise SystemExit(f"the two subjects differ: logits are {gap:.2g} apart")
    return peer


def peer_step(peer: Peer, mode: str, steps: int) -> Tensor:
    """Time of a step."""
    return torch.tensor([float(seconds) for seconds in peer.ask(f"{mode} {steps}").split()])


# Ours


def next_of_previous() -> Any:
    """A case with a head and an MLP: the letter after the one that stands before."""
    from graphcircuits.cases.case import Case, SubjectDims
    from graphcircuits.rasp import Aggregate, Map, Select, indices, tokens

    letters = string.ascii_lowercase

    before = Aggregate(Select(indices, indices, lambda key, query: key == query - 1), tokens)
    return Case(
        id="next-of-previous",
        name="next-of-previous",
        task="The letter of the alphabet after the previous token.",
        program=Map(lambda letter: letters[(letters.index(letter) + 1) % 26], before),
        causal=True,
        vocab=tuple(letters),
        max_seq_len=10,
        released_dims=SubjectDims(n_layers=2, n_heads=4, d_head=10, d_model=40, d_mlp=160),
    )


def prepare(folder: Path) -> Callable[[dict[str, Any], int, int], Tensor]:
    """Write the peer's files; give a function that times our step under given settings."""
    from graphcircuits.cases.architectures import subject_config
    from graphcircuits.cases.prepare import case_exchange
    from graphcircuits.fleets.train import SiitConfig, train_fleet
    from graphcircuits.subject.transformer import Transformer
    from lab.benchmarks.interpbench_export import export_interpbench

    case = next_of_previous()
    generator = torch.Generator().manual_seed(0)
    subject = Transformer.random(subject_config(case), generator, case.codec)
    made = case_exchange(case, n_inputs=4096, n_interchanges=1024, seed=0)
    head = made.components.index("a0.h0")
    base, source = made.base[head, :ROWS], made.source[head, :ROWS]
    rows = {
        "base": made.tokens[base],
        "source": made.tokens[source],
        "targets": made.targets[base],
        "swapped": made.swapped[head, :ROWS],
        "logits": subject.logits(made.tokens[base]),
    }
    export_interpbench(folder, subject, case.circuit)
    torch.save(rows, folder / "rows.pt")

    def whole(settings: dict[str, Any], fleet: int, steps: int) -> Tensor:
        config = SiitConfig(**settings, steps=steps, check_every=steps, check_rows=1)
        seeded = torch.Generator().manual_seed(0)
        start = now()
        train_fleet([subject] * fleet, [[made]] * fleet, [[made]] * fleet, config, seeded)
        return now() - start

    def step(settings: dict[str, Any], fleet: int, steps: int) -> Tensor:
        short = whole(settings, fleet, 2)
        return (whole(settings, fleet, 2 + steps) - short) / steps

    return step


def main() -> int:
    parser = argparse.ArgumentParser(description="One step of strict interchange training.")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="steps of a repeat")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.serve is not None:
        serve(options.serve)
        return 0
    same = {"rows": 2 * ROWS, "edge_weight": 0.0}
    with tempfile.TemporaryDirectory() as directory:
        ours = prepare(Path(directory))
        peer = start_peer(Path(directory), options.threads)
        work: dict[str, Callable[[int], Tensor]] = {
            "TransformerLens, one summed loss": lambda n: peer_step(peer, "summed", n),
            "TransformerLens, a loss at a time": lambda n: peer_step(peer, "separate", n),
            "ours, 256 rows per loss": lambda n: ours(same, 1, n),
            "ours, default settings": lambda n: ours({}, 1, n),
            "ours, 256 rows per loss, one of a fleet of 8": lambda n: ours(same, 8, n) / 8,
        }
        for run in work.values():
            run(3)
        load = os.getloadavg()[0]
        # In turns, so that other programs disturb all alike.
        rounds = [[run(options.steps) for run in work.values()] for _ in range(options.repeats)]
        peer.close()
    print(
        f"torch {torch.__version__}, {options.threads} threads, {options.repeats} repeats of "
        f"{options.steps} steps, load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    )
    times = torch.stack([torch.stack(times) for times in rounds])
    return 0 if report(list(work), 1000 * times) else 1


def report(names: list[str], times: Tensor) -> bool:
    """Print what was measured; say whether it shows that the goal is met."""
    wall, cpu = times.unbind(-1)
    middle, best, worst = wall.median(dim=0).values, wall.amin(0), wall.amax(0)
    burnt = cpu.median(dim=0).values
    titles = ("median", "ratio", "best", "ratio", "worst", "CPU", "ratio")
    widths = (7, 6, 7, 6, 7, 7, 6)
    heads = [f"{title:>{width}}" for title, width in zip(titles, widths, strict=True)]
    print(f"{'a step, in ms':44}", *heads)
    for i, name in enumerate(names):
        print(
            f"{name:44} {middle[i]:7.1f} {middle[0] / middle[i]:6.1f} "
            f"{best[i]:7.1f} {best[0] / best[i]:6.1f} {worst[i]:7.1f} "
            f"{burnt[i]:7.1f} {burnt[0] / burnt[i]:6.1f}"
        )
    if bool((worst > STEADY * best).any()):
        print(f"no verdict: some times vary by more than {STEADY} x; run again on an idle machine")
        return False
    # Both, since contention can favour either side.
    mine = names.index("ours, 256 rows per loss")
    ratio = float(min(middle[0] / middle[mine], best[0] / best[mine]))
    met = ratio >= GOAL
    verdict = "met" if met else "missed"
    print(f"goal {GOAL:g} x with 256 rows per loss: {verdict}, {ratio:.1f} x")
    return met


if __name__ == "__main__":
    raise SystemExit(main())
