"""Speed and memory of the subject engine.

1. Every single-edge change of a subject, 100 prompts, against one plain forward pass per edge and
   against one masked run per edge.
2. The run that keeps everything, and one masked run, against the plain forward pass.
3. Peak memory of masked and single-edge runs against the limit they were given, and of methods on
   so many prompts that the runs on all of them would take several times as much.
4. Building the component graphs of large models.

python -m lab.benchmarks.engine [--device cuda] [--threads 1] [--repeats 5] [--json]
"""

import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from graphcircuits.compare.measure import measure as measure_call
from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.resume import single_edge
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods import Stop, localize
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from graphcircuits.task.pairs import Pairs
from lab.benchmarks import Measurement, best_of, run_alone

LIMIT = 2**28
PROMPTS = 4000
STEPS = {
    "exact": {},
    "acdc": {},
    "eap-ig": {},
    "sp-edge": {"steps": 3},
    "pgexplainer": {"steps": 3},
}
"""Methods whose memory is measured, with options that make them short."""


def make_subject(
    n_layers: int, d_model: int, device: str = "cpu", n_heads: int = 4, n_ctx: int = 11
) -> Transformer:
    config = TransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_model // n_heads,
        d_mlp=4 * d_model,
        n_ctx=n_ctx,
        d_vocab=8,
        d_vocab_out=5,
    )
    return Transformer.random(config, torch.Generator().manual_seed(0)).to(device)


def prompts(subject: Transformer, batch: int) -> tuple[Tensor, Tensor]:
    """Clean and corrupted tokens: independent draws after the same first token."""
    generator = torch.Generator().manual_seed(1)
    shape = (2, batch, subject.config.n_ctx)
    tokens = torch.randint(subject.config.d_vocab, shape, generator=generator)
    tokens[..., 0] = 0
    clean, corrupted = tokens.to(subject.device)
    return clean, corrupted


def seconds(work: Callable[[], object], repeats: int, device: str) -> float:
    """The shortest of several calls, after one that is not counted."""

    def finished() -> None:
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    finished()
    return best_of(finished, repeats)


def speed(subject: Transformer, repeats: int, batch: int = 100) -> Iterator[Measurement]:
    config, n_edges, device = subject.config, subject.graph.n_edges, subject.device.type
    clean, corrupted = prompts(subject, batch)
    base, other = subject.run(clean), subject.run(corrupted).writers
    mask = torch.ones(n_edges, device=subject.device)
    works: dict[str, Callable[[], object]] = {
        "plain": lambda: subject.logits(clean),
        "run": lambda: subject.run(clean).writers,
        "masked": lambda: masked_logits(subject, clean, mask, other),
        "all": lambda: single_edge(base, other),
    }
    # Measured in turn, so that a busy minute does not fall on one of them alone; the medians over
    # the rounds are reported.
    rounds = [
        {name: seconds(work, 2 if name == "all" else 10, device) for name, work in works.items()}
        for _ in range(repeats)
    ]
    took = {name: statistics.median(each[name] for each in rounds) for name in works}
    shape = f"{config.n_layers}x{config.n_heads} heads, d_model {config.d_model}, {batch} prompts"
    yield Measurement(f"plain forward, {shape}", 1e3 * took["plain"], "ms")
    yield Measurement(f"{n_edges} single edges, {shape}", 1e3 * took["all"], "ms")
    for name, against in (("plain", "a plain forward"), ("masked", "a masked run")):
        ratios = [n_edges * each[name] / each["all"] for each in rounds]
        what = f"speed-up over {against} an edge, {shape}"
        yield Measurement(what, statistics.median(ratios), "x")
    for name in ("run", "masked"):
        overhead = statistics.median(each[name] / each["plain"] for each in rounds)
        yield Measurement(f"{name} against plain forward, {shape}", overhead, "x", limit=4.0)


def peak_of(kind: str, device: str) -> int:
    """Bytes by which one call raises the memory in use; large enough for the limit to bind."""
    torch.set_num_threads(1)
    subject = make_subject(4, 256, device, n_heads=8, n_ctx=32)
    clean, corrupted = prompts(subject, 16)
    with torch.no_grad():
        base, other = subject.run(clean), subject.run(corrupted).writers
        masks = torch.rand(12, subject.graph.n_edges, device=device)
        edges = torch.arange(200)
        calls: dict[str, Callable[[Tensor, int], object]] = {
            "masked": lambda part, limit: masked_logits(
                subject, clean, part, other, memory_limit=limit
            ),
            "single": lambda part, limit: single_edge(base, other, edges, memory_limit=limit),
        }
        _ = base.writers
        return measure_call(lambda: calls[kind](masks, LIMIT), device).peak_bytes or 0


def method_peak(method: str, options: dict[str, Any], device: str) -> int:
    """Bytes by which a method raises the memory in use; ACDC is stopped after some edges."""
    torch.set_num_threads(1)
    subject = make_subject(2, 40, device)
    clean, corrupted = prompts(subject, PROMPTS)
    scored = torch.ones(clean.shape, dtype=torch.bool, device=device)
    pairs = Pairs(clean=clean, corrupted=corrupted, scored=scored, loss_name="kl")

    def stop(done: int, total: int) -> None:
        if method == "acdc" and done == 10:
            raise Stop

    def call(pairs: Pairs) -> None:
        measured = {"memory_limit": LIMIT, "keep_prompts": 0, **options}
        localize(subject, pairs, method, progress=stop, **measured)

    call(pairs[:4])
    return measure_call(lambda: call(pairs), device).peak_bytes or 0


def memory(device: str) -> Iterator[Measurement]:
    """Each in a process of its own: a peak never falls."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for kind in ("masked", "single"):
            peak = pool.apply(peak_of, (kind, device))
            what = f"peak memory of {kind} runs"
            yield Measurement(what, peak / 2**20, "MiB", limit=LIMIT / 2**20)
        for method, options in STEPS.items():
            peak = pool.apply(method_peak, (method, options, device))
            what = f"peak memory of {method} on {PROMPTS} prompts"
            yield Measurement(what, peak / 2**20, "MiB", limit=LIMIT / 2**20)


def graphs() -> Iterator[Measurement]:
    def build(n_layers: int, n_heads: int) -> ComponentGraph:
        graph = ComponentGraph(n_layers, n_heads)
        assert graph.n_edges > 1_000_000
        return graph

    def endpoints() -> None:
        graph = build(32, 32)
        assert len(graph.edge_writers) == len(graph.edge_readers)

    yield Measurement("32x32 heads with endpoints", seconds(endpoints, 3, "cpu"), "s", limit=1.0)
    lazy = seconds(lambda: build(80, 64).edge_index("m3->a70.h9<k>"), 3, "cpu")
    yield Measurement("80x64 heads and one name", lazy, "s", limit=0.2)


def measure(device: str = "cpu", repeats: int = 5) -> Iterator[Measurement]:
    with torch.no_grad():
        for n_layers, d_model in ((2, 40), (4, 40), (2, 4)):
            yield from speed(make_subject(n_layers, d_model, device), repeats)
    yield from memory(device)
    yield from graphs()


if __name__ == "__main__":
    raise SystemExit(run_alone(measure, __doc__))
