"""Tasks about persons in a sentence: who receives, who is he or she, who has what.

ioi         Mary and John ..., John gave a drink to   Mary, not John    John -> a third name
pronouns    Mary is a good friend, isn't              she, not he       a name of the other gender
reflexives  Mary said that John blamed                himself           the nearer name likewise
binding     Mary has the key. John has the map. The key belongs to     asks for the map
"""

from random import Random

from graphcircuits.tasks.task import TEXTS, WORDS, TextPair, WholeWords, task


def _names(vocabulary: WholeWords) -> list[str]:
    return vocabulary.words("names", WORDS["women"] + WORDS["men"])


def _by_gender(vocabulary: WholeWords, rng: Random) -> tuple[list[str], list[str], bool]:
    """Names of one gender and of the other, and whether the first are women's."""
    women = vocabulary.words("names of women", WORDS["women"], 2)
    men = vocabulary.words("names of men", WORDS["men"], 2)
    female = rng.random() < 0.5
    return (women, men, True) if female else (men, women, False)


@task("Wang et al. 2022, Interpretability in the Wild (arXiv:2211.00593)")
def ioi(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The name that was said once receives the thing, not the one that gives it; corrupted: a third
    name gives."""
    indirect, subject, third = rng.sample(_names(vocabulary), 3)
    first, second = rng.sample([indirect, subject], 2)
    drawn = {kind: rng.choice(WORDS[f"{kind}s"]) for kind in ("place", "thing")}
    template = rng.choice(TEXTS["giving"])
    return TextPair(
        template.format(a=first, b=second, s=subject, **drawn),
        template.format(a=first, b=second, s=third, **drawn),
        f" {indirect}",
        f" {subject}",
    )


@task(
    "Mathwin et al. 2023, Identifying a Preliminary Circuit for Predicting Gendered "
    "Pronouns in GPT-2 Small"
)
def pronouns(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The pronoun that goes with a name; corrupted: a name of the other gender."""
    same, other, female = _by_gender(vocabulary, rng)
    template = rng.choice(TEXTS["praise"])
    return TextPair(
        template.format(name=rng.choice(same)),
        template.format(name=rng.choice(other)),
        *((" she", " he") if female else (" he", " she")),
    )


@task("Warstadt et al. 2020, BLiMP (arXiv:1912.00582), anaphor gender agreement")
def reflexives(vocabulary: WholeWords, rng: Random) -> TextPair:
    """A reflexive agrees with the nearer name, not with the first; corrupted: both names of one
    gender."""
    same, other, female = _by_gender(vocabulary, rng)
    start = f"{rng.choice(other)} {rng.choice(WORDS['saying'])} that"
    deed = rng.choice(WORDS["doing"])
    return TextPair(
        f"{start} {rng.choice(same)} {deed}",
        f"{start} {rng.choice(other)} {deed}",
        *((" herself", " himself") if female else (" himself", " herself")),
    )


@task(
    "Feng and Steinhardt 2023, How do Language Models Bind Entities in Context? (arXiv:2310.17191)"
)
def binding(vocabulary: WholeWords, rng: Random) -> TextPair:
    """Which of two persons has the thing; corrupted: asks for the other thing."""
    names = rng.sample(_names(vocabulary), 2)
    things = rng.sample(vocabulary.words("things", WORDS["things"]), 2)
    story = " ".join(f"{name} has the {x}." for name, x in zip(names, things, strict=True))
    asked = rng.randrange(2)
    return TextPair(
        f"{story} The {things[asked]} belongs to",
        f"{story} The {things[1 - asked]} belongs to",
        f" {names[asked]}",
        f" {names[1 - asked]}",
    )
