"""TracrBench's tasks that count: frequencies, ranks, and checks that count exceptions."""

from graphcircuits.cases.idioms import (
    BITS,
    back,
    frequency,
    gather,
    how_many,
    length,
    mirror_index,
    recipe,
    smaller,
)
from graphcircuits.rasp import (
    Comparison,
    Map,
    Select,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    tokens,
)


@recipe("tb-length")
def sequence_length() -> SOp:
    """The length of the sequence, everywhere."""
    return length()


# TracrBench has the histogram three times, under three names.
count_frequency, count_occurrences, histogram = (
    recipe(id, task="How often the token occurs in the sequence.")(frequency)
    for id in ("tb-count-frequency", "tb-count-occurrences", "tb-histogram")
)


@recipe("tb-count-less-freq", sampler="subset")
def count_less_freq() -> SOp:
    """The number of positions whose token occurs at most twice, everywhere."""
    return how_many(frequency(), lambda count: count <= 2)


@recipe("tb-rank")
def rank() -> SOp:
    """1 plus the number of smaller tokens."""
    return Map(lambda count: count + 1, smaller(tokens))


@recipe("tb-remove-duplicates")
def remove_duplicates() -> SOp:
    """0 instead of every token that occurs more than once."""
    return SequenceMap(lambda x, count: x if count == 1 else 0, tokens, frequency())


@recipe("tb-one-hot-decode", vocab=BITS, sampler="one-hot")
def one_hot_decode() -> SOp:
    """The position of the single 1 in a one-hot sequence, everywhere."""
    # As many as there are positions before the first 1. Copying the index of "the" 1 would take
    # one head, but has no exact weights: on two ones it would have to average two indices.
    one_up_to_here = Select(tokens, tokens, lambda key, _: key == 1) & Select(
        indices, indices, Comparison.LEQ
    )
    ones_so_far = SelectorWidth(one_up_to_here).named("ones_so_far")
    return how_many(ones_so_far, lambda count: count == 0)


# Checks: count the exceptions, answer 1 when there are none.


@recipe("tb-check-alternating", sampler="alternating")
def check_alternating() -> SOp:
    """All 1 when odd and even tokens strictly alternate, else all 0."""
    parity = Map(lambda x: x % 2, tokens).named("parity")
    repeated = SequenceMap(lambda x, before: x == before, parity, back(1, parity)).named("repeated")
    # The first position reads itself and always counts.
    return Map(lambda count: int(count == 1), how_many(repeated))


def without_exception(exception: SOp) -> SOp:
    """1 everywhere when the flag holds nowhere, else 0."""
    return Map(lambda count: int(count == 0), how_many(exception.named("exception")))


@recipe("tb-check-descending", sampler="descending")
def check_descending() -> SOp:
    """All 1 when the sequence never increases, else all 0."""
    return without_exception(SequenceMap(lambda x, before: x > before, tokens, back(1)))


@recipe("tb-check-increasing", sampler="ascending")
def check_increasing() -> SOp:
    """All 1 when the sequence never decreases, else all 0."""
    return without_exception(SequenceMap(lambda x, before: x < before, tokens, back(1)))


@recipe("tb-check-palindrome", sampler="palindrome")
def check_palindrome() -> SOp:
    """All 1 when the sequence reads the same backwards, else all 0."""
    mirrored = gather(mirror_index(length()))
    return without_exception(SequenceMap(lambda x, y: x != y, tokens, mirrored))


# TracrBench's longer inputs always repeat a token.
@recipe("tb-test-at-least-two-equal", max_seq_len=7, sampler="distinct")
def at_least_two_equal() -> SOp:
    """All 1 when some token occurs twice or more, else all 0."""
    repeated = how_many(frequency(), lambda count: count > 1)
    return Map(lambda count: int(count > 0), repeated)
