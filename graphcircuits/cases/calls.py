"""Programs that are called in text, such as `sort : b a b = a b b`.

1. A `Call` is a program with the words it takes, how many of them, and how many it answers. In a
   text its name comes first, then a colon, the words, and `=`; the answers follow.
2. The program runs over the words, the `=` and all answers but the last: the window. It looks back
   only, as language models do, and what it puts out at `=` and at the answers behind it is what the
   text goes on with. So an answer can only come from there by attention: no program is a map.
3. `CALLS` are those of the benchmark, by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from graphcircuits.cases.idioms import gather
from graphcircuits.cases.samplers import draw
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    Map,
    RaspError,
    Select,
    SelectorWidth,
    SequenceMap,
    SOp,
    evaluate,
    indices,
    tokens,
)
from graphcircuits.rasp.tabulate import Tables, tabulate

COLON, GIVES = ":", "="
"""What stands between a call's name and its words, and between these and its answers."""
LETTERS = ("a", "b", "c", "d")
AB = ("a", "b")
DIGITS = ("0", "1", "2", "3")
BRACKETS = ("(", ")")
YES, NO = "yes", "no"

Draw = Callable[[int, torch.Generator], torch.Tensor]
"""Rows of so many inputs, as places in the words of the call."""


@dataclass(frozen=True, eq=False)
class Call:
    """A program to be called in text.

    Example:
        >>> import graphcircuits as gc
        >>> from graphcircuits.rasp import Aggregate, Select, indices, tokens
        >>> first = Select(indices, indices, lambda key, query: key == 0)
        >>> call = gc.Call(name="head", program=Aggregate(first, tokens), words=("a", "b"))
        >>> call.text(["b", "a", "a", "b", "a"])
        'head : b a a b a = b'

    See docs/planted-language-models.md.
    """

    name: str
    """The word that calls it, of letters."""
    program: SOp
    """Over the window; its values are words, or numbers written as words."""
    task: str = ""
    """One sentence: what the answers are."""
    words: tuple[str, ...] = LETTERS
    length: int = 5
    """How many words it takes."""
    answers: int = 1
    draw: Draw | None = None
    """Inputs worth asking about; uniform ones where none is given."""

    def __post_init__(self) -> None:
        problems = []
        if not (self.name.isascii() and self.name.isalpha()):
            problems.append(f"the name must be a word of letters, got {self.name!r}")
        if self.length < 1 or self.answers < 1:
            problems.append("a call takes and gives at least one word")
        if not self.words or GIVES in self.words or len(set(self.words)) < len(self.words):
            problems.append(f"the words must be distinct, at least one, and not {GIVES!r}")
        if problems:
            raise ValueError(f"call {self.name!r}: {'; '.join(problems)}.")

    @property
    def window(self) -> int:
        """Positions that the program runs over."""
        return self.length + self.answers

    @cached_property
    def tables(self) -> Tables:
        """What every variable of the program can be. Answers stand in windows of several."""
        answers: list[str] = []
        tables = self._tabulated(answers)
        # What is answered is read again, and may be answered by words that are new.
        for _ in range(self.answers - 1):
            found = map(str, tables.variables[self.program].values)
            new = [word for word in found if word not in tables.vocab]
            if not new:
                break
            answers += new
            tables = self._tabulated(answers)
        return tables

    def _tabulated(self, answers: Sequence[str]) -> Tables:
        vocab = (*self.words, GIVES, *answers)
        tables = tabulate(self.program, vocab=vocab, max_seq_len=self.window + 1, causal=True)
        if tables.problems:
            raise RaspError(f"call {self.name!r}: {'; '.join(map(str, tables.problems))}")
        return tables

    @property
    def outputs(self) -> tuple[str, ...]:
        """The words that it can answer, in the order of the program's values."""
        return tuple(map(str, self.tables.variables[self.program].values))

    @property
    def spoken(self) -> tuple[str, ...]:
        """Every word of its texts."""
        return tuple(dict.fromkeys((self.name, COLON, *self.words, GIVES, *self.outputs)))

    def sample(self, n: int, generator: torch.Generator) -> list[list[str]]:
        """Inputs: `length` words each."""
        rows = (self.draw or _uniform(len(self.words), self.length))(n, generator)
        return [[self.words[i] for i in row] for row in rows.tolist()]

    def answer(self, words: Sequence[str]) -> list[str]:
        """What the program answers to an input, word by word, each answer read by the next."""
        window = [*words, GIVES]
        for _ in range(self.answers):
            window.append(str(evaluate(self.program, window, causal=True)[-1]))
        return window[len(words) + 1 :]

    def text(self, words: Sequence[str]) -> str:
        """The call with its answers, as it stands in texts."""
        return " ".join([self.name, COLON, *words, GIVES, *self.answer(words)])


