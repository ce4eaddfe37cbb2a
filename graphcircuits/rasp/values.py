"""Sets of values: which tokens a vocabulary may hold, in what order values stand, what equals what.

Equal values are one value, whatever their type: 1, True and 1.0 share a code. Those that look
different are kept beside it as twins, so that functions can be asked whether they tell them apart.
"""

from collections.abc import Iterable

from graphcircuits.rasp.language import RaspError, Value

BOS = "BOS"
PAD = "PAD"


def checked_vocab(vocab: Iterable[Value]) -> tuple[Value, ...]:
    """The tokens in order; raises for a vocabulary that no transformer can have."""
    listed = list(vocab)
    try:
        distinct = sorted_values(listed)
    except TypeError as error:
        raise RaspError(f"the vocabulary holds a value that cannot be hashed: {error}.") from error
    if not distinct:
        raise RaspError("the vocabulary is empty: a program needs at least one token.")
    reserved = [token for token in (BOS, PAD, None) if token in distinct]
    if reserved:
        raise RaspError(
            f"the vocabulary holds {reserved}: {BOS}, {PAD} and None are reserved, rename them."
        )
    if any(token != token for token in distinct):
        raise RaspError("the vocabulary holds NaN, which equals nothing: take it out.")
    if len(listed) != len(distinct):
        repeated = [token for i, token in enumerate(listed) if token in listed[:i]]
        raise RaspError(f"the vocabulary holds equal tokens: {repeated}.")
    return distinct


def sorted_values(values: Iterable[Value]) -> tuple[Value, ...]:
    """Distinct values in their natural order, or by type and text where they have none."""
    distinct = list(dict.fromkeys(values))
    try:
        return tuple(sorted(distinct))
    except TypeError:
        return tuple(sorted(distinct, key=lambda value: (type(value).__name__, repr(value))))


def codes_of(values: Iterable[Value]) -> dict[Value, int]:
    """The number of each value."""
    return {value: code for code, value in enumerate(values)}


def twins_of(distinct: Iterable[Value], listed: Iterable[Value]) -> dict[Value, list[Value]]:
    """Values in `listed` that equal one in `distinct` but look different, such as True beside 1."""
    known = {value: [value] for value in distinct}
    for value in listed:
        if not any(_looks_like(value, other) for other in known[value]):
            known[value].append(value)
    return {value: forms[1:] for value, forms in known.items() if len(forms) > 1}


def _looks_like(x: Value, equal: Value) -> bool:
    same_type = type(x) is type(equal)
    return x is equal or (same_type and (isinstance(x, int | str) or repr(x) == repr(equal)))
