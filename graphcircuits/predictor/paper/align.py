"""The paper's aligner: vectors of any width become vectors of one width, by attention.

1. Every coordinate of every interface draws a Gaussian identifier for the graph at hand. Writer
   states and transported gradients lie in the coordinates of the writer, messages and reader
   gradients in those of the reader, and share its identifiers.
2. A vector becomes one token per coordinate: a projection of the value, a projection of the
   coordinate's identifier and an embedding of the feature's role, added up; a learned summary token
   comes last.
3. Layers of attention over the tokens, each followed by a feed-forward network, both behind a
   LayerNorm. The summary token at the end is the aligned vector. Only it is read, so the last layer
   computes nothing else; with one layer no token has to be made at all (`summarize`).
4. The aligned features of a node stand side by side in the order of FEATURES, with zeros for those
   it does not have. Line graph: an edge has all six. Incidence graph: a component has its own clean
   state, corrupted state and gradient, an edge the last three; nodes are writers, readers, edges.

Vectors that many edges share are aligned once. The paper feeds raw values; here they are first
divided by their root mean square over the graph, states and gradients of writers and readers apart
(option `standardize`), since gradients may be smaller than states by many orders of magnitude.

Several aligners of one shape can be stacked (`lab/paper`): `summaries` then takes vectors of
several runs and cases at once.

Paper: Feature Alignment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from graphcircuits.engine.memory import MEMORY_LIMIT
from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.block import LayerNorm, along, check_sizes, feed_forward, linear
from graphcircuits.predictor.measure.features import FEATURES, EdgeVectors, Features
from graphcircuits.predictor.paper.summary import summarize
from graphcircuits.predictor.paper.transform import TRANSFORMATIONS, Transformation
from graphcircuits.subject.sites import Interfaces

WRITERS = ("input", "z", "hidden")
READERS = ("q", "k", "v", "mlp", "logits")
EXPANSION = 2
"""Hidden width of the feed-forward networks, in multiples of `d_align`."""


class FeatureAttention(nn.Module):
    """Attention from some tokens of a vector to all of them, and a feed-forward network."""

    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.norm = LayerNorm(width)
        self.query = linear(width, width, generator)
        self.key_value = linear(width, 2 * width, generator)
        self.out = linear(width, width, generator)
        self.feed_norm = LayerNorm(width)
        self.feed = feed_forward(width, EXPANSION, generator)

    def forward(
        self,
        queries: Float[Tensor, "*vector query width"],
        tokens: Float[Tensor, "*vector token width"],
        known: Bool[Tensor, "*vector token"] | None = None,
    ) -> Float[Tensor, "*vector query width"]:
        """`known` tells tokens from the filling behind them."""
        projected = (
            self.query(self.norm(queries)),
            *self.key_value(self.norm(tokens)).chunk(2, -1),
        )
        by_head = (x.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for x in projected)
        mask = None if known is None else known[..., None, None, :]
        attended = F.scaled_dot_product_attention(*by_head, attn_mask=mask)
        return self.after(queries, attended.transpose(-2, -3).flatten(-2))

    def after(
        self, queries: Float[Tensor, "..."], attended: Float[Tensor, "*vector width"]
    ) -> Float[Tensor, "*vector width"]:
        """The rest of the layer, once every head has attended; all vectors may share a query."""
        h = queries + self.out(attended)
        return h + self.feed(self.feed_norm(h))


class TabpfnAligner(nn.Module):
    """Aligns the six features of every edge, or of every node of the incidence graph."""

    def __init__(
        self,
        d_align: int = 32,
        *,
        layers: int = 1,
        heads: int = 4,
        identifiers: int = 16,
        standardize: bool = True,
        memory_limit: int = MEMORY_LIMIT,
        generator: torch.Generator | None = None,
    ) -> None:
        """One layer takes time linear in the width of the vectors, each further one quadratic.

        `identifiers` is the number of Gaussian values that tell a coordinate from the others.
        Tokens take at most `memory_limit` bytes at a time; if gradients are wanted and all tokens
        together take more, they are computed again in the backward pass. Without a generator the
        seed of the parameters is 0.
        """
        super().__init__()
        check_sizes(d_align=d_align, layers=layers, heads=heads, identifiers=identifiers)
        if d_align % heads:
            raise ValueError(f"heads must divide d_align={d_align}, got {heads}.")
        generator = generator or torch.Generator().manual_seed(0)
        self.d_align = d_align
        self.identifiers = identifiers
        self.standardize = standardize
        self.memory_limit = memory_limit
        self.value = linear(1, d_align, generator)
        self.coordinate = linear(identifiers, d_align, generator, bias=False)
        self.role = nn.Parameter(torch.randn(len(FEATURES), d_align, generator=generator))
        self.summary = nn.Parameter(torch.randn(d_align, generator=generator))
        self.layers = nn.ModuleList(
            FeatureAttention(d_align, heads, generator) for _ in range(layers)
        )
        self.norm = LayerNorm(d_align)
        # Numbers a token holds at its peak, all layers together where gradients are wanted: a few
        # per head, or where there are further layers its states.
        self._heads = heads
        short = 4 * heads + 6
        self._token_numbers = layers * d_align * (10 + 2 * EXPANSION) if layers > 1 else short
        self.tokens_weigh = math.ceil(self._token_numbers / short)
        """How much more memory a token takes than with one layer."""

    @property
    def width(self) -> int:
        """Of a node's aligned features side by side."""
        return len(FEATURES) * self.d_align

    @property
    def is_stack(self) -> bool:
        """Whether these are several aligners side by side."""
        return self.summary.ndim == 2

    def forward(
        self,
        features: Features,
        generator: torch.Generator,
        transformation: Transformation = "line",
    ) -> Float[Tensor, "context node width"]:
        """Aligned features of every node, with identifiers drawn from the generator."""
        return self.align(features, self.draw(features, generator), transformation)

    def draw(
        self, features: Features, generator: torch.Generator
    ) -> dict[str, Float[Tensor, "..."]]:
        """Gaussian identifiers (..., coordinate, identifier) by field of `Interfaces`."""
        identifiers = {}
        for field in fields(Interfaces):
            # In single precision on the generator's device: one seed, one draw, whatever follows.
            shape = (*getattr(features.clean, field.name).shape[1:], self.identifiers)
            drawn = torch.randn(shape, generator=generator, device=generator.device)
            identifiers[field.name] = drawn.to(features.scale)
        return identifiers

    def align(
        self,
        features: Features,
        identifiers: Mapping[str, Float[Tensor, "..."]],
        transformation: Transformation = "line",
    ) -> Float[Tensor, "context node width"]:
        """Aligned features of every node, given identifiers such as `draw` makes."""
        if transformation not in TRANSFORMATIONS:
            raise ValueError(
                f"transformation must be one of {', '.join(TRANSFORMATIONS)}, "
                f"got {transformation!r}."
            )
        here, given = (self.role.dtype, self.role.device), features.scale
        if here != (given.dtype, given.device):
            raise ValueError(
                f"features must be {here[0]} on {here[1]} like the aligner, got {given.dtype} on "
                f"{given.device}; call features.to."
            )
        graph = _Graph(
            aligner=self,
            graph=features.graph,
            identifiers={
                name: given.reshape(-1, *given.shape[-2:]) for name, given in identifiers.items()
            },
            factors=factors(features, standardize=self.standardize),
            recompute=self._recompute(features),
        )
        nodes = graph.line_nodes if transformation == "line" else graph.incidence_nodes
        return torch.cat([nodes(some) for some in features.parts(self.memory_limit)])

    def _recompute(self, features: Features) -> bool:
        """Whether the tokens of all vectors are too many to be held for a backward pass."""
        clean = features.clean
        widths = {name: getattr(clean, name).shape[-1] for name in (*WRITERS, *READERS)}
        tokens = 3 * sum(tensor[0].numel() for tensor in vars(clean).values())
        for block in features.graph.blocks:
            sent = widths["input"] + block.head_layers * clean.z[0, 0].numel()
            sent += block.layer * widths["hidden"]
            tokens += block.n_readers * (2 * block.n_writers * widths[block.kind] + sent)
        held = len(features) * tokens * self._token_numbers * features.scale.element_size()
        return torch.is_grad_enabled() and self.role.requires_grad and held > self.memory_limit

    def vectors(
        self,
        values: Float[Tensor, "*lead component coordinate"],
        identifiers: Float[Tensor, "component coordinate identifier"],
        role: int,
        *,
        recompute: bool = False,
    ) -> Float[Tensor, "*lead component d_align"]:
        """Align vectors of one width and role, in chunks.

        With `recompute`, chunks are computed again in the backward pass.
        """
        component, width = values.shape[-2:]
        if values.numel() == 0:
            return values.new_zeros(*values.shape[:-1], self.d_align)
        numbers = component * (width + 1) * self._token_numbers
        if len(self.layers) > 1:
            numbers += component * (width + 1) ** 2 * self._heads
        chunk = max(1, self.memory_limit // (numbers * values.element_size()))
        roles = torch.full((component,), role, device=values.device)
        rows = values.reshape(-1, component, width).transpose(0, 1).split(chunk, dim=1)
        # Nothing in it is drawn at random: the global generator is left alone.
        again = partial(checkpoint, self.summaries, use_reentrant=False, preserve_rng_state=False)
        align = again if recompute else self.summaries
        aligned = [align(row, identifiers, roles) for row in rows]
        return torch.cat(aligned, dim=1).transpose(0, 1).reshape(*values.shape[:-1], self.d_align)

    def summaries(
        self,
        values: Float[Tensor, "*lead vector row coordinate"],
        identifiers: Float[Tensor, "*lead vector coordinate identifier"],
        role: Int[Tensor, " vector"],
        known: Bool[Tensor, "*lead coordinate"] | None = None,
    ) -> Float[Tensor, "*lead vector row d_align"]:
        """Aligned vectors: several rows of values in the coordinates of each vector.

        `lead` is nothing, or run and case where aligners are stacked. `known` tells coordinates
        from the filling behind them, where cases differ in width.
        """
        *first, last = self.layers
        assert isinstance(last, FeatureAttention)
        if not first:
            attended, queries = summarize(self, last, values, identifiers, role, known)
            return self.norm(last.after(queries, attended))
        tokens = self._tokens(values, identifiers, role)
        if known is not None:
            known = F.pad(known, (0, 1), value=True)[..., None, None, :].expand(tokens.shape[:-1])
        for layer in first:
            tokens = layer(tokens, tokens, known)
        return self.norm(last(tokens[..., -1:, :], tokens, known)).squeeze(-2)

    def _tokens(
        self,
        values: Float[Tensor, "*lead vector row coordinate"],
        identifiers: Float[Tensor, "*lead vector coordinate identifier"],
        role: Int[Tensor, " vector"],
    ) -> Float[Tensor, "*lead vector row token d_align"]:
        """One token per coordinate, and the summary token."""
        roles = self.role[..., role, :]
        if self.is_stack:
            roles = roles[:, None]
        # From here on states have the axes lead, vector, row, coordinate, d_align.
        by_coordinate = (self.coordinate(identifiers) + roles[..., None, :]).unsqueeze(-3)
        tokens = self.value(values.unsqueeze(-1)) + by_coordinate
        summary = along(self.summary, tokens) if self.is_stack else self.summary
        return torch.cat([tokens, summary.expand_as(tokens[..., :1, :])], dim=-2)


def factors(features: Features, *, standardize: bool) -> dict[tuple[str, str], Tensor]:
    """What values are multiplied by: states and gradients, of writers and of readers."""
    inverses = {}
    for kind, vectors in (("state", features.clean), ("gradient", features.gradient)):
        for side, names in (("writer", WRITERS), ("reader", READERS)):
            tensors = [getattr(vectors, name) for name in names]
            squares = torch.stack([tensor.square().sum() for tensor in tensors]).sum()
            size = (squares / sum(tensor.numel() for tensor in tensors)).sqrt()
            # Where all values are zero they stay zero.
            inverse = size.reciprocal().where(size > 0, 1.0)
            inverses[kind, side] = inverse if standardize else torch.ones_like(size)
    return inverses


@dataclass(frozen=True, eq=False)
class _Graph:
    """One graph to be aligned: what all its contexts share."""

    aligner: TabpfnAligner
    graph: ComponentGraph
    identifiers: Mapping[str, Float[Tensor, "..."]]
    """(component, coordinate, identifier) by field of `Interfaces`."""
    factors: Mapping[tuple[str, str], Tensor]
    recompute: bool

    def line_nodes(self, features: Features) -> Float[Tensor, "context edge width"]:
        device = features.pair.device
        writers, readers = self.graph.edge_writers.to(device), self.graph.edge_readers.to(device)
        shared = [
            self._writers(features.clean, "writer_clean")[:, writers],
            self._writers(features.corrupted, "writer_corrupted")[:, writers],
            self._readers(features.gradient, "reader_gradient")[:, readers],
        ]
        return torch.cat([*shared, self._edges(features)], dim=-1)

    def incidence_nodes(self, features: Features) -> Float[Tensor, "context node width"]:
        runs = zip((features.clean, features.corrupted, features.gradient), FEATURES, strict=False)
        by_role = [
            torch.cat([self._writers(vectors, role), self._readers(vectors, role)], dim=1)
            for vectors, role in runs
        ]
        components = torch.cat(by_role, dim=-1)
        # Each kind of node lacks the other's half.
        half = components.shape[-1]
        edges = self._edges(features)
        return torch.cat([F.pad(components, (0, half)), F.pad(edges, (half, 0))], dim=1)

    def _writers(self, vectors: Interfaces, role: str) -> Float[Tensor, "context writer d_align"]:
        """Aligned vectors of all writers."""
        by_kind = self._by_kind(vectors, WRITERS, role, "writer")
        layers = self.graph.n_layers
        return self._in_writer_order(torch.cat(by_kind, dim=1), layers, layers)

    def _readers(self, vectors: Interfaces, role: str) -> Float[Tensor, "context reader d_align"]:
        """Aligned vectors of all readers."""
        *in_layers, logits = self._by_kind(vectors, READERS, role, "reader")
        by_layer = [aligned.unflatten(1, (self.graph.n_layers, -1)) for aligned in in_layers]
        return torch.cat([torch.cat(by_layer, dim=2).flatten(1, 2), logits], dim=1)

    def _by_kind(
        self, vectors: Interfaces, names: Sequence[str], role: str, side: str
    ) -> list[Float[Tensor, "context component d_align"]]:
        """Aligned vectors of all components of each kind."""
        return [
            self._align(
                values.reshape(len(values), -1, values.shape[-1]),
                self.identifiers[name],
                role,
                side,
            )
            for name in names
            for values in (getattr(vectors, name),)
        ]

    def _edges(self, features: Features) -> Float[Tensor, "context edge half_width"]:
        """Aligned messages and transported gradients of all edges."""
        return torch.cat([self._block(vectors) for vectors in features.edge_vectors()], dim=1)

    def _block(self, vectors: EdgeVectors) -> Float[Tensor, "context edge half_width"]:
        block = vectors.block
        first = 0 if block.kind == "logits" else block.layer * block.n_readers
        identifiers = self.identifiers[block.kind][first : first + block.n_readers]
        messages = [
            self._align(getattr(vectors, role).transpose(1, 2), identifiers, role, "reader")
            for role in ("message_clean", "message_corrupted")
        ]
        by_kind = {
            "input": vectors.transported_input[:, :, None],
            "z": vectors.transported_heads.flatten(2, 3),
            "hidden": vectors.transported_mlps,
        }
        transported = [
            self._align(
                values, self.identifiers[name][: values.shape[2]], "transported_gradient", "writer"
            )
            for name, values in by_kind.items()
        ]
        ordered = self._in_writer_order(
            torch.cat(transported, dim=2), block.head_layers, block.layer
        )
        by_reader = [*(aligned.transpose(1, 2) for aligned in messages), ordered]
        return torch.cat(by_reader, dim=-1).flatten(1, 2)

    def _align(
        self,
        values: Float[Tensor, "*lead component coordinate"],
        identifiers: Float[Tensor, "component coordinate identifier"],
        role: str,
        side: str,
    ) -> Float[Tensor, "*lead component d_align"]:
        factor = self.factors["gradient" if role.endswith("gradient") else "state", side]
        return self.aligner.vectors(
            values * factor, identifiers, FEATURES.index(role), recompute=self.recompute
        )

    def _in_writer_order(
        self, aligned: Float[Tensor, "*lead writer d_align"], head_layers: int, mlp_layers: int
    ) -> Float[Tensor, "*lead writer d_align"]:
        """From `input`, all heads, all MLPs to the order of the graph: heads and MLP in turns."""
        writers = torch.arange(self.graph.n_writers)
        layers = writers[1:].view(-1, self.graph.writers_per_layer)
        heads, mlps = layers[:head_layers, :-1], layers[:mlp_layers, -1]
        order = torch.cat([writers[:1], heads.flatten(), mlps]).argsort()
        return aligned[..., order.to(aligned.device), :]
