"""RASP program -> transformer weights, the variable each component computes, and the true circuit.

The passes, in order: tabulate (values and tables), problems (every reason to refuse), lay_out
(layers and heads), write_weights (the transformer), and the two labelings of the circuit.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from graphcircuits.circuit import Circuit
from graphcircuits.drawing.notebook import ROWS, facts_html, framed, picture_html, table_html
from graphcircuits.graph import ComponentGraph
from graphcircuits.rasp.language import SOp
from graphcircuits.rasp.layout import Component, Layout, complete_edges, interpbench_edges, lay_out
from graphcircuits.rasp.tabulate import Tables, Variable, tabulate
from graphcircuits.rasp.validate import problems
from graphcircuits.rasp.values import Input, RaspError, Value, checked_input
from graphcircuits.rasp.weights import Stream, stream_of, write_weights
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer, TransformerConfig

CERTAIN = 0.01
"""How far from 0 or 1 a direction of a one-hot variable may be, at the most."""


def compile_program(
    program: SOp, *, vocab: Iterable[Value], max_seq_len: int, causal: bool = False
) -> "CompiledModel":
    """A program as exact transformer weights.

    Args:
        program: A sequence expression of `graphcircuits.rasp`.
        vocab: The tokens that inputs may hold.
        max_seq_len: The longest input, the BOS token counted.
        causal: Whether attention sees earlier positions only.

    Returns:
        The transformer, what each of its components computes, and its true circuit.

    Raises:
        RaspError: No exact weights exist; it says every reason at once.

    Example:
        >>> import graphcircuits as gc
        >>> from graphcircuits.rasp import Map, tokens
        >>> model = gc.compile_program(Map(lambda x: 2 * x, tokens), vocab=(1, 2), max_seq_len=4)
        >>> model.apply([1, 2])
        [2, 4]

    See docs/rasp.md, and Lindner et al. 2023, Tracr (arXiv:2301.05062).
    """
    tables = tabulate(program, vocab=vocab, max_seq_len=max_seq_len, causal=causal)
    if reasons := problems(tables):
        raise RaspError(
            f"{len(reasons)} expression{'s' if len(reasons) > 1 else ''} cannot be compiled: "
            + "; ".join(map(str, reasons))
            + "."
        )
    layout = lay_out(tables)
    stream = stream_of(tables)
    weights = write_weights(tables, layout, stream)
    return CompiledModel(
        transformer=_transformer(tables, layout, weights),
        tables=tables,
        layout=layout,
        stream=stream,
    )


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A program as a transformer, with everything that is known about it."""

    transformer: Transformer
    tables: Tables
    layout: Layout
    stream: Stream

    @property
    def components(self) -> tuple[Component, ...]:
        """Which variables every head and MLP reads and computes, in running order."""
        return self.layout.components

    @property
    def graph(self) -> ComponentGraph:
        return self.transformer.graph

    @property
    def circuit(self) -> Circuit:
        """The true circuit: every read that the program makes."""
        return self.labels()

    def labels(self, labeling: Literal["complete", "interpbench"] = "complete") -> Circuit:
        """The true circuit: `complete`, or `interpbench`, by the public benchmark's rule, which
        leaves out a read that another writer passes on."""
        rules = {"complete": complete_edges, "interpbench": interpbench_edges}
        if labeling not in rules:
            raise ValueError(f"unknown labeling {labeling!r}; choose from {', '.join(rules)}.")
        return Circuit.from_names(self.graph, rules[labeling](self.layout))

    def _repr_html_(self) -> str:
        rows = [[one.name, ", ".join(one.writes)] for one in self.components]
        circuit = self.circuit.mask.nonzero().flatten().tolist()
        return framed(
            facts_html("Compiled model", {"program": self.tables.program}),
            table_html(["component", "computes"], rows[:ROWS], total=len(rows)),
            picture_html(self.graph, circuit),
        )

    def apply(self, sequence: Input) -> list[Value]:
        """Run the transformer on one input and decode its output: the program's answer."""
        return self.apply_batch([sequence])[0]

    def apply_batch(self, sequences: Sequence[Input]) -> list[list[Value]]:
        """`apply` on many inputs; those of one length run together."""
        program = self.tables.program
        return [decoded[program] for decoded in self._decoded(sequences)]

    def variables(self, sequence: Input) -> dict[str, list[Value]]:
        """Every variable of the program as the transformer holds it, by label."""
        decoded = self._decoded([sequence])[0]
        return {self.tables.labels[sop]: values for sop, values in decoded.items()}

    def _decoded(self, sequences: Sequence[Input]) -> list[dict[SOp, list[Value]]]:
        by_length: dict[int, list[int]] = defaultdict(list)
        encoded = [self._encode(sequence) for sequence in sequences]
        for i, ids in enumerate(encoded):
            by_length[len(ids)].append(i)
        decoded: dict[int, dict[SOp, list[Value]]] = {}
        for chosen in by_length.values():
            with torch.no_grad():
                streams = self._probe.logits(torch.stack([encoded[i] for i in chosen]))[:, 1:]
            for i, stream in zip(chosen, streams.numpy(force=True), strict=True):
                decoded[i] = self._decode(stream)
        return [decoded[i] for i in range(len(sequences))]

    def _encode(self, sequence: Input) -> torch.Tensor:
        codec = self.transformer.codec
        assert codec is not None
        tokens = checked_input(sequence)
        try:
            return codec.encode(tokens, self.transformer.config.n_ctx)
        except TypeError as error:
            raise RaspError(f"the input holds a token that cannot be hashed: {error}.") from error
        except ValueError as error:
            raise RaspError(str(error)) from error

    @cached_property
    def _probe(self) -> Transformer:
        """The same transformer with the whole stream for logits."""
        width = self.stream.width
        whole = {"W_U": torch.eye(width, dtype=torch.float64), "b_U": torch.zeros(width).double()}
        return Transformer(
            replace(self.transformer.config, d_vocab_out=width), self.transformer.weights | whole
        )

    def _decode(self, stream: np.ndarray) -> dict[SOp, list[Value]]:
        # A value that is mixed in holds its share of the positions, which is 1 / length at least.
        certain = min(CERTAIN, 1 / (4 * self.tables.max_length))
        return {
            sop: _decode(variable, stream[:, self.stream.slices[sop]], certain)
            for sop, variable in self.tables.variables.items()
        }


