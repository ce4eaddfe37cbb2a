"""A program as text, one line an expression, inputs first, for tables and failing tests."""

from collections.abc import Callable
from typing import Any

from graphcircuits.rasp.language import (
    Aggregate,
    Comparison,
    Composition,
    Full,
    LinearSequenceMap,
    Map,
    RASPExpr,
    Select,
    SequenceMap,
    SOp,
    indices,
    is_numerical,
    tokens,
    walk,
)
from graphcircuits.rasp.tabulate import breadth_first


def describe(program: SOp) -> list[str]:
    """Lines such as `map_2 = numerical Map(is_x, tokens)`; numbers count breadth first."""
    labels: dict[RASPExpr, str] = {tokens: "tokens", indices: "indices"}
    labels |= {node: f"{node.name}_{i}" for i, node in enumerate(breadth_first(program), start=1)}
    return [
        f"{labels[node]} = {_expression(node, labels)}"
        for node in walk(program)
        if node is not tokens and node is not indices
    ]


def _expression(node: RASPExpr, labels: dict[RASPExpr, str]) -> str:
    arguments = [labels[child] for child in node.children]
    match node:
        case LinearSequenceMap():
            arguments += [repr(node.fst_fac), repr(node.snd_fac)]
        case Map() | SequenceMap():
            arguments.insert(0, _function(node.f))
        case Select():
            arguments.append(_function(node.predicate))
        case Full():
            arguments = [repr(node.fill)]
        case Aggregate():
            arguments.append(f"default={node.default!r}")
    encoding = "numerical " if isinstance(node, SOp) and is_numerical(node) else ""
    return f"{encoding}{type(node).__name__}({', '.join(arguments)})"


def _function(function: Callable[..., Any]) -> str:
    if isinstance(function, Comparison):
        return f"Comparison.{function.name}"
    if isinstance(function, Composition):
        return f"{_function(function.outer)} of {_function(function.inner)}"
    return getattr(function, "__name__", None) or repr(function)
