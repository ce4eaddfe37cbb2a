"""Tasks about the forms of words.

agreement   The keys near the cabinet                              are, not is     keys -> key
plurals     one dog, two dogs; one cat, two                        cats            another noun
past-tense  Today they go, yesterday they went. Today they see, yesterday they  saw   another verb
capitalize  dog: Dog, tree: Tree, bird:                            Bird            another noun
"""

from random import Random

from graphcircuits.tasks.task import PAIRS, TEXTS, WORDS, TextPair, WholeWords, task

_VERBS = ((" are", " is"), (" were", " was"), (" have", " has"))


@task("Linzen et al. 2016 (arXiv:1611.01368); Finlayson et al. 2021 (arXiv:2106.06087)")
def agreement(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The verb agrees in number with its subject, not with the noun beside it; corrupted: the
    subject in the other number."""
    noun = rng.choice(WORDS["nouns"])
    rest = f" {rng.choice(TEXTS['beside'])} the {rng.choice(WORDS['places'])}"
    forms = [f"The {noun}s{rest}", f"The {noun}{rest}"]
    many, one = rng.choice(_VERBS)
    if rng.random() < 0.5:
        return TextPair(forms[0], forms[1], many, one)
    return TextPair(forms[1], forms[0], one, many)


@task("Todd et al. 2023, Function Vectors in Large Language Models (arXiv:2310.15213)")
def plurals(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The plural of a noun, after an example; corrupted: another noun."""
    nouns = [x[:-1] for x in vocabulary.words("plurals", [f"{noun}s" for noun in WORDS["nouns"]])]
    shown, noun, other = rng.sample(nouns, 3)
    start = f"one {shown}, two {shown}s; one"
    return TextPair(f"{start} {noun}, two", f"{start} {other}, two", f" {noun}s", f" {other}s")


@task("Todd et al. 2023, Function Vectors in Large Language Models (arXiv:2310.15213)")
def past_tense(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The past tense of a verb, after an example; corrupted: another verb."""
    verbs = vocabulary.pairs("past tenses", PAIRS["tenses"])
    shown, verb, other = rng.sample(verbs, 3)
    start = "Today they {}, yesterday they {}. Today they".format(*shown)
    return TextPair(
        f"{start} {verb[0]}, yesterday they",
        f"{start} {other[0]}, yesterday they",
        f" {verb[1]}",
        f" {other[1]}",
    )


@task("Todd et al. 2023, Function Vectors in Large Language Models (arXiv:2310.15213)")
def capitalize(vocabulary: WholeWords, rng: Random) -> TextPair:
    """A word with a capital letter, after two examples; corrupted: another word."""
    titles = [word.title() for word in WORDS["nouns"] + WORDS["places"]]
    words = rng.sample(vocabulary.words("capitalized nouns", titles, 4), 4)
    first, second, noun, other = (word.lower() for word in words)
    start = "".join(f"{word}: {word.title()}, " for word in (first, second))
    return TextPair(f"{start}{noun}:", f"{start}{other}:", f" {noun.title()}", f" {other.title()}")
