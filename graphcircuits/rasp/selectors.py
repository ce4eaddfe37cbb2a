"""Selectors as trees of selects, joined by `and`, `or` and `not`, taken apart without recursion."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from graphcircuits.rasp.language import Select, Selector, SelectorAnd, SelectorNot, SelectorOr

T = TypeVar("T")
_State = tuple[Selector, bool]
"""A selector, and whether it stands under an odd number of negations."""


def fold(
    selector: Selector,
    leaf: Callable[[Selector, bool], T],
    both: Callable[[T, T], T],
    either: Callable[[T, T], T],
) -> T:
    """Push negations down to the leaves, then join what `leaf` gives for each, negated or not.

    A selector that is shared is computed once, and dropped when its last user has read it.
    """
    order = _states(selector)
    users = Counter(source for state in order for source in _sources(state))
    results: dict[_State, T] = {}
    for state in order:
        values = [results[source] for source in _sources(state)]
        for source in _sources(state):
            users[source] -= 1
            if not users[source]:
                del results[source]
        node, negated = state
        if not values:
            results[state] = leaf(node, negated)
        elif isinstance(node, SelectorNot):
            results[state] = values[0]
        else:
            join = both if isinstance(node, SelectorAnd) != negated else either
            results[state] = join(*values)
    return results[order[-1]]


def selector_leaves(selector: Selector) -> list[Select]:
    """The selects of a selector, left to right, each once."""
    seen: dict[Selector, None] = {}
    stack = [selector]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            stack += [child for child in reversed(node.children) if isinstance(child, Selector)]
    return [node for node in seen if isinstance(node, Select)]


def _sources(state: _State) -> list[_State]:
    node, negated = state
    match node:
        case SelectorNot():
            return [(node.inner, not negated)]
        case SelectorAnd() | SelectorOr():
            return [(node.fst, negated), (node.snd, negated)]
    return []


def _states(selector: Selector) -> list[_State]:
    """What a selector is made of, each state once, inputs before users."""
    done: dict[_State, None] = {}
    stack: list[tuple[_State, bool]] = [((selector, False), False)]
    while stack:
        state, leaving = stack.pop()
        if leaving:
            done[state] = None
        elif state not in done:
            stack.append((state, True))
            stack += [(source, False) for source in reversed(_sources(state))]
    return list(done)
