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


def _endings(vocabulary: Vocabulary) -> dict[int, list[str]]:
    """For each century, what may follow it in one token: two digits, or else one."""
    for width in (2, 1):
        years = [(c, f"{x:0{width}}") for c in range(11, 18) for x in range(10**width)]
        kept = vocabulary.keep(
            f"ends of years of {width} digits",
            [(century, end) for century, end in years if end not in ("00", "01")],
            lambda year: vocabulary.one(year[1], behind=f"The year {year[0]}"),
            least=0,
        )
        centuries = {century: [end for c, end in kept if c == century] for century, _ in kept}
        if found := {c: ends for c, ends in centuries.items() if len(ends) >= 5}:
            return found
    raise TooFewWords("it needs the last two digits of a year, or each of them, as one token")


def _write_greater_than(vocabulary: Vocabulary, rng: Random) -> TextPair:
    endings = _endings(vocabulary)
    century = rng.choice(list(endings))
    ends = endings[century]
    place = rng.randrange(1, len(ends) - 1)
    year = ends[place] if len(ends[place]) == 2 else f"{ends[place]}{rng.randrange(10)}"
    start = f"The {rng.choice(_LASTING)} lasted from the year {century}"
    end = f" to the year {century}"
    return TextPair(
        f"{start}{year}{end}",
        f"{start}01{end}",
        rng.choice(ends[place + 1 :]),
        rng.choice(ends[:place]),
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
