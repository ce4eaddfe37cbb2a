"""Program + vocabulary + length -> finite tables: what every expression can be, and what it does.

1. Number the expressions breadth first from the result; that order names variables and heads.
2. Go from the inputs up and infer the values each sequence can take, calling every function once on
   every possible input: a map becomes a list, a combination or a predicate a two-way table.
3. Note every reason why an expression has no exact transformer, and go on with the others.

The tables are what the compiler turns into weights, and what `lookup` evaluates batches with.
"""

import itertools
import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphcircuits.rasp.calls import (
    BoundedFunction,
    Unfit,
    checked_value,
    image,
    predicate_value,
    shown,
    unknown,
)
from graphcircuits.rasp.expression import RASPExpr, walk
from graphcircuits.rasp.language import (
    Aggregate,
    Full,
    LinearSequenceMap,
    Map,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    is_numerical,
    tokens,
)
from graphcircuits.rasp.selectors import fold, selector_leaves
from graphcircuits.rasp.values import (
    RaspError,
    Value,
    checked_length,
    checked_vocab,
    codes_of,
    plain,
    sorted_values,
    twins_of,
)

MAX_TABLE = 4_000_000
"""Entries in the largest table we fill; a function over more pairs is refused, not waited for."""
LARGEST = 1e100
"""Bound on the size of numbers, far from overflow."""
NONE = -1
"""The code of None. Tables carry one more row and column at the end, so that -1 indexes them."""


