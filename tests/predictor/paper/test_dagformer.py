"""DAGformer: both attentions against loops over nodes and predecessors."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from graphcircuits.predictor.paper import dagformer
from graphcircuits.predictor.paper.dagformer import (
    FLOOR,
    Attention,
    Dagformer,
    PredecessorAttention,
    factorized_attention,
    orthogonal_features,
    softmax_attention,
)
from graphcircuits.predictor.paper.transform import (
    Connectivity,
    Endpoints,
    Neighbourhoods,
    Transformation,
    neighbourhoods,
)
from tests.predictor.graphs import (
    CHOICES,
    GRAPHS,
    SETTINGS,
    precedes,
    renumbered,
    seeded,
    states,
    thinned,
)
from tests.tiers import some

ATTENTIONS: tuple[Attention, ...] = ("softmax", "factorized")
PROJECTION = orthogonal_features(6, 3, seeded(0)).double()

Triple = tuple[Tensor, Tensor, Tensor]


def implicit(kind: Attention, qkv: Triple, n: Neighbourhoods) -> Tensor:
    if kind == "softmax":
        return softmax_attention(*qkv, n)
    return factorized_attention(*qkv, n, PROJECTION.to(qkv[0].dtype))


def softmax_loop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query over its predecessors."""
    scores = torch.stack([q @ key for key in k]) / q.shape[-1] ** 0.5
    return scores.softmax(0) @ v


def factorized_loop(q: Tensor, k: Tensor, v: Tensor, projection: Tensor = PROJECTION) -> Tensor:
    """One query over its predecessors, by the formula of the paper."""
    scale = q.shape[-1] ** -0.25

    def exponent(x: Tensor) -> Tensor:
        x = x * scale
        return projection @ x - x @ x / 2

    own = exponent(q)
    query = (own - own.max().detach()).exp() + FLOOR
    exponents = [exponent(key) for key in k]
    highest = torch.stack(exponents).max().detach()
    keys = [(each - highest).exp() + FLOOR for each in exponents]
    above = sum((query @ key * value for key, value in zip(keys, v, strict=True)), 0 * v[0])
    return above / torch.stack([query @ key for key in keys]).sum()


LOOPS: dict[Attention, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "softmax": softmax_loop,
    "factorized": factorized_loop,
}


def explicit(kind: Attention, qkv: Triple, arcs: Tensor) -> Tensor:
    """Context by context, head by head, node by node over a dense adjacency."""
    q, k, v = qkv
    rows = []
    for context in range(q.shape[0]):
        for head in range(q.shape[1]):
            for node in range(q.shape[2]):
                before = arcs[:, node].nonzero().flatten()
                keys, values = k[context, head, before], v[context, head, before]
                out = LOOPS[kind](q[context, head, node], keys, values) if len(before) else None
                rows.append(torch.zeros_like(q[0, 0, 0]) if out is None else out)
    return torch.stack(rows).reshape(q.shape)


