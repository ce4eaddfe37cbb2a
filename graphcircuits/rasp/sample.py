"""Random well-typed programs that always validate, for property tests and for pretraining.

1. Draw a number of layers, then a program from the result down: an operation, then its inputs, one
   of them deep enough to reach the wanted depth, the others shallow. Now and then an input is an
   expression that is already there, so that circuits share parts.
2. Inputs are well typed by construction: sequences hold small integers, flags are numerical 0/1,
   and what an aggregate moves is chosen by position or determined by its keys.
3. Keep the program if it validates, has the wanted layers, its value sets are small, and every
   variable matters: exchanging it between inputs changes some output. Else draw again.

One Python generator, seeded from the torch generator passed in, makes all choices of a draw.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from graphcircuits.rasp.language import (
    Aggregate,
    Comparison,
    Full,
    LinearSequenceMap,
    Map,
    Select,
    Selector,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    is_numerical,
    numerical,
    tokens,
)
from graphcircuits.rasp.layout import layers_of
from graphcircuits.rasp.lookup import run
from graphcircuits.rasp.tabulate import NONE, Tables, tabulate
from graphcircuits.rasp.validate import problems, trial_inputs
from graphcircuits.rasp.values import Value

MAX_LAYERS = 8
MAX_VALUES = 40
"""Distinct values of a categorical variable; more make wide models and rarely new circuits."""
MODULUS = (2, 3, 4, 5)
DRAWS = 1000
_ORDERED = (Comparison.EQ, Comparison.NEQ, Comparison.LT, Comparison.GEQ)


@dataclass(frozen=True, eq=False)
class SampledCase:
    """A random program with the vocabulary, length and masking it was drawn for."""

    program: SOp
    vocab: tuple[Value, ...]
    max_seq_len: int
    causal: bool


@dataclass(frozen=True)
class Function:
    """A function with its text, so that a program can be printed."""

    text: str
    call: Callable[..., Value]

    def __call__(self, *args: Value) -> Value:
        return self.call(*args)

    def __repr__(self) -> str:
        return self.text


def sample_case(generator: torch.Generator, *, layers: int | None = None) -> SampledCase:
    """A random program together with a random vocabulary, length and masking."""
    choice, wanted = _begun(generator, layers)
    while True:
        size, length = choice.randint(2, 6), choice.randint(3, 9)
        vocab = tuple(range(size)) if choice.random() < 0.6 else tuple("abcdef"[:size])
        causal = choice.random() < 0.4
        program = _draw(choice, vocab, length + 1, causal, wanted, draws=100)
        if program is not None:
            return SampledCase(program, vocab, length + 1, causal)


def layers_drawn(generator: torch.Generator) -> int:
    """The layers of the program that `sample_case` would draw, which is not drawn."""
    return _begun(generator, None)[1]


def _begun(generator: torch.Generator, layers: int | None) -> tuple[random.Random, int]:
    """What makes the choices of a draw, and the layers that are wanted, which it may have drawn."""
    if layers is not None and not 1 <= layers <= MAX_LAYERS:
        raise ValueError(f"layers must be 1 to {MAX_LAYERS}, got {layers}.")
    choice = random.Random(int(torch.randint(2**62, (), generator=generator)))
    return choice, layers or choice.randint(1, MAX_LAYERS)


def _draw(
    choice: random.Random,
    vocab: Sequence[Value],
    max_seq_len: int,
    causal: bool,
    layers: int,
    draws: int,
) -> SOp | None:
    for _ in range(draws):
        program = _Draft(choice, vocab, max_seq_len - 1).program(layers)
        if max(layers_of(program).values(), default=0) != layers - 1:
            continue
        if _is_wanted(tabulate(program, vocab=vocab, max_seq_len=max_seq_len, causal=causal)):
            return program
    return None


def _is_wanted(tables: Tables) -> bool:
    small = all(
        variable.numerical or len(variable.values) <= MAX_VALUES
        for variable in tables.variables.values()
    )
    # The cheaper question first: most draws fail one of the two.
    fine = small and not tables.problems and _every_variable_matters(tables)
    return fine and not problems(tables)


def _every_variable_matters(tables: Tables) -> bool:
    """Whether taking any one variable from another input changes the output somewhere."""
    codes = trial_inputs(tables)[::4]
    codes = codes[np.argsort((codes != NONE).sum(axis=1), kind="stable")]
    columns = run(tables, codes).columns
    output = columns[tables.program][:-1]
    # The other input is the next one by length, so that it has a value wherever this one has.
    others = {
        sop: column[1:]
        for sop, column in columns.items()
        if sop is not indices and not isinstance(sop, Full)
    }
    return all(
        not np.array_equal(
            output,
            run(tables, codes[:-1], {sop: other}).columns[tables.program],
            equal_nan=output.dtype.kind == "f",
        )
        for sop, other in others.items()
    )


class _Draft:
    """One draw: grows a program from the result down."""

    def __init__(self, choice: random.Random, vocab: Sequence[Value], length: int) -> None:
        self.choice = choice
        self.length = length
        self.made: list[tuple[int, SOp]] = []
        self.size = 0
        self.token_numbers: SOp = tokens
        self.reads_tokens_as_numbers = all(type(token) is int for token in vocab)
        self.vocab = tuple(vocab)

    def program(self, layers: int) -> SOp:
        depth = self.choice.randint(layers, min(2 * layers, layers + 3))
        self.room = 2 * depth + self.choice.randint(0, 4)
        return self.mean(depth) if self.choice.random() < 0.15 else self.integers(depth)

    # Sequences of small integers

    def integers(self, depth: int) -> SOp:
        """A categorical sequence of integers (or tokens, at depth 0) of at most this depth."""
        if depth == 0:
            return self.choice.choice([tokens, tokens, indices])
        if (known := self.known(depth)) is not None:
            return known
        operations: list[tuple[float, Callable[[int], SOp]]] = [
            (1.0, self.mapped),
            (2.0 if self.size < self.room else 0.3, self.combined),
            (2.0, self.counted),
            (2.5, self.moved),
        ]
        if depth > 1:
            operations += [(1.0, self.thresholded), (0.5, self.grouped)]
        weights, makers = zip(*operations, strict=True)
        return self.keep(depth, self.choice.choices(makers, weights)[0](depth))

    def mapped(self, depth: int) -> SOp:
        inner = self.numbers(depth - 1)
        modulus, shift = self.choice.choice(MODULUS), self.choice.randint(0, 3)
        functions = [
            Function(f"(x + {shift}) % {modulus}", lambda x: (x + shift) % modulus),
            Function(f"abs(x - {shift})", lambda x: abs(x - shift)),
            Function(f"min(x, {shift + 1})", lambda x: min(x, shift + 1)),
            Function(f"x if x != {shift} else None", lambda x: x if x != shift else None),
            Function(f"int(x > {shift})", lambda x: int(x > shift)),
        ]
        return Map(self.choice.choice(functions), inner)

    def combined(self, depth: int) -> SOp:
        deep, other = self.numbers(depth - 1), self.numbers(self.shallow(depth))
        first, second = self.shuffled(deep, other)
        modulus = self.choice.choice(MODULUS)
        functions = [
            Function(f"(x + y) % {modulus}", lambda x, y: (x + y) % modulus),
            Function(f"(x * y) % {modulus}", lambda x, y: (x * y) % modulus),
            Function("max(x, y)", max),
            Function("min(x, y)", min),
            Function("abs(x - y)", lambda x, y: abs(x - y)),
            Function("int(x < y)", lambda x, y: int(x < y)),
            Function("x if x != y else None", lambda x, y: x if x != y else None),
        ]
        return SequenceMap(self.choice.choice(functions), first, second)

    def counted(self, depth: int) -> SOp:
        return SelectorWidth(self.selector(depth - 1))

    def moved(self, depth: int) -> SOp:
        """A value fetched from one position: keys are indices, or every other key is masked out."""
        query = self.numbers(depth - 1) if self.choice.random() < 0.6 else indices
        values = self.integers(self.shallow(depth) if query is not indices else depth - 1)
        offset = self.choice.choice([-2, -1, -1, 1, 1, 2, 0 if query is not indices else 1])
        last = self.length - 1
        predicates = [
            Function(f"k == q + {offset}", lambda k, q: k == q + offset),
            Function(f"k == {last} - q", lambda k, q: k == last - q),
            Function(f"k == max(q - {abs(offset)}, 0)", lambda k, q: k == max(q - abs(offset), 0)),
            Comparison.EQ,
        ]
        if query is indices:
            predicates.pop()
        selector: Selector = Select(indices, query, self.choice.choice(predicates))
        if self.choice.random() < 0.15:
            selector = selector & self.select(self.integers(0), self.integers(0))
        default = self.choice.choice([None, None, 0, 1])
        return Aggregate(selector, values, default=None if self.holds_tokens(values) else default)

    def grouped(self, depth: int) -> SOp:
        """A value that all selected positions share, because the keys determine it."""
        keys = self.numbers(depth - 2)
        modulus = self.choice.choice(MODULUS)
        values = Map(Function(f"(x + 1) % {modulus}", lambda x: (x + 1) % modulus), keys)
        return Aggregate(Select(keys, self.numbers(depth - 1), Comparison.EQ), values)

    def thresholded(self, depth: int) -> SOp:
        """A class of a running fraction."""
        mean = self.mean(depth - 1)
        bound = self.choice.choice([0.2, 0.35, 0.5, 0.6])
        functions = [
            Function(f"int(x > {bound})", lambda x: int(x > bound)),
            Function("round(4 * x)", lambda x: round(4 * x)),
            Function("int(x == 0)", lambda x: int(x == 0)),
        ]
        return Map(self.choice.choice(functions), mean)

    # Numerical sequences

    def mean(self, depth: int) -> SOp:
        """A numerical sequence: a fraction of the selected positions, or a difference of two."""
        if depth <= 1:
            return self.flag(1)
        if depth >= 3 and self.size < self.room and self.choice.random() < 0.3:
            first, second = self.shuffled(self.mean(depth - 1), self.mean(2))
            factors = self.choice.choice([(1, -1), (1, 1), (0.5, 0.5), (2, -1)])
            return self.keep(depth, numerical(LinearSequenceMap(first, second, *factors)))
        if self.choice.random() < 0.5:
            selector, flag = self.selector(depth - 1), self.flag(1)
        else:
            selector, flag = self.selector(self.shallow(depth)), self.flag(depth - 1)
        return self.keep(depth, numerical(Aggregate(selector, flag, default=0)))

    def flag(self, depth: int) -> SOp:
        """A numerical 0/1 sequence without None."""
        bound = self.choice.randint(0, 2)
        if depth == 1 and not self.reads_tokens_as_numbers:
            token = self.choice.choice(self.vocab)
            return numerical(
                Map(Function(f"int(x == {token!r})", lambda x: int(x == token)), tokens)
            )
        inner = SelectorWidth(self.selector(depth - 2)) if depth > 1 else tokens
        return numerical(Map(Function(f"int(x > {bound})", lambda x: int(x > bound)), inner))

    # Selectors

    def selector(self, depth: int) -> Selector:
        deep, other = self.numbers(depth), self.numbers(self.shallow(depth + 1))
        first = self.select(*self.shuffled(deep, other))
        if self.choice.random() < 0.15:
            return first & self.select(self.integers(0), indices)
        if self.choice.random() < 0.15:
            return Select(deep, Full(self.choice.randint(0, 2)), self.choice.choice(_ORDERED))
        return ~first if self.choice.random() < 0.1 else first

    def select(self, keys: SOp, queries: SOp) -> Selector:
        if self.holds_tokens(keys) != self.holds_tokens(queries):
            queries = keys
        modulus = self.choice.choice(MODULUS)
        predicates = [*Comparison]
        predicates.remove(Comparison.FALSE)
        if not self.holds_tokens(keys):
            predicates += [
                Function(f"(k + q) % {modulus} == 0", lambda k, q: (k + q) % modulus == 0),
                Function("abs(k - q) <= 1", lambda k, q: abs(k - q) <= 1),
            ]
        return Select(keys, queries, self.choice.choice(predicates))

    # Choosing

    def numbers(self, depth: int) -> SOp:
        """Like `integers`; tokens that are no numbers become their place in the vocabulary."""
        drawn = self.integers(depth)
        if not self.holds_tokens(drawn):
            return drawn
        if self.token_numbers is tokens:
            numbers = {token: number for number, token in enumerate(self.vocab)}
            self.token_numbers = Map(
                Function("place in the vocabulary", numbers.__getitem__), tokens
            )
        return self.token_numbers

    def holds_tokens(self, sop: SOp) -> bool:
        """Whether the sequence may hold tokens that are no numbers."""
        if self.reads_tokens_as_numbers:
            return False
        return sop is tokens or (isinstance(sop, Aggregate) and self.holds_tokens(sop.values))

    def shallow(self, depth: int) -> int:
        """A depth for a side input: mostly small, never deeper than the main one."""
        return min(depth - 1, self.choice.choice([0, 0, 1, 1, 2, 3, depth - 1, depth - 1]))

    def shuffled(self, first: SOp, second: SOp) -> tuple[SOp, SOp]:
        return (first, second) if self.choice.random() < 0.5 else (second, first)

    def known(self, depth: int) -> SOp | None:
        """An expression made before, now and then, if it is deep enough but not too deep."""
        fitting = [sop for made, sop in self.made if made == depth]
        crowded = self.size >= self.room
        if fitting and self.choice.random() < (0.8 if crowded else 0.25):
            return self.choice.choice(fitting)
        return None

    def keep(self, depth: int, sop: SOp) -> SOp:
        self.size += 1
        if not is_numerical(sop):
            self.made.append((depth, sop))
        return sop
