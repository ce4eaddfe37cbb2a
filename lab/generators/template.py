"""Program templates: what is left of a program when names and literal values are taken out.

1. A Python function becomes the tree of its syntax. Bound names are numbered in the order they are
   bound; string and numeric literals become one mark; docstrings, decorators, annotations
   and the names given with `.named` go. A name from outside stands for what it refers to: a
   function for its own template, a value for a literal, anything of a library for its name.
2. `source_template` is that of the function which builds a program, helpers included: two cases
   agree when they are written alike, whatever their vocabularies, lengths and constants.
3. `program_template` is that of the expressions which it builds: kinds, encodings, predicates, the
   templates of functions, and who reads whom. Two cases agree when they compute alike, however
   they are written.

The paper compares the source of programs. Ours share helpers, so both readings are needed.
"""

import ast
import builtins
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    LinearSequenceMap,
    Map,
    RASPExpr,
    Select,
    SequenceMap,
    SOp,
    Value,
    indices,
    tokens,
)
from graphcircuits.rasp.expression import walk
from graphcircuits.rasp.values import Composition, Fixed, Junction

Form = Any
"""Nested tuples of strings and numbers; equal forms are equal templates."""
LITERAL = "literal"
_Place = tuple[int, int]
"""A line and a column of a file."""
_FUNCTIONS = (ast.Lambda, ast.FunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}


def source_template(build: Callable[..., Any]) -> Form:
    """How a program is written: the syntax of the function that builds it, and of its helpers."""
    return _of_value(build, ())


def program_template(program: SOp) -> Form:
    """What a program is: its expressions, inputs before users, each with the places it reads."""
    place = {node: number for number, node in enumerate(walk(program))}
    return tuple(
        (_kind(node), *_details(node), *(place[child] for child in node.children)) for node in place
    )


def _kind(node: RASPExpr) -> tuple[str, ...]:
    if node is tokens or node is indices:
        return (node.name,)
    encoding = (node.encoding.value,) if isinstance(node, SOp) else ()
    return (type(node).__name__, *encoding)


def _details(node: RASPExpr) -> tuple[Form, ...]:
    match node:
        case LinearSequenceMap():
            return (LITERAL, LITERAL)
        case Map() | SequenceMap():
            return (_of_value(node.f, ()),)
        case Select():
            return (_of_value(node.predicate, ()),)
        case Aggregate():
            return (_of_value(node.default, ()),)
        case Full():
            return (_of_value(node.fill, ()),)
    return ()


# --- values and functions ------------------------------------------------------------------------


def _of_value(value: Value, inside: tuple[FunctionType, ...]) -> Form:
    """What a name or a default refers to. `inside` are the functions that are being expanded."""
    # A wrapper, such as one that caches or checks types, stands for what it wraps.
    function = inspect.unwrap(value) if callable(value) else value
    if inspect.isfunction(function):
        if function in inside:
            return ("recursion", len(inside) - inside.index(function))
        if str(function.__module__).partition(".")[0] not in sys.stdlib_module_names:
            return _of_function(function, inside)
    match value:
        case SOp():
            return program_template(value)
        case Comparison():
            return f"Comparison.{value.name}"
        case Composition():
            return ("composition", _of_value(value.outer, inside), _of_value(value.inner, inside))
        case Fixed():
            constants = [(role, _of_value(x, inside)) for role, x in value.constants.items()]
            return ("fixed", _of_value(value.predicate, inside), *constants)
        case Junction():
            return (value.joint, *(_of_value(part, inside) for part in value.parts))
        case None | bool():
            return repr(value)
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    return LITERAL if name is None else f"{getattr(value, '__module__', None)}.{name}"


def _of_function(function: FunctionType, inside: tuple[FunctionType, ...]) -> Form:
    closure = function.__closure__ or ()
    cells = dict(zip(function.__code__.co_freevars, closure, strict=True))
    stack = (*inside, function)

    def outer(name: str) -> Form:
        if name in cells:
            return _of_value(cells[name].cell_contents, stack)
        for names in (function.__globals__, vars(builtins)):
            if name in names:
                return _of_value(names[name], stack)
        raise ValueError(f"{function.__qualname__!r} uses {name!r}, which is defined nowhere.")

    # Defaults are taken from the function itself: their names may be gone.
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    syntax = _Syntax(outer)
    return syntax.function(_definition(function), {}, [_of_value(x, stack) for x in defaults])


def _definition(function: FunctionType) -> ast.Lambda | ast.FunctionDef:
    found = _definition_of(function.__code__)
    if found is None:
        raise ValueError(
            f"no source for the function {function.__qualname__!r} in "
            f"{function.__code__.co_filename}; a template needs the file, and a Python that runs "
            "without -X no_debug_ranges."
        )
    return found


