"""What every RASP expression is: a node that reads others, with a name, which nothing changes.

Naming an expression or choosing its encoding gives a copy, so that a program, once built, stays
what it is, whatever is made from its parts later.
"""

import copy
import enum
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from graphcircuits.rasp.values import Input, RaspError

ExprT = TypeVar("ExprT", bound="RASPExpr")
_UNIQUE_IDS = itertools.count(1)


class Encoding(enum.Enum):
    """How a sequence lies in the residual stream: one direction per value, or one in all."""

    CATEGORICAL = "categorical"
    NUMERICAL = "numerical"


class RASPExpr:
    """A node of a program. Compared by identity: a shared expression is one variable."""

    default_name = "expression"
    inputs: tuple[str, ...] = ()
    """Attributes that hold the direct inputs, in the order that numbers variables and heads."""

    def __init__(self) -> None:
        self._annotations: Mapping[str, Any] = {}
        self._unique_id = next(_UNIQUE_IDS)
        self._fixed_label: str | None = None

    @property
    def annotations(self) -> Mapping[str, Any]:
        """What is noted about the expression: its name, and what `annotated` has added."""
        return MappingProxyType({"name": self.name, **self._annotations})

    @property
    def name(self) -> str:
        """The name given with `named`, or one that says the kind of expression."""
        return self._annotations.get("name") or self.default_name

    @property
    def unique_id(self) -> int:
        """A number that no other expression of this process has."""
        return self._unique_id

    @property
    def label(self) -> str:
        """Name and unique number; of `tokens`, `indices` and `length` that word alone.

        A compiled program numbers its expressions anew, from 1.
        """
        return self._fixed_label or f"{self.name}_{self.unique_id}"

    @property
    def children(self) -> tuple["RASPExpr", ...]:
        """Direct inputs."""
        return tuple(getattr(self, name) for name in self.inputs)

    def copy(self: ExprT) -> ExprT:
        """Another expression that computes the same from the same inputs: a variable of its own."""
        new = copy.copy(self)
        new._unique_id = next(_UNIQUE_IDS)
        return new

    def annotated(self: ExprT, **annotations: Any) -> ExprT:
        """A copy with these annotations; `name` and `encoding` are the ones that mean something."""
        encoding = annotations.get("encoding", Encoding.CATEGORICAL)
        if not isinstance(encoding, Encoding):
            raise RaspError(f"{self.name!r}: an encoding is a rasp.Encoding, got {encoding!r}.")
        new = self.copy()
        new._annotations = {**self._annotations, **annotations}
        return new

    def named(self: ExprT, name: str) -> ExprT:
        """A copy with this name. `tokens` and `indices` keep theirs."""
        return self.annotated(name=name)

    def __call__(self, xs: Input) -> list[Any]:
        """The expression on one input, without causal masking."""
        from graphcircuits.rasp.interpret import evaluate

        return evaluate(self, xs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def annotate(expr: ExprT, **annotations: Any) -> ExprT:
    """A copy of the expression with these annotations."""
    return expr.annotated(**annotations)


def walk(expr: RASPExpr) -> Iterator[RASPExpr]:
    """Every expression under `expr`, inputs before users, each once."""
    if not isinstance(expr, RASPExpr):
        raise RaspError(f"a program is a RASP expression, got {expr!r}.")
    done: set[RASPExpr] = set()
    open_: set[RASPExpr] = set()
    stack: list[tuple[RASPExpr, bool]] = [(expr, False)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            open_.discard(node)
            done.add(node)
            yield node
        elif node not in done:
            open_.add(node)
            stack.append((node, True))
            for child in node.children:
                if not isinstance(child, RASPExpr):
                    raise RaspError(f"{node.name!r} reads {child!r}, which is no RASP expression.")
                if child in open_:
                    raise RaspError(f"{child.name!r} reads its own value: a program has no cycles.")
                if child not in done:
                    stack.append((child, False))
