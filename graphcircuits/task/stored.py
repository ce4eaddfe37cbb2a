"""Some prompts of a task as a reader sees them, and what each head attended to in them.

1. `stored_prompts` takes the first pairs, as many as fit, runs the subject once on each clean and
   corrupted prompt, and keeps the attention patterns as bytes, 255 for 1.
2. Tokens are shown as the tokenizer writes them, else as the symbols of a program, else as ids; the
   right answer is shown where the pairs tell it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from graphcircuits.io.store import content_hash
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

MOST_PAIRS = 4
MOST_BYTES = 600_000
"""Of all patterns together: they travel in the file of a result and in its page."""
_LONGEST_TOKEN, _LONGEST_ANSWER = 80, 200
"""Characters that are stored."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredPrompts:
    """A few prompt pairs in words, and the attention patterns of a subject on them."""

    clean: Sequence[Sequence[str]]
    """The tokens of each clean prompt."""
    corrupted: Sequence[Sequence[str]]
    answers: Sequence[str | None]
    """What is right on each clean prompt, where the pairs tell."""
    # Plain tensors: their lengths differ, and all of it is checked below.
    patterns: Sequence[Tensor]
    """What each position attends to in the clean run: one table of bytes (layer head query key) per
    pair, 255 meaning 1. Kept as copies on the CPU."""
    patterns_corrupted: Sequence[Tensor]

    def __post_init__(self) -> None:
        for name in ("clean", "corrupted"):
            object.__setattr__(self, name, tuple(tuple(tokens) for tokens in getattr(self, name)))
        for name in ("patterns", "patterns_corrupted"):
            tables = tuple(table.detach().to("cpu", copy=True) for table in getattr(self, name))
            object.__setattr__(self, name, tables)
        object.__setattr__(self, "answers", tuple(self.answers))
        if problems := self._problems():
            raise ValueError("; ".join(problems) + ".")

    def _problems(self) -> list[str]:
        """What does not fit together."""
        count, length = len(self.clean), [len(tokens) for tokens in self.clean]
        if not count or not min(length):
            return ["there must be at least one prompt, and no prompt without tokens"]
        problems = []
        if (other := [len(tokens) for tokens in self.corrupted]) != length:
            problems.append(
                f"corrupted prompts must be as long as clean ones, {_listed(length)} tokens, got "
                f"{_listed(other)}"
            )
        if len(self.answers) != count:
            problems.append(
                f"answers must be one for each of {count} prompts, got {len(self.answers)}"
            )
        for name in ("patterns", "patterns_corrupted"):
            shapes = [tuple(table.shape) for table in getattr(self, name)]
            wanted = [(*self.heads, tokens, tokens) for tokens in length]
            if shapes != wanted:
                problems.append(
                    f"{name} must have the axes layer, head, query and key for each prompt, "
                    f"{_listed(wanted)}, got {_listed(shapes)}"
                )
            if odd := {table.dtype for table in getattr(self, name)} - {torch.uint8}:
                problems.append(f"{name} must be bytes, torch.uint8, got {_listed([*odd])}")
        return problems

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def heads(self) -> tuple[int, ...]:
        """Layers, and heads of each."""
        return tuple(self.patterns[0].shape[:2]) if self.patterns else ()

    def __repr__(self) -> str:
        tokens = sum(map(len, self.clean))
        layers, heads = self.heads
        return f"StoredPrompts({len(self)} pairs, {tokens} tokens, {layers} x {heads} heads)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredPrompts):
            return NotImplemented
        return content_hash(self) == content_hash(other)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def stored_prompts(
    subject: Transformer, pairs: Pairs, *, most: int = MOST_PAIRS, limit: int = MOST_BYTES
) -> StoredPrompts | None:
    """The first pairs, at most so many, whose patterns take at most `limit` bytes; None if none do.

    Of a causal subject, positions behind the last scored one of a pair are left out: nothing sees
    them, and they may be padding.
    """
    chosen: list[tuple[Pairs, Tensor, Tensor]] = []
    each = 2 * subject.config.n_layers * subject.config.n_heads
    for row in range(min(most, len(pairs))):
        pair = pairs[row]
        pair = (pair.up_to_last_column() if subject.config.causal else pair).to(subject.device)
        limit -= each * pair.clean.shape[1] ** 2
        if limit < 0:
            break
        chosen.append((pair, _patterns(subject, pair.clean), _patterns(subject, pair.corrupted)))
    if not chosen:
        return None
    return StoredPrompts(
        clean=[_texts(subject, pair.clean[0]) for pair, _, _ in chosen],
        corrupted=[_texts(subject, pair.corrupted[0]) for pair, _, _ in chosen],
        answers=[_answer(subject, pair) for pair, _, _ in chosen],
        patterns=[clean for _, clean, _ in chosen],
        patterns_corrupted=[corrupted for _, _, corrupted in chosen],
    )


def _patterns(
    subject: Transformer, tokens: Int[Tensor, "1 pos"]
) -> UInt8[Tensor, "layer head pos pos"]:
    # One prompt at a time, which fits wherever a method did that was bound in its memory.
    with torch.no_grad():
        layers = [(layer[0].float() * 255).round() for layer in subject.patterns(tokens)]
    return torch.stack([layer.clamp(0, 255).to(torch.uint8).cpu() for layer in layers])


# Words


def _texts(subject: Transformer, tokens: Int[Tensor, " pos"]) -> list[str]:
    return [_token(subject, token) for token in tokens.tolist()]


def _token(subject: Transformer, token: int) -> str:
    if subject.tokenizer is not None:
        return _cut(_written(subject.tokenizer, token), _LONGEST_TOKEN)
    if (codec := subject.codec) is not None:
        # In the order of their ids.
        symbols = ("BOS", "PAD", *codec.vocab, *codec.tasks)
        return _cut(str(symbols[token]), _LONGEST_TOKEN)
    return str(token)


def _written(tokenizer: Any, token: int) -> str:
    """A token in a text: with the space in front that it stands for."""
    piece = text = ""
    # A model can have more tokens than its tokenizer knows.
    with suppress(IndexError, KeyError, OverflowError, TypeError, ValueError):
        if hasattr(tokenizer, "convert_ids_to_tokens"):
            piece = tokenizer.convert_ids_to_tokens([token])[0] or ""
        if hasattr(tokenizer, "decode"):
            text = tokenizer.decode([token])
    # Part of a character, or nothing that shows: the name of the token says more.
    if not text or "\ufffd" in text:
        return piece or str(token)
    # Tokenizers of SentencePiece drop the space in front of a text.
    return f" {text}" if piece.startswith("\u2581") and not text.startswith(" ") else text


def _answer(subject: Transformer, pair: Pairs) -> str | None:
    """What is right at the scored positions of the clean prompt."""
    if pair.targets is None or not isinstance(pair.loss_name, str):
        return None
    targets = pair.targets[pair.scored]
    if pair.loss_name == "l1":
        return _cut(" ".join(f"{value:.4g}" for value in targets.tolist()), _LONGEST_ANSWER)
    classes = (targets.argmax(-1) if pair.loss_name == "kl" else targets).tolist()
    return _cut(" ".join(_class(subject, index) for index in classes), _LONGEST_ANSWER)


def _class(subject: Transformer, index: int) -> str:
    if subject.codec is not None and subject.codec.outputs is not None:
        return str(subject.codec.outputs[index])
    if subject.tokenizer is not None and subject.config.d_vocab_out == subject.config.d_vocab:
        return _written(subject.tokenizer, index)
    return str(index)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