@cache
def _definition_of(code: CodeType) -> ast.Lambda | ast.FunctionDef | None:
    """Where code is written: the innermost definition whose body holds most of its instructions.

    Not its first line: that may be a decorator's, and one line may hold several lambdas.
    """
    spans = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column)
    ]
    best: tuple[int, _Place] = (0, (0, 0))
    found = None
    for start, end, node in _definitions(code.co_filename):
        held = sum(start <= low < high <= end for low, high in spans)
        # Of two that hold all, the inner one starts later.
        if held and (held, start) > best:
            best, found = (held, start), node
    return found or _constant_lambda(code)


def _constant_lambda(code: CodeType) -> ast.Lambda | None:
    """The lambda of this line that returns this constant: Python 3.12 gives it no columns."""
    for _, _, node in _definitions(code.co_filename):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            try:
                value = ast.literal_eval(node.body)
            except ValueError:
                continue
            if any(repr(value) == repr(constant) for constant in code.co_consts):
                return node
    return None


@cache
def _definitions(path: str) -> list[tuple[_Place, _Place, ast.Lambda | ast.FunctionDef]]:
    """The definitions of a file, with the lines and columns where their bodies start and end."""
    found = []
    for node in ast.walk(ast.parse("".join(linecache.getlines(path)))):
        if isinstance(node, _FUNCTIONS):
            body = node.body if isinstance(node.body, list) else [node.body]
            first, last = body[0], body[-1]
            end = last.end_lineno or last.lineno, last.end_col_offset or last.col_offset
            found.append(((first.lineno, first.col_offset), end, node))
    return found


# --- syntax --------------------------------------------------------------------------------------


class _Syntax:
    """Forms of syntax trees. `bound` maps the names of the scopes around a node to numbers."""

    def __init__(self, outer: Callable[[str], Form]) -> None:
        self.outer = outer

    def form(self, node: Any, bound: Mapping[str, int]) -> Form:
        match node:
            case list():
                return tuple(self.form(item, bound) for item in node)
            case ast.Constant():
                return _of_value(node.value, ())
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()) | ast.JoinedStr():
                return LITERAL
            case ast.Name():
                return bound[node.id] if node.id in bound else self.outer(node.id)
            case ast.Call(func=ast.Attribute(attr="named", value=expression)):
                return self.form(expression, bound)
            case ast.Lambda():
                return self.function(node, bound, self._defaults(node, bound))
            case ast.FunctionDef():
                form = self.function(node, bound, self._defaults(node, bound))
                return ("def", bound[node.name], form)
            case ast.AnnAssign():
                return ("Assign", self.form([node.target], bound), self.form(node.value, bound))
            case _ if isinstance(node, _COMPREHENSIONS):
                return self._comprehension(node, bound)
            case ast.AST():
                fields = [name for name in node._fields if name not in _IGNORED]
                parts = (self.form(getattr(node, name), bound) for name in fields)
                return (type(node).__name__, *parts)
        return node

    def function(
        self,
        node: ast.Lambda | ast.FunctionDef,
        bound: Mapping[str, int],
        defaults: Iterable[Form],
    ) -> Form:
        arguments = node.args
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        starred = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
        names = [each.arg for each in (*listed, *starred)]
        body = node.body if isinstance(node.body, list) else [ast.Return(node.body)]
        statements = body[1:] if _is_docstring(body[0]) else body
        inner = _extended(bound, [*names, *_assigned(statements)])
        return ("function", len(listed), len(starred), *defaults, self.form(statements, inner))

    def _defaults(self, node: ast.Lambda | ast.FunctionDef, bound: Mapping[str, int]) -> list[Form]:
        given = [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
        return [self.form(each, bound) for each in given]

    def _comprehension(self, node: Any, bound: Mapping[str, int]) -> Form:
        targets = [name for each in node.generators for name in _assigned([each.target])]
        inner = _extended(bound, targets)
        # The first sequence is evaluated outside, so a name of the comprehension means another.
        first = self.form(node.generators[0].iter, bound)
        loops = [
            (
                self.form(each.target, inner),
                first if each is node.generators[0] else self.form(each.iter, inner),
                self.form(each.ifs, inner),
            )
            for each in node.generators
        ]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return (type(node).__name__, tuple(loops), self.form(results, inner))


def _extended(bound: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    fresh = dict.fromkeys(names)
    return {**bound, **{name: len(bound) + number for number, name in enumerate(fresh)}}


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that statements bind in their own scope, in order."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
            yield from _assigned(ast.iter_child_nodes(node))


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
