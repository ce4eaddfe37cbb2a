"""InterpBench's cases without attention: maps of tokens, and several values of one position."""

import math
from collections.abc import Callable

from graphcircuits.cases.case import Case
from graphcircuits.cases.idioms import ABC, TO_29, TO_TEN, WORDS, ib_recipe
from graphcircuits.rasp import Map, SequenceMap, SOp, Value, indices, tokens

SIGNED = tuple(range(-10, 10))
TENTHS = tuple(n / 10 - 1 for n in range(20))  # -1.0 to 0.9, rounded as in the public benchmark


def token_map(
    id: str,
    name: str,
    task: str,
    f: Callable[[Value], Value],
    vocab: tuple[Value, ...] = TO_TEN,
    *,
    named: str = "map",
) -> Case:
    """The case whose program is `f` of every token."""
    return ib_recipe(id, name, task=task, vocab=vocab)(lambda: Map(f, tokens).named(named))


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


MAPS = (
    token_map("ib-8", "identity", "Copy the integer token.", lambda x: x),
    token_map(
        "ib-20",
        "spam-keyword",
        "'spam' for tokens free/offer/click/now, else 'not spam'.",
        lambda x: "spam" if x in ("free", "offer", "click", "now") else "not spam",
        tuple(sorted((*WORDS, "click", "now", "offer", "spam"))),
    ),
    token_map(
        "ib-29",
        "abbreviate",
        "First three characters of words longer than three, else the word.",
        lambda word: word[:3],
        WORDS,
    ),
    token_map(
        "ib-30",
        "range-tag",
        "True for number strings between 10 and 20 inclusive.",
        lambda x: 10 <= int(x) <= 20,
        tuple(sorted(map(str, TO_29))),
    ),
    token_map(
        "ib-31",
        "anagram-of-listen",
        "True if the word is an anagram of 'listen'.",
        lambda word: sorted(word) == sorted("listen"),
        tuple(sorted((*WORDS, "listen"))),
    ),
    token_map(
        "ib-33",
        "even-length",
        "True for words of even length.",
        lambda word: len(word) % 2 == 0,
        WORDS,
    ),
    token_map(
        "ib-34",
        "vowel-consonant-ratio",
        "Vowels divided by consonants of the word, infinity when no consonant.",
        vowel_consonant_ratio,
        WORDS,
    ),
    token_map(
        "ib-35",
        "alternate-caps",
        "Upper-case the characters at even positions of the word and lower-case the others.",
        alternate_caps,
        WORDS,
    ),
    token_map(
        "ib-36",
        "emoji-sentiment",
        "Map the three emojis to positive, negative, neutral.",
        lambda x: {"😊": "positive", "😢": "negative"}.get(x, "neutral"),
        ("📘", "😊", "😢"),
    ),
    token_map(
        "ib-37",
        "reverse-word-except",
        "Reverse every word except 'nochange'.",
        lambda word: word if word == "nochange" else word[::-1],
        WORDS,
    ),
    token_map("ib-41", "absolute-value", "Absolute value.", abs, SIGNED, named="make_absolute"),
    token_map(
        "ib-43",
        "fibonacci-number",
        "n-th Fibonacci number for token n.",
        fibonacci,
        tuple(range(20)),
        named="nth_fib",
    ),
    token_map("ib-46", "decrement", "x-1.", lambda x: x - 1, named="decrement"),
    token_map(
        "ib-49",
        "floor-multiple-3",
        "Largest multiple of 3 not above x.",
        lambda x: x - x % 3,
        named="decrement_to_multiple_of_three",
    ),
    token_map("ib-50", "cosh", "Hyperbolic cosine.", math.cosh),
    token_map(
        "ib-51",
        "is-fibonacci",
        "1 if x is a Fibonacci number up to 610 else 0.",
        lambda x: int(x in FIBONACCI_NUMBERS),
        tuple(range(100)),
        named="check_fibonacci_map",
    ),
    token_map("ib-52", "sqrt", "Square root.", math.sqrt, named="square_root"),
    token_map("ib-54", "tanh", "Hyperbolic tangent.", math.tanh),
    token_map("ib-55", "sinh", "Hyperbolic sine.", math.sinh, named="hyperbolic_sine"),
    token_map("ib-60", "increment", "x+1.", lambda x: x + 1, named="increment"),
    token_map("ib-62", "factorial", "Factorial.", math.factorial, named="factorial"),
    token_map("ib-64", "cube", "x cubed.", lambda x: x**3, named="cube_sequence"),
    token_map(
        "ib-65", "cube-root", "Cube root.", lambda x: x ** (1 / 3), named="cube_root_operation"
    ),
    token_map(
        "ib-66",
        "round",
        "Round to nearest integer (half up).",
        lambda x: int(x + 0.5),
        tuple(n / 4 for n in range(20)),
        named="rounded_sequence",
    ),
    token_map(
        "ib-68",
        "ceil-multiple-3",
        "Smallest multiple of 3 not below x.",
        lambda x: x + -x % 3,
        named="increment_to_multiple_of_three",
    ),
    token_map(
        "ib-69",
        "sign",
        "Sign of x (only 0 and 1 occur, vocabulary is non-negative).",
        lambda x: (x > 0) - (x < 0),
        named="sign",
    ),
    token_map("ib-70", "cos", "Cosine.", math.cos, named="apply_cosine"),
    token_map("ib-72", "negate", "-x.", lambda x: -x, SIGNED, named="negated_sequence"),
    token_map("ib-73", "sin", "Sine.", math.sin, named="sine"),
    token_map("ib-75", "double", "2x.", lambda x: 2 * x, named="double_elements"),
    token_map("ib-77", "tan", "Tangent.", math.tan, named="tangent"),
    token_map("ib-79", "is-prime", "1 if prime else 0.", lambda x: int(is_prime(x))),
    token_map("ib-80", "minus-2", "x-2.", lambda x: x - 2, named="subtract_2"),
    token_map("ib-83", "triple", "3x.", lambda x: 3 * x, named="triple_sequence"),
    token_map("ib-84", "atan", "Arc tangent.", math.atan, named="arctangent"),
    token_map("ib-85", "square", "x squared.", lambda x: x**2, named="square_each_element"),
    token_map(
        "ib-86",
        "is-power-of-2",
        "1 if x is a power of two (2,4,8; 1 gives 0) else 0.",
        is_power_of_two,
        named="check_multiple_of_2",
    ),
    token_map("ib-87", "binarize", "1 if x>=3 else 0.", lambda x: int(x >= 3)),
    token_map(
        "ib-90",
        "replace-token",
        "Replace 'findme' by '-'.",
        lambda x: "-" if x == "findme" else x,
        tuple(sorted((*WORDS, "-", "findme"))),
    ),
    token_map(
        "ib-91",
        "threshold-zero",
        "0 below 3, else x.",
        lambda x: 0 if x < 3 else x,
        named="apply_threshold",
    ),
    token_map(
        "ib-95",
        "distinct-prime-factors",
        "Number of distinct prime factors (0 for 0).",
        distinct_prime_factors,
        TO_29,
    ),
    token_map(
        "ib-101",
        "is-square",
        "1 if perfect square else 0.",
        lambda x: int(math.isqrt(x) ** 2 == x),
        TO_29,
    ),
    token_map(
        "ib-102",
        "reflect-2-7",
        "Reflect x into [2,7].",
        lambda x: reflect(x, 2, 7),
        tuple(range(-20, 20)),
    ),
    token_map("ib-104", "exp", "Exponential.", math.exp),
    token_map("ib-105", "next-prime", "Smallest prime >= x.", next_prime, TO_29),
    token_map(
        "ib-114",
        "log10",
        "Base-10 logarithm.",
        lambda x: math.log(x, 10),
        tuple(range(1, 11)),
        named="logarithm",
    ),
    token_map("ib-121", "asin", "Arc sine.", math.asin, TENTHS),
    token_map(
        "ib-122", "divisible-by-3", "1 if divisible by 3 else 0.", lambda x: int(x % 3 == 0), TO_29
    ),
    token_map("ib-123", "acos", "Arc cosine.", math.acos, TENTHS),
)


