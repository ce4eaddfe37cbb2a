"""How much memory runs take, and how many prompts, masks or edges go at once.

There is one model of memory so that every method stays within a limit without knowing the subject's
size: every bound in the package is made of the counts of `Footprint`. They are of activations:
weights, prompts and results come on top.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from graphcircuits.subject.transformer import Transformer

MEMORY_LIMIT = 2**30
"""Bytes that the activations of one chunk may take on a CPU, where no limit is given."""

FREE_SHARE = 0.5
"""The part of a GPU's free memory that they may take, where no limit is given. Counts are no more
than estimates, and blocks that are given back do not always fit what is asked for next."""

CPU_BUFFER = 6 * 2**20
"""Bytes of the largest tensor of a chunk on a CPU; larger ones leave its caches and are slower."""


@dataclass(frozen=True)
class Footprint:
    """Numbers that runs of a subject hold, on one prompt of `pos` positions."""

    subject: Transformer
    pos: int
    columns: int | None = None
    """Positions at which logits are computed; None means all of them."""

    @property
    def logits(self) -> int:
        """The logits of one run."""
        columns = self.pos if self.columns is None else self.columns
        return columns * self.subject.config.d_vocab_out

    @property
    def passing(self) -> int:
        """A run of which nothing is kept: one layer at its peak, and the logits."""
        config = self.subject.config
        heads = 3 * (config.n_heads + 2 * config.n_groups) * config.d_head
        mlp = (5 if config.gated_mlp else 3) * config.d_mlp
        attention = 4 * config.n_heads * self.pos
        return self.pos * (5 * config.d_model + heads + mlp + attention) + 3 * self.logits

    @property
    def states(self) -> int:
        """What the readers of all layers read, what their components computed, and the logits."""
        config = self.subject.config
        layer = config.layer_states + 2 * config.d_model
        return self.pos * config.n_layers * layer + self.logits

    @property
    def patterns(self) -> int:
        """The attention of all heads."""
        return self.pos**2 * self.subject.config.n_layers * self.subject.config.n_heads

    @property
    def backward(self) -> int:
        """A run and its gradients, values staying in lists by layer."""
        return 4 * self.states + 3 * self.patterns

    @property
    def writers(self) -> int:
        """The outputs of all writers."""
        return self.pos * self.subject.graph.n_writers * self.subject.config.d_model

    @property
    def readers(self) -> int:
        """What the readers of one layer read, each on its own."""
        return self.pos * self.subject.graph.readers_per_layer * self.subject.config.d_model

    @property
    def pair(self) -> int:
        """A clean and a corrupted run, what their writers put out, and the change from one to the
        other."""
        return 3 * self.states + self.patterns + 6 * self.writers

    def masked(self, *, grad: bool) -> int:
        """A run with a mask on every edge, at its peak; with gradients by the masks, in all."""
        heads, mlp = self._masked_layer
        layer = max(self.pos * heads, self.pos * mlp, 3 * self.logits)
        if not grad:
            return 3 * self.writers + layer
        config, graph = self.subject.config, self.subject.graph
        reads = self.pos * graph.n_readers * config.d_model
        vectors = (5 * config.n_heads + 2 * config.n_groups) * config.d_head
        kept = vectors + 2 * config.n_heads * self.pos
        kept += (4 if config.gated_mlp else 2) * config.d_mlp
        return self.writers + reads + self.pos * config.n_layers * kept + layer + 3 * self.logits

    @property
    def recorded(self) -> int:
        """A run with a mask on every edge that autograd records as it is, whatever gradients are
        wanted by: every stream keeps the outputs of all writers before it."""
        config = self.subject.config
        prefixes = 2 * int(self.subject.graph.stream_reads.sum()) * config.d_model
        layers = config.n_layers * sum(self._masked_layer)
        return self.pos * (prefixes + layers) + 3 * self.logits

    @property
    def _masked_layer(self) -> tuple[int, int]:
        """What a layer's heads, and its MLP, hold at each position of a masked run."""
        config = self.subject.config
        readers = self.subject.graph.readers_per_layer - 1
        heads = 3 * readers * (config.d_model + config.d_head)
        heads += 4 * config.n_heads * self.pos + 2 * config.n_heads * config.d_model
        return heads, 3 * config.d_model + (7 if config.gated_mlp else 4) * config.d_mlp

    @property
    def circuit(self) -> int:
        """A run of a circuit beside the run that its cut edges carry: all differences, and one
        layer or the logits at their peak."""
        config = self.subject.config
        heads = 3 * self.readers + 4 * self.pos * config.n_heads * (2 * config.d_head + self.pos)
        mlp = self.pos * (3 * config.d_model + (6 if config.gated_mlp else 4) * config.d_mlp)
        return self.writers + max(heads, mlp, 3 * self.logits)


