"""Prompts and answers as text: what a tokenizer makes of them.

1. `prompt_ids` turns a prompt into ids, as the tokenizer does it: with BOS where it puts one.
   `chat_prompt` first sets it as a user's message in the tokenizer's chat template.
2. `answer_id` gives the one token that follows the prompt when the answer is written behind it, or
   else the one token that the answer is alone; an answer of several tokens is an error.
3. `text_table` does so for lists of prompts and answers: prompts stand at the front, are padded at
   the end (the padding side of the tokenizer plays no part) and scored at their last token. Clean
   and corrupted prompts of a pair must have the same number of tokens, or positions would not line
   up. A causal subject never looks ahead, so no scored position sees the padding, and no attention
   mask is needed. `Pairs` are made of such a table, and so are those of files.
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.io.files import short as quoted

SHOWN = 5
"""Problems named at once."""
PIECES = 12
"""Tokens of each prompt that are shown from where the two part."""


class NoSpaceInFront(UserWarning):
    """Answers without the space that words have behind a prompt, which are other tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptTable:
    """Columns as tensors; values at unscored positions are 0."""

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    scored: Bool[Tensor, "batch pos"]
    correct: Int[Tensor, "batch pos"] | None = None
    incorrect: Int[Tensor, "batch pos"] | None = None
    target: Float[Tensor, "batch pos *d_vocab_out"] | None = None
    loss: str | None = None

    def default_loss(self) -> str:
        """What the columns suggest: logit-diff with correct and incorrect classes, cross-entropy
        with correct ones, l1 with numbers, else kl."""
        if self.loss is not None:
            return self.loss
        if self.correct is not None:
            return "cross-entropy" if self.incorrect is None else "logit-diff"
        return "l1" if self.target is not None and self.target.ndim == 2 else "kl"


def table_of(rows: Sequence[Mapping[str, Any]], pad: int | None) -> PromptTable:
    """Rows of token ids, scored positions, and one value for each of these, as a table.

    `pad` is read only where a prompt is shorter than others.
    """
    length = max(len(row["clean"]) for row in rows)

    def tokens(side: str) -> Tensor:
        return torch.tensor([[*row[side], *[pad] * (length - len(row[side]))] for row in rows])

    def spread(name: str, dtype: torch.dtype = torch.int64) -> Tensor | None:
        """A column's values at their scored positions, 0 elsewhere."""
        if name not in rows[0]:
            return None
        values = [torch.tensor(row[name], dtype=dtype) for row in rows]
        column = torch.zeros(len(rows), length, *values[0].shape[1:], dtype=dtype)
        for index, row in enumerate(rows):
            column[index, row["scored"]] = values[index]
        return column

    scored = torch.zeros(len(rows), length, dtype=torch.bool)
    for index, row in enumerate(rows):
        scored[index, row["scored"]] = True
    return PromptTable(
        clean=tokens("clean"),
        corrupted=tokens("corrupted"),
        scored=scored,
        correct=spread("correct_idx"),
        incorrect=spread("incorrect_idx"),
        target=spread("target", torch.float64),
        loss=rows[0].get("loss"),
    )


def text_table(
    tokenizer: Any,
    clean: Collection[Any],
    corrupted: Collection[Any],
    correct: Collection[Any] | None,
    incorrect: Collection[Any] | None,
    *,
    chat: bool = False,
    padding: bool = True,
) -> PromptTable:
    """Texts as a table; every problem of the first pairs at once."""
    check_tokenizer(tokenizer)
    given = {"clean": clean, "corrupted": corrupted, "correct": correct, "incorrect": incorrect}
    _check_columns(given)
    columns = {name: list(values) for name, values in given.items() if values is not None}
    rows: list[dict[str, list[int]]] = []
    problems, unspaced = [], []
    for index in range(len(columns["clean"])):
        try:
            texts = {name: columns[name][index] for name in ("clean", "corrupted")}
            if chat:
                texts = {name: chat_prompt(tokenizer, text) for name, text in texts.items()}
            row = {name: prompt_ids(tokenizer, text, chat=chat) for name, text in texts.items()}
            check_aligned(row["clean"], row["corrupted"], tokenizer)
            row["scored"] = [len(row["clean"]) - 1]
            for name in columns.keys() & {"correct", "incorrect"}:
                answer = columns[name][index]
                row[f"{name}_idx"] = [
                    answer_id(tokenizer, texts["clean"], answer, chat=chat, name=name)
                ]
                if not chat and lacks_space(tokenizer, texts["clean"], answer):
                    unspaced.append(answer)
            rows.append(row)
        except ValueError as error:
            problems.append(f"pair {index}: {str(error).removesuffix('.')}")
            if len(problems) == SHOWN:
                break
    if problems:
        raise ValueError("; ".join(problems) + ".")
    warn_of_missing_spaces(unspaced)
    lengths = [len(row["clean"]) for row in rows]
    if not padding and min(lengths) < max(lengths):
        low, high = lengths.index(min(lengths)), lengths.index(max(lengths))
        raise ValueError(
            f"prompts must have one length where they are not padded, but pair {low} has "
            f"{lengths[low]} tokens and pair {high} has {lengths[high]}; let them be padded, or "
            "give those of one length at a time."
        )
    return table_of(rows, padding_id(tokenizer) or 0)


