"""What a bench runs: which subjects, by name, which methods, and how scores are read.

A subject goes by the id of its order; of a model of several tasks each task is one:
mt-7@ib-4.natural.llama.0. A unit has a case, which draws prompts and knows the circuit, and a
subject, which ships or is in a folder that `graphcircuits build` wrote.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases import LANGUAGE, MULTITASK, RANDOM, case_ids, load_case
from graphcircuits.cases.case import DEFAULT_LABELS, LABELINGS, Case
from graphcircuits.cases.language import CallCase, language_records
from graphcircuits.cases.multitask import AT, TaskCase, multi_records
from graphcircuits.cases.orders import Order, shipped_orders
from graphcircuits.cases.recognize import shipped_ids
from graphcircuits.cases.relations import POOLS, pool_cases
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.auroc import LEVELS, auroc
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods import (
    ALONG_PATHS,
    FLOORS,
    METHODS,
    NAMED_ONLY,
    KnownMethod,
    Method,
    find_method,
    options_of,
)
from graphcircuits.methods.method import known
from graphcircuits.result.curve import MEASURES
from graphcircuits.subject.files import load_transformer
from graphcircuits.subject.transformer import Transformer

SELECTIONS = ("test", *POOLS, "deep-pool", "deep-test", "all")
ALL_SELECTIONS = (*SELECTIONS, "multitask")
DEEP = 4
"""Layers from which on a case is deep."""


@dataclass(frozen=True)
class Unit:
    """A subject and the task that its circuit is asked for."""

    order: Order
    case: Case

    @classmethod
    def of(cls, id: str) -> "Unit":
        """The unit of an id: that of an order, whose case may be a task of a model."""
        order = Order.parse(id)
        return cls(order, load_case(order.case))

    @property
    def has_truth(self) -> bool:
        """Whether its circuit is known: nobody planted one in a subject trained on the task."""
        return self.order.fleet != "natural"

    @property
    def n_tasks(self) -> int:
        """Programs that the subject runs."""
        return len(self.case.model.cases) if isinstance(self.case, (TaskCase, CallCase)) else 1

    @property
    def heads(self) -> str:
        """Whether the planted programs of a model use the same heads: `shared` or `own`."""
        shared = isinstance(self.case, (TaskCase, CallCase)) and self.case.model.shared
        return "shared" if shared else "own"

    def subject(self, folder: str | Path | None = None) -> Transformer:
        """The shipped subject, or that of a folder that `graphcircuits build` wrote."""
        order = self.order
        if folder is None:
            return self.case.subject(order.fleet, order.architecture, order.seed)
        name = replace(order, case=self.case.subject_id).id
        subject = load_transformer(Path(folder) / f"{name}.safetensors").to(torch.float32)
        return replace(subject, case=self.case.id)


def select_cases(selection: str) -> tuple[list[str], list[str]]:
    """Ids to run, and ids left out because no subject of theirs is shipped.

    `test` is held out. `pool` is for training. `paper-pool` are 50 cases as the paper's pool has
    them, and `interpbench-pool` the 26 of these that are InterpBench's, two of which ours discards
    (`cases.pools`). `deep-pool` is every listed case that is not held out and whose subject has
    four layers or more, discarded ones included: settings were chosen on them. `deep-test` are
    held-out random programs of four to seven layers, which nothing was chosen on. `all` is every
    listed case.
    Anything else is read as ids with commas between; none of those is left out.
    """
    if selection not in SELECTIONS:
        return [load_case(id).id for id in _listed(selection, SELECTIONS)], []
    if selection == "deep-test":
        units, _ = _available("planted", None)
        return [unit.case.id for unit in units if _is_in(selection, unit.case)], []
    ids = [id for id in case_ids() if _is_in(selection, load_case(id))]
    shipped = set(shipped_ids())
    return [id for id in ids if id in shipped], [id for id in ids if id not in shipped]


def select_subjects(
    selection: str, fleet: str = "planted", folder: str | Path | None = None
) -> tuple[list[str], list[str]]:
    """Ids of the subjects of a fleet to run, and ids left out.

    A word of SELECTIONS takes those of that split whose model has one task, in every architecture
    and seed there is; `multitask` takes the others, task by task. The id of a case or of a model
    takes all that there is of it. Left out of shipped ones are cases that have no planted subject,
    of a folder what is no case of the corpus.
    """
    if fleet == "planted" and folder is None and selection in SELECTIONS:
        return select_cases(selection)
    where = "is shipped" if folder is None else f"is in {folder}"
    if selection in ALL_SELECTIONS:
        available, strange = _available(fleet, folder)
        ids = [unit.order.id for unit in available if _is_in(selection, unit.case)]
        if not ids:
            raise ValueError(
                f"no {fleet} subject of {selection} {where}; build some with: graphcircuits build "
                f"--fleet {fleet}, and name their folder with --subjects."
            )
        return ids, strange
    names = _listed(selection, ALL_SELECTIONS)
    files = {Order.parse(name).case.partition(AT)[0] for name in names}
    available, _ = _available(fleet, folder, files)
    ids = []
    for name in names:
        order = Order.parse(name)
        matching = [unit.order.id for unit in available if name in _names(unit)]
        if "." in name and order.fleet != fleet:
            raise ValueError(f"{name} is of the fleet {order.fleet}, and {fleet} was asked for.")
        is_model = order.case in multi_records() or order.case in language_records()
        if not matching and not is_model:
            load_case(order.case)  # a mistyped id is refused with one that is near
        if not matching and fleet == "planted" and folder is None and not is_model:
            matching = [order.id]  # its run will say that nothing is shipped
        if not matching:
            raise ValueError(
                f"no {fleet} subject of {order.case} {where}; build it with: "
                f"graphcircuits build {order.case.partition(AT)[0]} --fleet {fleet}"
            )
        ids += matching
    return ids, []


def _listed(selection: str, words: tuple[str, ...]) -> list[str]:
    if selection == "deep":
        raise ValueError(
            "deep cases are of two kinds: deep-pool, on which settings were chosen, and deep-test, "
            "which are held out; name one of them."
        )
    ids = [id.strip() for id in selection.split(",") if id.strip()]
    if not ids:
        raise ValueError(f"cases must be one of {', '.join(words)}, or ids; got none.")
    return ids


def _is_in(selection: str, case: Case) -> bool:
    """Whether a word means the case."""
    if case.family == MULTITASK or selection == "multitask":
        return case.family == MULTITASK and selection == "multitask"
    if selection in POOLS[1:]:
        return case.id in {one.id for one in pool_cases(selection)}
    if selection in ("deep-pool", "deep-test"):
        held_out = case.split in ("test", "held-out")
        fits = held_out and case.family == RANDOM if selection == "deep-test" else not held_out
        return fits and case.graph.n_layers >= DEEP
    return selection in ("all", case.split)


def _available(
    fleet: str, folder: str | Path | None, cases: Collection[str] | None = None
) -> tuple[list[Unit], list[str]]:
    """The units of the subjects that are there, in number order, and files of other programs.

    Of these cases and models only, where some are given: loading all takes many seconds.
    """
    if folder is None:
        names = [order.id for order in shipped_orders(fleet)]
    else:
        names = [path.stem for path in Path(folder).glob("*.safetensors")]
    units, strange = [], []
    for name in sorted(names, key=_by_number):
        if cases is not None and name.partition(".")[0] not in cases:
            continue
        try:
            units += [unit for unit in _units(name) if unit.order.fleet == fleet]
        except ValueError:
            strange.append(name)
    return units, strange


def _units(name: str) -> Iterator[Unit]:
    """The unit of a file's name, or those of each task."""
    order = Order.parse(name)
    if order.fleet == LANGUAGE:
        tasks: Collection[str] | None = language_records()[order.case]["passed"]
    else:
        tasks = multi_records().get(order.case, {}).get("cases")
    for case in [order.case] if tasks is None else [f"{order.case}{AT}{t}" for t in tasks]:
        yield Unit(replace(order, case=case), load_case(case))


