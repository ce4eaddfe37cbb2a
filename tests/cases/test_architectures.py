"""Architectures by name: the sizes of cases in them, and which circuits they cannot hold."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.cases import SubjectDims, load_case
from graphcircuits.cases.architectures import (
    ARCHITECTURES,
    find_architecture,
    misfit,
    subject_config,
)
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.transformer import Transformer
from tests.cases.test_case import own_case

pytestmark = pytest.mark.usefixtures("unchecked")

EXPECTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "relu": {"activation": "relu"},
    "rotary": {"positions": "rotary"},
    "gpt2": {"norm": "layer", "activation": "gelu-tanh"},
    "neox": {"norm": "layer", "positions": "rotary", "rotary_dim": 4, "parallel": True},
    "llama": {
        "norm": "rms",
        "positions": "rotary",
        "activation": "silu",
        "gated_mlp": True,
        "biases": False,
    },
    "rms": {"norm": "rms", "activation": "silu"},
}
EXPECTED["llama-gqa"] = EXPECTED["llama"] | {"n_kv_heads": 2}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_sets_its_options_and_no_other(name: str) -> None:
    case = load_case("ib-3")
    config, plain = subject_config(case, name), subject_config(case)
    sizes = {key: getattr(config, key) for key in ("d_head", "d_model", "d_mlp")}
    assert config == replace(plain, **sizes, **EXPECTED[name])
    assert config.d_model == config.n_heads * config.d_head
    subject = Transformer.random(config, torch.Generator().manual_seed(0), case.codec)
    assert (subject.graph.n_layers, subject.graph.n_heads) == (2, 4)


@pytest.mark.parametrize(
    ("plain_head", "widen", "name", "sizes"),
    [
        (5, 1.0, "gpt2", (8, 32, 128)),
        (8, 1.0, "gpt2", (8, 32, 128)),
        (9, 1.0, "gpt2", (16, 64, 256)),
        (5, 1.0, "llama", (8, 32, 88)),
        (16, 1.0, "llama", (16, 64, 168)),
        (5, 1.5, "neox", (12, 48, 192)),
        (5, 0.1, "rotary", (4, 16, 64)),
        (5, 1.0, "plain", (5, 20, 80)),
        (5, 1.5, "plain", (8, 32, 128)),
    ],
)
def test_sizes_are_round(
    plain_head: int, widen: float, name: str, sizes: tuple[int, int, int]
) -> None:
    dims = SubjectDims(2, 4, plain_head, 4 * plain_head, 16 * plain_head)
    config = subject_config(own_case(released_dims=dims), name, widen)
    assert (config.d_head, config.d_model, config.d_mlp) == sizes


def test_heads_that_cannot_be_grouped_are_refused() -> None:
    case = own_case(released_dims=SubjectDims(2, 3, 4, 12, 48))
    with pytest.raises(ValueError, match=r"'mine' has 3 heads, which llama-gqa cannot put in gro"):
        subject_config(case, "llama-gqa")


def test_an_unknown_architecture_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown architecture 'bert'; choose from plain, relu, "):
        find_architecture("bert")


def test_a_circuit_that_the_graph_lacks_is_a_misfit() -> None:
    plain = ComponentGraph(2, 4)
    parallel, grouped = replace(plain, parallel=True), ComponentGraph(2, 4, n_kv_heads=2)
    reads = {"a0.h0->m0", "a0.h0->m1", "m1->logits"}
    said = misfit("x", ("a0.h0", "m0", "m1"), reads, parallel)
    assert said == (
        "case 'x': the program reads along a0.h0->m0, and in parallel layers an MLP does not read "
        "the heads of its layer; choose another architecture."
    )
    assert misfit("x", ("a0.h0", "m1"), reads - {"a0.h0->m0"}, parallel) is None
    assert misfit("x", ("a0.h0", "m0", "m1"), reads, plain) is None
    # Heads of one layer and group share keys and values; others do not.
    said = misfit("x", ("a1.h3", "a1.h2", "m0"), set(), grouped)
    assert said == (
        "case 'x': the program's heads a1.h2 and a1.h3 would share keys and values; choose another "
        "architecture."
    )
    assert misfit("x", ("a1.h1", "a1.h2", "a0.h0", "a0.h2"), set(), grouped) is None


def test_misfits_are_what_the_parallel_graph_has_no_edge_for() -> None:
    """Over listed cases, against the graph itself."""
    found = set()
    for id in ("ib-2", "ib-3", "ib-4", "ib-36", "tb-sort", "new-argsort"):
        case = load_case(id)
        graph = replace(case.graph, parallel=True)
        edges = case.labels("complete").edges
        components = [part.name for part in case.layout.components]
        try:
            Circuit.from_names(graph, edges)
            fits = True
        except ValueError:
            fits = False
        assert (misfit(id, components, edges, graph) is None) is fits
        found.add(fits)
    assert found == {True, False}
