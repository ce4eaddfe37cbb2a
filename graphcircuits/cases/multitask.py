"""Several programs in one model, told apart by a task token at the first position.

1. A `MultiCase` holds 2 to 8 cases of one length and mask, all with classes or all with numbers.
   Its vocabulary and its output classes are what they have together; each task has a token of its
   own, which stands where BOS stands elsewhere.
2. The model has one layer more than its deepest program. Layer 0 belongs to no circuit: there every
   position can read the task token. Programs lie from layer 1 on, on the same heads where they can
   (`shared`) or each on heads of its own; of MLPs a layer has but one, which all programs share.
3. A `TaskCase` is one of the programs in that model. Its clean and corrupted prompts have the same
   task token, so whatever carries only the task is constant, and in no circuit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from graphcircuits.cases import MULTITASK, load_case, stored
from graphcircuits.cases.case import OWN, Case, SubjectDims
from graphcircuits.rasp import Value
from graphcircuits.rasp.layout import Component, Layout, moved
from graphcircuits.rasp.values import sorted_values

if TYPE_CHECKING:
    import graphcircuits.graph
    import graphcircuits.subject.codec
    import graphcircuits.subject.transformer

AT = "@"
"""Between the model and the task in the id of a task: mt-7@ib-4."""
TOKENS = "tokens"
"""The label of the variable that the embedding holds."""
MIN_TASKS, MAX_TASKS = 2, 8
MIN_HEADS, MAX_HEADS = 4, 8
D_HEAD = 8
WIDTHS = {3: 32, 5: 40, MAX_TASKS: 48}
"""The stream's width, by the most programs that it is for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiCase:
    """Programs that one model is to run, each by its own circuit.

    Example:
        >>> import graphcircuits as gc
        >>> both = gc.MultiCase(id="mine", cases=(gc.load_case("ib-8"), gc.load_case("ib-62")))
        >>> both.names
        ('ib-8', 'ib-62')

    See docs/multitask.md.
    """

    id: str
    cases: tuple[Case, ...]
    """The programs; a task is called by the id of its case."""
    shared: bool = True
    """Whether programs use the same heads, where they can; see `share_heads`."""
    family: str = OWN
    split: str | None = None
    fold: int | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self.cases))
        if not problems and len(set(self.names) & set(self.vocab)) > 0:
            collide = ", ".join(sorted(map(repr, set(self.names) & set(self.vocab))))
            problems.append(f"{collide} is both a task and a token; give the case another id")
        if not problems and self.n_heads > MAX_HEADS:
            problems.append(
                f"with heads of their own the programs need {self.n_heads} in a layer, at most "
                f"{MAX_HEADS} are allowed; take fewer programs, or shared=True"
            )
        if problems:
            raise ValueError(f"model {self.id!r}: {'; '.join(problems)}.")

    def __repr__(self) -> str:
        """Which model it is, in one line."""
        heads = "shared" if self.shared else "own"
        return f"MultiCase({self.id!r}, {', '.join(self.names)}, heads {heads})"

    # What it runs

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks, in the order of their tokens."""
        return tuple(case.id for case in self.cases)

    @cached_property
    def tasks(self) -> "tuple[TaskCase, ...]":
        """Each program as a case of this model."""
        return tuple(_task_case(self, number) for number in range(len(self.cases)))

    def task(self, name: str) -> "TaskCase":
        """The task of that name, such as ib-4."""
        if name not in self.names:
            raise ValueError(
                f"the model {self.id!r} has no task {name!r}; choose from {', '.join(self.names)}."
            )
        return self.tasks[self.names.index(name)]

    @property
    def max_seq_len(self) -> int:
        return self.cases[0].max_seq_len

    @property
    def causal(self) -> bool:
        return self.cases[0].causal

    @property
    def categorical(self) -> bool:
        return self.cases[0].categorical

    @cached_property
    def vocab(self) -> tuple[Value, ...]:
        """The tokens of any of the programs."""
        return sorted_values({token for case in self.cases for token in case.tables.vocab})

    @cached_property
    def outputs(self) -> tuple[Value, ...] | None:
        """The output classes of any of the programs; None where outputs are numbers."""
        if not self.categorical:
            return None
        return sorted_values({value for case in self.cases for value in case.outputs or ()})

    @cached_property
    def codec(self) -> "graphcircuits.subject.codec.Codec":
        """The model's token ids, tasks included, and output classes."""
        from graphcircuits.subject.codec import Codec

        return Codec(self.vocab, self.outputs, self.names)

    # The model

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Which component of the model computes which variable, per task."""
        return share_heads([case.layout for case in self.cases], self.shared)

    @property
    def n_layers(self) -> int:
        return max(layout.n_layers for layout in self.layouts)

    @property
    def n_heads(self) -> int:
        """As many as the layer that needs most, and no fewer than other subjects have."""
        return max(MIN_HEADS, *(layout.n_heads for layout in self.layouts))

    @property
    def graph(self) -> "graphcircuits.graph.ComponentGraph":
        """The component graph of the model."""
        from graphcircuits.graph import ComponentGraph

        return ComponentGraph(self.n_layers, self.n_heads)

    @property
    def subject_dims(self) -> SubjectDims:
        """Sizes of the model: a stream that widens with the number of programs."""
        d_model = WIDTHS[next(most for most in WIDTHS if len(self.cases) <= most)]
        return SubjectDims(self.n_layers, self.n_heads, D_HEAD, d_model, 4 * d_model)

    def subject(
        self, *args: Any, **options: Any
    ) -> "graphcircuits.subject.transformer.Transformer":
        """The trained model as shipped with the package; it takes what `Case.subject` takes."""
        first = self.tasks[0]
        name = replace(first.shipped(*args, **options), case=self.id).id
        return replace(first.subject(*args, **options), case=self.id, name=name)

    def report(self, *args: Any, **options: Any) -> dict[str, Any]:
        """How the shipped model was trained, and how well it follows each program."""
        return self.tasks[0].report(*args, **options)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TaskCase(Case):
    """One program of a model that runs several: its prompts and its circuit in that model.

    Program, vocabulary and outputs are those of the program alone; graph, codec and subject those
    of the model.
    """

    model: MultiCase
    number: int
    """Which of the model's programs."""

    @property
    def task_token(self) -> str:
        return self.model.names[self.number]

    @property
    def subject_id(self) -> str:
        return self.model.id

    @property
    def codec(self) -> "graphcircuits.subject.codec.Codec":
        """The model's token ids and output classes."""
        return self.model.codec

    @cached_property
    def layout(self) -> Layout:
        """Which component of the model computes which variable."""
        return self.model.layouts[self.number]

    @cached_property
    def graph(self) -> "graphcircuits.graph.ComponentGraph":
        """The component graph of the model."""
        return self.model.graph

    @cached_property
    def subject_dims(self) -> SubjectDims:
        """Sizes of the model."""
        return self.model.subject_dims


