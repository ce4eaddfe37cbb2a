"""What tests of cases share: inputs, comparison, layout, untrained subjects."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

from torch import Generator

from graphcircuits.cases import Case, load_case
from graphcircuits.cases.architectures import subject_config
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.rasp.lookup import run
from graphcircuits.subject.transformer import Transformer
from tests.rasp.columns import decode, encode

Oracle = Callable[[list[Any]], list[Any]]
"""The task in plain Python: from an input to the output at every position."""


def untrained(order: Order, case: Case | MultiCase) -> Transformer:
    """The subject of an order before its training."""
    config = subject_config(case, order.architecture)
    return Transformer.random(config, Generator().manual_seed(order.seed), case.codec)


def drawn_inputs(case: Case, n: int) -> list[list[Any]]:
    """Half uniform inputs of all the lengths that the case allows, half from its own sampler."""
    random = Random(case.id)
    lengths = range(case.min_seq_len - 1, case.max_seq_len)
    uniform = [random.choices(case.vocab, k=random.choice(lengths)) for _ in range(n - n // 2)]
    return uniform + case.sample(n // 2, Generator().manual_seed(0))


def assert_same(got: Sequence[Any], expected: Sequence[Any], *, within: float = 1e-9) -> None:
    """Equal position by position; numbers up to rounding, and None only where None is due."""
    assert len(got) == len(expected)
    for x, y in zip(got, expected, strict=True):
        numbers = isinstance(x, int | float) and isinstance(y, int | float)
        close = numbers and math.isclose(x, y, rel_tol=within, abs_tol=within)
        assert x == y or close, f"{list(got)} is not {list(expected)}"


@cache
def interpreted(id: str) -> list[tuple[list[Any], list[Any]]]:
    """Fifty inputs of a case with the interpreter's outputs."""
    case = load_case(id)
    return [(xs, case.evaluate(xs)) for xs in drawn_inputs(case, 50)]


def looked_up(case: Case, inputs: list[list[Any]]) -> list[list[Any]]:
    """The interpreter's outputs by table, for many inputs."""
    columns = run(case.tables, encode(case.tables, inputs)).columns[case.program]
    rows = (column[: len(xs)] for xs, column in zip(inputs, columns, strict=True))
    return [decode(case.tables, case.program, row) for row in rows]


def most_common_share(case: Case, n: int = 1000) -> float:
    """How often the most common output sequence comes, among inputs from the case's sampler."""
    inputs = case.sample(n, Generator().manual_seed(1))
    outputs = run(case.tables, encode(case.tables, inputs)).columns[case.program]
    return Counter(map(tuple, outputs.tolist())).most_common(1)[0][1] / n


def layout_of(case: Case) -> dict[str, Any]:
    """Layers, heads by layer and the layers with an MLP, in the words of the reference."""
    layout = case.layout
    return {
        "layers": layout.n_layers,
        "heads_by_layer": [len(heads) for heads in layout.heads],
        "mlp_layers": [layer for layer, functions in enumerate(layout.functions) if functions],
    }
