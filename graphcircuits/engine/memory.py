"""How much memory runs take, and how many prompts, masks or edges go at once.

1. `Footprint` counts the numbers that runs on one prompt hold at their peak. Every bound on memory
   in the package is made of these counts.
2. `at_once` divides a limit in bytes by them. On a CPU it also keeps tensors within the caches.

Counts are of activations: weights, prompts and results come on top.
"""

from dataclasses import dataclass

import torch

from graphcircuits.subject.transformer import Transformer

MEMORY_LIMIT = 2**30
"""Bytes that the activations of one chunk may take."""

CPU_BUFFER = 6 * 2**20
"""Bytes of the largest tensor of a chunk on a CPU; larger ones leave its caches and are slower."""


@dataclass(frozen=True)
class Footprint:
    """Numbers that runs of a subject hold, on one prompt of `pos` positions."""

    subject: Transformer
    pos: int

    @property
    def passing(self) -> int:
        """A run of which nothing is kept: one layer at its peak, and the logits."""
        config = self.subject.config
        heads = 3 * (config.n_heads + 2 * config.n_groups) * config.d_head
        mlp = (5 if config.gated_mlp else 3) * config.d_mlp
        attention = 4 * config.n_heads * self.pos
        return self.pos * (5 * config.d_model + heads + mlp + attention + 3 * config.d_vocab_out)

    @property
    def states(self) -> int:
        """What the readers of all layers read, what their components computed, and the logits."""
        config = self.subject.config
        layer = config.layer_states + 2 * config.d_model
        return self.pos * (config.n_layers * layer + config.d_vocab_out)

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
        """A run with a mask on every edge, at its peak, or with gradients in all."""
        config, graph = self.subject.config, self.subject.graph
        heads = 3 * (graph.readers_per_layer - 1) * (config.d_model + config.d_head)
        heads += 4 * config.n_heads * self.pos + 2 * config.n_heads * config.d_model
        mlp = 3 * config.d_model + (7 if config.gated_mlp else 4) * config.d_mlp
        logits = 3 * config.d_vocab_out
        if not grad:
            return 3 * self.writers + self.pos * max(heads, mlp, logits)
        prefixes = 2 * int(graph.stream_reads.sum()) * config.d_model
        return self.pos * (prefixes + config.n_layers * (heads + mlp) + logits)


def at_once(
    subject: Transformer, numbers: int, memory_limit: int, *, taken: int = 0, largest: int = 0
) -> int:
    """How many prompts, masks or edges to run at once, one at least.

    `numbers` is what one of them holds, `taken` what is held beside them, `largest` the size of its
    largest tensor where that is to stay within a CPU's caches.
    """
    itemsize = max(subject.dtype.itemsize, torch.float32.itemsize)
    chunk = (memory_limit // itemsize - taken) // numbers
    if largest and subject.device.type == "cpu":
        chunk = min(chunk, CPU_BUFFER // (largest * itemsize))
    return max(1, chunk)


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks of up to 32 MiB instead of giving them back.

    glibc raises that threshold to the size of the largest block freed so far. Below it, memory
    goes back to the system after every chunk, and getting it anew takes longer than computing.
    """
    torch.empty(2**25 - 2**13, dtype=torch.uint8)
