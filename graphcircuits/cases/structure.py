"""What the split reads of a single case: its circuit, the circuit's structure, a constant output.

1. `circuit_of`: the edges under the official labels, `tokens` and `indices` apart.
2. `structure_hash`: a number that circuits share when they are equal up to renaming heads among
   each other and MLPs among each other. Every component starts with its kind; round by round it
   takes in what it reads and who reads it, by which input (Weisfeiler and Lehman, 1968), until
   rounds cannot carry anything further; the hash is of all components together. Two circuits that
   differ may in theory share it: then they count as related, which only makes the split stricter.
3. `is_constant`: whether the output is the same for all inputs of full length.

Written with hashlib alone: the place of a random program in the split hangs on these numbers, which
must be the same in every process and with every version of every library.
"""

import hashlib
from collections.abc import Iterable, Mapping

import torch

from graphcircuits.cases.case import Case
from graphcircuits.rasp.layout import interpbench_writers

Edge = tuple[str, str, str]
"""Writer, reader and input: `q`, `k` or `v` of a head, `in` of an MLP or the logits."""
NAMED = ("tokens", "indices", "logits")
"""The components that are told apart by name; of the others only the kind counts."""


def circuit_of(case: Case) -> frozenset[Edge]:
    """The official labels with the two embeddings apart."""
    return frozenset(
        (writer, reader, slot)
        for (reader, slot), writers in interpbench_writers(case.layout).items()
        for writer in writers
    )


def mask_structure(case: Case) -> str:
    """The structure of the circuit as a mask has it, where `tokens` and `indices` are one input."""
    edges = circuit_of(case)
    return structure_hash({("tokens" if w == "indices" else w, r, slot) for w, r, slot in edges})


def kind_of(component: str) -> str:
    """What renaming keeps of a component: `a` of a head, `m` of an MLP, other names as they are."""
    return component if component in NAMED else component[0]


def structure_hash(circuit: Iterable[Edge]) -> str:
    """16 hexadecimal digits, the same for circuits that are equal up to renaming."""
    edges = sorted(circuit)
    colour = {name: kind_of(name) for edge in edges for name in edge[:2]}
    # What is at one end reaches the other in fewer rounds than there are components.
    for _ in range(len(colour)):
        colour = _refined(edges, colour)
    return _digest(sorted(colour.values()))[:16]


def _refined(edges: Iterable[Edge], colour: Mapping[str, str]) -> dict[str, str]:
    """Every component with its neighbours taken in."""
    around: dict[str, list[str]] = {name: [] for name in colour}
    for writer, reader, slot in edges:
        around[reader].append(f"reads {slot} {colour[writer]}")
        around[writer].append(f"read by {slot} {colour[reader]}")
    return {name: _digest([colour[name], *sorted(around[name])]) for name in colour}


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_constant(case: Case, *, n: int = 64) -> bool:
    """Whether the output is the same for `n` inputs drawn by the case's own sampler."""
    outputs = map(case.evaluate, case.sample(n, torch.Generator().manual_seed(0)))
    first = next(outputs)
    return all(output == first for output in outputs)
