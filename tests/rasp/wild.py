"""Random programs without any care: most compile, many must be refused, all are legal RASP.

`sample` draws programs that are meant to compile. These are meant to find those that should not
and do: defaults that travel, None in every place, equal values of different types, selectors of all
forms over everything.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    LinearSequenceMap,
    Map,
    RaspError,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    evaluate,
    indices,
    is_numerical,
    numerical,
    tokens,
)

VOCABS: tuple[tuple[Value, ...], ...] = (
    ("a",),
    ("a", "b", "c"),
    (0, 1),
    (1, 2, 3),
    (True, False),
    ("a", 1, (2, 3)),
    (0.5, -1, "q"),
)
IMAGES: tuple[tuple[Value, ...], ...] = (
    (0, 1),
    (True, False),
    ("u", "v"),
    ("u", "v", None),
    (-2.5, 0, 3),
    ((0, 1), "u", None),
    (1, True, 1.0, 0.0, "s"),
    (ArithmeticError, 1, 2),
    (float("inf"), -1),
    (10**20, -7, 0.25),
    (None,),
    (3,),
)
NUMBERS: tuple[tuple[Value, ...], ...] = (
    (0, 1),
    (0, 1),
    (True, False),
    (0, 1.0),
    (-1, 2, 0.5),
    (1e6, -3),
    (0,),
    (0, 1, None),
    (1e-3, 2e-3),
)


@dataclass(frozen=True)
class Function:
    """A function of any values, drawn at random; equal values have equal images."""

    seed: float
    images: tuple[Value, ...]
    tells_twins_apart: bool = False

    def __call__(self, *args: Value) -> Value:
        shown = repr(args) if self.tells_twins_apart else repr(tuple(map(_canonical, args)))
        number = hashlib.blake2b(f"{self.seed} {shown}".encode(), digest_size=8).digest()
        image = self.images[int.from_bytes(number) % len(self.images)]
        if image is ArithmeticError:
            raise ArithmeticError
        return image


def _canonical(value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(map(_canonical, value))
    return float(value) if isinstance(value, int | float) else value


@dataclass(frozen=True)
class Wild:
    """A program with the inputs that it is for."""

    program: SOp
    vocab: tuple[Value, ...]
    max_seq_len: int
    causal: bool

    def inputs(self, n: int, choice: random.Random) -> list[list[Value]]:
        """Every input where there are at most `n`, else random ones of mixed lengths."""
        lengths = range(1, self.max_seq_len)
        if sum(len(self.vocab) ** length for length in lengths) <= n:
            return [list(x) for k in lengths for x in itertools.product(self.vocab, repeat=k)]
        return [choice.choices(self.vocab, k=choice.choice(lengths)) for _ in range(n)]

    def expected(self, xs: list[Value]) -> list[Value] | None:
        """The interpreter's answer; None where a function of the program has no value."""
        try:
            return evaluate(self.program, xs, causal=self.causal)
        except RaspError as error:
            if isinstance(error.__cause__, ArithmeticError):
                return None
            raise


def wild(choice: random.Random, max_steps: int = 8, max_length: int = 6) -> Wild:
    """One random program."""
    draft = _Draft(choice)
    for _ in range(choice.randint(1, max_steps)):
        draft.step()
    return Wild(
        program=choice.choice(draft.pool[-3:]),
        vocab=choice.choice(VOCABS),
        max_seq_len=choice.randint(2, max_length),
        causal=choice.random() < 0.5,
    )


class _Draft:
    def __init__(self, choice: random.Random) -> None:
        self.choice = choice
        self.pool: list[SOp] = [tokens, indices]
        self.selectors: list[Selector] = []

    def step(self) -> None:
        kinds = [self.map, self.map, self.number, self.combination, self.linear, self.operator]
        kinds += [self.aggregate, self.aggregate, self.aggregate, self.width, self.full]
        self.pool += self.choice.choice(kinds)()

    def sop(self, numbers: bool | None = None) -> SOp:
        fitting = [sop for sop in self.pool if numbers in (None, is_numerical(sop))]
        return self.choice.choice(fitting[-4:] + fitting)

    def function(self, images: tuple[tuple[Value, ...], ...]) -> Function:
        apart = self.choice.random() < 0.05
        return Function(self.choice.random(), self.choice.choice(images), apart)

    # Each gives the new sequences, none or one.

    def map(self) -> Iterator[SOp]:
        yield Map(self.function(IMAGES), self.sop(), simplify=self.choice.random() < 0.7)

    def number(self) -> Iterator[SOp]:
        yield numerical(Map(self.function(NUMBERS), self.sop()))

    def combination(self) -> Iterator[SOp]:
        yield SequenceMap(self.function(IMAGES), self.sop(False), self.sop(False))

    def operator(self) -> Iterator[SOp]:
        x, y = self.sop(False), self.sop(False)
        yield self.choice.choice([x == y, x != y, x & y, x | y, ~x])

    def linear(self) -> Iterator[SOp]:
        if any(map(is_numerical, self.pool)):
            factors = (self.choice.choice([1, -1, 0.5, 2, 0, 1 / 3]) for _ in range(2))
            yield numerical(LinearSequenceMap(self.sop(True), self.sop(True), *factors))

    def full(self) -> Iterator[SOp]:
        constant = Full(self.choice.choice([0, 1, "u", None, True, -3.5]))
        yield numerical(constant) if self.choice.random() < 0.3 else constant

    def width(self) -> Iterator[SOp]:
        yield SelectorWidth(self.selector())

    def aggregate(self) -> Iterator[SOp]:
        values, selector = self.sop(), self.selector()
        if is_numerical(values):
            default = self.choice.choice([None, 0, 0, 1, -2, 0.5])
            yield numerical(Aggregate(selector, values, default=default))
        else:
            default = self.choice.choice([None, None, None, "u", 0, True, (0, 1), "zz"])
            yield Aggregate(selector, values, default=default)

    def selector(self, depth: int = 0) -> Selector:
        drawn = self.choice.random()
        if drawn < 0.15 and self.selectors:
            return self.choice.choice(self.selectors)
        made = self.select() if drawn < 0.7 or depth > 1 else self.compound(depth)
        self.selectors.append(made)
        return made

    def select(self) -> Select:
        keys, queries = self.sop(False), self.sop(False)
        if self.choice.random() < 0.5:
            return Select(keys, queries, self.function(((True, False, False),)))
        predicate = self.choice.choice(list(Comparison))
        ordered = predicate not in (Comparison.EQ, Comparison.NEQ, Comparison.TRUE)
        if ordered and self.choice.random() < 0.8:
            keys = queries = indices
        return Select(keys, queries, predicate)

    def compound(self, depth: int) -> Selector:
        x, y = self.selector(depth + 1), self.selector(depth + 1)
        return self.choice.choice(
            [SelectorAnd(x, y), SelectorOr(x, y), SelectorNot(x), x & y, x | y, ~x]
        )
