"""What every component of a program does, in words, read off the program's tables, not its names.

1. Where the keys and queries of a head are functions of token and position, its selection is one
   table over these; if that is a condition on the tokens and one on the positions, both are told.
2. Elsewhere the values of the keys are compared with those of the queries, select by select.
3. A selector width is a head that counts, and a function behind it that makes a number of that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from graphcircuits.rasp.expression import RASPExpr
from graphcircuits.rasp.language import Aggregate, Select, Selector, SelectorNot, SelectorWidth, SOp
from graphcircuits.rasp.language import indices as place
from graphcircuits.rasp.language import tokens as token
from graphcircuits.rasp.layout import WIDTH_SUFFIX, Component
from graphcircuits.rasp.selectors import fold, selector_leaves
from graphcircuits.rasp.tabulate import MAX_TABLE, Tables
from graphcircuits.rasp.values import Value, sorted_values

KINDS = (
    "induction", "pointer", "lookup", "previous-token", "fixed-position", "relative-position",
    "same-token", "by-token", "by-position", "uniform", "count", "map",
)  # fmt: skip
"""Of a head that several fit, the first. docs/rasp.md has their meanings."""
LISTED = 4
_ORDERS = {
    "equal to": np.equal, "other than": np.not_equal, "less than": np.less,
    "at most": np.less_equal, "greater than": np.greater, "at least": np.greater_equal,
}  # fmt: skip
_RANGES = {
    "earlier positions": np.less, "later positions": np.greater, "other positions": np.not_equal,
    "positions up to here": np.less_equal, "positions from here on": np.greater_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Role:
    """What one component does; as text, the sentence."""

    component: str
    kind: str
    """One of `KINDS`."""
    variables: tuple[str, ...]
    """The labels that it writes."""
    text: str

    def __str__(self) -> str:
        return self.text


class _Where(NamedTuple):
    """Whom a head attends to."""

    kind: str = "uniform"
    noun: str = ""
    clause: str = ""

    def text(self, everything: str = "positions") -> str:
        default = f"{'the' if self.clause else 'all'} {everything}"
        return f"{self.noun or default} {self.clause}".rstrip()


def find_roles(tables: Tables, components: Iterable[Component]) -> dict[str, Role]:
    """The role of each component, in the order given; the components may go by any names."""
    by_label = {tables.labels[sop]: sop for sop in tables.variables}
    roles, heads = dict[str, Role](), dict[SOp, str]()
    for one in components:
        sops = [by_label[label.removesuffix(WIDTH_SUFFIX)] for label in one.writes]
        if one.is_head:
            heads[sops[0]] = one.name
            kind, text = _head(tables, sops[0])
        else:
            kind = "count" if all(isinstance(sop, SelectorWidth) for sop in sops) else "map"
            text = "; ".join(_function(tables, sop, heads.get(sop)) for sop in sops)
        roles[one.name] = Role(one.name, kind, one.writes, text)
    return roles


def _function(tables: Tables, sop: SOp, head: str | None) -> str:
    name, values, listed = _name(tables, sop), tables.variables[sop].values, ""
    if isinstance(sop, SelectorWidth):
        return f"turns what {head} gathered into the count {name}"
    inputs = list(dict.fromkeys(source for source in sop.children if isinstance(source, SOp)))
    if not inputs or (len(values) == 1 and not tables.variables[sop].nullable):
        return f"computes {name}, which is {values[0]!r} everywhere"
    table = tables.functions.get(sop)
    if table is not None and table.ndim == 1:
        images = [None if code < 0 else values[code] for code in table[:-1]]
        listed = _listed(tables.variables[inputs[0]].values, images)
    return f"computes {name} from {' and '.join(_name(tables, s) for s in inputs)}{listed}"


def _head(tables: Tables, sop: SOp) -> tuple[str, str]:
    assert isinstance(sop, Aggregate | SelectorWidth)
    where = _where(tables, sop.selector)
    there = where.text("positions up to here" if tables.causal else "positions")
    if isinstance(sop, SelectorWidth):
        return "count", f"counts {there} ({_name(tables, sop)})"
    verb = "averages {} over" if tables.variables[sop].numerical else "reads {} at"
    return where.kind, f"{verb.format(_name(tables, sop.values))} {there} ({_name(tables, sop)})"


def _name(tables: Tables, sop: SOp) -> str:
    return {token: "the token", place: "the position"}.get(sop, f"`{tables.labels[sop]}`")


def _listed(inputs: Sequence[Value], images: Iterable[Value]) -> str:
    pairs = [f"{x!r} gives {y!r}" for x, y in zip(inputs[:LISTED], images, strict=False)]
    return f" ({', '.join(pairs)}{', ...' * (len(inputs) > LISTED)})"


def _either(values: Iterable[Value], chosen: np.ndarray) -> str:
    named = [repr(value) for value, is_one in zip(values, chosen, strict=True) if is_one]
    return " or ".join([*named[:LISTED], *["others"] * (len(named) > LISTED)]) or "none"


# --- whom a head attends to ----------------------------------------------------------------------


def _where(tables: Tables, selector: Selector) -> _Where:
    local = _local(tables)

    def named(selector: Selector) -> _Where | None:
        found = _factored(tables, local, selector)
        return None if found is None or "fits" in found.clause else found

    def leaf(node: Selector, negate: bool) -> _Where:
        assert isinstance(node, Select)
        keys, chosen = node.keys, tables.selections[node][:-1, :-1] ^ negate
        found = named(SelectorNot(node) if negate else node)
        found = found or _compared(tables, keys, node.queries, chosen)
        if found.kind == "lookup" and {keys, node.queries} <= local.keys():
            return found._replace(kind="by-token")
        behind = isinstance(keys, Aggregate) and keys.values is token and named(keys.selector)
        same = found.clause.endswith(" equal to the token here")
        if behind and behind.kind == "previous-token" and same:
            return found._replace(kind="induction")
        return found

    def joined(word: str, *found: _Where) -> _Where:
        kind = min((one.kind for one in found), key=KINDS.index)
        return _Where(kind, f" {word} ".join(one.text() for one in found))

    return named(selector) or fold(
        selector,
        leaf,
        both=lambda *found: joined("that are also", *found),
        either=lambda *found: joined("or", *found),
    )


def _local(tables: Tables) -> Mapping[RASPExpr, np.ndarray]:
    """Codes by token and position, of all variables that are functions of these."""
    codes: dict[RASPExpr, np.ndarray] = {}
    for sop, variable in tables.variables.items():
        inputs, numbers = sop.children, np.arange(len(variable.values))
        if not inputs:  # a constant has one value
            codes[sop] = numbers[None] if sop is place else numbers[:, None]
        elif sop in tables.functions and all(source in codes for source in inputs):
            codes[sop] = tables.functions[sop][tuple(codes[source] for source in inputs)]
    return codes


def _factored(
    tables: Tables, local: Mapping[RASPExpr, np.ndarray], selector: Selector
) -> _Where | None:
    """The selection as a condition on the tokens and one on the positions; None if it is not."""
    leaves = selector_leaves(selector)
    if not all(leaf.keys in local and leaf.queries in local for leaf in leaves):
        return None
    shapes = [local[leaf.keys].shape + local[leaf.queries].shape for leaf in leaves]
    if prod(np.broadcast_shapes(*shapes)) > MAX_TABLE:
        return None

    def selected(node: Selector, negate: bool) -> np.ndarray:
        assert isinstance(node, Select)
        keys, queries = local[node.keys][:, :, None, None], local[node.queries]
        return (tables.selections[node] ^ negate)[keys, queries] & (keys >= 0) & (queries >= 0)

    chosen = fold(selector, selected, both=np.logical_and, either=np.logical_or)
    of_tokens, of_positions = (np.asarray(chosen.any(axis=a)) for a in ((1, 3), (0, 2)))
    if (chosen != of_tokens[:, None, :, None] & of_positions[:, None]).any():
        return None
    by_token, by_position = _compared(tables, token, token, of_tokens), _seen(tables, of_positions)
    kind = min(by_token.kind, by_position.kind, key=KINDS.index)
    return _Where(kind, by_position.noun, by_token.clause)


def _seen(tables: Tables, table: np.ndarray) -> _Where:
    """Whom queries see by their positions alone; keys are rows."""
    n = tables.max_length
    key, query = np.indices((n, n))
    visible = (key <= query) | (not tables.causal)
    seen = np.asarray(table & visible)
    places = np.asarray(seen.any(axis=1))
    if (seen == visible).all():
        return _Where()
    if (seen == places[:, None] & visible).all():
        kind = "fixed-position" if places.sum() == 1 else "by-position"
        return _Where(kind, f"position {_either(range(n), places)}")
    if (seen.sum(axis=0) <= 1).all():
        here, there = seen.T.nonzero()
        step = int(max(here - there, key=abs))
        near = n - abs(step)
        if len(here) >= near and (there == (here - step).clip(0, n - 1)).all():
            side, far = "before" if step > 0 else "after", f"{abs(step)} " * (abs(step) > 1)
            edge = " or else the nearest" * (len(here) > near)
            noun = f"the position {far}{side}{edge}" if step else "this position"
            return _Where("previous-token" if step == 1 else "relative-position", noun)
        listed = _listed(here.tolist(), there.tolist())
        return _Where("by-position", f"the position that its own names{listed}")
    fitting = (w for w, order in _RANGES.items() if (seen == order(key, query) & visible).all())
    return _Where("by-position", f"the {next(fitting, 'positions that its own names')}")


def _compared(tables: Tables, keys: SOp, queries: SOp, table: np.ndarray) -> _Where:
    """Whom queries see, from the value of one variable there and that of another one here."""
    if table.all():
        return _Where()
    of = {token: tables.vocab} | {sop: one.values for sop, one in tables.variables.items()}
    kind = "by-token" if keys is token and queries is token else "lookup"
    name, here = f"with {_name(tables, keys)}", f"{_name(tables, queries)} here"
    table = np.broadcast_to(table, (len(of[keys]), len(of[queries])))
    if (table == table[:, :1]).all():
        return _Where(kind, clause=f"{name} {_either(of[keys], table[:, 0])}")
    if (table == table[:1]).all():
        return _Where(kind, clause=f"if {here} is {_either(of[queries], table[0])}")
    rank = {value: i for i, value in enumerate(sorted_values([*of[keys], *of[queries]]))}
    there, now = (np.array([rank[value] for value in of[sop]]) for sop in (keys, queries))
    fitting = (w for w, order in _ORDERS.items() if (table == order(there[:, None], now)).all())
    relation, listed = next(fitting, "that fits"), ""
    if kind == "by-token" and relation == "equal to":
        return _Where("same-token", clause="with the same token")
    if (table.sum(axis=0) <= 1).all():
        query, key = table.T.nonzero()
        if relation != "equal to":
            listed = _listed([of[queries][q] for q in query], [of[keys][k] for k in key])
        if keys is place:
            return _Where("pointer", f"the position that {here} names{listed}")
    return _Where(kind, clause=f"{name} {relation} {here}{listed}")