@dataclass(frozen=True)
class Problem:
    """Why one expression cannot be compiled."""

    expression: str
    reason: str

    def __str__(self) -> str:
        return f"{self.expression!r}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Variable:
    """A sequence expression with the finite set of values it can take, in a fixed order."""

    sop: SOp
    label: str
    values: tuple[Value, ...]
    nullable: bool
    """Whether None may occur, as far as the program's text tells."""
    codes: Mapping[Value, int] = field(repr=False)
    numerical: bool
    """Whether it lies in one direction of the stream, not in one per value."""

    @property
    def numbers(self) -> np.ndarray:
        """The values of a numerical sequence, and NaN, its None, at the end."""
        return np.array([*self.values, np.nan], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Tables:
    """A program as finite tables. Expressions with a problem, and their users, have no entry."""

    program: SOp
    vocab: tuple[Value, ...]
    max_length: int
    """Tokens of the longest input, the beginning-of-sequence token not counted."""
    causal: bool
    order: tuple[RASPExpr, ...]
    """Breadth first from the result, `tokens` and `indices` left out."""
    labels: Mapping[RASPExpr, str]
    variables: Mapping[SOp, Variable]
    """Inputs before users."""
    functions: Mapping[SOp, np.ndarray]
    """Codes of a map's or a combination's images, one axis per input."""
    selections: Mapping[Select, np.ndarray]
    """Whether a key value (rows) is selected by a query value (columns)."""
    problems: tuple[Problem, ...]


def breadth_first(program: RASPExpr) -> list[RASPExpr]:
    """Expressions in the order met from the result, each once, without `tokens` and `indices`."""
    seen: dict[RASPExpr, None] = {program: None}
    queue = [program]
    for node in queue:
        for child in node.children:
            if child not in seen:
                seen[child] = None
                queue.append(child)
    return [node for node in queue if node is not tokens and node is not indices]


def labels_of(order: Iterable[RASPExpr]) -> dict[RASPExpr, str]:
    """The name of every expression with its number in breadth-first order."""
    numbered = {node: f"{node.name}_{i}" for i, node in enumerate(order, start=1)}
    return {tokens: "tokens", indices: "indices"} | numbered


def sequence_inputs(sop: SOp) -> list[SOp]:
    """The sequences an expression reads, through its selectors, in child order, each once."""
    inputs: dict[SOp, None] = {}
    for child in sop.children:
        if isinstance(child, Selector):
            for leaf in selector_leaves(child):
                inputs |= {leaf.keys: None, leaf.queries: None}
        elif isinstance(child, SOp):
            inputs[child] = None
    return list(inputs)


def tabulate(
    program: SOp, *, vocab: Iterable[Value], max_seq_len: int, causal: bool = False
) -> Tables:
    """Infer values and fill tables. A bad vocabulary raises; problems of expressions are listed."""
    if not isinstance(program, SOp):
        raise RaspError(f"a program is a sequence expression, got {program!r}.")
    nodes = list(walk(program))
    order = breadth_first(program)
    labels = labels_of(order)
    checked = checked_vocab(vocab)
    max_length = checked_length(max_seq_len) - 1
    if not isinstance(plain(causal), bool):
        raise RaspError(f"causal must be True or False, got {causal!r}.")
    builder = _Builder(checked, max_length, labels)
    for node in nodes:
        builder.visit(node)
    return Tables(
        program=program,
        vocab=checked,
        max_length=max_length,
        causal=bool(causal),
        order=tuple(order),
        labels=labels,
        variables=builder.variables,
        functions=builder.functions,
        selections=builder.selections,
        problems=tuple(builder.problems),
    )


class _Builder:
    """Fills the tables, inputs first, and collects problems."""

    def __init__(
        self, vocab: tuple[Value, ...], max_length: int, labels: Mapping[RASPExpr, str]
    ) -> None:
        self.vocab = vocab
        self.max_length = max_length
        self.labels = labels
        self.variables: dict[SOp, Variable] = {}
        self.functions: dict[SOp, np.ndarray] = {}
        self.selections: dict[Select, np.ndarray] = {}
        self.twins: dict[SOp, dict[Value, list[Value]]] = {}
        self.problems: list[Problem] = []
        self.unfit: set[RASPExpr] = set()

    def visit(self, node: RASPExpr) -> None:
        if any(child in self.unfit for child in node.children):
            self.unfit.add(node)
            return
        try:
            if isinstance(node, Select):
                self.selections[node] = self._selection(node)
            elif isinstance(node, SOp):
                self._check_encodings(node)
                values, nullable = self._values(node)
                self._add_variable(node, values, nullable)
            elif not isinstance(node, SelectorAnd | SelectorOr | SelectorNot):
                raise unknown(node)
        except Unfit as problem:
            self.unfit.add(node)
            self.problems.append(Problem(self.labels[node], str(problem)))

    def _add_variable(self, sop: SOp, values: Iterable[Value], nullable: bool) -> None:
        listed = list(values)
        distinct = sorted_values(listed)
        if not distinct:
            raise Unfit("it has no value but None on any input")
        if is_numerical(sop):
            odd = [v for v in distinct if not isinstance(v, int | float) or abs(v) > LARGEST]
            if odd:
                raise Unfit(
                    f"a numerical sequence holds finite numbers of size up to {LARGEST:g}, "
                    f"got {', '.join(map(reprlib.repr, odd[:4]))}"
                )
        self.twins[sop] = twins_of(distinct, listed)
        self.variables[sop] = Variable(
            sop, self.labels[sop], distinct, nullable, codes_of(distinct), is_numerical(sop)
        )

    def _check_encodings(self, sop: SOp) -> None:
        """The combinations of encodings that weights exist for."""
        if isinstance(sop, LinearSequenceMap):
            if not all(map(is_numerical, (sop, sop.fst, sop.snd))):
                raise Unfit("a linear combination takes and gives numerical sequences")
        elif isinstance(sop, SequenceMap) and any(map(is_numerical, (sop, sop.fst, sop.snd))):
            raise Unfit(
                "a combination takes and gives categorical sequences; "
                "for numerical ones there is LinearSequenceMap"
            )
        elif isinstance(sop, Aggregate) and is_numerical(sop) != is_numerical(sop.values):
            raise Unfit("an aggregate has the encoding of its values; convert with a map first")
        for source in sequence_inputs(sop):
            variable = self.variables[source]
            if variable.numerical and variable.nullable:
                raise Unfit(
                    f"it reads {variable.label!r}, which is numerical and may be None; "
                    "in one direction None cannot be told from 0: give it a default"
                )

    def _values(self, sop: SOp) -> tuple[Iterable[Value], bool]:
        """Every value the sequence may take, and whether None is among them."""
        if sop is tokens:
            return self.vocab, False
        if sop is indices:
            return range(self.max_length), False
        match sop:
            case Full():
                if sop.fill is None:
                    raise Unfit("it is None everywhere")
                return [checked_value(sop.fill, "it holds")], False
            case LinearSequenceMap():
                # One that reads a sequence twice is called with its values as both.
                images, further = self._called(
                    lambda *args: image(sop.f, (args[0], args[-1])), sequence_inputs(sop)
                )
                return images + further, False
            case Map() | SequenceMap():
                return self._images(sop)
            case SelectorWidth():
                return range(self.max_length + 1), False
            case Aggregate():
                return self._aggregate_values(sop)
        raise unknown(sop)

    def _called(
        self, call: Callable[..., Value], inputs: Sequence[SOp]
    ) -> tuple[list[Value], list[Value]]:
        """What `call` gives on every combination of input values, and on twins of these.

        Equal values are one value of a variable, so that nothing may tell 1 from True or 1.0.
        """
        sides = [self.variables[sop].values for sop in inputs]
        if math.prod(map(len, sides)) > MAX_TABLE:
            sizes = " x ".join(str(len(side)) for side in sides)
            raise Unfit(f"{sizes} pairs of values are more than the {MAX_TABLE:,} we tabulate")
        results = [call(*args) for args in itertools.product(*sides)]
        further: list[Value] = []
        if any(self.twins[sop] for sop in inputs):
            forms = [
                [(value, *self.twins[sop].get(value, ())) for value in side]
                for sop, side in zip(inputs, sides, strict=True)
            ]
            for result, options in zip(results, itertools.product(*forms), strict=True):
                first, *others = itertools.product(*options)
                for args in others:
                    further.append(call(*args))
                    if further[-1] != result:
                        raise Unfit(
                            f"it tells {shown(first)} from {shown(args)}, which are equal: "
                            f"it gives {result!r} and {further[-1]!r}"
                        )
        return results, further

    def _images(self, sop: Map | SequenceMap) -> tuple[Iterable[Value], bool]:
        """Call the function on everything, keep the table of codes, give the images."""
        inputs = [sop.inner] if isinstance(sop, Map) else [sop.fst, sop.snd]
        images, further = self._called(BoundedFunction(sop, self._sizes(inputs)), inputs)
        codes = codes_of(sorted_values(image for image in images if image is not None))
        shape = self._sizes(inputs)
        table = np.full([size + 1 for size in shape], NONE, dtype=np.int64)
        flat = [NONE if image is None else codes[image] for image in images]
        table[tuple(slice(size) for size in shape)] = np.array(flat).reshape(shape)
        self.functions[sop] = table
        nullable = any(self.variables[source].nullable for source in inputs)
        values = [image for image in images + further if image is not None]
        return values, nullable or len(values) < len(images + further)

    def _sizes(self, sops: Iterable[SOp]) -> list[int]:
        return [len(self.variables[sop].values) for sop in sops]

    def _aggregate_values(self, sop: Aggregate) -> tuple[Iterable[Value], bool]:
        source = self.variables[sop.values]
        values = list(source.values)
        if is_numerical(sop):
            if not set(values) <= {0, 1}:
                raise Unfit(f"a numerical aggregate averages 0/1 values only, got {values[:6]}")
            pairs = itertools.combinations_with_replacement(range(self.max_length + 1), 2)
            means = [a / b for a, b in pairs if b]
            values = means if len(values) == 2 else [float(values[0])]
        else:
            values += [twin for twins in self.twins[sop.values].values() for twin in twins]
        if sop.default is not None:
            values.append(checked_value(sop.default, "its default is"))
        # Whether every query certainly selects at least its own position.
        selects = fold(sop.selector, self._selects_itself, both=operator.and_, either=operator.or_)
        return values, source.nullable or (sop.default is None and not selects)

    def _selects_itself(self, node: Selector, negate: bool) -> bool:
        assert isinstance(node, Select)
        if any(self.variables[side].nullable for side in (node.keys, node.queries)):
            return False
        table = self.selections[node][:-1, :-1] != negate
        pairs = table.diagonal() if node.keys is node.queries else table
        return bool(pairs.all())

    def _selection(self, select: Select) -> np.ndarray:
        sides = [self.variables[side] for side in (select.keys, select.queries)]
        for role, side in zip(("keys", "queries"), sides, strict=True):
            if side.numerical:
                raise Unfit(f"its {role} {side.label!r} are numerical; they must be categorical")
        chosen, _ = self._called(
            lambda key, query: predicate_value(select, key, query), [select.keys, select.queries]
        )
        shape = [len(side.values) for side in sides]
        table = np.zeros([size + 1 for size in shape], dtype=bool)
        table[:-1, :-1] = np.array(chosen).reshape(shape)
        return table
