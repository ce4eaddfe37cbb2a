"""Small cases for the predictor's tests, subjects that are the same in another guise, and slow
twins of their invariants."""

import re
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.eap import eap
from graphcircuits.predictor.invariant import Invariants
from graphcircuits.predictor.measure.features import FEATURES, Features, features
from graphcircuits.predictor.model import PredictorConfig, Reading, read_case
from graphcircuits.subject.sites import Factors, Interfaces
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example
from tests.methods.tasks import make_pairs
from tests.predictor.graphs import seeded
from tests.subjects import make_subject

SMALL: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "d_align": 4, "dropout": 0.0}
"""Options of a predictor that is quick to run."""


AT_THE_CLEAN_RUN: dict[str, Any] = {"share": 1.0, "prior": False, "paths": False}
"""Options of a predictor that has the gradient of the clean run, and nothing beside it."""


def small(**options: Any) -> PredictorConfig:
    """With a prior wherever there can be one."""
    prior = options.get("share", 0.5) < 1 and options.get("aligner") != "tabpfn"
    return PredictorConfig(**(SMALL | {"prior": prior} | options))


def make_task(architecture: str = "plain", batch: int = 3, **options: Any) -> tuple[Any, Pairs]:
    """A subject in float64 and pairs whose loss has a gradient."""
    subject = make_subject(architecture, **options)
    return subject, make_pairs(subject, "cross-entropy", batch=batch)


def make_reading(config: PredictorConfig, architecture: str = "plain", seed: int = 0) -> Reading:
    """A case in float64; another seed is another subject."""
    subject, pairs = make_task(architecture, seed=seed)
    return read_case(config, subject, pairs, generator=seeded(0))


def make_example(config: PredictorConfig, name: str, seed: int, architecture: str) -> Example:
    """A case in single precision; the quarter of its edges with the largest effect is its circuit,
    so that there is something to learn."""
    subject, pairs = make_task(architecture, seed=seed)
    reading = read_case(config, subject.to(torch.float32), pairs, generator=seeded(0))
    effects = eap(subject, pairs)
    mask = effects > effects.quantile(0.75)
    return Example(name, reading, Circuit.from_mask(subject.graph, mask))


def make_examples(config: PredictorConfig) -> list[Example]:
    """Three cases of three graphs."""
    architectures = ("plain", "one-layer", "grouped-keys")
    return [
        make_example(config, f"case-{seed}", seed, architecture)
        for seed, architecture in enumerate(architectures)
    ]


def training(predictor: PredictorConfig | None = None, **options: Any) -> TrainConfig:
    """A short training."""
    given: dict[str, Any] = {"steps": 6, "every": 2, "lr": 1e-2}
    return TrainConfig(predictor=predictor or small(), **(given | options))


# The same subject in another guise


def rotated(subject: Transformer, seed: int = 0) -> Transformer:
    """The residual stream in another orthonormal basis; for subjects without norms."""
    size = subject.config.d_model
    noise = torch.randn(size, size, generator=seeded(seed), dtype=torch.float64)
    R = torch.linalg.qr(noise).Q
    weights = dict(subject.weights)
    for name in ("W_E", "W_pos", "W_O", "W_out", "b_O", "b_out"):
        if name in weights:
            weights[name] = weights[name] @ R
    for name in ("W_Q", "W_K", "W_V", "W_in", "W_gate", "W_U"):
        if name in weights:
            weights[name] = R.T @ weights[name]
    return Transformer(subject.config, weights)


