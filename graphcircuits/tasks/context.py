"""Tasks whose answer stands in the prompt, or is a sign that the prompt asks for.

induction        dog red key ... dog                     red            the first dog -> another
docstring        def f(self, size, file): ... :param     file           file -> another name
colored-objects  ... What color is the cup? It is        blue           asks for another thing
acronyms         Global Health Office: G H               O              another last word
brackets         sizes = [two, five, six                 ], not )       [ -> (
quotes           name = "Mary                            ", not '       " -> '
"""

from random import Random

from graphcircuits.tasks.task import GAO, WORDS, TextPair, WholeWords, task

_NOUNS, _THINGS, _COLORS = WORDS["nouns"], WORDS["things"], WORDS["colors"]
_ACRONYM = [WORDS[f"{place}_of_acronym"] for place in ("first", "second", "last")]
_BRACKETS = (("[", "]"), ("(", ")"), ("{", "}"))


@task(
    "Elhage et al. 2021; Olsson et al. 2022, In-context Learning and Induction Heads "
    "(arXiv:2209.11895)"
)
def induction(vocabulary: WholeWords, rng: Random) -> TextPair:
    """What followed a word the last time; corrupted: another word in its first place."""
    words = vocabulary.words("nouns", _NOUNS + _THINGS + _COLORS + WORDS["places"], 16)
    length = rng.randrange(6, 11)
    *sequence, other = rng.sample(words, length + 1)
    at = rng.randrange(length - 1)
    broken = [other if i == at else word for i, word in enumerate(sequence)]
    wrong = rng.choice([word for i, word in enumerate(sequence) if i not in (at, at + 1)])
    return TextPair(
        " ".join([*sequence, sequence[at]]),
        " ".join([*broken, sequence[at]]),
        f" {sequence[at + 1]}",
        f" {wrong}",
    )


@task(
    "Heimersheim and Janiak 2023, A Circuit for Python Docstrings in a 4-layer "
    "Attention-only Transformer"
)
def docstring(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The next argument of a function in its docstring; corrupted: another name in the
    definition."""
    names = vocabulary.words("names of arguments", WORDS["arguments"], 6)
    first, second, third, fourth, other = rng.sample(names, 5)
    function = f"{rng.choice(WORDS['functions'])}_{rng.choice(_NOUNS)}"
    notes = rng.sample(_NOUNS, 4)
    clean, corrupted = (
        f"def {function}(self, {first}, {second}, {asked}, {fourth}):\n"
        f'    """{notes[0]} {notes[1]}\n\n'
        f"    :param {first}: {notes[2]}\n"
        f"    :param {second}: {notes[3]}\n"
        "    :param"
        for asked in (third, other)
    )
    return TextPair(clean, corrupted, f" {third}", f" {fourth}")


@task("Merullo, Eickhoff and Pavlick 2023, Circuit Component Reuse Across Tasks (arXiv:2310.08744)")
def colored_objects(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The color of one of three things; corrupted: asks for another."""
    colors = rng.sample(vocabulary.words("colors", _COLORS), 3)
    things = rng.sample(vocabulary.words("things", _THINGS), 3)
    story = " ".join(f"The {x} is {color}." for x, color in zip(things, colors, strict=True))
    asked, other = rng.sample(range(3), 2)
    return TextPair(
        f"{story} What color is the {things[asked]}? It is",
        f"{story} What color is the {things[other]}? It is",
        f" {colors[asked]}",
        f" {colors[other]}",
    )


@task("García-Carrasco et al. 2024, How does GPT-2 Predict Acronyms? (arXiv:2405.04156)")
def acronyms(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The last letter of an acronym, after an example; corrupted: another last word."""
    shown = [rng.choice(words) for words in _ACRONYM]
    firsts, seconds, lasts = _ACRONYM
    first, second, last, other = rng.choice(firsts), rng.choice(seconds), *rng.sample(lasts, 2)
    start = f"{' '.join(shown)}: {' '.join(word[0] for word in shown)}\n{first} {second}"
    end = f": {first[0]} {second[0]}"
    return TextPair(f"{start} {last}{end}", f"{start} {other}{end}", f" {last[0]}", f" {other[0]}")


@task(GAO)
def brackets(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The bracket that closes a list; corrupted: opened by another one."""
    (opening, closing), (other, wrong) = rng.sample(_BRACKETS, 2)
    items = ", ".join(rng.sample(_NOUNS + _COLORS, rng.choice((3, 4))))
    name = rng.choice(WORDS["lists"])
    return TextPair(f"{name} = {opening}{items}", f"{name} = {other}{items}", closing, wrong)


@task(GAO)
def quotes(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The quotation mark that closes a text; corrupted: opened by the other one."""
    mark, other = rng.sample("\"'", 2)
    name = rng.choice(WORDS["strings"])
    text = rng.choice(WORDS["women"] + WORDS["men"] + _NOUNS + WORDS["places"])
    return TextPair(f"{name} = {mark}{text}", f"{name} = {other}{text}", mark, other)