def _transformer(tables: Tables, layout: Layout, weights: dict[str, np.ndarray]) -> Transformer:
    result = tables.variables[tables.program]
    codec = Codec(tables.vocab, None if result.numerical else result.values)
    config = TransformerConfig(
        n_layers=layout.n_layers,
        n_heads=layout.n_heads,
        d_model=weights["W_E"].shape[1],
        d_head=weights["W_Q"].shape[-1],
        d_mlp=weights["W_in"].shape[-1],
        n_ctx=tables.max_length + 1,
        d_vocab=codec.d_vocab,
        d_vocab_out=codec.d_vocab_out,
        causal=tables.causal,
        activation="relu",
    )
    tensors = {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in weights.items()}
    return Transformer(config, tensors, codec)


def _decode(variable: Variable, held: np.ndarray, certain: float) -> list[Value]:
    """Values from a variable's directions, one row per position; nothing at all is None."""
    if variable.numerical:
        return held[:, 0].tolist()
    on = held > 1 - certain
    if (~on & (np.abs(held) > certain)).any() or (on.sum(axis=1) > 1).any():
        raise RaspError(
            f"{variable.label!r} holds a mixture of values on this input: it aggregates several "
            "different ones, which its categorical encoding cannot represent."
        )
    return [variable.values[row.argmax()] if row.any() else None for row in on]