def prompt_ids(tokenizer: Any, text: Any, *, chat: bool = False) -> list[int]:
    """A prompt as the tokenizer writes it; a chat template holds its own BOS."""
    if not isinstance(text, str):
        raise ValueError(f"a prompt must be text for the tokenizer, got {quoted(text)}.")
    ids = _encode(tokenizer, text, special=not chat)
    end = getattr(tokenizer, "eos_token_id", None)
    # Some tokenizers close every text with EOS; what comes next is asked of the token before it.
    if len(ids) > 1 and ids[-1] == end and not text.endswith(str(tokenizer.eos_token)):
        ids = ids[:-1]
    if not ids:
        raise ValueError(f"the tokenizer makes no token of the prompt {quoted(text)}.")
    return ids


def chat_prompt(tokenizer: Any, text: str) -> str:
    """The prompt as a user's message, up to where the assistant's answer begins."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "the tokenizer has no chat template; use that of an instruction-tuned model, or give "
            "the prompts as plain text."
        )
    message = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)


def answer_id(
    tokenizer: Any, prompt: str, answer: Any, *, chat: bool = False, name: str = "correct"
) -> int:
    """The token of an answer behind a prompt: that of a word, written with the space in front of it
    where it has one, or a token id, also as pandas writes it, 4.0."""
    if not isinstance(answer, str):
        return _given_id(tokenizer, answer, name)
    if not answer:
        raise ValueError(f"the {name} answer is empty; give a word or a token id.")
    pieces = following(tokenizer, prompt, answer, chat=chat)
    if pieces is None or len(pieces) != 1:
        alone = _encode(tokenizer, answer, special=False)
        pieces = alone if pieces is None or len(alone) == 1 else pieces
    if len(pieces) != 1:
        raise ValueError(
            f"the tokenizer splits the {name} answer {quoted(answer)} into {len(pieces)} tokens "
            f"({_shown(tokenizer, pieces)}), one is needed; "
            + _hint(tokenizer, prompt, answer, chat)
        )
    if pieces[0] == getattr(tokenizer, "unk_token_id", None) and answer != tokenizer.unk_token:
        raise ValueError(
            f"the tokenizer does not know the {name} answer {quoted(answer)}; choose another word."
        )
    return pieces[0]


def following(tokenizer: Any, prompt: str, answer: str, *, chat: bool = False) -> list[int] | None:
    """The tokens that the answer adds to the prompt; None where it changes those of the prompt."""
    before = prompt_ids(tokenizer, prompt, chat=chat)
    after = prompt_ids(tokenizer, prompt + answer, chat=chat)
    return after[len(before) :] if after[: len(before)] == before else None


def lacks_space(tokenizer: Any, prompt: Any, answer: Any) -> bool:
    """Whether the answer is a word that would begin with a space behind this prompt, which the
    tokenizer makes another token: "Mary" behind "gave a drink to"."""
    if not (isinstance(answer, str) and isinstance(prompt, str) and answer[:1].isalpha()):
        return False
    if not (prompt[-1:].isalnum() or prompt[-1:] in ",;:?"):
        return False
    spaced = following(tokenizer, prompt, " " + answer)
    if spaced is None or len(spaced) != 1:
        return False
    return spaced[0] != answer_id(tokenizer, prompt, answer)


def warn_of_missing_spaces(answers: Sequence[str]) -> None:
    """Warn once of answers that lack a space."""
    if answers:
        first = quoted(answers[0])
        warnings.warn(
            f"{len(answers)} answers have no space in front, such as {first}: behind the prompt "
            f"{quoted(' ' + answers[0])} is another token, and the one that a model would say; "
            "in a CSV file quote the cell to keep the space.",
            NoSpaceInFront,
            stacklevel=4,
        )


def padding_id(tokenizer: Any) -> int | None:
    """The token to pad with: PAD, else EOS, else 0; None for what has no such tokens at all."""
    if not hasattr(tokenizer, "pad_token_id"):
        return None
    known = (getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos"))
    size = _size(tokenizer)
    return next((id for id in known if id is not None and 0 <= id < (size or id + 1)), 0)


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse what is no tokenizer."""
    if tokenizer is None:
        raise ValueError(
            "there is no tokenizer; text needs one, such as that of the model: "
            "AutoTokenizer.from_pretrained(name) of transformers."
        )
    if not callable(tokenizer):
        raise ValueError(
            "a tokenizer must turn text into ids when it is called, as those of Hugging Face do, "
            f"got {type(tokenizer).__name__}."
        )