def bytes_for(device: torch.device, memory_limit: int | None) -> int:
    """The limit that was given; without one, a share of what a GPU has free, or MEMORY_LIMIT."""
    if memory_limit is not None:
        return memory_limit
    return int(FREE_SHARE * free_bytes(device)) if device.type == "cuda" else MEMORY_LIMIT


def free_bytes(device: torch.device) -> int:
    """What this process may still take of a GPU: what is free, or what PyTorch holds ready for the
    next tensors, within the process's own share."""
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    usable = min(free + torch.cuda.memory_reserved(device), allowed)
    return usable - torch.cuda.memory_allocated(device)


def at_once(
    subject: Transformer,
    numbers: int,
    memory_limit: int | None,
    *,
    taken: int = 0,
    largest: int = 0,
) -> int:
    """How many prompts, masks or edges to run at once, one at least.

    `numbers` is what one of them holds, `taken` what is held beside them, `largest` the size of its
    largest tensor where that is to stay within a CPU's caches.
    """
    itemsize = _itemsize(subject)
    chunk = (bytes_for(subject.device, memory_limit) // itemsize - taken) // numbers
    if largest and subject.device.type == "cpu":
        chunk = min(chunk, CPU_BUFFER // (largest * itemsize))
    return max(1, chunk)


def _itemsize(subject: Transformer) -> int:
    """Bytes per number; in half precision sums take as much as everything else together."""
    return max(subject.dtype.itemsize, torch.float32.itemsize)


def half(memory_limit: int | None) -> int | None:
    """Half of a limit for a part of the work; no limit is none for a part either."""
    return None if memory_limit is None else memory_limit // 2


class OutOfMemory(MemoryError):
    """Memory ran out; `head` says where, and `limit` is what to allow instead, 0 where nothing
    would do."""

    def __init__(self, head: str, limit: int, fit: int) -> None:
        self.head, self.limit, self.fit = head, limit, fit
        advice = f"{fit} should fit: give memory_limit={limit}"
        if not limit:
            advice = "not even one fits: give fewer or shorter prompts, or the subject in bfloat16"
        super().__init__(f"{head}; {advice}.")

    def in_commands(self) -> str:
        """The same in the words of the command line."""
        advice = "give fewer (--pairs) or shorter prompts, or compute with --dtype bfloat16"
        if self.limit:
            advice = (
                f"{self.fit} should fit: if the method did this, give --option "
                f"memory-limit={self.limit}; else {advice}"
            )
        return f"{self.head}; {advice}."


@contextmanager
def explained(subject: Transformer, what: str, chunk: int, numbers: int) -> Iterator[None]:
    """Where memory runs out with `chunk` of something at once, an error that says what would fit.

    `numbers` is what one of them holds, as in `at_once`.
    """
    device = subject.device
    free = free_bytes(device) if device.type == "cuda" else None
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "t allocate memory" not in str(error):
            raise
        each = numbers * _itemsize(subject)
        limit = (
            chunk * each // 2 if free is None else min(chunk * each // 2, int(FREE_SHARE * free))
        )
        there = "" if free is None else f", where {free / 2**30:.1f} GiB were free"
        head = f"out of memory on {device} with {chunk} {what} at once{there}"
        raise OutOfMemory(head, limit if limit >= each else 0, limit // each) from error


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks of up to 32 MiB instead of giving them back.

    glibc raises that threshold to the size of the largest block freed so far. Below it, memory
    goes back to the system after every chunk, and getting it anew takes longer than computing.
    """
    torch.empty(2**25 - 2**13, dtype=torch.uint8)
