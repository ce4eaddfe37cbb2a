"""Tasks about quantities and order.

  greater-than  The war lasted from the year 1741 to the year 17   63, not 22    41 -> 01
  arithmetic    2+5=7, 1+3=4, 4+3=                                 7, not 9      3 -> 5
  successor     Monday, Tuesday, Wednesday,                        Thursday      starts elsewhere

Greater-than has many right answers. Here one year above the first stands against one below it, both
drawn; where the tokenizer writes digits one by one, the digit of the decade does, one above against
one below.
"""

from random import Random

from graphcircuits.tasks.task import Task, TextPair, TooFewWords, Vocabulary
from graphcircuits.tasks.words import listed

_LASTING = listed("""
war siege drought project trial journey voyage reign conflict campaign revolt crisis strike
rebellion expedition dispute contract program
""")
_SEQUENCES = {
    "days": listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "months": listed("""
January February March April May June July August September October November December
"""),
    "numbers": listed("one two three four five six seven eight nine ten eleven twelve"),
    "ordinals": listed("first second third fourth fifth sixth seventh eighth ninth tenth"),
    "letters": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}


def _endings(vocabulary: Vocabulary) -> list[tuple[int, str]]:
    """Centuries with what may follow them in one token: two digits, or else one."""
    for width, kind in ((2, "years of two and two digits"), (1, "decades of two and one digits")):
        years = [(c, f"{x:0{width}}") for c in range(11, 18) for x in range(10**width)]
        kept = vocabulary.keep(
            kind, years, lambda year: vocabulary.one(year[1], behind=f"The year {year[0]}"), 0
        )
        if len(kept) >= 50:
            return kept
    raise TooFewWords("it needs the last two digits of a year, or each of them, as one token")


def _write_greater_than(vocabulary: Vocabulary, rng: Random) -> TextPair:
    endings = _endings(vocabulary)
    century = rng.choice(endings)[0]
    after = [ending for other, ending in endings if other == century]
    width = len(after[0])
    year = rng.randrange(12, 89)
    above = [x for x in after if x > f"{year}"[:width]]
    below = [x for x in after if x < f"{year}"[:width] and x not in ("00", "01")]
    start = f"The {rng.choice(_LASTING)} lasted from the year {century}"
    end = f" to the year {century}"
    return TextPair(
        f"{start}{year}{end}",
        f"{start}01{end}",
        rng.choice(above or after),
        rng.choice(below or after),
    )


def _write_arithmetic(vocabulary: Vocabulary, rng: Random) -> TextPair:
    if not all(vocabulary.one(digit, behind="1+1=") for digit in "0123456789"):
        raise TooFewWords("it needs the ten digits as one token each behind an equals sign")

    def terms() -> tuple[int, int]:
        first = rng.randrange(1, 9)
        return first, rng.randrange(1, 10 - first)

    shown = "".join(f"{a}+{b}={a + b}\n" for a, b in (terms(), terms()))
    first, second = terms()
    other = rng.randrange(10 - first)
    return TextPair(
        f"{shown}{first}+{second}=",
        f"{shown}{first}+{other}=",
        str(first + second),
        str(first + other),
    )


def _write_successor(vocabulary: Vocabulary, rng: Random) -> TextPair:
    kind = rng.choice(list(_SEQUENCES))
    items, length = _SEQUENCES[kind], rng.choice((3, 4))
    start, other = rng.sample(range(len(items) - length), 2)

    def prompt(at: int) -> str:
        return "".join(f" {item}," for item in items[at : at + length])[1:]

    return TextPair(
        prompt(start), prompt(other), f" {items[start + length]}", f" {items[other + length]}"
    )


greater_than = Task(
    name="greater-than",
    description="A year after the one named, not before; corrupted: the first year ends in 01",
    reference="Hanna, Liu and Variengien 2023, How does GPT-2 compute greater-than? "
    "(arXiv:2305.00586)",
    write=_write_greater_than,
)

arithmetic = Task(
    name="arithmetic",
    description="The sum of two digits, after two examples; corrupted: another second term",
    reference="Stolfo, Belinkov and Sachan 2023, A Mechanistic Interpretation of Arithmetic "
    "Reasoning in Language Models (arXiv:2305.15054)",
    write=_write_arithmetic,
)

successor = Task(
    name="successor",
    description="The next day, month, number or letter of a sequence; corrupted: it starts "
    "elsewhere",
    reference="Gould et al. 2023, Successor Heads (arXiv:2312.09230); Lan et al. 2023 "
    "(arXiv:2311.04131)",
    write=_write_successor,
)
