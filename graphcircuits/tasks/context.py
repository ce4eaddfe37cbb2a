"""Tasks whose answer stands in the prompt, or is a sign that the prompt asks for.

induction        dog red key ... dog                     red            the first dog -> another
docstring        def f(self, size, file): ... :param     file           file -> another name
colored-objects  ... What color is the cup? It is        blue           asks for another thing
acronyms         Global Health Office: G H               O              another last word
brackets         sizes = [two, five, six                 ], not )       [ -> (
quotes           name = "Mary                            ", not '       " -> '
"""

from random import Random

from graphcircuits.tasks.task import (
    COLORS,
    GAO,
    MEN,
    NOUNS,
    PLACES,
    THINGS,
    WOMEN,
    TextPair,
    WholeWords,
    listed,
    task,
)

_ARGUMENTS = listed("""
size name file path user text time data list node color point value level index mode date line
page state group image table query count length width height label title
""")
_FUNCTIONS = listed("load save read write find send build check parse merge update create")
_FIRST = listed("""
Global National International European American Central United World Royal Federal
""")
_SECOND = listed("Health Trade Space Water Energy Music Science Sport Food Labor")
_LAST = listed("""
Office Union Agency Board Council Department Fund Group House Institute League Network Program
Society Team
""")
_BRACKETS = (("[", "]"), ("(", ")"), ("{", "}"))
_LISTS = listed("values items names words sizes options results keys fields parts")
_STRINGS = listed("name title label text word message user city")


@task(
    "Elhage et al. 2021; Olsson et al. 2022, In-context Learning and Induction Heads "
    "(arXiv:2209.11895)"
)
def induction(vocabulary: WholeWords, rng: Random) -> TextPair:
    """What followed a word the last time; corrupted: another word in its first place."""
    words = vocabulary.words("nouns", NOUNS + THINGS + COLORS + PLACES, 16)
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
    names = vocabulary.words("names of arguments", _ARGUMENTS, 6)
    first, second, third, fourth, other = rng.sample(names, 5)
    function = f"{rng.choice(_FUNCTIONS)}_{rng.choice(NOUNS)}"
    notes = rng.sample(NOUNS, 4)
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
    colors = rng.sample(vocabulary.words("colors", COLORS), 3)
    things = rng.sample(vocabulary.words("things", THINGS), 3)
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
    shown = [rng.choice(words) for words in (_FIRST, _SECOND, _LAST)]
    first, second, last, other = rng.choice(_FIRST), rng.choice(_SECOND), *rng.sample(_LAST, 2)
    start = f"{' '.join(shown)}: {' '.join(word[0] for word in shown)}\n{first} {second}"
    end = f": {first[0]} {second[0]}"
    return TextPair(f"{start} {last}{end}", f"{start} {other}{end}", f" {last[0]}", f" {other[0]}")


@task(GAO)
def brackets(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The bracket that closes a list; corrupted: opened by another one."""
    (opening, closing), (other, wrong) = rng.sample(_BRACKETS, 2)
    items = ", ".join(rng.sample(NOUNS + COLORS, rng.choice((3, 4))))
    name = rng.choice(_LISTS)
    return TextPair(f"{name} = {opening}{items}", f"{name} = {other}{items}", closing, wrong)


@task(GAO)
def quotes(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The quotation mark that closes a text; corrupted: opened by the other one."""
    mark, other = rng.sample("\"'", 2)
    name, text = rng.choice(_STRINGS), rng.choice(WOMEN + MEN + NOUNS + PLACES)
    return TextPair(f"{name} = {mark}{text}", f"{name} = {other}{text}", mark, other)