# --- inputs --------------------------------------------------------------------------------------


def _uniform(size: int, length: int) -> Draw:
    return lambda n, g: torch.randint(size, (n, length), generator=g)


def _balanced(n: int, g: torch.Generator) -> torch.Tensor:
    return draw("balanced-brackets", BRACKETS, 4, n, g)


def _one_a(n: int, g: torch.Generator) -> torch.Tensor:
    """One `a`, not at the end, among other letters."""
    rows = torch.randint(1, len(LETTERS), (n, 5), generator=g)
    return rows.scatter(1, torch.randint(4, (n, 1), generator=g), 0)


def _one_twice(n: int, g: torch.Generator) -> torch.Tensor:
    """Four different letters, and one of the first three again."""
    rows = torch.rand(n, 4, generator=g).argsort(1)
    once = rows.gather(1, torch.randint(3, (n, 1), generator=g))
    return torch.cat([rows, once], 1)


def _one_twice_anywhere(n: int, g: torch.Generator) -> torch.Tensor:
    """The same in any order, so that the last one does not give away which came twice."""
    return _one_twice(n, g).gather(1, torch.rand(n, 5, generator=g).argsort(1))


def _entries(n: int, g: torch.Generator) -> torch.Tensor:
    """A letter with a digit behind it, and the letter again. In half of the rows a second such pair
    stands there too, else other letters: a place does not tell whether it holds a digit."""
    letters = torch.rand(n, 4, generator=g).argsort(1)[:, :2]
    digits = 4 + torch.randint(4, (n, 2), generator=g)
    asked = letters.gather(1, torch.randint(2, (n, 1), generator=g))
    two = torch.cat([torch.stack([letters, digits], 2).flatten(1), asked], 1)
    letter, other = letters.split(1, dim=1)
    any_letter = torch.randint(4, (n, 1), generator=g)
    one = torch.cat([other, letter, digits[:, :1], any_letter, letter], 1)
    return torch.where(torch.rand(n, 1, generator=g) < 0.5, one, two)


def _one_digit(n: int, g: torch.Generator) -> torch.Tensor:
    """A digit among letters."""
    rows, digit = torch.randint(4, (n, 5), generator=g), 4 + torch.randint(4, (n, 1), generator=g)
    return rows.scatter(1, torch.randint(5, (n, 1), generator=g), digit)


def _half_rising(n: int, g: torch.Generator) -> torch.Tensor:
    """Three digits, different and in order in half of the rows."""
    rows = torch.rand(n, 4, generator=g).argsort(1)[:, :3]
    return torch.where(torch.rand(n, 1, generator=g) < 0.4, rows.sort(1).values, rows)


def _some_then_digit(n: int, g: torch.Generator) -> torch.Tensor:
    """Four letters and a digit."""
    letters = torch.randint(4, (n, 4), generator=g)
    return torch.cat([letters, 4 + torch.randint(4, (n, 1), generator=g)], 1)


# --- moves that programs share -------------------------------------------------------------------


def at(place: int, values: SOp = tokens) -> SOp:
    """The word at a place, or another variable there, everywhere."""
    there = Select(indices, indices, lambda key, _: key == place)
    return Aggregate(there, values).named(f"{values.name}_{place}")


def count_of(word: str, among: SOp = tokens) -> SOp:
    """How often a word has come up so far."""
    return SelectorWidth(Select(among, Full(word), Comparison.EQ)).named(f"count_{word}")