def triple(n_nodes: int, contexts: int = 2, heads: int = 2, seed: int = 0) -> Triple:
    q, k, v = states(3, contexts, heads, n_nodes, 3, seed=seed).unbind()
    return q, k, v


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize(("transformation", "connectivity"), SETTINGS)
@pytest.mark.parametrize("name", some(["grouped", "parallel"], ["parallel"]))
def test_attention_is_the_loop(
    name: str, transformation: Transformation, connectivity: Connectivity, kind: Attention
) -> None:
    n = neighbourhoods(GRAPHS[name], transformation, connectivity)
    arcs = precedes(GRAPHS[name], transformation, connectivity)
    contexts = 2 if name == "parallel" else 1
    qkv = triple(n.n_nodes, contexts=contexts)
    found, expected = implicit(kind, qkv, n), explicit(kind, qkv, arcs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    alone = ~arcs.any(0)
    assert alone.any()
    assert (found[:, :, alone] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("connectivity", ["observed", "complete"])
def test_gradients_are_those_of_the_loop(
    connectivity: Connectivity, kind: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dagformer, "BLOCK", 5)
    graph = GRAPHS["parallel"]
    n = neighbourhoods(graph, "line", connectivity)
    q, k, v = (each.requires_grad_() for each in triple(n.n_nodes, contexts=1))
    probe = states(*q.shape, seed=9)
    arcs = precedes(graph, "line", connectivity)
    found, expected = (
        torch.autograd.grad((out * probe).sum(), (q, k, v))
        for out in (implicit(kind, (q, k, v), n), explicit(kind, (q, k, v), arcs))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ATTENTIONS)
@settings(max_examples=8)
@given(choice=CHOICES)
def test_attention_on_random_graphs(
    kind: Attention, choice: tuple[int, int, int, bool, int]
) -> None:
    ends = thinned((min(choice[0], 2), *choice[1:]))
    for transformation in ("line", "incidence"):
        n = neighbourhoods(ends, transformation)
        qkv = triple(n.n_nodes, contexts=1, heads=1, seed=choice[-1])
        expected = explicit(kind, qkv, precedes(ends, transformation, "observed"))
        torch.testing.assert_close(implicit(kind, qkv, n), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("connectivity", ["observed", "complete"])
def test_pieces_do_not_change_the_result(
    connectivity: Connectivity, kind: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = neighbourhoods(GRAPHS["grouped"], "incidence", connectivity)
    qkv = triple(n.n_nodes)
    whole = implicit(kind, qkv, n)
    monkeypatch.setattr(dagformer, "SCORES", 1)
    monkeypatch.setattr(dagformer, "BLOCK", 3)
    torch.testing.assert_close(implicit(kind, qkv, n), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_running_sums_hold_when_the_maximum_climbs_far(dtype: torch.dtype) -> None:
    """Long keys first: their exponents lie thousands below those of the short keys that follow,
    beyond what one exponential can span. Only the precision of the number format may be lost."""
    n = neighbourhoods(GRAPHS["grouped"], "line", "complete")
    assert n.order is not None
    q, k, v = triple(n.n_nodes, contexts=1, heads=2)
    lengths = torch.linspace(60, 0, n.n_nodes, dtype=torch.float64)
    k = torch.nn.functional.normalize(k, dim=-1) * lengths[:, None]
    # The second head climbs elsewhere, so that ranges must suit both.
    k[:, 1] = k[:, 1] * (lengths < 30)[:, None]
    k = k[:, :, n.order.argsort()]
    peaks = k.square().sum(-1).max(), k.square().sum(-1).min()
    assert (peaks[0] - peaks[1]) / 2 > -math.log(torch.finfo(dtype).tiny)
    expected = explicit("factorized", (q, k, v), precedes(GRAPHS["grouped"], "line", "complete"))
    inputs = [each.to(dtype).requires_grad_() for each in (q, k, v)]
    found = implicit("factorized", (inputs[0], inputs[1], inputs[2]), n)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)
    found.sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in inputs)


def test_ranges_end_where_the_maximum_climbs_too_far() -> None:
    running = torch.zeros(1, 2, 12)
    running[0, 0, 5:] = 100.0
    running[0, 1, 9:] = 1000.0
    ranges = list(dagformer._ranges(running, 8))
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == 12
    for start, end in ranges:
        assert end - start <= 8
        assert not start < 5 < end
        assert not start < 9 < end
    assert len(list(dagformer._ranges(torch.full((1, 1, 12), torch.nan), 12))) == 1


@pytest.mark.parametrize("connectivity", ["observed", "complete"])
def test_many_random_features_approach_softmax(connectivity: Connectivity) -> None:
    n = neighbourhoods(GRAPHS["plain"], "line", connectivity)
    q, k, v = triple(n.n_nodes)
    # Short vectors: the variance of the features grows with the exponential of |q + k|^2.
    q, k = q / 2, k / 2
    exact = softmax_attention(q, k, v, n)
    errors = []
    for random in (8, 8192):
        projection = orthogonal_features(random, 3, seeded(1)).double()
        out = factorized_attention(q, k, v, n, projection)
        errors.append((out - exact).square().mean().sqrt().item())
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 5


def test_random_features_are_orthogonal_gaussians() -> None:
    projection = orthogonal_features(4000, 4, seeded(0))
    runs = projection.reshape(-1, 4, 4)
    products = runs @ runs.mT
    across = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
    assert across.abs().max() < 1e-4
    assert projection.mean(0).abs().max() < 0.06
    torch.testing.assert_close(projection.T @ projection / 4000, torch.eye(4), rtol=0, atol=0.08)
    assert orthogonal_features(6, 4, seeded(0)).shape == (6, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize(("transformation", "connectivity"), SETTINGS)
def test_renumbering_components_permutes_the_states(
    transformation: Transformation, connectivity: Connectivity, kind: Attention
) -> None:
    ends = Endpoints.of(GRAPHS["grouped"])
    changed = renumbered(ends, seed=7)
    nodes = changed.nodes(transformation)
    old, new = (neighbourhoods(each, transformation, connectivity) for each in (ends, changed.ends))
    model = Dagformer(8, 2, 2, attention=kind, generator=seeded(1)).double()
    h = states(2, old.n_nodes, 8)
    torch.testing.assert_close(
        model(h[:, nodes], new), model(h, old)[:, nodes], rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_without_arcs_attention_is_zero_and_nodes_do_not_see_each_other(kind: Attention) -> None:
    n = neighbourhoods(GRAPHS["plain"], "incidence", "none")
    assert (implicit(kind, triple(n.n_nodes), n) == 0).all()
    model = Dagformer(4, 2, 2, attention=kind).double()
    h = states(n.n_nodes, 4)
    changed = h.clone()
    changed[3] += 1
    moved = (model(changed, n) - model(h, n)).abs().amax(-1) > 0
    assert moved.nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_layer_splits_heads_and_keeps_leading_axes(kind: Attention) -> None:
    n = neighbourhoods(GRAPHS["smallest"])
    layer = PredecessorAttention(
        6, 2, attention=kind, random_features=6, generator=seeded(0)
    ).double()
    h = states(2, 3, n.n_nodes, 6)
    heads = []
    for head in range(2):
        part = slice(3 * head, 3 * head + 3)
        q, k, v = (
            m(h.flatten(0, 1))[:, None, :, part] for m in (layer.queries, layer.keys, layer.values)
        )
        if layer.projection is None:
            heads.append(softmax_attention(q, k, v, n)[:, 0])
        else:
            heads.append(factorized_attention(q, k, v, n, layer.projection)[:, 0])
    expected = layer.output(torch.cat(heads, -1)).unflatten(0, (2, 3))
    torch.testing.assert_close(layer(h, n), expected)


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_weights_and_projection_come_from_the_generator_and_are_saved(kind: Attention) -> None:
    before = torch.random.get_rng_state()
    one, other = (Dagformer(4, 2, 2, attention=kind, generator=seeded(s)) for s in (1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    drawn = "attentions.1.branch.projection"
    assert (drawn in one.state_dict()) == (kind == "factorized")
    assert drawn not in dict(one.named_parameters())
    n = neighbourhoods(GRAPHS["plain"])
    h = states(n.n_nodes, 4).float()
    assert not torch.allclose(one(h, n), other(h, n))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(h, n), other(h, n))


def test_softmax_refuses_a_large_complete_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dagformer, "SOFTMAX_NODES", 5)
    n = neighbourhoods(GRAPHS["plain"], "line", "complete")
    with pytest.raises(ValueError, match=r"at most 5 nodes, got .*; use attention='factorized'"):
        implicit("softmax", triple(n.n_nodes), n)
    implicit("factorized", triple(n.n_nodes), n)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((6, 1, 4), {}, "heads must divide width=6, got 4"),
        ((4, 0, 0), {}, "layers must be at least 1, got 0; heads must be at least 1, got 0"),
        ((4, 1, 2), {"attention": "linear"}, "unknown attention 'linear'; choose one of softmax"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: tuple[int, int, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Dagformer(*arguments, **options)


def test_states_of_another_graph_are_refused() -> None:
    n = neighbourhoods(GRAPHS["smallest"])
    for kind in ATTENTIONS:
        with pytest.raises(ValueError, match=f"expected states of {n.n_nodes} nodes, got 50"):
            implicit(kind, triple(50), n)