def _task_case(model: MultiCase, number: int) -> TaskCase:
    case = model.cases[number]
    same = ("program", "vocab", "max_seq_len", "min_seq_len", "causal", "task", "sampler", "source")
    return TaskCase(
        **{name: getattr(case, name) for name in same},
        id=f"{model.id}{AT}{case.id}",
        name=f"{case.name} in {model.id}",
        family=model.family,
        split=model.split,
        fold=model.fold,
        group=None if model.split is None else model.id,
        model=model,
        number=number,
    )


def share_heads(layouts: Sequence[Layout], shared: bool) -> tuple[Layout, ...]:
    """The layouts from layer 1 on, each on the first head of its layer that it can have.

    That is one that no other head of its program has, nor one of another program unless heads are
    shared. Even then two heads that compare tokens with tokens are kept apart: the scores of a head
    are bilinear in what it reads, tokens come from the embedding, which knows no task, and layer 0
    may add nothing that depends on them. So a task can make a head prefer some keys, but not change
    how it compares: it cannot look for equal tokens in one task and for different ones in another.
    """
    taken: dict[str, list[Component]] = {}
    moved_layouts = []
    for layout in layouts:
        names: dict[str, str] = {}
        for component in layout.components:
            layer = component.layer + 1
            heads = (f"a{layer}.h{number}" for number in count())
            names[component.name] = (
                f"m{layer}"
                if not component.is_head
                else next(
                    name
                    for name in heads
                    if name not in names.values()
                    and all(shared and can_share(component, other) for other in taken.get(name, ()))
                )
            )
        for component in layout.components:
            taken.setdefault(names[component.name], []).append(component)
        moved_layouts.append(moved(layout, names))
    return tuple(moved_layouts)


