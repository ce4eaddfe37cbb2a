"""RASP: write a sequence algorithm down, run it, and compile it to transformer weights.

Example:
    from graphcircuits import rasp
    shift = rasp.Select(rasp.indices, rasp.indices, lambda key, query: key == query - 1)
    rasp.Aggregate(shift, rasp.tokens)(["a", "b", "c"])  # [None, "a", "b"]

See docs/rasp.md. Names and signatures are those of Tracr (Lindner et al., arXiv:2301.05062).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphcircuits.rasp.expression import Encoding, RASPExpr, annotate
from graphcircuits.rasp.interpret import evaluate
from graphcircuits.rasp.language import (
    Aggregate,
    ConstantSelector,
    ConstantSOp,
    Full,
    LinearSequenceMap,
    Map,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorValue,
    SelectorWidth,
    SequenceMap,
    SOp,
    categorical,
    get_encoding,
    indices,
    is_categorical,
    is_numerical,
    length,
    numerical,
    selector_and,
    selector_not,
    selector_or,
    sop_not,
    tokens,
)
from graphcircuits.rasp.tabulate import Problem
from graphcircuits.rasp.validate import validate
from graphcircuits.rasp.values import Comparison, NumericValue, Predicate, RaspError, Value

if TYPE_CHECKING:
    from graphcircuits.rasp.compile import CompiledModel, compile_program
    from graphcircuits.rasp.sample import SampledCase, sample_case

# These need torch, which writing and interpreting a program does not.
_LATE = {
    "CompiledModel": "compile",
    "SampledCase": "sample",
    "compile_program": "compile",
    "sample_case": "sample",
}

__all__ = [
    "Aggregate",
    "Comparison",
    "CompiledModel",
    "ConstantSOp",
    "ConstantSelector",
    "Encoding",
    "Full",
    "LinearSequenceMap",
    "Map",
    "NumericValue",
    "Predicate",
    "Problem",
    "RASPExpr",
    "RaspError",
    "SOp",
    "SampledCase",
    "Select",
    "Selector",
    "SelectorAnd",
    "SelectorNot",
    "SelectorOr",
    "SelectorValue",
    "SelectorWidth",
    "SequenceMap",
    "Value",
    "annotate",
    "categorical",
    "compile_program",
    "evaluate",
    "get_encoding",
    "indices",
    "is_categorical",
    "is_numerical",
    "length",
    "numerical",
    "sample_case",
    "selector_and",
    "selector_not",
    "selector_or",
    "sop_not",
    "tokens",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
