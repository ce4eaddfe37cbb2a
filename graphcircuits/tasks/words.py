"""Words that several tasks draw from: common ones, most of them one token to most tokenizers."""


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def paired(text: str) -> list[tuple[str, str]]:
    """`a b,c d` as pairs of words."""
    pairs = [pair.split() for pair in text.split(",")]
    return [(first, second) for first, second in pairs]


WOMEN = listed("""
Mary Anna Sarah Laura Emma Alice Jane Kate Lisa Susan Helen Julia Maria Rachel Linda Karen Nancy
Amy Emily Jennifer Jessica Michelle Elizabeth Margaret Barbara Rebecca Victoria Diana Sophie Lucy
""")
MEN = listed("""
John James Robert Michael David William Richard Thomas Charles Daniel Matthew Mark Paul Steven
Andrew George Kevin Brian Edward Peter Jack Henry Adam Simon Tom Bob Frank Scott Eric Patrick
""")
PLACES = listed("""
store park school market beach library station garden house hospital church restaurant museum
hotel airport farm bank office kitchen theater
""")  # Things to hold, all with "a" before them.
THINGS = listed("""
drink book ring ball key letter gift card basket bottle hat map phone pen watch coin cup box lamp
bag knife camera ticket
""")  # Nouns whose plural adds an s.
NOUNS = listed("""
dog cat boy girl car tree house river doctor teacher student king bird horse table chair door
window friend brother sister author worker lawyer player singer writer driver farmer actor soldier
guard leader officer judge customer artist engineer pilot manager guest neighbor visitor
""")
COLORS = listed("red blue green yellow black white brown purple pink gray")