def reordered(subject: Transformer, layer: int, order: list[int]) -> Transformer:
    """Heads of one layer renumbered: `order` is the old number of each; groups stay together."""
    per_group = subject.config.heads_per_group
    groups = [head // per_group for head in order[::per_group]]
    weights = {name: weight.clone() for name, weight in subject.weights.items()}
    for name in ("W_Q", "b_Q", "W_O"):
        weights[name][layer] = weights[name][layer, order]
    for name in ("W_K", "b_K", "W_V", "b_V"):
        weights[name][layer] = weights[name][layer, groups]
    return Transformer(subject.config, weights)


def old_edges(graph: ComponentGraph, layer: int, order: list[int]) -> Int[Tensor, " edge"]:
    """The number each edge had before `reordered`, by name."""
    per_group = graph.n_heads // graph.n_groups
    old = {"h": order, "g": [head // per_group for head in order[::per_group]]}

    def renamed(match: re.Match[str]) -> str:
        return f"a{layer}.{match[1]}{old[match[1]][int(match[2])]}"

    names = [re.sub(rf"a{layer}\.([hg])(\d+)", renamed, name) for name in graph.edge_names]
    return graph.edge_indices(names)


def widened(subject: Transformer, groups: int, layers: int) -> Transformer:
    """The same function in a larger subject: groups of heads in every layer that read and write
    nothing, and layers behind the others that do so. Edges keep their names."""
    config = subject.config
    heads = groups * config.heads_per_group
    more = dict.fromkeys(("W_Q", "b_Q", "W_O"), heads)
    more |= dict.fromkeys(("W_K", "b_K", "W_V", "b_V"), groups)
    weights = dict(subject.weights)
    for name, weight in subject.weights.items():
        # Embedding, unembedding and the last norm are of no layer.
        if name in ("W_E", "W_pos", "W_U", "b_U") or name.startswith("final_norm"):
            continue
        n_layers, *rest = weight.shape
        if name in more:
            rest[0] += more[name]
        weights[name] = weight.new_zeros(n_layers + layers, *rest)
        weights[name][tuple(map(slice, weight.shape))] = weight
    kv_heads = None if config.n_kv_heads is None else config.n_kv_heads + groups
    sizes = {"n_layers": config.n_layers + layers, "n_heads": config.n_heads + heads}
    return Transformer(replace(config, **sizes, n_kv_heads=kv_heads), weights)


def with_positions(pairs: Pairs, order: Tensor) -> Pairs:
    """The positions of every prompt in another order."""
    targets = None if pairs.targets is None else pairs.targets[:, order]
    moved = {name: getattr(pairs, name)[:, order] for name in ("clean", "corrupted", "scored")}
    return replace(pairs, **moved, targets=targets)


# Slow twins


def pooled(contractions: Tensor, pair: Tensor) -> Tensor:
    """Statistics from contractions [context, edge, contraction], a pair at a time."""
    by_pair = torch.stack([contractions[pair == name].sum(0) for name in pair.unique()])
    means = [contractions.abs().mean(0), by_pair[..., :2].abs().mean(0)]
    return torch.cat(means, dim=-1).T.contiguous()


def vector_at_reader(vectors: Interfaces, graph: ComponentGraph, reader: int) -> Tensor:
    """The vector of one reader, at every context."""
    block = next(block for block in graph.blocks if reader < block.readers.stop)
    return vectors.read(block)[:, reader - block.first_reader]


AT = {"writer": Interfaces.writer, "reader": vector_at_reader}
"""The vector of a writer or of a reader."""


def write_factor(factors: Factors, graph: ComponentGraph, writer: int) -> Tensor:
    """What takes a writer's vector to the stream."""
    layer, head = divmod(writer - 1, graph.writers_per_layer)
    if writer == 0:
        return torch.eye(factors.z.shape[-1], dtype=factors.z.dtype)
    return factors.hidden[layer] if head == graph.n_heads else factors.z[layer, head]


def edge_features(made: Features, edge: int) -> dict[str, Tensor]:
    """All six features of one edge by their names, the plain way."""
    graph = made.graph
    block = next(block for block in graph.blocks if edge < block.edges.stop)
    reader, writer = divmod(edge - block.first_edge, block.n_writers)
    read = made.factors.read(block)[reader]
    write = write_factor(made.factors, graph, writer)
    scale = made.scale[:, block.stream, None]
    clean, corrupted = (x.writer(graph, writer) for x in (made.clean, made.corrupted))
    gradient = made.gradient.read(block)[:, reader]
    vectors = (
        clean,
        corrupted,
        gradient,
        scale * (clean @ write @ read),
        scale * (corrupted @ write @ read),
        scale * (gradient @ read.T @ write.T),
    )
    return dict(zip(FEATURES, vectors, strict=True))


def edge_by_edge(subject: Transformer, pairs: Pairs) -> Tensor:
    """Statistics from the six features.

    `input` writes straight to the stream, so the gradient that its edge transports is the one
    that the target sends there.
    """
    made = features(subject, pairs, contexts=torch.ones_like(pairs.scored).nonzero())
    graph, columns = made.graph, []
    for edge in range(graph.n_edges):
        found = edge_features(made, edge)
        write = write_factor(made.factors, graph, int(graph.edge_writers[edge]))
        first = edge_features(made, int(graph.offsets[graph.edge_readers[edge]]))[
            "transported_gradient"
        ]
        clean, corrupted = (
            (found["reader_gradient"] * found[f"message_{run}"]).sum(-1)
            for run in ("clean", "corrupted")
        )
        output = found["writer_clean"] @ write
        change = found["writer_corrupted"] @ write - output
        norm = first.norm(dim=-1)
        of_norms = (norm * change.norm(dim=-1), norm * output.norm(dim=-1))
        columns.append(torch.stack([corrupted - clean, clean, corrupted, *of_norms], dim=-1))
    return pooled(torch.stack(columns, dim=1), made.pair)


def dense(subject: Transformer, pairs: Pairs) -> Invariants:
    """Everything from the written vectors and the gradients at all readers, norms included."""
    run = subject.run(pairs.clean, lambda logits: pairs.loss(logits).sum())
    graph = subject.graph
    clean, gradient = run.writers.flatten(0, 1), run.reader_gradients.flatten(0, 1)
    corrupted = subject.run(pairs.corrupted).writers.flatten(0, 1)
    change = corrupted - clean
    writers, readers = graph.edge_writers, graph.edge_readers
    products = [(gradient[:, readers] * x[:, writers]).sum(-1) for x in (change, clean, corrupted)]
    norms = gradient.norm(dim=-1)[:, readers]
    products += [norms * x.norm(dim=-1)[:, writers] for x in (change, clean)]
    pair = torch.arange(len(pairs)).repeat_interleave(pairs.clean.shape[1])
    return Invariants(
        graph,
        statistics=pooled(torch.stack(products, dim=-1), pair),
        written=torch.stack([x.norm(dim=-1).mean(0) for x in (clean, change)]),
        received=gradient.norm(dim=-1).mean(0),
    )
