"""The subject: a residual-stream transformer as a frozen value.

1. Tokens and positions are embedded: the output of the `input` writer.
2. Each layer normalizes the stream for its readers, forms queries, keys and values, attends, and
   adds the heads' outputs; then (or, if parallel, beside that) the MLP reads, activates and writes.
3. The last stream is normalized and unembedded.

`Transformer.logits` computes that, fused. `Transformer.run` computes the same and keeps what every
component read and wrote, and on request the gradients of a loss there.

Weights are stacked over layers and multiply from the right (x @ W). Norms belong to the reader; of
one that stands after a component, the scale is part of what the component computes (z, hidden) and
the weight part of the matrix that writes it. b_O and b_out belong to no edge: they are constants of
the stream.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.subject.attention import attention_pattern
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.components import Components
from graphcircuits.subject.layers import (
    RotaryScaling,
    TransformerConfig,
    weight_problems,
    weight_shapes,
)
from graphcircuits.subject.states import LayerStates, States, Trace

__all__ = ["RotaryScaling", "Run", "States", "Transformer", "TransformerConfig", "weight_shapes"]


@dataclass(frozen=True, eq=False)
class Transformer(Components):
    """A subject: configuration, weights and, where it speaks a program's language, a codec.

    A frozen value: `to` and `dataclasses.replace` give new ones. `logits` runs it; whatever
    intervenes in a run lives in `graphcircuits.engine`.

    Example:
        subject = gc.load_case("ib-3").subject()
        subject.logits(tokens)

    See docs/models.md, and the paper's section "A Transformer as a Component-Level DAG".
    """

    codec: Codec | None = None
    case: str | None = field(default=None, compare=False)
    """The case whose program it was trained to follow, where its file says so. It says where the
    weights come from and is no part of their content."""
    tokenizer: Any = field(default=None, compare=False, repr=False)
    """What turns text into its tokens, where the source of the weights came with one: a tokenizer
    with the interface of Hugging Face's. It is not written to files."""
    fleet: str | None = field(default=None, compare=False)
    """How it was trained for its case, where its file says so: planted, public or natural."""
    name: str = field(default="", compare=False)
    """What to call it: that of its file, its folder or on the hub, where it was loaded from one."""

    def __post_init__(self) -> None:
        problems = weight_problems(self.config, self.weights)
        if self.codec is not None:
            problems += [
                f"the codec has {name}={getattr(self.codec, name)}, "
                f"the configuration {getattr(self.config, name)}"
                for name in ("d_vocab", "d_vocab_out")
                if getattr(self.codec, name) != getattr(self.config, name)
            ]
        if problems:
            raise ValueError("; ".join(problems) + ".")

    def __repr__(self) -> str:
        """What it is in one line, without the weights."""
        config = self.config
        words = [
            f"{field.name}={value!r}"
            for field in fields(config)
            if (value := getattr(config, field.name)) != field.default
        ]
        words += [] if self.case is None else [f"case={self.case!r}"]
        count = sum(weight.numel() for weight in self.weights.values())
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Transformer({', '.join(words)}; {count:,} parameters, {dtype}, {self.device})"

    @classmethod
    def random(
        cls,
        config: TransformerConfig,
        generator: torch.Generator,
        codec: Codec | None = None,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> "Transformer":
        """Matrices normal with deviation scale / sqrt(fan in), biases zero, norm weights one."""
        weights, given = {}, {"dtype": dtype, "device": generator.device}
        for name, shape in weight_shapes(config).items():
            if name.endswith("norm_w"):
                weights[name] = torch.ones(shape, **given)
            elif name.startswith("b_") or name.endswith("norm_b"):
                weights[name] = torch.zeros(shape, **given)
            else:
                fan_in = config.d_model if name in ("W_E", "W_pos") else shape[-2]
                normal = torch.randn(shape, generator=generator, **given)
                weights[name] = normal * scale / fan_in**0.5
        return cls(config, weights, codec)

    @property
    def device(self) -> torch.device:
        return self.weights["W_E"].device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights["W_E"].dtype

    def to(self, where: torch.device | torch.dtype | str) -> "Transformer":
        """The same subject on another device or in another dtype."""
        moved = {name: weight.to(where) for name, weight in self.weights.items()}
        return replace(self, weights=moved)

    def apply(self, sequence: Sequence[Hashable], task: str | None = None) -> list[Hashable]:
        """Run on one sequence of symbols and decode the outputs, BOS left out.

        A model of several tasks must be told which.
        """
        if self.codec is None:
            raise ValueError("this subject has no codec; call .logits on token ids instead.")
        tokens = self.codec.encode(sequence, self.config.n_ctx, task).to(self.device)
        with torch.no_grad():
            return self.codec.decode(self.logits(tokens[None])[0])

    # The plain run, and the parts that interventions reuse

    def logits(
        self, tokens: Int[Tensor, "batch pos"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch pos d_vocab_out"]:
        """The plain forward pass.

        With a mask (batch pos), 1 or True at real tokens, prompts may be padded on the left or on
        the right; every real token has the logits it would have without padding, the others zeros.
        For causal subjects.
        """
        if attention_mask is not None:
            return _padded_logits(self, tokens, attention_mask)
        stream = self.embed(tokens)
        for layer in range(self.config.n_layers):
            stream = self.layer(stream, layer)
        return self.unembed(self.rules.read(stream, 2 * self.config.n_layers))

    def embed(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """The output of the `input` writer: token plus learned position embedding."""
        config = self.config
        if tokens.numel() == 0:
            raise ValueError(f"tokens must not be empty, got shape {tuple(tokens.shape)}.")
        if tokens.shape[1] > config.n_ctx:
            raise ValueError(
                f"the sequence has {tokens.shape[1]} positions, BOS included; "
                f"at most n_ctx = {config.n_ctx} fit."
            )
        low, high = (int(bound) for bound in tokens.aminmax())
        if low < 0 or high >= config.d_vocab:
            raise ValueError(
                f"tokens must be in 0..{config.d_vocab - 1}, got values from {low} to {high}."
            )
        return self.embed_trusted(tokens)

    def embed_trusted(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """The same of tokens that were checked before: to check them waits for their GPU."""
        stream = self.weights["W_E"][tokens]
        if self.config.embedding_scale != 1.0:
            stream = stream * self.config.embedding_scale
        if self.config.positions == "learned":
            stream = stream + self.weights["W_pos"][: tokens.shape[1]]
        return stream

    def layer(
        self, stream: Float[Tensor, "*batch pos d_model"], layer: int
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The stream after a layer."""
        return self._layer(stream, layer).after

    def _layer(self, stream: Float[Tensor, "*batch pos d_model"], layer: int) -> LayerStates:
        at_heads = self.rules.read(stream, 2 * layer)
        q, k, v, z = self.attention(at_heads, layer)
        W_O = self.write_weight("W_O", layer).flatten(0, 1)
        with_heads = stream + self._linear(z.flatten(-2), W_O, "b_O", layer)
        at_mlp = stream if self.config.parallel else with_heads
        # A view of its own, so that its gradient is that of what the MLP alone reads.
        at_mlp = self.rules.read(at_mlp.view_as(at_mlp), 2 * layer + 1)
        pre, gate, hidden = self.mlp(at_mlp, layer)
        out = self._linear(hidden, self.write_weight("W_out", layer), "b_out", layer)
        return LayerStates(at_heads, at_mlp, q, k, v, z, pre, gate, hidden, with_heads + out)

    def patterns(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> Iterator[Float[Tensor, "batch head pos pos"]]:
        """What each position of each head attends to in the plain run, a layer at a time.

        The last axis is that of the positions attended to.
        """
        stream = self.embed(tokens)
        for layer in range(self.config.n_layers):
            states = self._layer(stream, layer)
            q = self.for_scores("q", states.q.transpose(1, 2), layer)
            k = self.for_scores("k", states.k.transpose(1, 2), layer)
            scores = self.expand_groups(k, dim=1) @ q.transpose(-1, -2)
            by_key = attention_pattern(self.config, layer, scores[..., None, :]).squeeze(-2)
            yield by_key.transpose(-1, -2)
            stream = states.after

    # The run that keeps everything

    def run(
        self,
        tokens: Int[Tensor, "batch pos"],
        loss: Callable[[Float[Tensor, "batch pos d_vocab_out"]], Float[Tensor, ""]] | None = None,
    ) -> "Run":
        """The plain run with everything that components read and wrote.

        `loss` maps logits to a scalar; with it, the run is detached and holds the gradients.
        """
        embedded = self.embed(tokens)
        if loss is None:
            trace = self.trace(embedded)
            return Run(self, States.stacked(trace.by_name()), trace.streams)
        with torch.enable_grad():
            # Every state follows from the embedding, so it alone has to ask for gradients.
            trace = self.trace(embedded.detach().requires_grad_())
            value = loss(trace.logits)
        states = trace.by_name()
        values = iter(torch.autograd.grad(value, [x for each in states.values() for x in each]))
        gradients = {name: [next(values) for _ in each] for name, each in states.items()}
        detached = {name: [state.detach() for state in each] for name, each in states.items()}
        streams = trace.streams.detach()
        return Run(self, States.stacked(detached), streams, States.stacked(gradients))

    def trace(
        self, embedded: Float[Tensor, "batch pos d_model"], columns: slice = slice(None)
    ) -> Trace:
        """The plain run from what `input` writes, its values left where they are computed.

        Logits are computed at these positions only.
        """
        layers, stream = [], embedded
        for layer in range(self.config.n_layers):
            layers.append(self._layer(stream, layer))
            stream = layers[-1].after
        last = self.rules.read(stream, 2 * self.config.n_layers)
        layers[-1] = replace(layers[-1], after=last)
        read = self.uncapped(last[:, columns])
        return Trace(layers, read, self.capped(read))

    def written(
        self,
        first: Float[Tensor, "batch pos d_model"],
        z: Iterable[Tensor],
        hidden: Iterable[Tensor],
    ) -> Float[Tensor, "batch pos writer d_model"]:
        """What each writer adds to the stream, biases excluded, from `input` and layer by layer."""
        outputs = [first[None]]
        for layer, (heads, mlp) in enumerate(zip(z, hidden, strict=True)):
            by_head = heads.permute(2, 0, 1, 3).flatten(1, 2) @ self.write_weight("W_O", layer)
            outputs.append(by_head.unflatten(1, first.shape[:2]))
            outputs.append((mlp @ self.write_weight("W_out", layer))[None])
        # Interventions take whole writers, so memory holds them writer by writer.
        return rearrange(torch.cat(outputs), "writer batch pos d_model -> batch pos writer d_model")


@dataclass(frozen=True, eq=False)
class Run:
    """One plain run of a subject: what its components read and wrote.

    Readers of one stream read the same sum. The streams in order: what the heads of layer 0 read,
    what its MLP reads, the same for each later layer, and what `logits` reads;
    `graph.reader_stream` gives each reader's.
    """

    subject: Transformer
    states: States
    streams: Float[Tensor, "stream batch pos d_model"]
    """Before the reader's norm."""
    gradients: States | None = None
    """Of the loss, where one was given."""

    @property
    def logits(self) -> Float[Tensor, "batch pos d_vocab_out"]:
        return self.subject.capped(self.states.logits)

    @cached_property
    def writers(self) -> Float[Tensor, "batch pos writer d_model"]:
        """What each writer adds to the stream, biases excluded."""
        states = self.states
        return self.subject.written(states.input, states.z, states.hidden)

    @cached_property
    def reader_gradients(self) -> Float[Tensor, "batch pos reader d_model"]:
        """Gradient of the loss at each reader's input, before its norm."""
        subject, gradients = self.subject, self.gradients
        if gradients is None:
            raise ValueError("this run has no gradients; give run(tokens, loss=...) a loss.")
        blocks: list[Tensor] = []
        for layer in range(subject.config.n_layers):
            vectors = torch.cat([getattr(gradients, name)[layer] for name in "qkv"], dim=2)
            W = torch.cat([subject.weights[f"W_{name}"][layer] for name in "QKV"])
            inner = "batch pos head d_head, head d_model d_head -> batch pos head d_model"
            heads = einsum(vectors, W, inner)
            mlp = gradients.pre[layer] @ subject.weights["W_in"][layer].T
            if gradients.gate is not None:
                mlp = mlp + gradients.gate[layer] @ subject.weights["W_gate"][layer].T
            at_heads, at_mlp = self.streams[2 * layer, :, :, None], self.streams[2 * layer + 1]
            blocks += [
                subject.pull_through_norm("attn_norm", at_heads, heads, layer),
                subject.pull_through_norm("mlp_norm", at_mlp, mlp, layer)[:, :, None],
            ]
        read = gradients.logits @ subject.unembedding.T * subject.config.logit_scale
        logits = subject.pull_through_norm("final_norm", self.streams[-1], read)
        return torch.cat([*blocks, logits[:, :, None]], dim=2)


# Prompts of several lengths in one batch, padded on the left or on the right. Their real tokens are
# moved to the front, where they stand at the positions they would have alone; the subject, which is
# causal, runs without a mask; and the outputs are moved back.


def _padded_logits(
    subject: Transformer, tokens: Int[Tensor, "batch pos"], attention_mask: Tensor
) -> Float[Tensor, "batch pos d_vocab_out"]:
    """Logits at real tokens, where `attention_mask` is 1 or True; zeros where there is padding."""
    real = _checked(subject.config, tokens, attention_mask)
    lengths = real.sum(-1, keepdim=True)
    at_front = torch.arange(int(lengths.max()), device=tokens.device) < lengths
    front = torch.zeros_like(at_front, dtype=tokens.dtype)
    front[at_front] = tokens[real]
    found = subject.logits(front)
    logits = found.new_zeros(*real.shape, found.shape[-1])
    logits[real] = found[at_front]
    return logits


def _checked(
    config: TransformerConfig, tokens: Tensor, attention_mask: Tensor
) -> Bool[Tensor, "batch pos"]:
    """The mask as booleans; whatever the shift could not do right is an error."""
    if not config.causal:
        raise ValueError(
            "an attention mask needs a causal subject: in this one every token sees every other, "
            "padding too; run prompts of one length at a time."
        )
    shape, given = tuple(tokens.shape), tuple(attention_mask.shape)
    if given != shape:
        raise ValueError(f"the attention mask must be of the tokens' shape {shape}, got {given}.")
    real = attention_mask.to(tokens.device).bool()
    if attention_mask.is_floating_point() or not (attention_mask.to(tokens.device) == real).all():
        raise ValueError(
            "the attention mask must be 1 or True at real tokens and 0 or False at padding, got "
            f"{attention_mask.dtype} with values from {attention_mask.min().item()} to "
            f"{attention_mask.max().item()}."
        )
    if not real.any(-1).all():
        raise ValueError(
            f"every prompt needs a token, but the attention mask leaves {_rows(~real.any(-1))} "
            "without one."
        )
    # A block of real tokens starts once.
    starts = real[:, 0].long() + (real[:, 1:] & ~real[:, :-1]).sum(-1)
    if (starts > 1).any():
        raise ValueError(
            "the attention mask must keep the tokens of a prompt together, with padding on the "
            f"left or right only, but has holes in {_rows(starts > 1)}."
        )
    return real


def _rows(which: Bool[Tensor, " batch"]) -> str:
    rows = which.nonzero().flatten().tolist()
    more = ", ..." if len(rows) > 5 else ""
    return ("prompt " if len(rows) == 1 else "prompts ") + ", ".join(map(str, rows[:5])) + more