def _names(unit: Unit) -> set[str]:
    """What a unit can be asked for by: itself, its case, and the model of several tasks."""
    model = replace(unit.order, case=unit.case.subject_id)
    return {unit.order.id, unit.case.id, model.id, model.case}


def _by_number(name: str) -> list[str | int]:
    """ib-3 comes before ib-20."""
    return [int(text) if text.isdecimal() else text for text in re.split(r"(\d+)", name)]


# What a bench is asked for


def usual_methods(fleet: str = "planted") -> tuple[str, ...]:
    """What runs where no method is named: all that can run with what ships, and the floors.

    On natural subjects EAP-IG along paths besides: it tells what `gcl` gains by counting so.
    """
    names = [name for name in (*METHODS, *FLOORS) if name not in NAMED_ONLY]
    return (*names, *([f"eap-ig{ALONG_PATHS}"] if fleet == "natural" else []))


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to run and how to read it."""

    cases: tuple[str, ...]
    """Ids of subjects: that of a case is its planted one, those of other fleets are of orders."""
    methods: tuple[str, ...] = usual_methods()
    functions: Mapping[str, Method] = field(default_factory=dict)
    """Methods that are not of the package, by names among `methods`. Not to be sent to other
    processes."""
    seeds: tuple[int, ...] = (0,)
    once: tuple[str, ...] = ()
    """Methods that take long, and run with the first seed alone."""
    n_pairs: int = 64
    """Prompt pairs of a case."""
    labels: str = DEFAULT_LABELS
    level: str = "head"
    by: str = "output"
    """What faithfulness is measured by, as in `faithfulness`."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of a method, by its name, that differ from their defaults."""
    device: str = "cpu"
    dtype: str = "float32"
    """That subjects compute in."""
    subjects: str | None = None
    """The folder of the subjects, if not those that ship."""
    certify: bool = False
    """Whether the circuits that scores lead to get certificates."""
    split: str = ""
    """The word that selected the cases, for the title."""

    def __post_init__(self) -> None:
        problems = []
        for name in ("cases", "methods", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                problems.append(f"{name} must be distinct, at least one, got {list(values)}")
        if self.n_pairs < 1:
            problems.append(f"n_pairs must be at least 1, got {self.n_pairs}")
        for name, words in (("labels", LABELINGS), ("level", LEVELS), ("by", MEASURES)):
            if getattr(self, name) not in words:
                problems.append(
                    f"{name} must be one of {', '.join(words)}, got {getattr(self, name)!r}"
                )
        fleets = sorted({Order.parse(id).fleet for id in self.cases})
        if len(fleets) > 1:
            problems.append(f"all cases must be of one fleet, got {', '.join(fleets)}")
        taken = sorted(self.functions.keys() & (METHODS.keys() | FLOORS.keys()))
        if taken:
            problems.append(
                f"the package has a method {', '.join(taken)}; give your own another name"
            )
        for what, names in (("options are given for", self.options), ("once names", self.once)):
            idle = sorted(set(names) - set(self.methods))
            if idle:
                problems.append(f"{what} methods that do not run: {', '.join(idle)}")
        if problems:
            raise ValueError("; ".join(problems) + ".")
        for method in self.methods:
            options = options_of(self.method(method))
            unknown = sorted(self.options.get(method, {}).keys() - options.keys())
            if unknown:
                names = ", ".join(options) or "none"
                raise ValueError(f"{method} has no option {', '.join(unknown)}; it has: {names}.")

    def method(self, name: str) -> KnownMethod:
        """The user's method of that name, or the package's."""
        return known(self.functions[name]) if name in self.functions else find_method(name)

    def options_of(self, name: str) -> dict[str, Any]:
        """The options that a method is given. One that ranks by labels takes those of the bench."""
        ranks = "labels" in options_of(self.method(name))
        return ({"labels": self.labels} if ranks else {}) | dict(self.options.get(name, {}))

    def truth(self, unit: Unit, graph: ComponentGraph) -> Circuit:
        """The labels of a subject, which must have some and not all of the edges."""
        circuit = unit.case.labels(self.labels, graph)
        auroc(torch.zeros(graph.n_edges), circuit, self.level)
        return circuit

    @property
    def fleet(self) -> str:
        return Order.parse(self.cases[0]).fleet

    @property
    def n_runs(self) -> int:
        return len(self.cases) * sum(len(self.methods_at(seed)) for seed in self.seeds)

    def methods_at(self, seed: int) -> tuple[str, ...]:
        """The methods that run with a seed."""
        later = seed != self.seeds[0]
        return tuple(name for name in self.methods if not (later and name in self.once))

    @property
    def title(self) -> str:
        """How many methods on how many subjects."""
        nouns = {"planted": "case", LANGUAGE: "program"}
        noun = nouns.get(self.fleet, f"{self.fleet} subject")
        counts = [(len(self.methods), "method"), (len(self.cases), noun)]
        text = " on ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)
        return f"{text} ({self.split})" if self.split else text
