"""A program as text, one line per expression, inputs first, for tables and failing tests."""

from collections.abc import Callable
from typing import Any

from graphcircuits.rasp.expression import RASPExpr, walk
from graphcircuits.rasp.language import (
    Aggregate,
    ConstantSelector,
    ConstantSOp,
    Full,
    LinearSequenceMap,
    Map,
    Select,
    SequenceMap,
    SOp,
    indices,
    is_numerical,
    tokens,
)
from graphcircuits.rasp.tabulate import breadth_first, labels_of
from graphcircuits.rasp.values import (
    Comparison,
    Composition,
    Constants,
    Fixed,
    Joint,
    Junction,
    Predicate,
    fold_predicate,
)


def describe(program: SOp) -> list[str]:
    """Lines such as `map_2 = numerical Map(is_x, tokens)`; numbers count breadth first."""
    labels = labels_of(breadth_first(program))
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
        case ConstantSOp() | ConstantSelector():
            arguments = [repr(node.value)]
        case Aggregate():
            arguments.append(f"default={node.default!r}")
    encoding = "numerical " if isinstance(node, SOp) and is_numerical(node) else ""
    return f"{encoding}{type(node).__name__}({', '.join(arguments)})"


def _function(function: Callable[..., Any]) -> str:
    if isinstance(function, Comparison):
        return f"Comparison.{function.name}"
    if isinstance(function, Composition):
        return " of ".join(map(_function, function.chain))
    if isinstance(function, Fixed | Junction):
        return fold_predicate(function, _part, _joined)
    return getattr(function, "__name__", None) or repr(function)


def _part(predicate: Predicate, constants: Constants) -> str:
    fixed = [f"{role}={value!r}" for role, value in constants.items()]
    return _function(predicate) + (f"[{', '.join(fixed)}]" if fixed else "")


def _joined(joint: Joint, parts: list[str]) -> str:
    return f"not {parts[0]}" if joint == "not" else f"({f' {joint} '.join(parts)})"
