"""A case: a RASP program, the inputs it runs on, and what is known about its subject.

Torch is imported only where graphs and tensors are made, so that cases can be listed quickly.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcircuits.rasp import RaspError, SOp, Value, evaluate, is_categorical
from graphcircuits.rasp.layout import Layout, complete_edges, interpbench_edges, lay_out
from graphcircuits.rasp.tabulate import Tables, tabulate
from graphcircuits.rasp.values import sorted_values

if TYPE_CHECKING:
    import torch

    import graphcircuits.cases.orders
    import graphcircuits.cases.roles
    import graphcircuits.cases.subjects
    import graphcircuits.circuit
    import graphcircuits.fleets.train
    import graphcircuits.graph
    import graphcircuits.rasp.compile
    import graphcircuits.subject.codec
    import graphcircuits.subject.transformer
    import graphcircuits.task.pairs

MIN_D_HEAD, MAX_D_HEAD = 4, 16
"""Bounds on the heads of subjects that have no public size."""
LABELINGS = ("complete", "interpbench", "paper")
"""Of these `DEFAULT_LABELS` is what is shown and compared with where no other is named."""
DEFAULT_LABELS = "complete"
OWN = "own"
"""The family of all cases that are not of the corpus."""


@dataclass(frozen=True)
class SubjectDims:
    """Sizes of a subject; its context and vocabularies follow from the case."""

    n_layers: int
    n_heads: int
    d_head: int
    d_model: int
    d_mlp: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A program with the inputs it runs on, and what is known about its subjects.

    Lengths count the BOS token that starts every sequence. An id, a program, a vocabulary and a
    length are all that a program of your own needs to have pairs, a compiled model and a true
    circuit. A case is equal to itself only, as programs are.

    Example:
        >>> import graphcircuits as gc
        >>> from graphcircuits.rasp import Map, tokens
        >>> case = gc.Case(
        ...     id="swap",
        ...     program=Map(lambda x: "b" if x == "a" else "a", tokens),
        ...     vocab=("a", "b"),
        ...     max_seq_len=5,
        ... )
        >>> case.evaluate(["a", "b"])
        ['b', 'a']
        >>> sorted(case.circuit)
        ['input->m0', 'm0->logits']

    See docs/rasp.md for programs, and docs/subjects.md for `subject` and `train`.
    """

    id: str
    """What it goes by, and the name of its subject's file."""
    program: SOp
    vocab: tuple[Value, ...]
    """The tokens. A list will do, and so will a set, which is put in order."""
    max_seq_len: int
    min_seq_len: int = 2
    causal: bool = False
    name: str = ""
    """The id where none is given."""
    task: str = ""
    """One sentence: what the output is at each position."""
    sampler: str = "uniform"
    """How inputs are drawn: a name of `samplers.SAMPLERS`."""
    source: Callable[[], SOp] | None = None
    """The function that the program is written as, which the split compares; None outside it."""
    family: str = OWN
    split: str | None = None
    """`test`, `pool` or `discarded`; None outside the benchmark."""
    fold: int | None = None
    """The validation fold of a case in the pool."""
    group: str | None = None
    """Of the listed cases that this one is related to, itself included, the first; of a random
    program that is related to none, its structure. No fold divides a group."""
    paper_split: str | None = None
    """`test`, `pool` or `discarded` in the paper's own split; None outside it."""
    released_dims: SubjectDims | None = None
    """Sizes of the public subject; None where there is none."""
    published: tuple[str, ...] | None = None
    """The edge list published with the subject, defects included; None where we have none."""
    worked_out: tuple[str, ...] | None = None
    """What stands in for a published list that we do not have, by the rule of `tables.worked_out`;
    None where there is one, and outside the paper's split."""

    def __post_init__(self) -> None:
        self._check_names()
        object.__setattr__(self, "name", self.name or self.id)
        given: Iterable[Value] = self.vocab
        ordered = sorted_values(given) if isinstance(given, set | frozenset) else tuple(given)
        object.__setattr__(self, "vocab", ordered)
        if not self.vocab or len(set(self.vocab)) < len(self.vocab):
            raise ValueError(
                f"case {self.id!r}: vocab must hold distinct tokens, at least one, "
                f"got {self.vocab}."
            )
        if not 2 <= self.min_seq_len <= self.max_seq_len:
            raise ValueError(
                f"case {self.id!r}: lengths count BOS, so 2 <= min_seq_len <= max_seq_len; "
                f"got min_seq_len={self.min_seq_len}, max_seq_len={self.max_seq_len}."
            )

    def _check_names(self) -> None:
        """Refuse what is no program, and an id that is no file's name or that of other cases."""
        if not isinstance(self.program, SOp):
            hint = (
                "call the function that makes it" if callable(self.program) else "see docs/rasp.md"
            )
            raise TypeError(
                f"case {self.id!r}: program must be a sequence expression of graphcircuits.rasp, "
                f"got {self.program!r}; {hint}."
            )
        if not self.id or Path(self.id).name != self.id:
            raise ValueError(f"an id must be a name that a file can have, got {self.id!r}.")
        if self.family == OWN:
            from graphcircuits.cases import FAMILIES, LANGUAGE_MODELS, MULTITASK, RANDOM

            # A predictor is kept from a case by its id, so an id must not mean two programs.
            family, dash, _ = self.id.partition("-")
            taken = (*FAMILIES, RANDOM, MULTITASK, LANGUAGE_MODELS)
            if dash and family in taken:
                starts = ", ".join(f"{family}-" for family in taken)
                raise ValueError(
                    f"the id {self.id!r} is like those of the corpus, which begin with {starts}; "
                    "give a program of your own another one."
                )

    def __repr__(self) -> str:
        """Which case it is, in one line."""
        split = "" if self.split is None else f", split={self.split!r}"
        fold = "" if self.fold is None else f", fold={self.fold}"
        return f"Case({self.id!r}, {self.name!r}{split}{fold})"

    # The program

    @property
    def categorical(self) -> bool:
        """Whether the output is one of several classes; if not, it is a number."""
        return is_categorical(self.program)

    @cached_property
    def tables(self) -> Tables:
        """The values that every variable of the program can take, and the functions over them."""
        tables = tabulate(
            self.program, vocab=self.vocab, max_seq_len=self.max_seq_len, causal=self.causal
        )
        if tables.problems:
            raise RaspError(
                f"case {self.id!r}: {len(tables.problems)} expressions cannot be compiled: "
                + "; ".join(map(str, tables.problems))
            )
        return tables

    @cached_property
    def layout(self) -> Layout:
        """Which component of the compiled model computes which variable."""
        return lay_out(self.tables)

    def _repr_html_(self) -> str:
        from graphcircuits.drawing.notebook import LONGEST, facts_html, framed

        words = " ".join(str(token) for token in self.vocab[:LONGEST])
        facts = {
            "task": self.task,
            "tokens": f"{len(self.vocab):,}: {words}",
            "length": f"{self.min_seq_len} to {self.max_seq_len}, BOS included",
            "attention": "causal" if self.causal else "in both directions",
            "family": self.family,
            "split": self.split,
            "program": self.program,
        }
        return framed(facts_html(f"Case {self.id}", facts))

    @property
    def variables(self) -> dict[str, str]:
        """What each component of the true circuit computes, in the program's words."""
        return {one.name: ", ".join(one.writes) for one in self.layout.components}

    @property
    def roles(self) -> "dict[str, graphcircuits.cases.roles.Role]":
        """What each component of the true circuit does: a kind, and a sentence."""
        from graphcircuits.cases.roles import find_roles

        return find_roles(self.tables, self.layout.components)

    @property
    def outputs(self) -> tuple[Value, ...] | None:
        """The output classes in logit order; None for a numerical output."""
        return self.tables.variables[self.program].values if self.categorical else None

    @property
    def codec(self) -> "graphcircuits.subject.codec.Codec":
        """The subject's token ids and output classes."""
        from graphcircuits.subject.codec import Codec

        return Codec(self.tables.vocab, self.outputs)

    @property
    def task_token(self) -> str | None:
        """What tells the subject to run this program, where it has several; see `TaskCase`."""
        return None

    def evaluate(self, xs: Sequence[Value]) -> list[Value]:
        """The program's output at each position, under the case's attention mask."""
        return evaluate(self.program, xs, causal=self.causal)

    def sample(self, n: int, generator: "torch.Generator") -> list[list[Value]]:
        """`n` independent inputs of full length, without BOS."""
        from graphcircuits.cases.samplers import draw

        drawn = draw(self.sampler, self.vocab, self.max_seq_len - 1, n, generator)
        return [[self.vocab[index] for index in row] for row in drawn.tolist()]

    # The subject

    @cached_property
    def compiled(self) -> "graphcircuits.rasp.compile.CompiledModel":
        """The program as exact transformer weights."""
        from graphcircuits.rasp.compile import compile_program

        return compile_program(
            self.program, vocab=self.vocab, max_seq_len=self.max_seq_len, causal=self.causal
        )

    @cached_property
    def subject_dims(self) -> SubjectDims:
        """Sizes of the subject: the public one's, or else by the public rule.

        At least two layers and four heads; heads half as wide as the compiled ones, whose one-hot
        spaces a trained subject can compress, but neither cramped nor larger than needed.
        """
        if self.released_dims is not None:
            return self.released_dims
        compiled = self.compiled.transformer.config
        n_heads = self.graph.n_heads
        d_head = min(MAX_D_HEAD, max(MIN_D_HEAD, (compiled.d_head + 1) // 2))
        d_model = n_heads * d_head
        return SubjectDims(self.graph.n_layers, n_heads, d_head, d_model, 4 * d_model)

    @property
    def subject_id(self) -> str:
        """What the subject's file is named after: the id, or that of a model of several tasks."""
        return self.id

    def subject(
        self, fleet: str = "planted", architecture: str | None = None, seed: int = 0
    ) -> "graphcircuits.subject.transformer.Transformer":
        """A trained transformer as shipped with the package.

        Args:
            fleet: `planted` has this program's circuit, `public` was trained for it by the public
                losses, `natural` on the task alone.
            architecture: Such as `llama`; None takes `plain`, or the only one there is.
            seed: Of its weights.

        Returns:
            The transformer, in single precision.
        """
        import torch

        from graphcircuits.cases.orders import shipped_path
        from graphcircuits.subject.files import load_transformer

        order = self.shipped(fleet, architecture, seed)
        subject = load_transformer(shipped_path(order)).to(torch.float32)
        return replace(subject, case=self.id, name=replace(order, case=self.id).id)

    def train(
        self,
        fleet: str = "planted",
        architecture: str = "plain",
        seed: int = 0,
        *,
        widen: float = 1.0,
        device: str = "cpu",
        progress: "graphcircuits.fleets.train.FleetProgress | None" = None,
        **settings: Any,
    ) -> "graphcircuits.cases.subjects.Finished":
        """Train such a subject here. It stops as soon as it passes, which takes a small program
        less than a minute.

        Args:
            fleet: As for `subject`.
            architecture: A name of `graphcircuits.cases.architectures.ARCHITECTURES`.
            seed: Of weights and inputs.
            widen: A factor on the subject's width.
            device: Where it is trained.
            progress: Called with the step, subjects that passed, and subjects in all.
            **settings: Those of `graphcircuits.fleets.recipes.SiitConfig`, such as `steps`.

        Returns:
            `.subject` is the transformer, `.passed` whether it follows the program on inputs that
            it has not seen, `.report` how well.

        See Gupta et al. 2024, InterpBench (arXiv:2407.14494), for the losses.
        """
        from graphcircuits.cases.orders import Order
        from graphcircuits.cases.subjects import train_subject

        order = Order(self.subject_id, fleet, architecture, seed)
        return train_subject(self, order, settings, widen=widen, device=device, progress=progress)

    def report(
        self, fleet: str = "planted", architecture: str | None = None, seed: int = 0
    ) -> dict[str, Any]:
        """How the shipped subject was trained, and how well it follows the program."""
        from graphcircuits.cases.orders import shipped_path
        from graphcircuits.io.store import load_artifact

        path = shipped_path(self.shipped(fleet, architecture, seed))
        return load_artifact(path, "transformer").meta["report"]

    def shipped(
        self, fleet: str = "planted", architecture: str | None = None, seed: int = 0
    ) -> "graphcircuits.cases.orders.Order":
        """Which subject of the package that is; an error if it is none."""
        from graphcircuits.cases.orders import Order, find_shipped

        order = Order(self.subject_id, fleet, architecture or "plain", seed)
        return find_shipped(self, order, any_architecture=architecture is None)

    def pairs(self, n: int, seed: int = 0) -> "graphcircuits.task.pairs.Pairs":
        """Clean and corrupted inputs, drawn independently, with the program's answers.

        Args:
            n: How many pairs.
            seed: Of the draw; the same pairs everywhere.

        Returns:
            Pairs for `localize`. The loss is the one that the paper's features use: KL to the
            program's answer where it is one of several classes, the absolute difference where it
            is a number. All positions but BOS count. A None answer is the first class, as in
            training.
        """
        if not isinstance(n, int):
            raise TypeError(f"n must be a whole number of pairs, got {n!r}.")
        if n < 1:
            raise ValueError(f"n must be at least 1 pair, got {n}.")
        import torch

        from graphcircuits.task.pairs import Pairs

        generator = torch.Generator().manual_seed(seed)
        codec = self.codec
        clean, corrupted = self.sample(n, generator), self.sample(n, generator)
        answers = [self.evaluate(xs) for xs in clean]
        targets = torch.zeros(n, self.max_seq_len, codec.d_vocab_out)
        for row, answer in zip(targets, answers, strict=True):
            for position, value in enumerate(answer, start=1):
                if self.outputs is None or codec.outputs is None:
                    row[position, 0] = 0.0 if value is None else value
                else:
                    named = self.outputs[0] if value is None else value
                    row[position, codec.outputs.index(named)] = 1.0
        scored = torch.ones(n, self.max_seq_len, dtype=torch.bool)
        scored[:, 0] = False
        return Pairs(
            clean=torch.stack([codec.encode(xs, task=self.task_token) for xs in clean]),
            corrupted=torch.stack([codec.encode(xs, task=self.task_token) for xs in corrupted]),
            scored=scored,
            loss_name="kl" if self.categorical else "l1",
            targets=targets if self.categorical else targets[..., 0],
            case=self.id,
            task=self.task,
        )

    @cached_property
    def graph(self) -> "graphcircuits.graph.ComponentGraph":
        """The component graph of the subject; to know it takes no compiled weights."""
        from graphcircuits.graph import ComponentGraph

        released = self.released_dims
        if released is not None:
            return ComponentGraph(released.n_layers, released.n_heads)
        return ComponentGraph(max(2, self.layout.n_layers), max(4, self.layout.n_heads))

    @property
    def circuit(self) -> "graphcircuits.circuit.Circuit":
        """The true circuit in the subject's graph: every read that the program makes."""
        return self.labels()

    def labels(
        self,
        labeling: str = DEFAULT_LABELS,
        graph: "graphcircuits.graph.ComponentGraph | None" = None,
    ) -> "graphcircuits.circuit.Circuit":
        """The true circuit in the subject's graph, under one of three labelings.

        `complete` has every read that the program makes, so that the circuit alone does the task.
        The other two are for comparison with published figures: `interpbench`, the public
        benchmark's rule, leaves out a read that another writer passes on; `paper` is the list
        published with the subject, known defects included, or, of the ten cases whose list we do
        not have, what was `worked_out` in its place. `graph` is that of a planted subject of
        another architecture, where heads may share keys and values.
        """
        from graphcircuits.circuit import Circuit
        from graphcircuits.fleets.exchange import edges_in

        graph = graph or self.graph

        if labeling not in LABELINGS:
            raise ValueError(f"unknown labeling {labeling!r}; choose from {', '.join(LABELINGS)}.")
        if labeling != "paper":
            rule = complete_edges if labeling == "complete" else interpbench_edges
            return Circuit.from_names(graph, edges_in(graph, rule(self.layout)))
        listed = self.published or self.worked_out
        if listed is None:
            raise ValueError(
                f"case {self.id!r} is none of the paper's, which has labels of its own for "
                "InterpBench's cases; use labels('complete') or labels('interpbench')."
            )
        return Circuit.from_names(graph, edges_in(graph, listed))