# Several values of one position


@ib_recipe("ib-15", "two-x-minus-index", vocab=(0, 1, 2, 3, 4), max_seq_len=5)
def two_x_minus_index() -> SOp:
    """2*token - index."""
    pair = SequenceMap(lambda x, y: (x, y), tokens, tokens)
    triple = SequenceMap(lambda xy, z: (*xy, z), pair, indices)
    return Map(lambda xyz: xyz[0] + xyz[1] - xyz[2], triple)


@ib_recipe("ib-26", "repeat-by-position", vocab=ABC)
def repeat_by_position() -> SOp:
    """Repeat the letter (index+1) times."""
    return SequenceMap(lambda x, i: x * (i + 1), tokens, indices)


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


@ib_recipe("ib-106", "mask-index-1")
def mask_index_1() -> SOp:
    """Keep only the element at index 1, 0 elsewhere."""
    return SequenceMap(lambda x, i: x if i == 1 else 0, tokens, indices)


@ib_recipe("ib-130", "clip-2-7", vocab=tuple(range(-15, 15)))
def clip_2_7() -> SOp:
    """Clip to [2,7]."""
    low = Map(lambda _: 2, tokens)
    high = Map(lambda _: 7, tokens)
    raised = SequenceMap(max, tokens, low)
    return SequenceMap(min, raised, high)
