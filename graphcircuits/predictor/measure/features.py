"""The six features of every edge, at every context, of a subject and a task.

1. A context is a prompt pair and one of its scored positions.
2. One clean and one corrupted run give the vector at every interface. Writers: the residual vector
   of `input`, a head's vector before W_O, an MLP's hidden vector. Readers: a query, key or value
   before rotation, an MLP's vector before the nonlinearity (a gate's behind it), the logits.
3. A backward pass on the clean run gives the gradient of the loss at every interface. Losses are
   summed over pairs, so that a pair's gradient is that of its loss alone.
4. An edge s -> t has the linear map W_e: the write factor of s, then the read factor of t. A norm
   is linear once its scale is held, so the read factor holds it at the scale of the clean run, for
   the corrupted message too. Biases belong to no edge. Row vectors multiply from the left:
   message m = a_s W_e (clean and corrupted), transported gradient g~ = g_t W_e^T.

Then g_t . m = g~ . a_s, clean and corrupted, and the clean messages into a reader add up to its
clean state, biases aside. States and gradients are held once for each interface; messages and
transported gradients are made on demand, one factor after the other, for readers of one layer and
kind at a time. This follows the section "Features" of the paper's appendix; the paper says nothing
of norms and gates.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.memory import MEMORY_LIMIT, Footprint, at_once, keep_freed_memory
from graphcircuits.graph import Block, ComponentGraph
from graphcircuits.subject.components import norm_scale
from graphcircuits.subject.sites import Factors, Interfaces
from graphcircuits.subject.transformer import Run, Transformer
from graphcircuits.task.pairs import Pairs

FEATURES = (
    "writer_clean",
    "writer_corrupted",
    "reader_gradient",
    "message_clean",
    "message_corrupted",
    "transported_gradient",
)
RUNS, ROWS = ("clean", "corrupted", "gradient"), ("pair", "position", "scale")
"""Fields of `Features` that are `Interfaces`, and those that have a row for each context."""


@dataclass(frozen=True, eq=False)
class EdgeVectors:
    """The vectors that belong to the edges of one block."""

    block: Block
    message_clean: Float[Tensor, "context reader writer width"]
    message_corrupted: Float[Tensor, "context reader writer width"]
    # Writers differ in width, so what lies in their coordinates comes in three tensors.
    transported_input: Float[Tensor, "context reader d_model"]
    transported_heads: Float[Tensor, "context reader head_layer head d_head"]
    transported_mlps: Float[Tensor, "context reader mlp_layer d_mlp"]


@dataclass(frozen=True, eq=False)
class Features:
    """The six features of every edge at every context, stored without repetition."""

    graph: ComponentGraph
    pair: Int[Tensor, " context"]
    """The prompt pair of each context, by its number among the pairs given."""
    position: Int[Tensor, " context"]
    clean: Interfaces
    corrupted: Interfaces
    gradient: Interfaces
    """Of the loss at the clean run, by the vector at the interface."""
    factors: Factors
    scale: Float[Tensor, "context stream"]
    """What each reader's norm multiplies by in the clean run; 1 where there is no norm."""

    def __len__(self) -> int:
        """The number of contexts."""
        return len(self.pair)

    def __getitem__(self, contexts: slice | Tensor) -> "Features":
        """The features at some of the contexts."""
        chosen = {name: getattr(self, name).map(lambda x: x[contexts]) for name in RUNS}
        return replace(self, **chosen, **{name: getattr(self, name)[contexts] for name in ROWS})

    def to(self, where: torch.device | torch.dtype | str) -> "Features":
        """The same features on another device or in another dtype."""
        by_kind = (*RUNS, "factors")
        moved = {name: getattr(self, name).map(lambda x: x.to(where)) for name in by_kind}
        scale = self.scale.to(where)
        pair, position = self.pair.to(scale.device), self.position.to(scale.device)
        return replace(self, pair=pair, position=position, scale=scale, **moved)

    def writers(self, run: str) -> Float[Tensor, "context writer d_model"]:
        """What each writer adds to the stream in the `clean` or the `corrupted` run, no biases."""
        states: Interfaces = getattr(self, run)
        heads = torch.einsum("clhd,lhdm->clhm", states.z, self.factors.z)
        mlps = torch.einsum("cld,ldm->clm", states.hidden, self.factors.hidden)
        layers = torch.cat([heads, mlps[:, :, None]], dim=2).flatten(1, 2)
        return torch.cat([states.input[:, None], layers], dim=1)

    def block_gradients(self, block: Block) -> Float[Tensor, "context reader d_model"]:
        """Each reader's gradient in the stream, by its read factor: the norm's scale is held."""
        read = self.factors.read(block)
        pulled = torch.einsum("crw,rmw->crm", self.gradient.read(block), read)
        return pulled * self.scale[:, block.stream, None, None]

    def edge_vectors(self) -> Iterator[EdgeVectors]:
        """Messages and transported gradients, block by block in edge order.

        A block's vectors are made when they are asked for. `parts` bounds what one block takes.
        """
        clean, corrupted = self.writers("clean"), self.writers("corrupted")
        for block in self.graph.blocks:
            scaled = self.scale[:, block.stream, None, None, None]
            read = self.factors.read(block)
            pulled = self.block_gradients(block)
            heads = self.factors.z[: block.head_layers]
            mlps = self.factors.hidden[: block.layer]
            messages = (
                torch.einsum("csm,rmw->crsw", x[:, : block.n_writers], read) * scaled
                for x in (clean, corrupted)
            )
            yield EdgeVectors(
                block,
                *messages,
                transported_input=pulled,
                transported_heads=torch.einsum("crm,lhdm->crlhd", pulled, heads),
                transported_mlps=torch.einsum("crm,ldm->crld", pulled, mlps),
            )

    def parts(self, memory_limit: int = MEMORY_LIMIT) -> Iterator["Features"]:
        """Runs of contexts whose `edge_vectors` take no more than so many bytes, one at least."""
        most = max(self._numbers(block) for block in self.graph.blocks)
        chunk = max(1, memory_limit // (most * self.scale.dtype.itemsize))
        for start in range(0, len(self), chunk):
            yield self[start : start + chunk]

    def _numbers(self, block: Block) -> int:
        """Numbers in the edge vectors of a block, for one context."""
        clean, d_model = self.clean, self.clean.input.shape[-1]
        width = getattr(clean, block.kind).shape[-1]
        heads = block.head_layers * clean.z[0, 0].numel()
        mlps = block.layer * clean.hidden.shape[-1]
        transported = block.n_readers * (heads + mlps + 2 * d_model)
        # Once before and once after the norm's scale.
        messages = 3 * block.n_readers * block.n_writers * width
        return 4 * self.graph.n_writers * d_model + messages + transported


# Making them


def features(
    subject: Transformer,
    pairs: Pairs,
    *,
    contexts: Int[Tensor, "context 2"] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Features:
    """The features of a subject's edges on a task.

    `contexts` has pair and position of each context, in that order; None means all scored
    positions. The runs take at most `memory_limit` bytes (one pair at least).
    """
    if pairs.needs_targets:
        raise ValueError(
            f"the {pairs.loss_name} targets are still to be taken from the clean run, where such a "
            "loss is flat and has no gradient; give pairs with the right answers as targets."
        )
    chosen = pairs.scored.nonzero().cpu() if contexts is None else contexts
    # Pairs without a chosen context need no run.
    used, row = chosen[:, 0].unique_consecutive(return_inverse=True)
    chunks: list[Features] = []
    factors = Factors.of(subject)
    keep_freed_memory()
    size = Footprint(subject, pairs.clean.shape[1])
    # States and gradients of the clean run, each once more while they are stacked.
    numbers = size.backward + 2 * size.states
    for rows in torch.arange(len(used)).split(at_once(subject, numbers, memory_limit)):
        inside = (row >= rows[0]) & (row <= rows[-1])
        pair = (row[inside] - rows[0]).to(subject.device)
        pair_id, position = chosen[inside].to(subject.device).unbind(1)
        some = pairs[used[rows].to(pairs.clean.device)].to(subject.device)
        clean = subject.run(some.clean, lambda logits, some=some: some.loss(logits).sum())
        with torch.no_grad():
            corrupted = subject.run(some.corrupted)
        assert clean.gradients is not None
        runs = {"clean": clean.states, "corrupted": corrupted.states, "gradient": clean.gradients}
        interfaces = {
            name: Interfaces.of_states(states, pair, position) for name, states in runs.items()
        }
        scale = _scale(clean, pair, position)
        chunks.append(
            Features(subject.graph, pair_id, position, **interfaces, factors=factors, scale=scale)
        )
    made = _concatenate(chunks)
    _check(made)
    return made


def _scale(
    run: Run, pair: Int[Tensor, " context"], position: Int[Tensor, " context"]
) -> Float[Tensor, "context stream"]:
    """The factor by which the norm of each stream multiplies in this run."""
    streams = run.streams[:, pair, position].transpose(0, 1)
    scale = norm_scale(run.subject.config, streams)[1].squeeze(-1)
    if run.subject.config.norm_places == "after":
        scale[:, :-1] = 1.0
    return scale


def _concatenate(chunks: list[Features]) -> Features:
    parts = {name: [getattr(chunk, name) for chunk in chunks] for name in (*RUNS, *ROWS)}
    joined = {name: Interfaces.concatenate(parts[name]) for name in RUNS}
    return replace(chunks[0], **joined, **{name: torch.cat(parts[name]) for name in ROWS})


def _check(made: Features) -> None:
    """Refuse vectors that are not finite, and a loss without a gradient."""
    for name, word in zip(RUNS, ("clean state", "corrupted state", "gradient"), strict=True):
        interfaces: Interfaces = getattr(made, name)
        if all(x.isfinite().all() for x in vars(interfaces).values()):
            continue
        for component, vector in interfaces.components(made.graph):
            if (finite := vector.isfinite().all(-1)).all():
                continue
            context = int(finite.logical_not().nonzero()[0])
            raise ValueError(
                f"features must be finite, but the {word} of {component} is NaN or infinite for "
                f"pair {int(made.pair[context])} at position {int(made.position[context])}; look "
                "at the subject's weights and the targets there."
            )
    if not any(x.any() for x in vars(made.gradient).values()):
        raise ValueError(
            "the gradient of the loss is zero at every component, so features would say nothing of "
            "the task; a loss whose targets are the clean run's own outputs is flat there: give "
            "pairs with the right answers as targets."
        )
