"""What a task of the library is, and how its prompts are drawn.

1. A task writes one pair at a time: `write(vocabulary, rng)` fills a template with words.
2. `WholeWords` keeps, of every list of words, those that the tokenizer makes one token.
3. `Task.texts` draws until it has as many different pairs as were asked for. A pair is taken if its
   clean and corrupted prompt have the same number of tokens and each answer adds exactly one token,
   and not the same one, to the clean prompt. Where a task runs out of different pairs, they come
   again from the first.
4. `Task.__call__` turns them into `Pairs`, with logit-diff as the loss.

Draws depend on the task, the tokenizer and the seed alone, and fewer pairs are the first of more.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from graphcircuits.io.files import read_toml
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.text import NoSpaceInFront, check_tokenizer, following, prompt_ids

PATIENCE = 300
"""Draws in a row that bring nothing new before a task counts as exhausted."""

LEAST = 4
"""Different pairs without which a task cannot be asked."""

ANCHOR = "The"
"""The text behind which words are tried: some tokenizers treat the beginning of a text apart."""

_FILE = read_toml(Path(__file__).with_name("words.toml"))
WORDS, KINDS, MASSES = (
    {name: text.split() for name, text in _FILE[table].items()}
    for table in ("words", "kinds", "masses")
)
PAIRS = {
    name: [(first, second) for first, second in map(str.split, text.split(","))]
    for name, text in _FILE["pairs"].items()
}
TEXTS: dict[str, list[str]] = _FILE["texts"]
"""What prompts are made of: `words.toml` says what is what."""

GAO = "Gao et al. 2025, Weight-sparse transformers have interpretable circuits (arXiv:2511.13653)"
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TextPair:
    """One pair in words, and the right and the wrong answer to its clean prompt."""

    clean: str
    corrupted: str
    correct: str
    incorrect: str

    def __str__(self) -> str:
        return f"{self.clean}|{self.correct} (not {self.incorrect.strip()})"


class TooFewWords(ValueError):
    """A tokenizer splits the words that a task is made of."""


@dataclass(frozen=True)
class WholeWords:
    """The words that a tokenizer makes one token; without a tokenizer, all words."""

    tokenizer: Any = None
    _fitting: dict[str, list[Any]] = field(default_factory=dict, repr=False, compare=False)

    def words(self, kind: str, words: Sequence[str], least: int = 3) -> list[str]:
        """The words of a kind that are one token each behind a space."""
        return self.keep(kind, words, lambda word: self.one(f" {word}"), least)

    def pairs(
        self, kind: str, pairs: Sequence[tuple[str, str]], least: int = 3
    ) -> list[tuple[str, str]]:
        """The pairs of words of which the second is one token behind a space."""
        return self.keep(kind, pairs, lambda pair: self.one(f" {pair[1]}"), least)

    def keep(
        self, kind: str, items: Sequence[Item], fit: Callable[[Item], bool], least: int
    ) -> list[Item]:
        """The items that are fit, of which there must be some; looked at once for each kind."""
        if kind not in self._fitting:
            self._fitting[kind] = [item for item in items if fit(item)]
        fitting = self._fitting[kind]
        if len(fitting) < least:
            raise TooFewWords(
                f"it needs at least {least} {kind} of one token, the tokenizer has {len(fitting)} "
                f"of {len(items)}"
            )
        return fitting

    def one(self, text: str, behind: str = ANCHOR) -> bool:
        """Whether the text adds exactly one token."""
        if self.tokenizer is None:
            return True
        pieces = following(self.tokenizer, behind, text)
        # What is not in the vocabulary may come out as one token too.
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        return pieces is not None and len(pieces) == 1 and pieces[0] != unknown

    def parting(self, clean: str, corrupted: str, right: str, wrong: str) -> TextPair:
        """A pair asked where its answers part: the tokens that both begin with go to the prompts,
        and of each answer the next token is left. Without a tokenizer answers are whole."""
        if self.tokenizer is not None:
            ours, theirs = (following(self.tokenizer, clean, x) or [] for x in (right, wrong))
            same = _alike(ours, theirs)
            shared = self._start(clean, right[: _alike(right, wrong)], ours[:same])
            clean, corrupted = clean + shared, corrupted + shared
            right = self._start(clean, right[len(shared) :], ours[same : same + 1])
            wrong = self._start(clean, wrong[len(shared) :], theirs[same : same + 1])
        return TextPair(clean, corrupted, right, wrong)

    def _start(self, prompt: str, text: str, tokens: list[int]) -> str:
        """The beginning of a text that adds these tokens to a prompt; empty where none does, which
        no pair is fit with."""
        if not tokens:
            return ""
        # Most often it is all of the text, or a letter per token.
        starts = (text, *(text[:length] for length in range(len(tokens), len(text))))
        return next((x for x in starts if following(self.tokenizer, prompt, x) == tokens), "")

    def fits(self, pair: TextPair) -> bool:
        """Whether the positions of a pair line up, and its answers are one token each."""
        answers = [following(self.tokenizer, pair.clean, x) for x in (pair.correct, pair.incorrect)]
        lengths = {len(prompt_ids(self.tokenizer, x)) for x in (pair.clean, pair.corrupted)}
        right, wrong = answers
        return right != wrong and len(lengths) == 1 and all(x and len(x) == 1 for x in answers)


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items both begin with."""
    differ = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


