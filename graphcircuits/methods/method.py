"""What a method is: a callable that gives every edge of a subject one score.

`Method` is the shape of it, and nothing more is asked of users' own functions. `KnownMethod` is a
method with what is known of it: code that runs methods asks that, so none of it needs to know a
method by its name.

Every method has the option `paths`: each edge then counts for the best path that it lies on
(`graphcircuits.predictor.paths`). It is applied here, around the method, so that no method has to
know of it. Parameters called `generator`, `progress` and `signed` are no options: `localize` makes
the first from its seed, hands on the second (`graphcircuits.methods.prepare` says how to stop a
method), and with the third is told the effects of edges with their signs, beside their scores.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.prepare import Progress
from graphcircuits.predictor.paths import along_paths
from graphcircuits.rasp.load import find_name, run_file
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

Options = Mapping[str, Any]

SUPPLIED = ("generator", "progress", "signed")
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


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a run, and what else the method says of them."""

    scores: Float[Tensor, " edge"]
    probabilities: Float[Tensor, " edge"] | None = None
    """That the edge is in the circuit."""
    signed: Float[Tensor, " edge"] | None = None
    """The mean effect of noising the edge on the loss: above 0 where the edge helps."""
    remarks: tuple[str | Warning, ...] = ()
    """What users should know of the scores; what they must not overlook is a Warning."""


@dataclass(frozen=True, kw_only=True)
class KnownMethod:
    """A method, called like its function, and what is known of it."""

    name: str = ""
    """What results call it; without one the name of the function."""
    revision: int = 1
    """Counts up whenever the scores of the method change, so that older ones are not taken for
    them."""
    threshold: float | None = None
    """Where the scores themselves draw the line: edges above it are likely in the circuit."""
    paths: bool = False
    """What the option `paths` is where it is not given."""

    if TYPE_CHECKING:  # a field of some subclasses and a method of others

        @property
        def run(self) -> Method:
            """The function that computes the scores, and whose keywords are the options."""
            ...

    def __call__(
        self, subject: Transformer, pairs: Pairs, *args: Any, **options: Any
    ) -> Float[Tensor, " edge"]:
        """The scores of all edges, in edge order."""
        paths, others = self._without_paths(options)
        scores = self.run(subject, pairs, *args, **others)
        return along_paths(scores, subject.graph) if paths else scores

    # Options

    @property
    def options(self) -> dict[str, Any]:
        """All options with their defaults."""
        parameters = {name: p for name, p in self._keywords().items() if name not in SUPPLIED}
        needed = [name for name, p in parameters.items() if p.default is p.empty]
        if needed:
            raise TypeError(f"options need defaults; {name_of(self)} has none for: {needed}.")
        options = {name: p.default for name, p in parameters.items()}
        return options if PATHS in options else options | {PATHS: self.paths}

    @property
    def annotations(self) -> dict[str, Any]:
        """The types of the options, where they are written; `inspect.Parameter.empty` elsewhere."""
        return {PATHS: bool} | {name: p.annotation for name, p in self._keywords().items()}

    def complete(
        self, subject: Transformer, pairs: Pairs, given: Options, *, name: str
    ) -> dict[str, Any]:
        """All options of a run: those given, and defaults for the others.

        `paths` is among them where it is true, or not what the method has by itself.
        """
        defaults = self.options
        for option in given:
            if option not in defaults:
                raise ValueError(unknown(f"option of {name}", option, defaults))
        options = dict(self.fill(subject, pairs, defaults | dict(given)))
        if PATHS not in self._keywords() and not (options[PATHS] or self.paths):
            del options[PATHS]
        return options

    def fill(self, subject: Transformer, pairs: Pairs, options: Options) -> Options:
        """The options, with those decided that depend on the subject and pairs."""
        return options

    def recorded(self, options: Options) -> dict[str, Any]:
        """The options as JSON values, for results and files."""
        return dict(options)

    def files(self, options: Options) -> Iterable[str]:
        """Content hashes of the files that the scores depend on besides code and options."""
        return ()

    # Runs

    def forecast(self, subject: Transformer, pairs: Pairs, options: Options) -> Iterable[Warning]:
        """What users should know before a run begins: that it will take long."""
        return ()

    def remarks(
        self, subject: Transformer, pairs: Pairs, options: Options
    ) -> Iterable[str | Warning]:
        """What users should know of the scores."""
        return ()

    def score(
        self,
        subject: Transformer,
        pairs: Pairs,
        options: Options,
        *,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Scored:
        """One run with complete options, and all that the method says of it."""
        signed: list[Tensor] = []
        supplies = {"generator": generator, "progress": progress, "signed": signed.append}
        taken = {name: supplies[name] for name in SUPPLIED if name in self._keywords()}
        scores = self(subject, pairs, **taken, **options)
        remarks = tuple(self.remarks(subject, pairs, options))
        return Scored(scores, signed=signed[0] if signed else None, remarks=remarks)

    def _without_paths(self, options: Options) -> tuple[bool, Options]:
        """Whether to count along paths, and the options of the function itself."""
        if PATHS in self._keywords():
            return False, options
        others = {name: value for name, value in options.items() if name != PATHS}
        return options.get(PATHS, self.paths), others

    def _keywords(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.run).parameters
        return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


@dataclass(frozen=True, kw_only=True)
class FunctionMethod(KnownMethod):
    """A method that is one function."""

    run: Method  # pyright: ignore[reportIncompatibleMethodOverride]


def known(method: Method) -> KnownMethod:
    """The method itself, or an entry for a function of which nothing else is known."""
    return method if isinstance(method, KnownMethod) else FunctionMethod(run=method)


def name_of(method: Method) -> str:
    """What a method is called; a partial has the name of what it calls."""
    entry = known(method)
    if entry.name:
        return entry.name
    function = entry.run
    while hasattr(function, "func"):
        function = function.func  # pyright: ignore[reportAttributeAccessIssue]
    return getattr(function, "__name__", type(function).__name__)


def options_of(method: Method) -> dict[str, Any]:
    """The options of a method with their defaults."""
    return known(method).options


# Refusals


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


# Files


def load_method(path: Path, name: str) -> Method:
    """The function of this name in a Python file, as `localize` takes it.

    The file is run, as `python file.py` would: only load files that you trust.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no Python file at {path}; give your method as path/to/file.py:name."
        )
    function: Method = find_name(path, run_file(path), name)
    problem = ""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError) as error:
        problem = f"it cannot be called with a subject and pairs ({error})"
    if not callable(function):
        problem = f"it is a {type(function).__name__}"
    if problem:
        raise ValueError(
            f"{name!r} in {path} is no method: {problem}; a method is a function of a subject and "
            "pairs, with options as keywords that have defaults, which returns one score per edge."
        )
    return function
