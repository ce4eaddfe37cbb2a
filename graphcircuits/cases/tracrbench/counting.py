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
    recipes,
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

SHORT = recipes(
    {
        "tb-length": length,
        # TracrBench has the histogram three times, under three names.
        "tb-count-frequency": frequency,
        "tb-count-occurrences": frequency,
        "tb-histogram": frequency,
        "tb-count-less-freq": lambda: how_many(frequency(), lambda count: count <= 2),
        "tb-rank": lambda: Map(lambda count: count + 1, smaller(tokens)),
        "tb-remove-duplicates": lambda: SequenceMap(
            lambda x, count: x if count == 1 else 0, tokens, frequency()
        ),
    }
)


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


CHECKS = recipes(
    {
        "tb-check-descending": lambda: without_exception(
            SequenceMap(lambda x, before: x > before, tokens, back(1))
        ),
        "tb-check-increasing": lambda: without_exception(
            SequenceMap(lambda x, before: x < before, tokens, back(1))
        ),
        "tb-check-palindrome": lambda: without_exception(
            SequenceMap(lambda x, y: x != y, tokens, gather(mirror_index(length())))
        ),
        # Short, since TracrBench's longer inputs always repeat a token.
        "tb-test-at-least-two-equal": lambda: Map(
            lambda count: int(count > 0), how_many(frequency(), lambda count: count > 1)
        ),
    }
)