def can_share(one: Component, other: Component) -> bool:
    """Whether one head can have both parts: not if both compare tokens with tokens."""
    return not all(TOKENS in component.reads[slot] for component in (one, other) for slot in "qk")


def _problems(cases: Sequence[Case]) -> Iterator[str]:
    """Why the cases cannot be tasks of one model."""
    if not MIN_TASKS <= len(cases) <= MAX_TASKS:
        yield f"a model has {MIN_TASKS} to {MAX_TASKS} programs, got {len(cases)}"
    names = [case.id for case in cases]
    if len(set(names)) < len(names):
        yield f"each program stands in a model once, got {', '.join(names)}"
    same: Mapping[str, Any] = {
        "one max_seq_len": lambda case: case.max_seq_len,
        "one attention mask, causal or not": lambda case: case.causal,
        "all classes or all numbers as output": lambda case: case.categorical,
    }
    for what, value in same.items():
        if len({value(case) for case in cases}) > 1:
            got = ", ".join(f"{case.id}: {value(case)}" for case in cases)
            yield f"its programs must have {what}, got {got}"


# --- the models of the corpus --------------------------------------------------------------------


def multi_ids(split: str | None = None) -> list[str]:
    """Ids of the models with several tasks that are listed.

    Args:
        split: Only those of `test`, `pool`, or `fold-0` to `fold-4`; None gives all.

    Returns:
        Ids for `load_multi`.

    Example:
        >>> import graphcircuits as gc
        >>> gc.multi_ids()[0]
        'mt-0'

    See docs/multitask.md.
    """
    return [
        id
        for id, record in multi_records().items()
        if split in (None, record["split"], f"fold-{record.get('fold')}")
    ]


@cache
def load_multi(id: str) -> MultiCase:
    """The model with several tasks of that id.

    Args:
        id: Such as `mt-7`; `multi_ids` lists them. A single task of it, `mt-7@ib-4`, is a case.

    Returns:
        The programs it runs and how they share its heads.

    Example:
        >>> import graphcircuits as gc
        >>> len(gc.load_multi("mt-0").tasks) >= 2
        True

    See docs/multitask.md.
    """
    record = multi_records().get(id)
    if record is None:
        known = list(multi_records())
        span = f"{known[0]} to {known[-1]}" if known else "none"
        raise ValueError(f"unknown model of several tasks {id!r}; there are {span}.")
    return MultiCase(
        id=id,
        cases=tuple(map(load_case, record["cases"])),
        shared=record["shared"],
        family=MULTITASK,
        split=record["split"],
        fold=record.get("fold"),
    )


def load_task(id: str) -> TaskCase:
    """The task of that id, such as mt-7@ib-4."""
    model, at, name = id.partition(AT)
    loaded = load_multi(model)
    if not at:
        ids = ", ".join(task.id for task in loaded.tasks)
        raise ValueError(f"{id!r} is a model of several tasks; choose one of them: {ids}.")
    return loaded.task(name)


def multi_records() -> Mapping[str, Mapping[str, Any]]:
    """What `data/multitask.json` says about every model: its programs, heads, split and fold."""
    return stored("multitask")
