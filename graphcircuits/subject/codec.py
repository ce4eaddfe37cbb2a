"""Symbols in, ids out; logits in, symbols out.

Token ids: BOS is 0, PAD is 1, then the vocabulary in the order given, then the tasks of a model
that does several. `encode` puts BOS first, or the token of a task in its place; `decode` drops the
output there and reads each later position as the class of the largest logit, or, where there are
no classes, as the number itself.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

BOS = 0
PAD = 1


@dataclass(frozen=True)
class Codec:
    """Translation between a program's symbols and a transformer's ids."""

    vocab: tuple[Hashable, ...]
    outputs: tuple[Hashable, ...] | None = None
    """The output classes in logit order; None for a numerical output."""
    tasks: tuple[str, ...] = ()
    """The tasks that a first token tells apart; none where the model has but one."""

    def __post_init__(self) -> None:
        for name, symbols in (("vocab", self.vocab), ("outputs", self.outputs)):
            if symbols is not None and (not symbols or len(set(symbols)) < len(symbols)):
                raise ValueError(f"{name} must hold distinct symbols, at least one, got {symbols}.")
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks must have distinct names, got {self.tasks}.")
        collide = sorted(set(self.tasks) & set(self.vocab))
        if collide:
            raise ValueError(
                f"a task and a symbol of the vocabulary have the same name: "
                f"{', '.join(map(repr, collide))}; name the task otherwise."
            )

    @property
    def d_vocab(self) -> int:
        return 2 + len(self.vocab) + len(self.tasks)

    @property
    def d_vocab_out(self) -> int:
        return 1 if self.outputs is None else len(self.outputs)

    @cached_property
    def _ids(self) -> dict[Hashable, int]:
        return {symbol: index for index, symbol in enumerate(self.vocab, start=2)}

    def first(self, task: str | None = None) -> int:
        """The id at the first position: the task's where there are several, else BOS."""
        if task is None and not self.tasks:
            return BOS
        if task not in self.tasks:
            known = ", ".join(map(repr, self.tasks))
            expected = f"one of the tasks {known}" if known else "no task, since it has but one"
            raise ValueError(f"the model must be given {expected}; got {task!r}.")
        return 2 + len(self.vocab) + self.tasks.index(task)

    def encode(
        self, sequence: Sequence[Hashable], n_ctx: int | None = None, task: str | None = None
    ) -> Int[Tensor, " pos"]:
        """Ids with BOS, or the task, first; `n_ctx`, where given, is the longest allowed result."""
        if len(sequence) == 0:
            raise ValueError("the sequence is empty; give at least one symbol.")
        if n_ctx is not None and len(sequence) > n_ctx - 1:
            raise ValueError(
                f"the sequence has {len(sequence)} symbols; with BOS at most "
                f"n_ctx - 1 = {n_ctx - 1} fit."
            )
        unknown = sorted({repr(symbol) for symbol in sequence if symbol not in self._ids})
        if unknown:
            raise ValueError(
                f"symbols not in the vocabulary: {', '.join(unknown)}; "
                f"the vocabulary is {', '.join(map(repr, self.vocab))}."
            )
        return torch.tensor([self.first(task)] + [self._ids[symbol] for symbol in sequence])

    def decode(self, logits: Float[Tensor, "pos d_vocab_out"]) -> list[Hashable]:
        """The output symbol of every position but the first."""
        if logits.shape[-1] != self.d_vocab_out:
            raise ValueError(
                f"logits must have {self.d_vocab_out} outputs per position, got {logits.shape[-1]}."
            )
        if self.outputs is None:
            return logits[1:, 0].tolist()
        return [self.outputs[index] for index in logits[1:].argmax(-1).tolist()]