def before() -> SOp:
    """The word one position earlier; None at the first."""
    earlier = Select(indices, indices, lambda key, query: key == query - 1)
    return Aggregate(earlier, tokens).named("before")


def number(digit: SOp) -> SOp:
    """The number that a digit writes; 0 where there is none."""
    return Map(lambda x: int(x) if x in DIGITS else 0, digit).named("number")


def yes_where(holds: Callable[..., bool], *given: SOp) -> SOp:
    """`yes` where something holds of one variable or of two, else `no`."""
    if len(given) == 1:
        return Map(lambda x: YES if holds(x) else NO, given[0])
    return SequenceMap(lambda x, y: YES if holds(x, y) else NO, *given)


# --- the programs --------------------------------------------------------------------------------


def _copied(length: int) -> SOp:
    return Aggregate(Select(indices, indices, lambda key, query: key == query - length), tokens)


def _reversed(length: int) -> SOp:
    mirrored = Select(indices, indices, lambda key, query: key == 2 * length - 1 - query)
    return Aggregate(mirrored, tokens)


def _recall() -> SOp:
    last = before()
    entry = SequenceMap(lambda x, p: p if x in DIGITS else None, tokens, last).named("entry")
    return Aggregate(Select(entry, last, Comparison.EQ), tokens)


def _follow() -> SOp:
    last = before()
    same = Select(last, last, Comparison.EQ)
    earlier = Select(indices, indices, lambda key, query: key < query)
    return Aggregate(same & earlier, tokens).named("followed")


def _after() -> SOp:
    return Aggregate(Select(before(), Full("a"), Comparison.EQ), tokens)


def _twice() -> SOp:
    so_far = SelectorWidth(Select(tokens, tokens, Comparison.EQ)).named("so_far")
    return Aggregate(Select(so_far, Full(2), Comparison.EQ), tokens)


def _again() -> SOp:
    same = SelectorWidth(Select(tokens, before(), Comparison.EQ)).named("same")
    return yes_where(lambda n: n > 1, same)


def _sorted(length: int) -> SOp:
    # What has been answered counts too: as many as there are, while they are all `a`.
    return SequenceMap(
        lambda n, i: "a" if n > 2 * max(i - length, 0) else "b", count_of("a"), indices
    )


def _balance() -> SOp:
    depth = SequenceMap(lambda x, y: x - y, count_of("("), count_of(")")).named("depth")
    below = Map(lambda x: x < 0, depth).named("below")
    falls = SelectorWidth(Select(below, Full(True), Comparison.EQ)).named("falls")
    return yes_where(lambda x, y: x == 0 and y == 0, depth, falls)


def _changes() -> SOp:
    change = SequenceMap(lambda x, p: GIVES not in (x, p) and x != p, tokens, before())
    return SelectorWidth(Select(change.named("change"), Full(True), Comparison.EQ))


def _rises() -> SOp:
    rise = SequenceMap(lambda x, p: GIVES not in (x, p) and x > p, tokens, before())
    count = SelectorWidth(Select(rise.named("rise"), Full(True), Comparison.EQ)).named("rises")
    return yes_where(lambda n: n == 2, count)


def _hops(times: int) -> SOp:
    found = at(0)
    for _ in range(times):
        found = gather(number(found))
    return found


def _next_of(words: tuple[str, ...], given: SOp) -> SOp:
    """The word after it in a list, the first after the last."""
    return Map(lambda x: words[(words.index(x) + 1) % len(words)] if x in words else x, given)


def _sum(given: SOp, other: SOp) -> SOp:
    """The sum of two digits, modulo 4."""
    both = {*DIGITS}
    return SequenceMap(
        lambda x, y: str((int(x) + int(y)) % 4) if {x, y} <= both else None, given, other
    )