@dataclass(frozen=True)
class Task:
    """A task of the library: calling it draws prompt pairs.

    Example:
        pairs = gc.tasks.ioi(subject.tokenizer, n=64, seed=0)

    See docs/tasks.md for all of them, with who studied each.
    """

    name: str
    description: str
    """What has to be known to answer, and what the corrupted prompt changes."""
    reference: str
    """Who studied it."""
    write: Callable[[WholeWords, Random], TextPair] = field(repr=False)

    def __call__(self, tokenizer: Any, n: int = 64, seed: int = 0) -> Pairs:
        """Pairs for a model with this tokenizer.

        Args:
            tokenizer: Of the model that is to be explained.
            n: How many pairs; they repeat where the task has fewer.
            seed: Of the draw.

        Returns:
            Pairs with logit-diff as their loss.
        """
        texts = self.texts(tokenizer, n, seed)
        with warnings.catch_warnings():
            # An answer that was cut where it parts from another need not begin a word.
            warnings.simplefilter("ignore", NoSpaceInFront)
            pairs = Pairs.from_text(
                tokenizer,
                [pair.clean for pair in texts],
                [pair.corrupted for pair in texts],
                [pair.correct for pair in texts],
                [pair.incorrect for pair in texts],
            )
        return replace(pairs, task=self.description)

    def texts(self, tokenizer: Any, n: int = 64, seed: int = 0) -> list[TextPair]:
        """The same pairs in words."""
        check_tokenizer(tokenizer)
        if n < 1:
            raise ValueError(f"at least one pair must be drawn, got {n}.")
        pairs = self._different(WholeWords(tokenizer), n, Random(f"{self.name} {seed}"))
        return list(islice(cycle(pairs), n))

    def _different(self, vocabulary: WholeWords, n: int, rng: Random) -> list[TextPair]:
        pairs: list[TextPair] = []
        seen, misses, pair = set(), 0, None
        try:
            while len(pairs) < n and misses < PATIENCE:
                pair, misses = self.write(vocabulary, rng), misses + 1
                prompts = pair.clean, pair.corrupted
                if prompts not in seen and vocabulary.fits(pair):
                    pairs.append(pair)
                    misses = 0
                seen.add(prompts)
        except TooFewWords as error:
            raise ValueError(f"the task {self.name} is not for this tokenizer: {error}.") from error
        if pair is not None and len(pairs) < min(n, LEAST):
            raise ValueError(
                f"the task {self.name} is not for this tokenizer: prompts such as {pair.clean!r} "
                f"need the answers {pair.correct!r} and {pair.incorrect!r} as one token each, and "
                f"as many tokens as {pair.corrupted!r}."
            )
        return pairs

    @property
    def example(self) -> str:
        """A clean prompt, the right answer and the wrong one."""
        return str(self.write(WholeWords(), Random(self.name)))


def task(reference: str) -> Callable[[Callable[[WholeWords, Random], TextPair]], Task]:
    """Make the function that writes a pair a task of its name, which its docstring describes."""

    def make(write: Callable[[WholeWords, Random], TextPair]) -> Task:
        description = " ".join(str(write.__doc__).split()).removesuffix(".")
        return Task(write.__name__.replace("_", "-"), description, reference, write)

    return make
