"""InterpBench's cases that combine several values of one position: MLPs only, no attention."""

from graphcircuits.cases.interpbench.recipe import ABC, TO_TEN, recipe
from graphcircuits.rasp import Map, SequenceMap, SOp, indices, tokens


@recipe("ib-15", "two-x-minus-index", "2*token - index.", vocab=(0, 1, 2, 3, 4), max_seq_len=5)
def two_x_minus_index() -> SOp:
    pair = SequenceMap(lambda x, y: (x, y), tokens, tokens)
    triple = SequenceMap(lambda xy, z: (*xy, z), pair, indices)
    return Map(lambda xyz: xyz[0] + xyz[1] - xyz[2], triple)


@recipe("ib-26", "repeat-by-position", "Repeat the letter (index+1) times.", vocab=ABC)
def repeat_by_position() -> SOp:
    return SequenceMap(lambda x, i: x * (i + 1), tokens, indices)


@recipe("ib-40", "digit-sum", "Tens digit plus ones digit of the number.", vocab=tuple(range(29)))
def digit_sum() -> SOp:
    tens = Map(lambda x: x // 10, tokens).named("tens_place")
    ones = Map(lambda x: x % 10, tokens).named("ones_place")
    return SequenceMap(lambda x, y: x + y, tens, ones).named("sum_digits")


@recipe("ib-53", "increment-odd-index", "Add 1 at odd positions.", vocab=TO_TEN)
def increment_odd_index() -> SOp:
    odd = Map(lambda i: i % 2, indices).named("odd_index_marker")
    return SequenceMap(lambda x, flag: x + flag, tokens, odd).named("incremented_elements")


@recipe(
    "ib-56",
    "zero-every-third",
    "Positions 2, 5, 8 (0-based) become 0, all others keep their value.",
    vocab=TO_TEN,
)
def zero_every_third() -> SOp:
    third = Map(lambda i: int(i % 3 == 2), indices).named("every_third_numerical")
    return SequenceMap(lambda x, flag: 0 if flag else x, tokens, third).named("result_sequence")


@recipe("ib-106", "mask-index-1", "Keep only the element at index 1, 0 elsewhere.", vocab=TO_TEN)
def mask_index_1() -> SOp:
    return SequenceMap(lambda x, i: x if i == 1 else 0, tokens, indices)


@recipe("ib-130", "clip-2-7", "Clip to [2,7].", vocab=tuple(range(-15, 15)))
def clip_2_7() -> SOp:
    low = Map(lambda _: 2, tokens)
    high = Map(lambda _: 7, tokens)
    raised = SequenceMap(max, tokens, low)
    return SequenceMap(min, raised, high)


CASES = (
    two_x_minus_index,
    repeat_by_position,
    digit_sum,
    increment_odd_index,
    zero_every_third,
    mask_index_1,
    clip_2_7,
)
