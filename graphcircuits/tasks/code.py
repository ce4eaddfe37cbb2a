"""Tasks of source code, which small models can do too, whether their tokens are words or letters.

nesting            values = [load(size), path              ], not )     [ -> (
keywords           for size                                in, not (    for -> def
attributes         def __init__(self, path, size): self.size =   size   asks for path
keyword-arguments  load(path=path, size=                   size         another last name
comprehensions     [load(size) for                         size         another name
identifiers        bado_vemi = 1, tuko_ralo = 2, print(bado_   vemi     tuko_ is printed
verbs              # load the size if it                   is, not are  it -> we
types              def load(size: int =                    0, not "     int -> str

Where two answers begin with the same tokens, as `import` and `in` do in letters, these go to the
prompt and the next ones are asked for: `WholeWords.parting`. What is exchanged has as many letters
as what it is exchanged for.
"""

from random import Random

from graphcircuits.tasks.task import GAO, WORDS, TextPair, WholeWords, task

_BRACKETS = (("[", "]"), ("(", ")"), ("{", "}"))
_AFTER = ({"from": " import", "with": " as", "elif": ":"}, {"for": " in", "def": "("})
"""What stands behind a name, by the keyword in front of it: those of four letters, and of three."""
_NUMBERS = (("it", "we"), ("this", "they"))
_VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
_DEFAULTS = (
    {"int": " 0", "str": ' "'},
    {"bool": " False", "dict": " None"},
    {"bool": " False", "list": " None"},
)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def _names(rng: Random, count: int) -> list[str]:
    """Names of one length."""
    return rng.sample(WORDS[rng.choice(("names_of_4", "names_of_5"))], count)


@task(GAO)
def nesting(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The bracket that closes a list behind a pair of others; corrupted: opened by one of those."""
    (opening, closing), (other, wrong) = rng.sample(_BRACKETS, 2)
    values, first, second = _names(rng, 3)
    inner = {"(": f"{rng.choice(WORDS['calls'])}({first})", "[": f"{first}[0]", "{": f"{{{first}}}"}
    clean, corrupted = (f"{values} = {outer}{inner[other]}, {second}" for outer in (opening, other))
    return TextPair(clean, corrupted, closing, wrong)


@task(f"of our own, after {GAO}")
def keywords(vocabulary: WholeWords, rng: Random) -> TextPair:
    """What stands behind a name, by the keyword in front of it; corrupted: another keyword."""
    table = rng.choice(_AFTER)
    first, second = rng.sample(sorted(table), 2)
    above, name, value = _names(rng, 3)
    start = f"{above} = {value}\n"
    return vocabulary.parting(
        f"{start}{first} {name}", f"{start}{second} {name}", table[first], table[second]
    )


@task("of our own, after Heimersheim and Janiak 2023, A Circuit for Python Docstrings")
def attributes(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The argument that an attribute is named after; corrupted: the attribute of another one."""
    asked, other = rng.sample(names := _names(rng, 2), 2)
    start = f"    def __init__(self, {', '.join(names)}):\n        self."
    return vocabulary.parting(f"{start}{asked} =", f"{start}{other} =", f" {asked}", f" {other}")


@task("of our own, after Heimersheim and Janiak 2023, A Circuit for Python Docstrings")
def keyword_arguments(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The name that an argument is named after; corrupted: an argument of another name."""
    first, asked, other = _names(rng, 3)
    start = f"{rng.choice(WORDS['calls'])}({first}={first}, "
    return vocabulary.parting(f"{start}{asked}=", f"{start}{other}=", asked, other)


@task("of our own, after Heimersheim and Janiak 2023, A Circuit for Python Docstrings")
def comprehensions(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The variable that a comprehension uses; corrupted: it uses another."""
    values, asked, other = _names(rng, 3)
    start = f"{values} = [{rng.choice(WORDS['calls'])}("
    return vocabulary.parting(
        f"{start}{asked}) for", f"{start}{other}) for", f" {asked}", f" {other}"
    )


@task("Olsson et al. 2022, In-context Learning and Induction Heads (arXiv:2209.11895)")
def identifiers(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The second half of a made-up name that was there before; corrupted: the first half of
    another."""
    first, right, other, wrong = ("".join(_syllable(rng) for _ in range(2)) for _ in range(4))
    start = f"{first}_{right} = 1\n{other}_{wrong} = 2\nprint("
    return vocabulary.parting(f"{start}{first}_", f"{start}{other}_", right, wrong)


def _syllable(rng: Random) -> str:
    return rng.choice(_CONSONANTS) + rng.choice(_VOWELS)


@task("Finlayson et al. 2021 (arXiv:2106.06087), the simple case")
def verbs(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The verb agrees in number with the pronoun before it; corrupted: a pronoun of the other
    number."""
    (name,), (one, many) = _names(rng, 1), rng.choice(_NUMBERS)
    start = f"# {rng.choice(WORDS['calls'])} the {name} {rng.choice(WORDS['links'])} "
    singular, plural = rng.choice(_VERBS)
    if rng.random() < 0.5:
        one, many, singular, plural = many, one, plural, singular
    return vocabulary.parting(f"{start}{one}", f"{start}{many}", singular, plural)


@task(f"of our own, after {GAO}")
def types(vocabulary: WholeWords, rng: Random) -> TextPair:
    """A default value of the type that is written before it; corrupted: another type."""
    table = rng.choice(_DEFAULTS)
    first, second = rng.sample(sorted(table), 2)
    start = f"def {rng.choice(WORDS['calls'])}({_names(rng, 1)[0]}: "
    return vocabulary.parting(
        f"{start}{first} =", f"{start}{second} =", table[first], table[second]
    )
