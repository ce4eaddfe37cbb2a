"""Tasks about quantities and order.

  greater-than  The war lasted from the year 1741 to the year 17   63, not 22    41 -> 01
  arithmetic    2+5=7, 1+3=4, 4+3=                                 7, not 9      3 -> 5
  successor     Monday, Tuesday, Wednesday,                        Thursday      starts elsewhere

Greater-than has many right answers. Here one year above the first stands against one below it, both
drawn; where the tokenizer writes digits one by one, the digit of the decade does, one above against
one below.
"""

from random import Random

from graphcircuits.tasks.task import WORDS, TextPair, TooFewWords, WholeWords, task

_YEARS = {
    2: [(century, f"{year:02}") for century in range(11, 18) for year in range(2, 100, 3)],
    1: [(century, f"{decade}") for century in range(11, 18) for decade in range(10)],
}
"""Centuries and what may follow them, by the number of digits of the latter. Every third year is
enough, and sooner looked at."""

_SEQUENCES = {
    **{kind: WORDS[kind] for kind in ("days", "months", "numbers", "ordinals")},
    "letters": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}


def _endings(vocabulary: WholeWords) -> dict[int, list[str]]:
    """For each century, what may follow it in one token: two digits, or else one."""
    for digits, years in _YEARS.items():
        fitting = vocabulary.keep(
            f"ends of years of {digits} digits",
            years,
            lambda year: vocabulary.one(year[1], behind=f"The year {year[0]}"),
            least=0,
        )
        centuries: dict[int, list[str]] = {}
        for century, end in fitting:
            centuries.setdefault(century, []).append(end)
        if usable := {century: ends for century, ends in centuries.items() if len(ends) >= 5}:
            return usable
    raise TooFewWords("it needs the last two digits of a year, or each of them, as one token")


@task("Hanna, Liu and Variengien 2023, How does GPT-2 compute greater-than? (arXiv:2305.00586)")
def greater_than(vocabulary: WholeWords, rng: Random) -> TextPair:
    """A year after the one named, not before; corrupted: the first year ends in 01."""
    endings = _endings(vocabulary)
    century = rng.choice(list(endings))
    ends = endings[century]
    i = rng.randrange(1, len(ends) - 1)
    year = ends[i] if len(ends[i]) == 2 else f"{ends[i]}{rng.randrange(10)}"
    start = f"The {rng.choice(WORDS['lasting'])} lasted from the year {century}"
    end = f" to the year {century}"
    return TextPair(
        f"{start}{year}{end}", f"{start}01{end}", rng.choice(ends[i + 1 :]), rng.choice(ends[:i])
    )


@task(
    "Stolfo, Belinkov and Sachan 2023, A Mechanistic Interpretation of Arithmetic "
    "Reasoning in Language Models (arXiv:2305.15054)"
)
def arithmetic(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The sum of two digits, after two examples; corrupted: another second term."""
    if not all(vocabulary.one(digit, behind="1+1=") for digit in "0123456789"):
        raise TooFewWords("it needs the ten digits as one token each behind an equals sign")
    # Sums below ten, so that the answer is one digit.
    firsts = [rng.randrange(1, 9) for _ in range(3)]
    terms = [(first, rng.randrange(1, 10 - first)) for first in firsts]
    shown = "".join(f"{a}+{b}={a + b}\n" for a, b in terms[:2])
    first, second = terms[2]
    other = rng.randrange(10 - first)
    return TextPair(
        f"{shown}{first}+{second}=",
        f"{shown}{first}+{other}=",
        str(first + second),
        str(first + other),
    )


@task("Gould et al. 2023, Successor Heads (arXiv:2312.09230); Lan et al. 2023 (arXiv:2311.04131)")
def successor(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The next day, month, number or letter of a sequence; corrupted: it starts elsewhere."""
    kind = rng.choice(list(_SEQUENCES))
    items, length = _SEQUENCES[kind], rng.choice((3, 4))
    start, other = rng.sample(range(len(items) - length), 2)
    clean, corrupted = (", ".join(items[at : at + length]) + "," for at in (start, other))
    return TextPair(clean, corrupted, f" {items[start + length]}", f" {items[other + length]}")
