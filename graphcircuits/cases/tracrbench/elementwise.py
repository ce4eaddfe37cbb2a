"""TracrBench's tasks on single positions: one MLP, no attention."""

from graphcircuits.cases.idioms import recipe
from graphcircuits.rasp import Map, SequenceMap, SOp, indices, tokens


@recipe(
    "tb-alternate-elements",
    "The token at even positions, the position number at odd ones.",
    causal=True,
)
def alternate_elements() -> SOp:
    return SequenceMap(lambda x, i: x if i % 2 == 0 else i, tokens, indices)


@recipe("tb-check-even", "1 where the token is even, 0 where it is odd.", causal=True)
def check_even() -> SOp:
    return Map(lambda x: int(x % 2 == 0), tokens)


@recipe("tb-divide-by", "Half of each token.", causal=True)
def divide_by() -> SOp:
    return Map(lambda x: x / 2, tokens)


@recipe("tb-increment-by-index", "Token plus position.", causal=True)
def increment_by_index() -> SOp:
    return SequenceMap(lambda x, i: x + i, tokens, indices)


# The next three read the token and do not use it: TracrBench's programs are functions of tokens.


@recipe("tb-index-parity", "0 at even positions, 1 at odd ones.", causal=True)
def index_parity() -> SOp:
    return SequenceMap(lambda _, i: i % 2, tokens, indices)


@recipe("tb-position", "The position, counted from 1.", causal=True)
def position() -> SOp:
    return SequenceMap(lambda _, i: i + 1, tokens, indices)


@recipe("tb-set-to-index", "The position, counted from 0.", causal=True)
def set_to_index() -> SOp:
    return SequenceMap(lambda _, i: i, tokens, indices)


@recipe("tb-replace-small-tokens", "0 instead of tokens below 2.", causal=True)
def replace_small_tokens() -> SOp:
    return Map(lambda x: x if x >= 2 else 0, tokens)


@recipe(
    "tb-wrap",
    "The token wrapped around into 2..6: plus or minus 5 until it fits.",
    vocab=tuple(range(10)),
    causal=True,
)
def wrap() -> SOp:
    return Map(lambda x: 2 + (x - 2) % 5, tokens)


@recipe("tb-zero-even-indices", "0 at even positions, the token at odd ones.", causal=True)
def zero_even_indices() -> SOp:
    return SequenceMap(lambda x, i: x if i % 2 == 1 else 0, tokens, indices)


CASES = (
    alternate_elements,
    check_even,
    divide_by,
    increment_by_index,
    index_parity,
    position,
    set_to_index,
    replace_small_tokens,
    wrap,
    zero_even_indices,
)
