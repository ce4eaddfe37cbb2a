"""Slow twins for features: subjects nudged at one interface, and messages from the definitions."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphcircuits.predictor.measure.features import Features
from graphcircuits.subject.transformer import Run, Transformer
from graphcircuits.task.pairs import Pairs


@dataclass(frozen=True, eq=False)
class Nudged(Transformer):
    """A subject with something added to the vector at one interface, at every position."""

    writer: int | None = None
    reader: int | None = None
    nudge: Tensor | None = None

    def _nudge(self, vectors: Tensor, layer: int, place: str, slot: int | None = None) -> Tensor:
        if self.nudge is None or self._place() != (place, layer, slot):
            return vectors
        if slot is None:
            return vectors + self.nudge
        added = torch.zeros_like(vectors)
        added[..., slot, :] = self.nudge
        return vectors + added

    def _place(self) -> tuple[str, int, int | None]:
        graph = self.graph
        if self.writer is not None:
            layer, head = divmod(self.writer - 1, graph.writers_per_layer)
            if self.writer == 0:
                return "input", 0, None
            return ("hidden", layer, None) if head == graph.n_heads else ("z", layer, head)
        assert self.reader is not None
        kind, layer = graph.reader_kinds[self.reader], int(graph.reader_layer[self.reader])
        if kind == "logits":
            return kind, 0, None
        if kind == "mlp":
            return kind, layer, None
        slot = self.reader % graph.readers_per_layer
        return kind, layer, slot if kind == "q" else (slot - graph.n_heads) % graph.n_groups

    def embed(self, tokens: Tensor) -> Tensor:
        return self._nudge(super().embed(tokens), 0, "input")

    def attention(self, stream: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v, z = super().attention(stream, layer)
        for slot in range(self.config.n_heads):
            q = self._nudge(q, layer, "q", slot)
            k, v = (self._nudge(x, layer, n, slot) for x, n in ((k, "k"), (v, "v")))
        z = self.attend(*(x.transpose(-2, -3) for x in (q, k, v)), layer=layer).transpose(-2, -3)
        for slot in range(self.config.n_heads):
            z = self._nudge(z, layer, "z", slot)
        return q, k, v, z

    def mlp(self, stream: Tensor, layer: int) -> tuple[Tensor, Tensor | None, Tensor]:
        pre, gate, _ = super().mlp(stream, layer)
        both = self._nudge(pre if gate is None else torch.cat([pre, gate], -1), layer, "mlp")
        pre, gate = (both, None) if gate is None else both.chunk(2, dim=-1)
        return pre, gate, self._nudge(self.hidden(pre, gate, layer), layer, "hidden")

    def uncapped(self, stream: Tensor) -> Tensor:
        return self._nudge(super().uncapped(stream), 0, "logits")


def spread(made: Features, pairs: Pairs, vectors: Tensor) -> Tensor:
    """Vectors by context as vectors by pair and position."""
    placed = vectors.new_zeros(*pairs.clean.shape, vectors.shape[-1])
    placed[made.pair, made.position] = vectors
    return placed


def slope(subject: Transformer, pairs: Pairs, place: str, index: int, nudge: Tensor) -> Tensor:
    """Change of the summed loss along a nudge at a writer or reader, by central differences."""
    losses = []
    for step in (1e-5, -1e-5):
        nudged = Nudged(subject.config, subject.weights, nudge=step * nudge)
        nudged = replace(nudged, **{place: index})
        losses.append(pairs.loss(nudged.logits(pairs.clean)).sum())
    return (losses[0] - losses[1]) / 2e-5


def plain_message(run: Run, reader: int, written: Tensor) -> Tensor:
    """What a vector in the stream brings to a reader: norm at the run's scale, then the weights."""
    subject, graph = run.subject, run.subject.graph
    config, weights = subject.config, subject.weights
    kind, layer = graph.reader_kinds[reader], int(graph.reader_layer[reader])
    norm = {"mlp": "mlp_norm", "logits": "final_norm"}.get(kind, "attn_norm")
    stream = run.streams[graph.reader_stream[reader]]
    if f"{norm}_w" not in weights:
        return written @ read_weight(subject, reader)
    if config.norm == "layer":
        written = written - written.mean(-1, keepdim=True)
        written = written / (stream.var(-1, keepdim=True, unbiased=False) + config.norm_eps).sqrt()
    if config.norm == "rms":
        written = written / (stream.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt()
    written = written * (weights[f"{norm}_w"] if kind == "logits" else weights[f"{norm}_w"][layer])
    return written @ read_weight(subject, reader)


def read_weight(subject: Transformer, reader: int) -> Tensor:
    graph, weights = subject.graph, subject.weights
    kind, layer = graph.reader_kinds[reader], int(graph.reader_layer[reader])
    if kind == "logits":
        return subject.unembedding * subject.config.logit_scale
    if kind == "mlp":
        names = ["W_in", "W_gate"] if subject.config.gated_mlp else ["W_in"]
        return torch.cat([weights[name][layer] for name in names], dim=-1)
    slot = reader % graph.readers_per_layer
    slot = slot if kind == "q" else (slot - graph.n_heads) % graph.n_groups
    return weights[f"W_{kind.upper()}"][layer, slot]


def read_bias(run: Run, reader: int) -> Tensor:
    """What a reader's vector holds besides its messages: every bias on the way."""
    subject, graph, weights = run.subject, run.subject.graph, run.subject.weights
    kind, layer = graph.reader_kinds[reader], int(graph.reader_layer[reader])
    norm = {"mlp": "mlp_norm", "logits": "final_norm"}.get(kind, "attn_norm")
    constant = subject.constants[graph.reader_stream[reader]]
    bias = plain_message(run, reader, constant.expand_as(run.streams[0]))
    if subject.config.norm == "layer":
        own = weights[f"{norm}_b"] if kind == "logits" else weights[f"{norm}_b"][layer]
        bias = bias + own @ read_weight(subject, reader)
    if not subject.config.biases:
        return bias
    if kind == "logits":
        return bias + weights["b_U"] * subject.config.logit_scale
    if kind == "mlp":
        own = weights["b_in"][layer]
        return bias + torch.cat([own, torch.zeros_like(own)])[: bias.shape[-1]]
    slot = reader % graph.readers_per_layer
    slot = slot if kind == "q" else (slot - graph.n_heads) % graph.n_groups
    return bias + weights[f"b_{kind.upper()}"][layer, slot]
