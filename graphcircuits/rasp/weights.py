"""Tables + layout -> the weights of a transformer that runs the program exactly.

The residual stream has a direction that is 1 everywhere, one per token (BOS and PAD included), one
per index, one per value of every categorical variable, one for every numerical variable, and one
for what the head of each selector width writes. Nothing is ever overwritten.

Attention is a softmax of inverse temperature 100 over scores that count met conditions. BOS scores
half a condition less than a selected key, so it is attended where nothing is selected, and then
writes the default. For a selector width BOS scores as much as a selected key and alone writes 1:
the head gives 1 / (width + 1), and the MLP of the layer decodes it.

MLPs are look-ups in ReLU units: one unit per image for a map, one per pair for a combination,
two per threshold for a function of a number.

What a variable holds at BOS is known (an aggregate's default, else nothing) and every reader takes
it off again, so that BOS carries no value for anyone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphcircuits.rasp.language import (
    Aggregate,
    Full,
    LinearSequenceMap,
    Map,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
)
from graphcircuits.rasp.layout import Layout
from graphcircuits.rasp.size import conjunction, directions
from graphcircuits.rasp.tabulate import NONE, Tables
from graphcircuits.rasp.validate import clusters

INVERSE_TEMPERATURE = 100.0
ONE = 0
"""The direction that is 1 at every position."""
BOS = 1
"""The direction of the beginning-of-sequence token. PAD follows it."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Which directions of the residual stream hold what."""

    width: int
    slices: Mapping[SOp, slice]
    width_index: Mapping[SelectorWidth, int]
    """Where the head of a selector width leaves 1 / (width + 1)."""


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    """Some hidden units of an MLP: what they read, their thresholds, what they write."""

    read: np.ndarray
    bias: np.ndarray
    write: np.ndarray


def stream_of(tables: Tables) -> Stream:
    """Allot directions: 1, tokens with BOS and PAD, indices, variables, selector widths."""
    start = BOS + 2
    slices: dict[SOp, slice] = {}
    for sop, size in directions(tables).items():
        slices[sop] = slice(start, start + size)
        start += size
    widths = [sop for sop in tables.variables if isinstance(sop, SelectorWidth)]
    return Stream(start + len(widths), slices, {sop: start + i for i, sop in enumerate(widths)})


def write_weights(tables: Tables, layout: Layout, stream: Stream) -> dict[str, np.ndarray]:
    """Every weight of the compiled transformer, stacked over layers."""
    writer = _Writer(tables, stream)
    heads = [[writer.head(sop) for sop in layer] for layer in layout.heads]
    mlps = [[writer.block(sop) for sop in layer] for layer in layout.functions]
    return {
        **writer.embeddings(),
        **_stack_heads(layout, stream, heads),
        **_stack_mlps(stream, mlps),
    }


