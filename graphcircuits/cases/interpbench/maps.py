"""InterpBench's cases without attention: maps of tokens, and several values of one position."""

import math
from collections.abc import Callable
from typing import Any

from graphcircuits.cases import stored
from graphcircuits.cases.case import Case
from graphcircuits.cases.idioms import ib_recipe, ib_recipes
from graphcircuits.rasp import Map, SequenceMap, SOp, Value, indices, tokens


def vowel_consonant_ratio(word: str) -> float:
    vowels = sum(letter in "aeiou" for letter in word.lower())
    consonants = len(word) - vowels
    return vowels / consonants if consonants else math.inf


def alternate_caps(word: str) -> str:
    return "".join(x.lower() if i % 2 else x.upper() for i, x in enumerate(word))


def fibonacci(n: int) -> int:
    current, following = 0, 1
    for _ in range(n):
        current, following = following, current + following
    return current


FIBONACCI_NUMBERS = frozenset(fibonacci(n) for n in range(16))


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def next_prime(n: int) -> int:
    while not is_prime(n):
        n += 1
    return n


def distinct_prime_factors(n: int) -> int:
    return sum(is_prime(d) for d in range(2, n + 1) if n % d == 0)


def is_power_of_two(n: int) -> int:
    """Halving ends at 2, so 1 does not count."""
    while n > 2 and n % 2 == 0:
        n //= 2
    return int(n == 2)


def reflect(x: int, low: int, high: int) -> int:
    """Fold the number line into [low, high] by mirrors at both ends."""
    period = 2 * (high - low)
    offset = (x - low) % period
    return low + min(offset, period - offset)


MAPS: dict[str, Callable[[Any], Value]] = {
    "identity": lambda x: x,
    "spam-keyword": lambda x: "spam" if x in ("free", "offer", "click", "now") else "not spam",
    "abbreviate": lambda word: word[:3],
    "range-tag": lambda x: 10 <= int(x) <= 20,
    "anagram-of-listen": lambda word: sorted(word) == sorted("listen"),
    "even-length": lambda word: len(word) % 2 == 0,
    "vowel-consonant-ratio": vowel_consonant_ratio,
    "alternate-caps": alternate_caps,
    "emoji-sentiment": lambda x: {"😊": "positive", "😢": "negative"}.get(x, "neutral"),
    "reverse-word-except": lambda word: word if word == "nochange" else word[::-1],
    "absolute-value": abs,
    "fibonacci-number": fibonacci,
    "decrement": lambda x: x - 1,
    "floor-multiple-3": lambda x: x - x % 3,
    "cosh": math.cosh,
    "is-fibonacci": lambda x: int(x in FIBONACCI_NUMBERS),
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "sinh": math.sinh,
    "increment": lambda x: x + 1,
    "factorial": math.factorial,
    "cube": lambda x: x**3,
    "cube-root": lambda x: x ** (1 / 3),
    "round": lambda x: int(x + 0.5),
    "ceil-multiple-3": lambda x: x + -x % 3,
    "sign": lambda x: (x > 0) - (x < 0),
    "cos": math.cos,
    "negate": lambda x: -x,
    "sin": math.sin,
    "double": lambda x: 2 * x,
    "tan": math.tan,
    "is-prime": lambda x: int(is_prime(x)),
    "minus-2": lambda x: x - 2,
    "triple": lambda x: 3 * x,
    "atan": math.atan,
    "square": lambda x: x**2,
    "is-power-of-2": is_power_of_two,
    "binarize": lambda x: int(x >= 3),
    "replace-token": lambda x: "-" if x == "findme" else x,
    "threshold-zero": lambda x: 0 if x < 3 else x,
    "distinct-prime-factors": distinct_prime_factors,
    "is-square": lambda x: int(math.isqrt(x) ** 2 == x),
    "reflect-2-7": lambda x: reflect(x, 2, 7),
    "exp": math.exp,
    "next-prime": next_prime,
    "log10": lambda x: math.log(x, 10),
    "asin": math.asin,
    "divisible-by-3": lambda x: int(x % 3 == 0),
    "acos": math.acos,
}
"""Functions of a token, by the name of their case."""


def token_map(name: str, f: Callable[[Value], Value]) -> Case:
    """The case whose program is `f` of every token."""
    words = {"named": "map", **stored("recipes")[name]}
    named = words.pop("named")
    return ib_recipe(name=name, **words)(lambda: Map(f, tokens).named(named))


TOKEN_MAPS = tuple(token_map(name, f) for name, f in MAPS.items())

# Several values of one position

SHORT = ib_recipes(
    {
        "repeat-by-position": lambda: SequenceMap(lambda x, i: x * (i + 1), tokens, indices),
        "mask-index-1": lambda: SequenceMap(lambda x, i: x if i == 1 else 0, tokens, indices),
    }
)


@ib_recipe("ib-15", "two-x-minus-index", vocab=(0, 1, 2, 3, 4), max_seq_len=5)
def two_x_minus_index() -> SOp:
    """2*token - index."""
    pair = SequenceMap(lambda x, y: (x, y), tokens, tokens)
    triple = SequenceMap(lambda xy, z: (*xy, z), pair, indices)
    return Map(lambda xyz: xyz[0] + xyz[1] - xyz[2], triple)


@ib_recipe("ib-40", "digit-sum", vocab=tuple(range(29)))
def digit_sum() -> SOp:
    """Tens digit plus ones digit of the number."""
    tens = Map(lambda x: x // 10, tokens).named("tens_place")
    ones = Map(lambda x: x % 10, tokens).named("ones_place")
    return SequenceMap(lambda x, y: x + y, tens, ones).named("sum_digits")


@ib_recipe("ib-53", "increment-odd-index")
def increment_odd_index() -> SOp:
    """Add 1 at odd positions."""
    odd = Map(lambda i: i % 2, indices).named("odd_index_marker")
    return SequenceMap(lambda x, flag: x + flag, tokens, odd).named("incremented_elements")


@ib_recipe("ib-56", "zero-every-third")
def zero_every_third() -> SOp:
    """Positions 2, 5, 8 (0-based) become 0, all others keep their value."""
    third = Map(lambda i: int(i % 3 == 2), indices).named("every_third_numerical")
    return SequenceMap(lambda x, flag: 0 if flag else x, tokens, third).named("result_sequence")


@ib_recipe("ib-130", "clip-2-7", vocab=tuple(range(-15, 15)))
def clip_2_7() -> SOp:
    """Clip to [2,7]."""
    low = Map(lambda _: 2, tokens)
    high = Map(lambda _: 7, tokens)
    raised = SequenceMap(max, tokens, low)
    return SequenceMap(min, raised, high)