def _calls() -> tuple[Call, ...]:
    asks, three, flipped = (*LETTERS, *DIGITS), ("a", "b", "c"), {"a": "b", "b": "a"}
    early = Map(lambda x: x in AB, tokens).named("early")
    digit = Map(lambda x: x in DIGITS, tokens).named("digit")
    other = Map(lambda x: flipped.get(x, x), tokens).named("flipped")
    number_of = {x: int(x) for x in DIGITS}
    both = SequenceMap(lambda x, y: number_of.get(x, 0) + number_of.get(y, 0), at(0), at(1))
    of_a, of_b = count_of("a"), count_of("b")
    a_place = Aggregate(Select(tokens, Full("a"), Comparison.EQ), indices)
    digit_place = Aggregate(Select(digit, Full(True), Comparison.EQ), indices)
    like_first = SelectorWidth(Select(tokens, at(0), Comparison.EQ))
    mostly = SequenceMap(lambda x, y: "a" if x > y else "b", of_a, of_b)
    equal, any_of = (lambda x, y: x == y), (lambda x, y: x > 0 and y > 0)
    repeated = "the one that followed the last letter where it stood before"
    named = "the digit at the place that the first digit names"
    return (
        Call("first", at(0), "The first word."),
        Call("last", at(4), "The last word."),
        Call("copy", _copied(3), "The words again.", length=3, answers=3),
        Call("back", _reversed(4), "The words reversed.", length=4, answers=4),
        Call("shift", _next_of(LETTERS, at(1)), "The letter after the second word in order."),
        Call("count", of_a, "How often `a` comes up.", AB),
        Call("even", yes_where(lambda n: n % 2 == 0, of_a), "Whether that number is even.", AB),
        Call("where", a_place, "The place of the only `a`, from 0.", draw=_one_a),
        Call("more", mostly, "Which letter comes up more often.", AB),
        Call("both", yes_where(any_of, of_a, of_b), "Whether both `a` and `b` come up.", length=4),
        Call("same", yes_where(equal, at(0), at(2)), "Whether two words are equal.", three, 4),
        Call("larger", SequenceMap(max, at(0), at(1)), "The larger digit.", DIGITS, 2),
        Call("add", _sum(at(0), at(1)), "The sum of two digits, modulo 4.", DIGITS, 2),
        Call("total", _sum(_sum(at(0), at(1)), at(2)), "That of three digits.", DIGITS, 3),
        Call("carry", yes_where(lambda s: s > 3, both), "Whether a sum is above 3.", DIGITS, 2),
        Call("flip", at(2, other), "The third word, `a` and `b` exchanged.", three),
        Call(
            "alike",
            yes_where(equal, at(0, early), at(3, early)),
            "Whether the first word and the fourth are both among `a` and `b`, or neither is.",
            length=4,
        ),
        Call("tally", like_first, "How often the first word comes up.", three),
        Call("find", digit_place, "The place of the only digit, from 0.", asks, draw=_one_digit),
        Call("recall", _recall(), "The digit behind the asked letter.", asks, draw=_entries),
        Call("follow", _follow(), f"The letter: {repeated}.", draw=_one_twice),
        Call("predict", _next_of(LETTERS, _follow()), f"The next of {repeated}.", draw=_one_twice),
        Call("after", _after(), "The letter behind the `a`.", draw=_one_a),
        Call("twice", _twice(), "The letter that comes twice.", draw=_one_twice_anywhere),
        Call("again", _again(), "Whether the last letter stood before.", length=4),
        Call("sort", _sorted(4), "The words in order.", AB, 4, 4),
        Call("balance", _balance(), "Whether brackets are balanced.", BRACKETS, 4, draw=_balanced),
        Call("change", _changes(), "How often the letter changes.", AB),
        Call("rise", _rises(), "Whether digits rise.", DIGITS, 3, draw=_half_rising),
        Call("hop", _hops(1), f"{named.capitalize()}.", DIGITS, 4),
        Call("leap", _next_of(DIGITS, _hops(1)), f"One more than {named}, modulo 4.", DIGITS, 4),
        Call("far", _hops(2), f"The digit at the place named by {named}.", DIGITS, 4),
        Call(
            "pick",
            gather(number(at(4))),
            "The letter at the place that the digit names.",
            asks,
            draw=_some_then_digit,
        ),
    )


CALLS = {call.name: call for call in _calls()}
"""The calls of the benchmark, by name."""
