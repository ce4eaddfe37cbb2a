"""Tasks about what words mean and what is so in the world.

capitals   The capital of France is           Paris, not Rome       another country
languages  In Brazil most people speak        Portuguese            a country of another language
hypernyms  A sparrow is a kind of             bird, not fish        a thing of another kind
antonyms   The opposite of hot is cold. The opposite of big is   small   another word
"""

from random import Random

from graphcircuits.tasks.task import TextPair, WholeWords, paired, task

_CAPITALS = paired("""
France Paris,Germany Berlin,Italy Rome,Spain Madrid,Russia Moscow,Japan Tokyo,China Beijing,
Egypt Cairo,Iraq Baghdad,Iran Tehran,Greece Athens,Portugal Lisbon,Poland Warsaw,Austria Vienna,
Hungary Budapest,Sweden Stockholm,Norway Oslo,Finland Helsinki,Denmark Copenhagen,Ireland Dublin,
England London,Cuba Havana,Peru Lima,Canada Ottawa,Syria Damascus,Lebanon Beirut,Kenya Nairobi,
Belgium Brussels,Thailand Bangkok,Indonesia Jakarta,Chile Santiago,Pakistan Islamabad,
Afghanistan Kabul,Scotland Edinburgh,Vietnam Hanoi,Libya Tripoli
""")
_CAPITAL_OF = (
    "The capital of {} is",
    "The capital city of {} is called",
    "I flew to the capital of {}, which is",
    "Q: What is the capital of {}? A: It is",
)

_LANGUAGES = paired("""
France French,Germany German,Austria German,Italy Italian,Spain Spanish,Mexico Spanish,Cuba Spanish,
Chile Spanish,Peru Spanish,Argentina Spanish,Colombia Spanish,Russia Russian,Japan Japanese,
China Chinese,Taiwan Chinese,Egypt Arabic,Iraq Arabic,Syria Arabic,Jordan Arabic,
Portugal Portuguese,Brazil Portuguese,Poland Polish,England English,Australia English,
Greece Greek,Turkey Turkish,
Sweden Swedish,Norway Norwegian,Finland Finnish,Denmark Danish,Hungary Hungarian,Korea Korean,
Israel Hebrew,Netherlands Dutch
""")
_SPEAK = (
    "In {}, most people speak",
    "The official language of {} is",
    "I am moving to {}, so I am learning",
)

_KINDS = {
    "bird": "sparrow robin hawk pigeon parrot crow raven falcon swan penguin duck",
    "fish": "salmon trout shark tuna cod carp herring",
    "fruit": "banana peach pear lemon cherry grape mango plum strawberry",
    "tree": "pine maple cedar willow birch palm",
    "flower": "rose tulip daisy lily violet",
    "tool": "hammer wrench drill shovel saw screwdriver",
    "vehicle": "truck bus car motorcycle van taxi",
    "weapon": "sword gun rifle pistol spear dagger",
    "drink": "coffee beer wine tea juice soda",
    "vegetable": "carrot potato cabbage spinach lettuce",
    "metal": "copper silver gold steel tin zinc",
    "sport": "tennis soccer hockey baseball golf football",
    "game": "poker chess checkers bingo",
    "disease": "malaria cancer measles flu cholera diabetes",
    "color": "red blue green yellow purple",
}
_MASSES = ("drink", "metal", "sport", "game", "disease", "color")
"""Kinds whose things take no article."""
_IS_A = ("{} is a kind of", "{} is a type of", "Everyone knows that {} is a")

_ANTONYMS = paired("""
hot cold,big small,up down,good bad,old new,left right,high low,open closed,rich poor,fast slow,
hard soft,light dark,long short,happy sad,strong weak,early late,full empty,near far,wet dry,
young old,true false,black white,inside outside,above below,before after,first last,day night,
love hate,win lose,buy sell,push pull,start end,north south,east west,male female,war peace,
life death,clean dirty,thick thin,sharp dull,loud quiet,wide narrow,deep shallow,heavy light,
front back,positive negative,major minor,public private,internal external,active passive
""")
_SAID = ("The opposite of {} is {}. The opposite of {} is", "{} is not {}, and {} is not")


def _ask_of_country(
    rng: Random, countries: list[tuple[str, str]], templates: tuple[str, ...]
) -> TextPair:
    country, other = rng.sample(countries, 2)
    template = rng.choice(templates)
    return TextPair(
        template.format(country[0]), template.format(other[0]), f" {country[1]}", f" {other[1]}"
    )


@task("Hanna, Pezzelle and Belinkov 2024, Have Faith in Faithfulness (arXiv:2403.17806)")
def capitals(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The capital of a country; corrupted: another country."""
    return _ask_of_country(rng, vocabulary.pairs("capitals", _CAPITALS), _CAPITAL_OF)


@task(
    "Hernandez et al. 2023, Linearity of Relation Decoding in Transformer Language "
    "Models (arXiv:2308.09124)"
)
def languages(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The language of a country; corrupted: a country with another one."""
    return _ask_of_country(rng, vocabulary.pairs("languages", _LANGUAGES), _SPEAK)


@task("Hanna, Pezzelle and Belinkov 2024, Have Faith in Faithfulness (arXiv:2403.17806)")
def hypernyms(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The kind of a thing; corrupted: a thing of another kind."""
    kinds = vocabulary.words("kinds of things", [x for x in _KINDS if x not in _MASSES])
    masses = vocabulary.words("kinds of masses", _MASSES, 2)
    # One of the two sorts alone: the article would give the kind away.
    kind, other = rng.sample(rng.choice((kinds, masses)), 2)
    things = [rng.choice(_KINDS[x].split()) for x in (kind, other)]
    article = "" if kind in _MASSES else "a "
    template = rng.choice(_IS_A)
    clean, corrupted = (template.format(f"{article}{thing}") for thing in things)
    return TextPair(_sentence(clean), _sentence(corrupted), f" {kind}", f" {other}")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


@task("Todd et al. 2023, Function Vectors in Large Language Models (arXiv:2310.15213)")
def antonyms(vocabulary: WholeWords, rng: Random) -> TextPair:
    """The opposite of a word, after an example; corrupted: another word."""
    words = vocabulary.pairs("antonyms", _ANTONYMS)
    shown, word, other = rng.sample(words, 3)
    template = rng.choice(_SAID)
    return TextPair(
        template.format(*shown, word[0]),
        template.format(*shown, other[0]),
        f" {word[1]}",
        f" {other[1]}",
    )