class _Writer:
    """Writes the weights of one variable at a time."""

    def __init__(self, tables: Tables, stream: Stream) -> None:
        self.tables = tables
        self.stream = stream

    # Embedding and unembedding

    def embeddings(self) -> dict[str, np.ndarray]:
        """One-hot tokens and indices; BOS has no index. The logits are the result's directions."""
        d_vocab, length = len(self.tables.vocab) + 2, self.tables.max_length
        W_E = np.zeros((d_vocab, self.stream.width))
        W_E[:, ONE] = 1
        W_E[:, BOS : BOS + d_vocab] = np.eye(d_vocab)
        W_pos = np.zeros((length + 1, self.stream.width))
        W_pos[1:, self.stream.slices[indices]] = np.eye(length)
        W_U = np.eye(self.stream.width)[:, self.stream.slices[self.tables.program]]
        return {"W_E": W_E, "W_pos": W_pos, "W_U": W_U, "b_U": np.zeros(W_U.shape[1])}

    # Reading and writing a variable

    def at_bos(self, sop: SOp) -> np.ndarray:
        """What a variable's directions hold at BOS: the default of an aggregate, else nothing."""
        directions_of = self.stream.slices[sop]
        held = np.zeros(directions_of.stop - directions_of.start)
        if isinstance(sop, Aggregate) and sop.default is not None:
            numerical = self.tables.variables[sop].numerical
            held[0 if numerical else self.tables.variables[sop].codes[sop.default]] = (
                sop.default if numerical else 1
            )
        return held

    def read(self, sop: SOp, matrix: np.ndarray) -> np.ndarray:
        """A matrix on a variable's directions as one on the stream, blind to BOS."""
        read = np.zeros((self.stream.width, matrix.shape[1]))
        read[self.stream.slices[sop]] = matrix
        read[BOS] = -self.at_bos(sop) @ matrix
        return read

    def written(self, sop: SOp, matrix: np.ndarray) -> np.ndarray:
        """A matrix into a variable's directions as one into the stream."""
        write = np.zeros((matrix.shape[0], self.stream.width))
        write[:, self.stream.slices[sop]] = matrix
        return write

    # Heads

    def head(self, sop: SOp) -> dict[str, np.ndarray]:
        """Queries, keys, values and output of the head that computes `sop`; keys score 0 to n."""
        assert isinstance(sop, Aggregate | SelectorWidth)
        queries, keys = [], []
        conditions = conjunction(self.tables, sop.selector)
        for condition in conditions:
            n_keys, n_queries = condition.table.shape
            table = condition.table.astype(np.float64)
            if n_keys <= n_queries:
                to_query, to_key = table.T, np.eye(n_keys)
            else:
                to_query, to_key = np.eye(n_queries), table
            queries.append(self.read(condition.queries, to_query))
            keys.append(self.read(condition.keys, to_key))
        at_bos = np.zeros((self.stream.width, 1))
        at_bos[BOS] = len(conditions) - (0.0 if isinstance(sop, SelectorWidth) else 0.5)
        everywhere = np.zeros((self.stream.width, 1))
        everywhere[ONE] = 1
        value, output = self.moved(sop)
        return {
            "W_Q": INVERSE_TEMPERATURE * np.hstack([*queries, everywhere]),
            "W_K": np.hstack([*keys, at_bos]),
            "W_V": value,
            "W_O": output,
        }

    def moved(self, sop: Aggregate | SelectorWidth) -> tuple[np.ndarray, np.ndarray]:
        """What a head takes from each position and where it puts it."""
        if isinstance(sop, SelectorWidth):
            value = np.zeros((self.stream.width, 1))
            output = np.zeros((1, self.stream.width))
            value[BOS] = output[0, self.stream.width_index[sop]] = 1
            return value, output
        if self.tables.variables[sop].numerical:
            recode = np.ones((1, 1))
        else:
            source, target = self.tables.variables[sop.values], self.tables.variables[sop]
            recode = np.zeros((len(source.values), len(target.values)))
            recode[range(len(source.values)), [target.codes[value] for value in source.values]] = 1
        value = self.read(sop.values, recode)
        value[BOS] += self.at_bos(sop)
        return value, self.written(sop, np.eye(recode.shape[1]))

    # MLP functions

    def block(self, sop: SOp) -> HiddenUnits:
        """The hidden units that compute `sop`."""
        match sop:
            case SelectorWidth():
                widths = np.arange(self.tables.max_length + 1)[::-1]
                return self.stepped(sop, self.stream.width_index[sop], 1 / (widths + 1.0), widths)
            case LinearSequenceMap():
                return self.linear(sop)
            case Full():
                n = self.tables.max_length
                return self.mapped(sop, indices, np.zeros(n, dtype=np.int64))
            case Map():
                table = self.tables.functions[sop][:-1]
                source = self.tables.variables[sop.inner]
                if source.numerical:
                    direction = self.stream.slices[sop.inner].start
                    return self.stepped(sop, direction, source.numbers[:-1], table)
                return self.mapped(sop, sop.inner, table)
            case SequenceMap():
                table = self.tables.functions[sop][:-1, :-1]
                if sop.fst is sop.snd:
                    return self.mapped(sop, sop.fst, table.diagonal())
                return self.combined(sop, table)
        raise AssertionError(f"no weights for {sop!r}")

    def images(self, sop: SOp) -> np.ndarray:
        """How each value of `sop` is written; None, the last row, as nothing."""
        variable = self.tables.variables[sop]
        if variable.numerical:
            return np.nan_to_num(variable.numbers)[:, None]
        return np.eye(len(variable.values) + 1)[:, :-1]

    def mapped(self, sop: SOp, inner: SOp, table: np.ndarray) -> HiddenUnits:
        """One unit per image, on when the input is any value with that image."""
        images = self.images(sop)
        needed = [code for code in np.unique(table) if images[code].any()]
        read = (table[:, None] == np.array(needed)[None, :]).astype(np.float64)
        read = read.reshape(len(table), len(needed))
        return HiddenUnits(
            self.read(inner, read), np.zeros(len(needed)), self.written(sop, images[needed])
        )

    def combined(self, sop: SequenceMap, table: np.ndarray) -> HiddenUnits:
        """One unit per pair of values that has an image: on when both are there."""
        first, second = np.nonzero(table != NONE)
        read = self.read(sop.fst, np.eye(table.shape[0])[:, first])
        read += self.read(sop.snd, np.eye(table.shape[1])[:, second])
        images = self.images(sop)[table[first, second]]
        return HiddenUnits(read, np.full(len(first), -1.0), self.written(sop, images))

    def linear(self, sop: LinearSequenceMap) -> HiddenUnits:
        """The positive and the negative part of both inputs, times their factors."""
        signs = np.array([[1.0, -1.0]])
        read = np.hstack([self.read(sop.fst, signs), self.read(sop.snd, signs)])
        factors = np.array([[sop.fst_fac], [sop.snd_fac]]) * signs
        return HiddenUnits(read, np.zeros(4), self.written(sop, factors.reshape(4, 1)))

    def stepped(
        self, sop: SOp, direction: int, values: np.ndarray, table: np.ndarray
    ) -> HiddenUnits:
        """A function of the number in `direction`: the lowest image, then one step per threshold.

        A step is the difference of two units around the middle between neighbouring values with
        different images. A last unit, off at BOS like all the others, carries the lowest image.
        """
        borders = np.flatnonzero(np.diff(clusters(values)) * np.diff(table))
        below, above = values[borders], values[borders + 1]
        slope = 2 / (above - below)
        middle = (above + below) / 2
        n = len(borders)
        read = np.zeros((self.stream.width, 2 * n + 1))
        read[direction, : 2 * n] = np.concatenate([slope, slope])
        bias = np.concatenate([0.5 - slope * middle, -0.5 - slope * middle, [1.0]])
        reach = np.abs(values).max() + 1
        read[BOS] = -(np.abs(read[direction]) * reach + np.abs(bias))
        images = self.images(sop)[table]
        steps = images[borders + 1] - images[borders]
        write = np.concatenate([steps, -steps, images[:1]])
        return HiddenUnits(read, bias, self.written(sop, write))


