"""Small language models with programs planted in them: `plm-3` is one, `plm-3@sort` a case of it.

1. A `LanguageModel` has a design (architecture, layers, heads, width, size of the vocabulary) and
   the calls that it answers (`calls`), each with the components that carry its variables.
2. `planted_layout` is the layout of a call's program there. A variable that does not depend on the
   words of the call is the same for clean and corrupted prompts, as is the name of the call, so
   neither is in a circuit: what only says where and what to compute may come from anywhere.
3. A `CallCase` is one call of a model: its prompts are texts, scored where the answers are.

`data/language.json` lists the models of the benchmark: which calls, where, and in which part of the
split. Test models ship; `python -m lab.factory planted` makes all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcircuits.cases import LANGUAGE, stored
from graphcircuits.cases.architectures import find_architecture
from graphcircuits.cases.calls import CALLS, COLON, GIVES, Call
from graphcircuits.cases.case import OWN, Case
from graphcircuits.cases.multitask import AT
from graphcircuits.cases.tokens import END, merges, text_codec, tokenizer, word_ids
from graphcircuits.rasp.expression import walk
from graphcircuits.rasp.language import tokens
from graphcircuits.rasp.layout import WIDTH_SUFFIX, Layout, lay_out
from graphcircuits.rasp.tabulate import Tables

if TYPE_CHECKING:
    import graphcircuits.cases.orders
    import graphcircuits.graph
    import graphcircuits.subject.codec
    import graphcircuits.subject.transformer
    import graphcircuits.task.pairs

CONTEXT = 128


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a model looks like."""

    architecture: str
    """A name of `architectures.ARCHITECTURES`: gpt2, neox, llama or llama-gqa."""
    layers: int
    heads: int
    width: int
    vocabulary: int

    @cached_property
    def config(self) -> "graphcircuits.subject.transformer.TransformerConfig":
        from graphcircuits.subject.transformer import TransformerConfig

        chosen, d_head = find_architecture(self.architecture), self.width // self.heads
        return TransformerConfig(
            n_layers=self.layers,
            n_heads=self.heads,
            d_head=d_head,
            d_model=self.width,
            d_mlp=8 * round(self.width / 3) if chosen.gated_mlp else 4 * self.width,
            n_ctx=CONTEXT,
            d_vocab=self.vocabulary,
            d_vocab_out=self.vocabulary,
            causal=True,
            **chosen.options(self.heads, d_head),
        )

    @cached_property
    def graph(self) -> "graphcircuits.graph.ComponentGraph":
        from graphcircuits.subject.components import graph_of

        return graph_of(self.config)


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageModel:
    """A language model that answers calls, each by a known circuit.

    Example:
        >>> import graphcircuits as gc
        >>> model = gc.load_case("plm-0@count").model
        >>> model.design.architecture
        'gpt2'

    See docs/planted-language-models.md.
    """

    id: str
    design: Design
    calls: tuple[Call, ...]
    places: Mapping[str, Mapping[str, str]]
    """By call: which component of the model has the part of which one of the program's own."""
    shared: bool = True
    """Whether calls use the same heads, where they can."""
    seed: int = 0
    split: str | None = None
    fold: int | None = None
    groups: Mapping[str, str] | None = None
    """Of each call: what it is related to, as random programs are."""

    @classmethod
    def read(cls, path: str | Path, calls: Iterable[Call]) -> "LanguageModel":
        """The model in a file of `python -m lab.factory planted --calls`.

        Args:
            path: The file, which says where each call is planted.
            calls: Those calls; a file holds their names, not their programs.

        Returns:
            The model; `load_transformer` reads its weights.
        """
        from graphcircuits.io.store import load_artifact

        by_name, artifact = {call.name: call for call in calls}, load_artifact(path, "transformer")
        report = artifact.meta.get("report", {})
        if report.get("fleet") != LANGUAGE:
            raise ValueError(f"{path} holds no planted language model.")
        if missing := report["places"].keys() - by_name:
            raise ValueError(f"{path} has calls that were not given: {', '.join(sorted(missing))}.")
        return cls(
            id=report["case"],
            design=Design(**report["design"]),
            calls=tuple(by_name[name] for name in report["places"]),
            places=report["places"],
            shared=report["shared"],
            seed=artifact.seed or 0,
        )

    @cached_property
    def cases(self) -> "tuple[CallCase, ...]":
        """Each call as a case."""
        return tuple(_case(self, call) for call in self.calls)

    def case(self, name: str) -> "CallCase":
        """The case of that call, such as sort."""
        for case in self.cases:
            if case.call.name == name:
                return case
        known = ", ".join(call.name for call in self.calls)
        raise ValueError(f"the model {self.id!r} has no call {name!r}; choose from {known}.")

    def tokenizer(self) -> Any:
        """What turns any text into the model's tokens. It needs the extra `hf`."""
        return tokenizer(merges(), self.design.vocabulary)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CallCase(Case):
    """A call of a language model: its prompts as text, and its circuit in that model.

    Program, vocabulary and outputs are those of the program alone; graph, codec and subject those
    of the model.
    """

    call: Call
    model: LanguageModel

    @property
    def subject_id(self) -> str:
        return self.model.id

    @cached_property
    def tables(self) -> Tables:
        return self.call.tables

    @cached_property
    def layout(self) -> Layout:
        """Which component of the model computes which variable; constants left out."""
        return planted_layout(self.call, self.model.places[self.call.name])

    @cached_property
    def graph(self) -> "graphcircuits.graph.ComponentGraph":
        return self.model.design.graph

    @property
    def codec(self) -> "graphcircuits.subject.codec.Codec":
        """The model's tokens, which are its classes too."""
        return text_codec(self.model.design.vocabulary)

    def shipped(
        self, fleet: str = LANGUAGE, architecture: str | None = None, seed: int = 0
    ) -> "graphcircuits.cases.orders.Order":
        """Which subject of the package that is; there is one of each model."""
        from graphcircuits.cases.orders import Order, shipped_path

        if architecture not in (None, "plain", self.model.design.architecture) or seed != 0:
            raise ValueError(
                f"there is one {self.model.id}, and no other of architecture {architecture} and "
                f"seed {seed}."
            )
        if self.model.split is None:
            raise FileNotFoundError(
                f"{self.model.id} is a model of your own; read its file with "
                "graphcircuits.load_transformer."
            )
        order = Order(self.model.id, fleet)
        if not shipped_path(order).is_file():
            raise FileNotFoundError(
                f"{self.model.id} is not shipped, as the models of the pool are not; make it in a "
                f"clone of the repository: python -m lab.factory planted DIR --models "
                f"{self.model.id}, and read it with graphcircuits.load_transformer."
            )
        return order

    def sample(self, n: int, generator: Any) -> list[list[Any]]:
        """Windows: the words of `n` calls, `=`, and the answers that are read again."""
        return [self.window(words) for words in self.call.sample(n, generator)]

    def window(self, words: Sequence[str]) -> list[str]:
        return [*words, GIVES, *self.call.answer(words)[:-1]]

    def prompt(self, words: Sequence[str]) -> str:
        """The text of a call, up to its last answer."""
        return " ".join([self.call.name, COLON, *self.window(words)])

    def pairs(self, n: int, seed: int = 0) -> "graphcircuits.task.pairs.Pairs":
        """Clean and corrupted calls whose answers differ, scored where the answers are.

        Args:
            n: How many pairs.
            seed: Of the draw; the same pairs everywhere.

        Returns:
            Pairs for `localize`, with the right answers as targets of a cross-entropy.
        """
        if not isinstance(n, int):
            raise TypeError(f"n must be a whole number of pairs, got {n!r}.")
        if n < 1:
            raise ValueError(f"n must be at least 1 pair, got {n}.")
        import torch

        from graphcircuits.task.pairs import Pairs

        generator = torch.Generator().manual_seed(seed)
        clean = self.call.sample(n, generator)
        corrupted = [self._other(words, generator) for words in clean]
        prompts, others = (
            torch.tensor([[self.ids[word] for word in self._spoken(words)] for words in several])
            for several in (clean, corrupted)
        )
        scored = torch.zeros(prompts.shape, dtype=torch.bool)
        scored[:, -self.call.answers :] = True
        targets = torch.zeros(scored.shape, dtype=torch.int64)
        answers = [[self.ids[word] for word in self.call.answer(words)] for words in clean]
        targets[:, -self.call.answers :] = torch.tensor(answers)
        return Pairs(
            clean=prompts,
            corrupted=others,
            scored=scored,
            loss_name="cross-entropy",
            targets=targets,
            case=self.id,
            task=self.task,
        )

    def _spoken(self, words: Sequence[str]) -> list[str]:
        return [END, self.call.name, COLON, *self.window(words)]

    def _other(self, words: list[str], generator: Any) -> list[str]:
        """Words that give another answer."""
        answer = self.call.answer(words)
        for _ in range(1000):
            (other,) = self.call.sample(1, generator)
            if self.call.answer(other) != answer:
                return other
        raise ValueError(f"call {self.call.name!r}: hardly any input is answered unlike {words}.")

    @cached_property
    def ids(self) -> dict[str, int]:
        """The tokens of the call's words: its name as it begins a text, others behind a space."""
        return word_ids(self.call, self.model.design.vocabulary)


