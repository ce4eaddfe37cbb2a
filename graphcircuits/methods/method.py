"""What a method is: a function from a subject and pairs to one score per edge.

1. `Method` is the shape of such a function. Its options are keyword-only, with defaults.
2. `KnownMethod` is an entry of the table of methods: the function, and what is known of it besides.
   It is called like the function itself.
3. A `Finding` is what a run of such an entry can say besides scores.
4. `options_of` gives the options of either, `settle` those of one run, `check_scores` refuses what
   is not one score per edge.
5. Every method has the option `paths`: each edge then counts for the best path that it lies on
   (`graphcircuits.predictor.paths`). It is applied here, around the method.

Iterative methods take a `generator` and a `progress` callback (see `graphcircuits.methods.prepare`
for how to stop them); `localize` makes the former from its seed and hands on the latter. A method
of many independent runs may take `progress` alone, to tell of them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

Options = Mapping[str, Any]

SUPPLIED = ("generator", "progress")
"""Parameters that are not options: `localize` fills them in."""
PATHS = "paths"
"""The option that every method has."""


@runtime_checkable
class Method(Protocol):
    """Scores in edge order, larger meaning more likely in the circuit.

    `args` only tells type checkers that any options may follow: all are keyword-only.
    """

    def __call__(
        self, subject: Transformer, pairs: Pairs, *args: Any, **options: Any
    ) -> Float[Tensor, " edge"]: ...


def _as_given(subject: Transformer, pairs: Pairs, options: Options) -> Options:
    return options


def _nothing(*_: object) -> tuple[()]:
    return ()


@dataclass(frozen=True, eq=False)
class Finding:
    """The scores of a run, and what else the method says of them."""

    scores: Float[Tensor, " edge"]
    probabilities: Float[Tensor, " edge"] | None = None
    """That the edge is in the circuit."""
    remarks: tuple[str | Warning, ...] = ()
    """As those of `KnownMethod`."""


@dataclass(frozen=True, kw_only=True)
class KnownMethod:
    """A method, and what is known of it."""

    run: Method
    threshold: float | None = None
    """Where the scores themselves draw the line: edges above it are held for likely."""
    fill: Callable[[Transformer, Pairs, Options], Options] = _as_given
    """Options of a run; those that were left to the subject and pairs, such as a predictor that is
    blind to the case, are filled in."""
    forecast: Callable[[Transformer, Pairs, Options], Iterable[Warning]] = _nothing
    """What users should know before a run begins: that it will take long."""
    remarks: Callable[[Transformer, Pairs, Options], Iterable[str | Warning]] = _nothing
    """What users should know of the scores; what they must not overlook is a Warning."""
    find: Callable[[Transformer, Pairs, Options, torch.Generator], Finding] | None = None
    """A run that says more than `run`, with the same scores, where there is more to say."""
    independent: bool = False
    """Whether the steps that `progress` hears of are runs that do not wait for each other."""
    files: Callable[[Options], Iterable[str]] = _nothing
    """Content hashes of the files that the scores depend on besides code and options."""
    paths: bool = False
    """What the option `paths` is where it is not given."""

    def __call__(
        self, subject: Transformer, pairs: Pairs, *args: Any, **options: Any
    ) -> Float[Tensor, " edge"]:
        paths, own = self._paths_apart(options)
        scores = self.run(subject, pairs, *args, **own)
        return along_paths(scores, subject.graph) if paths else scores

    def finding(
        self, subject: Transformer, pairs: Pairs, options: Options, supplies: Options
    ) -> Finding:
        """One run and all that it says; `supplies` are a generator and a progress callback."""
        if self.find is None:
            return Finding(self(subject, pairs, **supplied_to(self, supplies), **options))
        paths, own = self._paths_apart(options)
        found = self.find(subject, pairs, own, supplies["generator"])
        if not paths:
            return found
        # Probabilities belong to the scores as they were.
        return replace(found, scores=along_paths(found.scores, subject.graph), probabilities=None)

    def _paths_apart(self, options: Options) -> tuple[bool, Options]:
        """Whether to count along paths, and the options of the function itself."""
        if PATHS in _keywords(self):
            return False, options
        own = {name: value for name, value in options.items() if name != PATHS}
        return options.get(PATHS, self.paths), own


def known(method: Method) -> KnownMethod:
    """The method itself, or an entry for a function of which nothing else is known."""
    return method if isinstance(method, KnownMethod) else KnownMethod(run=method)


def name_of(method: Method) -> str:
    """What a function is called; a partial has the name of what it calls."""
    function = known(method).run
    while hasattr(function, "func"):
        function = function.func  # pyright: ignore[reportAttributeAccessIssue]
    return getattr(function, "__name__", type(function).__name__)


def options_of(method: Method) -> dict[str, Any]:
    """The options of a method with their defaults."""
    found = {name: p for name, p in _keywords(method).items() if name not in SUPPLIED}
    needed = [name for name, parameter in found.items() if parameter.default is parameter.empty]
    if needed:
        raise TypeError(f"options need defaults; {name_of(method)} has none for: {needed}.")
    own = {name: parameter.default for name, parameter in found.items()}
    return own if PATHS in own else own | {PATHS: known(method).paths}


def annotations_of(method: Method) -> dict[str, Any]:
    """The types of the options, where they are written; `inspect.Parameter.empty` elsewhere."""
    own = {name: parameter.annotation for name, parameter in _keywords(method).items()}
    return {PATHS: bool} | own


def supplied_to(method: Method, supplies: Options) -> dict[str, Any]:
    """Of a generator and a progress callback those that the method takes."""
    return {name: supplies[name] for name in SUPPLIED if name in _keywords(method)}


def settle(
    method: Method, subject: Transformer, pairs: Pairs, given: Options, *, name: str
) -> dict[str, Any]:
    """All options of a run: those given, the defaults, and what the method fills in itself.

    `paths` is among them where it is true, or not what the method has by itself.
    """
    defaults, entry = options_of(method), known(method)
    for option in given:
        if option not in defaults:
            raise ValueError(unknown(f"option of {name}", option, defaults))
    settled = dict(entry.fill(subject, pairs, defaults | dict(given)))
    if PATHS not in _keywords(method) and not (settled[PATHS] or entry.paths):
        del settled[PATHS]
    return settled


def check_scores(scores: object, subject: Transformer, name: str) -> Float[Tensor, " edge"]:
    """The scores, if they are one number per edge."""
    expected = (subject.graph.n_edges,)
    if not isinstance(scores, Tensor) or scores.shape != expected:
        shape = f"of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else ""
        raise TypeError(
            f"{name} must return a tensor with one score for each of {expected[0]} edges, "
            f"got a {type(scores).__name__} {shape}".rstrip()
            + "."
        )
    return scores


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """A refusal that names what there is, the nearest first of all."""
    near = get_close_matches(name.lower(), list(names), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {name!r}; {hint}({', '.join(sorted(names)) or 'it has none'})"


def check_signature(method: object) -> str:
    """Why something cannot be called as a method; empty where it can."""
    if not callable(method):
        return f"it is a {type(method).__name__}"
    try:
        inspect.signature(method).bind(None, None)
    except (TypeError, ValueError) as error:
        return f"it cannot be called with a subject and pairs ({error})"
    return ""


def _keywords(method: Method) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(known(method).run).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
