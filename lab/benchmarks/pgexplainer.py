"""Speed of fitting a PGExplainer: through the masked engine, and edge by edge.

1. `naive_logits` is the masked run as hooked implementations do it: every head is on its own, and
   every reader forms its input edge by edge, mask * clean + (1 - mask) * corrupted.
2. Both fit the same MLP with the same draws for a few steps; the tests show that the scores agree.
3. Describing the edges of a 7-layer subject is timed as well.

python -m lab.benchmarks.pgexplainer [--device cuda] [--threads 1] [--repeats 5] [--json]
"""

import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from graphcircuits.methods.descriptors import describe, standardized
from graphcircuits.methods.pgexplainer import (
    Distance,
    Fit,
    corrupted_distance,
    engine_distance,
    fit,
)
from graphcircuits.methods.prepare import to_clean_output
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.benchmarks import Measurement, best_of, run_alone
from lab.benchmarks.engine import make_subject, prompts

STEPS = 3
SHAPES = ((2, 8, 8), (4, 8, 8), (2, 32, 2))
"""Layers, prompts and masks per step; the first two are how the method fits by default."""


def naive_logits(subject: Transformer, tokens: Tensor, mask: Tensor, corrupted: Tensor) -> Tensor:
    """Logits under one mask (edge); `corrupted` are writer outputs (batch pos writer d_model)."""
    config, graph, w = subject.config, subject.graph, subject.weights
    clean = [subject.embed(tokens)]
    constants = subject.constants[graph.reader_stream.to(subject.device)]
    starts, counts = graph.offsets.tolist(), graph.reads.tolist()

    def read(reader: int) -> Tensor:
        total = constants[reader]
        for writer in range(counts[reader]):
            kept = mask[starts[reader] + writer]
            total = total + kept * clean[writer] + (1 - kept) * corrupted[:, :, writer]
        return total

    def vectors(name: str, reader: int, layer: int, index: int) -> Tensor:
        x = subject.normalize("attn_norm", read(reader), layer) @ w[f"W_{name}"][layer, index]
        return x + w[f"b_{name}"][layer, index] if config.biases else x

    for layer in range(config.n_layers):
        first_q = layer * graph.readers_per_layer
        first_k = first_q + config.n_heads
        first_v = first_k + config.n_groups
        queries = [vectors("Q", first_q + h, layer, h) for h in range(config.n_heads)]
        keys = [vectors("K", first_k + g, layer, g) for g in range(config.n_groups)]
        values = [vectors("V", first_v + g, layer, g) for g in range(config.n_groups)]
        z = subject.attend(*(torch.stack(x, dim=1) for x in (queries, keys, values)), layer=layer)
        W_O = subject.write_weight("W_O", layer)
        # An MLP that runs beside its heads does not count them among its writers.
        clean += [z[:, head] @ W_O[head] for head in range(config.n_heads)]
        *_, hidden = subject.mlp(read(first_v + config.n_groups), layer)
        clean.append(hidden @ subject.write_weight("W_out", layer))
    return subject.unembed(read(graph.n_readers - 1))


def naive_distance(subject: Transformer, pairs: Pairs) -> Distance:
    """What a fit minimizes, with one edge-by-edge run for every sampled mask."""
    corrupted = subject.run(pairs.corrupted).writers.detach()
    whole = corrupted_distance(subject, pairs)

    def distance(masks: Tensor, rows: Tensor) -> Tensor:
        part = pairs[rows]
        runs = [naive_logits(subject, part.clean, mask, corrupted[rows]) for mask in masks]
        return part.loss(torch.stack(runs)).mean() / whole

    return distance


def speed(
    n_layers: int, n_prompts: int, samples: int, device: str, repeats: int
) -> Iterator[Measurement]:
    subject = make_subject(n_layers, 40, device)
    clean, corrupted = prompts(subject, n_prompts)
    scored = torch.ones_like(clean, dtype=torch.bool)
    bare = Pairs(clean=clean, corrupted=corrupted, scored=scored, loss_name="kl")
    pairs = to_clean_output(subject, bare)
    options = Fit(steps=STEPS, prompts=n_prompts, samples=samples)
    described = standardized(describe(subject)).to(subject.dtype)
    distances = {
        "engine": engine_distance(subject, pairs),
        "naive": naive_distance(subject, pairs),
    }

    def fitting(distance: Distance) -> Callable[[], object]:
        return lambda: fit(described, distance, len(pairs), options).sum().item()

    works = {name: fitting(distance) for name, distance in distances.items()}
    # Both once uncounted, then in turn, so that a busy minute does not fall on one of them alone.
    for work in works.values():
        work()
    rounds = [{name: best_of(work, 2) for name, work in works.items()} for _ in range(repeats)]
    edges = subject.graph.n_edges
    shape = f"{edges} edges, d_model 40, {n_prompts} prompts, {samples} masks"
    for name in works:
        step = statistics.median(each[name] for each in rounds) / STEPS
        yield Measurement(f"PGExplainer step, {name}, {shape}", 1e3 * step, "ms")
    ratio = statistics.median(each["naive"] / each["engine"] for each in rounds)
    yield Measurement(f"PGExplainer: naive against engine, {shape}", ratio, "x")
    # Few masks on many prompts are not how the method fits, and nothing is promised for them.
    limit = 0.2 if samples == Fit.samples else None
    yield Measurement(f"PGExplainer: engine against naive, {shape}", 1 / ratio, "x", limit)


def measure(device: str = "cpu", repeats: int = 5) -> Iterator[Measurement]:
    for n_layers, n_prompts, samples in SHAPES:
        yield from speed(n_layers, n_prompts, samples, device, repeats)
    deep = make_subject(7, 88, device)
    seconds = best_of(lambda: describe(deep).sum().item(), repeats)
    yield Measurement(f"describing {deep.graph.n_edges} edges", seconds, "s", limit=2.0)


if __name__ == "__main__":
    raise SystemExit(run_alone(measure, __doc__))
