"""The loss as a function of one read input: equal to slow runs that replace it by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.interactions import SharedRead, first_order
from graphcircuits.methods.eap import effects
from tests.methods.tasks import make_pairs, output_sum
from tests.subjects import SOME, make_subject

READERS = ["a1.h1<q>", "a1.h2<k>", "a1.g0<k>", "a1.h0<v>", "a1.g0<v>", "m0", "m1", "logits"]


def a_read(architecture: str, reader: str, **options: Any) -> SharedRead:
    subject = make_subject(architecture)
    return SharedRead.of(subject, make_pairs(subject, "cross-entropy"), reader, **options)


def patched_losses(read: SharedRead, edges: Sequence[str]) -> Float[Tensor, "place batch"]:
    """The slow way: for each position a run with a mask that cuts these edges there."""
    graph, pos = read.subject.graph, read.pairs.clean.shape[1]
    masks = torch.ones(pos, graph.n_edges, pos, dtype=torch.float64)
    masks[:, graph.edge_indices(edges)] -= torch.eye(pos)[:, None]
    corrupted = read.subject.run(read.pairs.corrupted).writers
    return read.pairs.loss(masked_logits(read.subject, read.pairs.clean, masks, corrupted))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", SOME)
def test_replacing_a_read_is_a_run_masked_at_one_position(architecture: str) -> None:
    graph = make_subject(architecture).graph
    for reader in set(READERS) & set(graph.reader_names):
        if graph.reads[graph.reader_names.index(reader)] > 1:
            read = a_read(architecture, reader)
            first, last = 0, len(read.edges) - 1
            both = read.losses(read.inputs + read.changes[first] + read.changes[last])
            slow = patched_losses(read, [read.edges[first], read.edges[last]])
            torch.testing.assert_close(both, slow)


def test_the_clean_input_gives_the_clean_loss() -> None:
    for reader in ("a1.h1<q>", "m0", "logits"):
        read = a_read("layer-norm", reader)
        clean = read.pairs.loss(read.subject.logits(read.pairs.clean))
        torch.testing.assert_close(read.losses(read.inputs), clean.expand(5, -1))


def test_positions_and_scale() -> None:
    read = a_read("plain", "m1")
    some = a_read("plain", "m1", positions=[3, 1], edges=["a0.h1->m1", "input->m1"])
    torch.testing.assert_close(some.changes, read.changes[[2, 0]][:, [3, 1]])
    torch.testing.assert_close(some.inputs, read.inputs[[3, 1]])
    expected = read.losses(read.inputs + read.changes[0])[[3, 1]]
    torch.testing.assert_close(some.losses(some.inputs + some.changes[1]), expected)


@pytest.mark.parametrize("reader", ["a1.h2<k>", "a1.h0<v>", "m1", "logits"])
def test_first_order_adds_up_to_eap(reader: str) -> None:
    read = a_read("rms-norm", reader)
    expected = effects(read.subject, read.pairs, "inputs", (torch.ones(1),))[0]
    edges = read.subject.graph.edge_indices(read.edges)
    torch.testing.assert_close(first_order(read, memory_limit=1).sum(1).T, expected[:, edges])


@pytest.mark.parametrize(
    ("architecture", "reader", "kinks"),
    [
        ("plain", "m0", ()),
        ("relu", "m0", ("relu in m0, m1",)),
        ("relu", "a1.h1<q>", ("relu in m1",)),
        ("relu", "m1", ("relu in m1",)),
        ("relu", "logits", ()),
    ],
)
def test_kinks(architecture: str, reader: str, kinks: tuple[str, ...]) -> None:
    assert a_read(architecture, reader).kinks == kinks


def test_kinks_of_parallel_layers_and_losses() -> None:
    parallel = make_subject("parallel", activation="relu")
    pairs = make_pairs(parallel)
    # In a parallel layer the MLP does not read the heads.
    assert SharedRead.of(parallel, pairs, "a1.h1<q>").kinks == ()
    assert SharedRead.of(parallel, pairs, "m1").kinks == ("relu in m1",)
    number = make_subject("relu", d_vocab_out=1)
    kinks = SharedRead.of(number, make_pairs(number, "l1"), "m1").kinks
    assert kinks == ("relu in m1", "an l1 loss")
    assert SharedRead.of(number, make_pairs(number, output_sum), "logits").kinks == ()


@pytest.mark.parametrize(
    ("reader", "options", "text"),
    [
        ("m2", {}, r"unknown reader 'm2' \(near: m1, m0\) in a graph of 2 layers x 4 heads"),
        ("a0.h0<q>", {}, "needs two or more different edges, got input->a0.h0<q>"),
        ("m1", {"edges": ["input->m1", "input->m0"]}, "edges must end in m1, got input->m0"),
        ("m1", {"edges": ["input->m1", "m1->m1"]}, "unknown edge 'm1->m1'"),
        ("m1", {"positions": []}, r"positions must be some of 0..4, got \[\]"),
        ("m1", {"positions": [5]}, r"positions must be some of 0..4, got \[5\]"),
    ],
)
def test_refusals(reader: str, options: dict[str, Any], text: str) -> None:
    subject = make_subject()
    with pytest.raises(ValueError, match=text):
        SharedRead.of(subject, make_pairs(subject), reader, **options)
