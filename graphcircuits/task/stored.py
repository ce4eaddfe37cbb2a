"""Some prompts of a task as a reader sees them, and what each head attended to in them.

1. `stored_prompts` takes the first pairs, as many as fit, runs the subject on clean and corrupted
   prompts once, a layer at a time, and keeps the attention patterns as bytes, 255 for 1.
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

from graphcircuits.subject.codec import BOS, PAD, Codec
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

MOST_PAIRS = 4
MOST_BYTES = 600_000
"""Of all patterns together: they travel in the file of a result and in its page."""
_LONGEST_TOKEN, _LONGEST_ANSWER = 80, 200
"""Characters that are kept."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredPrompts:
    """A few prompt pairs in words, and the attention patterns of a subject on them."""

    clean: Sequence[Sequence[str]]
    """The tokens of each clean prompt."""
    corrupted: Sequence[Sequence[str]]
    answers: Sequence[str | None]
    """What is right on each clean prompt, where the pairs tell."""
    patterns: UInt8[Tensor, "pair layer head query key"]
    """What each position attends to in the clean run, 255 meaning 1. Kept on the CPU."""
    patterns_corrupted: UInt8[Tensor, "pair layer head query key"]

    def __post_init__(self) -> None:
        for name in ("clean", "corrupted"):
            object.__setattr__(self, name, tuple(tuple(tokens) for tokens in getattr(self, name)))
        object.__setattr__(self, "answers", tuple(self.answers))
        problems = []
        shape = tuple(self.patterns.shape)
        if len(shape) != 5 or shape[0] < 1 or shape[3] != shape[4]:
            problems.append(
                "patterns must have the axes pair, layer, head, query and key, with as many "
                f"queries as keys and at least one pair, got {shape}"
            )
        else:
            for name in ("clean", "corrupted"):
                lengths = [len(tokens) for tokens in getattr(self, name)]
                if lengths != [shape[3]] * shape[0]:
                    problems.append(
                        f"{name} must be {shape[0]} prompts of {shape[3]} tokens, as the patterns "
                        f"have them, got prompts of {', '.join(map(str, lengths)) or 'no'} tokens"
                    )
            if len(self.answers) != shape[0]:
                problems.append(
                    f"answers must be one for each of {shape[0]} prompts, got {len(self.answers)}"
                )
        if self.patterns_corrupted.shape != shape:
            problems.append(
                f"patterns of the corrupted run must have the shape of the others, {shape}, got "
                f"{tuple(self.patterns_corrupted.shape)}"
            )
        if problems:
            raise ValueError("; ".join(problems) + ".")
        for name in ("patterns", "patterns_corrupted"):
            object.__setattr__(self, name, getattr(self, name).detach().to("cpu", copy=True))

    def __len__(self) -> int:
        return len(self.patterns)

    @property
    def heads(self) -> tuple[int, int]:
        """Layers, and heads of each."""
        return self.patterns.shape[1], self.patterns.shape[2]

    def __repr__(self) -> str:
        _, layers, heads, length, _ = self.patterns.shape
        return f"StoredPrompts({len(self)} pairs of {length} tokens, {layers} x {heads} heads)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredPrompts):
            return NotImplemented
        names = ("clean", "corrupted", "answers")
        return (
            all(getattr(self, name) == getattr(other, name) for name in names)
            and torch.equal(self.patterns, other.patterns)
            and torch.equal(self.patterns_corrupted, other.patterns_corrupted)
        )


def stored_prompts(
    subject: Transformer, pairs: Pairs, *, most: int = MOST_PAIRS, limit: int = MOST_BYTES
) -> StoredPrompts | None:
    """The first pairs, at most so many, whose patterns take at most `limit` bytes; None if none do.

    Positions that no scored one of a causal subject can see are left out.
    """
    if most < 1:
        return None
    pairs = pairs[:most]
    if subject.config.causal:
        pairs = pairs.up_to_last_column()
    config, length = subject.config, pairs.clean.shape[1]
    count = min(len(pairs), limit // (2 * config.n_layers * config.n_heads * length**2))
    if count < 1:
        return None
    pairs = pairs[:count].to(subject.device)
    both = torch.cat([pairs.clean, pairs.corrupted])
    with torch.no_grad():
        layers = [_bytes(pattern) for pattern in subject.patterns(both)]
    patterns = torch.stack(layers, dim=1)
    return StoredPrompts(
        clean=_texts(subject, pairs.clean),
        corrupted=_texts(subject, pairs.corrupted),
        answers=[_answer(subject, pairs, pair) for pair in range(count)],
        patterns=patterns[:count],
        patterns_corrupted=patterns[count:],
    )


def _bytes(pattern: Tensor) -> UInt8[Tensor, "batch head query key"]:
    return (pattern.float() * 255).round().clamp(0, 255).to(torch.uint8).cpu()


# Words


def _texts(subject: Transformer, tokens: Int[Tensor, "batch pos"]) -> list[list[str]]:
    ids = tokens.tolist()
    known = {token: _token(subject, token) for prompt in ids for token in prompt}
    return [[known[token] for token in prompt] for prompt in ids]


def _token(subject: Transformer, token: int) -> str:
    if subject.tokenizer is not None:
        return _cut(_written(subject.tokenizer, token), _LONGEST_TOKEN)
    if subject.codec is not None:
        return _cut(_symbol(subject.codec, token), _LONGEST_TOKEN)
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


def _symbol(codec: Codec, token: int) -> str:
    names = {BOS: "BOS", PAD: "PAD"}
    return names.get(token) or str((*codec.vocab, *codec.tasks)[token - len(names)])


def _answer(subject: Transformer, pairs: Pairs, pair: int) -> str | None:
    """What is right at the scored positions of a clean prompt."""
    if pairs.targets is None or not isinstance(pairs.loss_name, str):
        return None
    targets = pairs.targets[pair][pairs.scored[pair]]
    if pairs.loss_name == "l1":
        return _cut(" ".join(f"{value:.4g}" for value in targets.tolist()), _LONGEST_ANSWER)
    classes = (targets.argmax(-1) if pairs.loss_name == "kl" else targets).tolist()
    return _cut(" ".join(_class(subject, index) for index in classes), _LONGEST_ANSWER)


def _class(subject: Transformer, index: int) -> str:
    if subject.codec is not None and subject.codec.outputs is not None:
        return str(subject.codec.outputs[index])
    if subject.tokenizer is not None and subject.config.d_vocab_out == subject.config.d_vocab:
        return _written(subject.tokenizer, index)
    return str(index)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