def check_aligned(clean: Sequence[int], corrupted: Sequence[int], tokenizer: Any = None) -> None:
    """Refuse a pair whose positions do not line up, and show the tokens of both."""
    if len(clean) == len(corrupted):
        return
    # What both begin with says little: one token of it shows where they part.
    same = next((n for n, (a, b) in enumerate(zip(clean, corrupted, strict=False)) if a != b), 0)
    start = max(0, same - 1)
    pieces = [
        ("... " if start else "") + _shown(tokenizer, ids[start:], PIECES)
        for ids in (clean, corrupted)
    ]
    raise ValueError(
        f"the clean prompt has {len(clean)} tokens ({pieces[0]}), the corrupted one "
        f"{len(corrupted)} ({pieces[1]}); both need the same number, or their positions do not "
        "line up."
    )


def _encode(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    plain = special or not _knows_special_tokens(tokenizer)
    encoded = tokenizer(text) if plain else tokenizer(text, add_special_tokens=False)
    encoded = encoded["input_ids"] if isinstance(encoded, Mapping) else encoded
    return [int(token) for token in encoded]


def _knows_special_tokens(tokenizer: Any) -> bool:
    """Whether it is more than a plain function from text to ids."""
    try:
        return "add_special_tokens" in inspect.signature(tokenizer).parameters
    except ValueError:
        return False


def _given_id(tokenizer: Any, answer: Any, name: str) -> int:
    try:
        id = int(answer)
    except (ValueError, TypeError, OverflowError):
        id = None
    if id is None or id != answer or isinstance(answer, bool):
        raise ValueError(f"the {name} answer must be a word or a token id, got {quoted(answer)}.")
    size = _size(tokenizer)
    if id < 0 or (size is not None and id >= size):
        bound = "" if size is None else f" to {size - 1}"
        raise ValueError(f"the {name} answer must be a token id from 0{bound}, got {id}.")
    return id


def _size(tokenizer: Any) -> int | None:
    return len(tokenizer) if hasattr(tokenizer, "__len__") else None


def _shown(tokenizer: Any, ids: Sequence[int], most: int = SHOWN) -> str:
    decode: Callable[[list[int]], str] | None = getattr(tokenizer, "decode", None)
    pieces = [str(id) if decode is None else quoted(decode([id])) for id in ids[:most]]
    return ", ".join(pieces) + (", ..." if len(ids) > most else "")


def _hint(tokenizer: Any, prompt: str, answer: str, chat: bool) -> str:
    """What to do about an answer of several tokens."""
    for other in (" " + answer, answer.strip()):
        if other and other != answer:
            pieces = following(tokenizer, prompt, other, chat=chat)
            if pieces is not None and len(pieces) == 1:
                return f"{quoted(other)} is one token here."
    return "choose another word, mind the space in front of it, or give a token id."


def _check_columns(columns: Mapping[str, Collection[Any] | None]) -> None:
    problems = []
    for name, values in columns.items():
        if isinstance(values, str) or not (values is None or hasattr(values, "__len__")):
            problems.append(f"{name} must be a list with one entry per pair, got {quoted(values)}")
    sizes = {name: len(x) for name, x in columns.items() if x is not None and not problems}
    if not problems and not sizes["clean"]:
        problems.append("there are no prompts; give at least one pair")
    elif len(set(sizes.values())) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in sizes.items())
        problems.append(f"every pair needs one entry of each list, got {counts}")
    if columns["incorrect"] is not None and columns["correct"] is None:
        problems.append("incorrect answers need correct ones beside them")
    if problems:
        raise ValueError("; ".join(problems) + ".")