def _case(model: LanguageModel, call: Call) -> CallCase:
    return CallCase(
        id=f"{model.id}{AT}{call.name}",
        name=f"{call.name} in {model.id}",
        task=call.task,
        program=call.program,
        vocab=call.tables.vocab,
        max_seq_len=call.window + 1,
        causal=True,
        family=OWN if model.split is None else LANGUAGE,
        split=model.split,
        fold=model.fold,
        group=None if model.groups is None else model.groups[call.name],
        call=call,
        model=model,
    )


# --- the truth -----------------------------------------------------------------------------------


def planted_layout(call: Call, places: Mapping[str, str] | None = None) -> Layout:
    """The layout of a call's program without its constants, moved to other components."""
    tables = call.tables
    depend = [sop for sop in tables.variables if any(x is tokens for x in walk(sop))]
    varies = {tables.labels[sop] for sop in depend}

    def varying(labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(x for x in labels if x.removesuffix(WIDTH_SUFFIX) in varies)

    layout = lay_out(tables)
    components = []
    for one in layout.components:
        if writes := varying(one.writes):
            reads = {slot: varying(labels) for slot, labels in one.reads.items()}
            name = one.name if places is None else places[one.name]
            layer = int(name.partition(".")[0][1:])
            components.append(replace(one, name=name, layer=layer, reads=reads, writes=writes))
    components.sort(key=lambda one: (one.layer, not one.is_head, one.name))
    heads = [int(one.name.partition(".h")[2]) for one in components if one.is_head]
    return replace(
        layout,
        n_layers=1 + max(one.layer for one in components),
        n_heads=1 + max(heads, default=0),
        components=tuple(components),
    )


# --- the models of the benchmark -----------------------------------------------------------------


def language_ids(split: str | None = None) -> list[str]:
    """Cases of the benchmark's language models that passed: of `test`, `pool`, a fold, or all."""
    return [
        f"{id}{AT}{name}"
        for id, record in language_records().items()
        if split in (None, record["split"], f"fold-{record.get('fold')}")
        for name in record["passed"]
    ]


@cache
def load_language(id: str) -> LanguageModel:
    """The planted language model of that id, such as plm-3."""
    record = language_records().get(id)
    if record is None:
        known = list(language_records())
        raise ValueError(
            f"unknown planted language model {id!r}; there are {known[0]} to {known[-1]}."
        )
    return LanguageModel(
        id=id,
        design=Design(**record["design"]),
        calls=tuple(CALLS[name] for name in record["places"]),
        places=record["places"],
        shared=record["shared"],
        seed=record["seed"],
        split=record["split"],
        fold=record.get("fold"),
        groups=record["groups"],
    )


def load_call(id: str) -> CallCase:
    """The case of that id, such as plm-3@sort."""
    model, at, name = id.partition(AT)
    loaded = load_language(model)
    if not at:
        ids = ", ".join(case.id for case in loaded.cases)
        raise ValueError(f"{id!r} is a model that answers several calls; choose from {ids}.")
    return loaded.case(name)


def language_records() -> Mapping[str, Mapping[str, Any]]:
    """What `data/language.json` says about every model."""
    return stored("language")
