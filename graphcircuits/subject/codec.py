"""Symbols in, ids out; logits in, symbols out.

Token ids: BOS is 0, PAD is 1, then the vocabulary in the order given. `encode` puts BOS first;
`decode` drops the output at BOS and reads each later position as the class of the largest logit,
or, where there are no classes, as the number itself.
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

    def __post_init__(self) -> None:
        for name, symbols in (("vocab", self.vocab), ("outputs", self.outputs)):
            if symbols is not None and (not symbols or len(set(symbols)) < len(symbols)):
                raise ValueError(f"{name} must hold distinct symbols, at least one, got {symbols}.")

    @property
    def d_vocab(self) -> int:
        return 2 + len(self.vocab)

    @property
    def d_vocab_out(self) -> int:
        return 1 if self.outputs is None else len(self.outputs)

    @cached_property
    def _ids(self) -> dict[Hashable, int]:
        return {symbol: index for index, symbol in enumerate(self.vocab, start=2)}

    def encode(self, sequence: Sequence[Hashable], n_ctx: int | None = None) -> Int[Tensor, " pos"]:
        """Ids with BOS first; `n_ctx`, where given, is the longest allowed result."""
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
        return torch.tensor([BOS] + [self._ids[symbol] for symbol in sequence])

    def decode(self, logits: Float[Tensor, "pos d_vocab_out"]) -> list[Hashable]:
        """The output symbol of every position but BOS."""
        if logits.shape[-1] != self.d_vocab_out:
            raise ValueError(
                f"logits must have {self.d_vocab_out} outputs per position, got {logits.shape[-1]}."
            )
        if self.outputs is None:
            return logits[1:, 0].tolist()
        return [self.outputs[index] for index in logits[1:].argmax(-1).tolist()]