def _stack_heads(
    layout: Layout, stream: Stream, heads: list[list[dict[str, np.ndarray]]]
) -> dict[str, np.ndarray]:
    sizes = [
        matrix.shape[1] for layer in heads for head in layer for matrix in list(head.values())[:3]
    ]
    d_head = max(sizes, default=1)
    shape = (layout.n_layers, layout.n_heads)
    weights = {name: np.zeros((*shape, stream.width, d_head)) for name in ("W_Q", "W_K", "W_V")}
    weights["W_O"] = np.zeros((*shape, d_head, stream.width))
    for i, layer in enumerate(heads):
        for j, head in enumerate(layer):
            for name, matrix in head.items():
                weights[name][i, j, : matrix.shape[0], : matrix.shape[1]] = matrix
    weights["W_Q"] *= d_head**0.5
    biases = {name: np.zeros((*shape, d_head)) for name in ("b_Q", "b_K", "b_V")}
    return weights | biases | {"b_O": np.zeros((layout.n_layers, stream.width))}


def _stack_mlps(stream: Stream, mlps: list[list[HiddenUnits]]) -> dict[str, np.ndarray]:
    n_layers = len(mlps)
    d_mlp = max(1, *(sum(len(block.bias) for block in layer) for layer in mlps))
    weights = {
        "W_in": np.zeros((n_layers, stream.width, d_mlp)),
        "b_in": np.zeros((n_layers, d_mlp)),
        "W_out": np.zeros((n_layers, d_mlp, stream.width)),
        "b_out": np.zeros((n_layers, stream.width)),
    }
    for i, layer in enumerate(mlps):
        start = 0
        for block in layer:
            units = slice(start, start + len(block.bias))
            weights["W_in"][i, :, units] = block.read
            weights["b_in"][i, units] = block.bias
            weights["W_out"][i, units] = block.write
            start = units.stop
    return weights
