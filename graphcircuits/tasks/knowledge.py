"""Tasks about what words mean and what is so in the world.

capitals   The capital of France is           Paris, not Rome       another country
languages  In Brazil most people speak        Portuguese            a country of another language
hypernyms  A sparrow is a kind of             bird, not fish        a thing of another kind
antonyms   The opposite of hot is cold. The opposite of big is   small   another word
"""

from random import Random

from graphcircuits.tasks.task import KINDS, MASSES, PAIRS, TEXTS, TextPair, WholeWords, task


def _ask_of_country(
    rng: Random, countries: list[tuple[str, str]], templates: list[str]
) -> TextPair:
    country, other = rng.sample(countries, 2)
    template = rng.choice(templates)
    return TextPair(
        template.format(country[0]), template.format(other[0]), f" {country[1]}", f" {other[1]}"
    )


@task("Hanna, Pezzelle and Belinkov 2024, Have Faith in Faithfulness (arXiv:2403.17806)")
def capitals(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The capital of a country; corrupted: another country."""
    return _ask_of_country(
        rng, vocabulary.pairs("capitals", PAIRS["capitals"]), TEXTS["capital_of"]
    )


@task(
    "Hernandez et al. 2023, Linearity of Relation Decoding in Transformer Language "
    "Models (arXiv:2308.09124)"
)
def languages(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The language of a country; corrupted: a country with another one."""
    return _ask_of_country(rng, vocabulary.pairs("languages", PAIRS["languages"]), TEXTS["speak"])


@task("Hanna, Pezzelle and Belinkov 2024, Have Faith in Faithfulness (arXiv:2403.17806)")
def hypernyms(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The kind of a thing; corrupted: a thing of another kind."""
    kinds = vocabulary.words("kinds of things", list(KINDS))
    masses = vocabulary.words("kinds of masses", list(MASSES), 2)
    # One of the two sorts alone: the article would give the kind away.
    kind, other = rng.sample(rng.choice((kinds, masses)), 2)
    things = [rng.choice((KINDS | MASSES)[x]) for x in (kind, other)]
    article = "" if kind in MASSES else "a "
    template = rng.choice(TEXTS["is_a"])
    clean, corrupted = (template.format(f"{article}{thing}") for thing in things)
    return TextPair(_sentence(clean), _sentence(corrupted), f" {kind}", f" {other}")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


@task("Todd et al. 2023, Function Vectors in Large Language Models (arXiv:2310.15213)")
def antonyms(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The opposite of a word, after an example; corrupted: another word."""
    words = vocabulary.pairs("antonyms", PAIRS["antonyms"])
    shown, word, other = rng.sample(words, 3)
    template = rng.choice(TEXTS["opposite"])
    return TextPair(
        template.format(*shown, word[0]),
        template.format(*shown, other[0]),
        f" {word[1]}",
        f" {other[1]}",
    )
