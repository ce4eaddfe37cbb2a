"""DirGNN: the implicit layer against dense adjacencies, and against PyTorch Geometric."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn.functional import layer_norm, linear, silu

from graphcircuits.predictor.block import START_SCALE
from graphcircuits.predictor.paper import dirgnn
from graphcircuits.predictor.paper.dirgnn import DirectedGraphConv, DirGNN
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
    line_graph,
    precedes,
    renumbered,
    seeded,
    states,
    thinned,
)


def dense_dirgnn(model: DirGNN, h: Tensor, arcs: Tensor) -> Tensor:
    """The same network written out over a dense adjacency (row precedes column)."""
    w = dict(model.named_parameters())

    def normalized(h: Tensor, branch: str) -> Tensor:
        return layer_norm(h, h.shape[-1:], w[f"{branch}.norm.weight"], w[f"{branch}.norm.bias"])

    for layer in range(len(model.convolutions)):
        conv, feed = f"convolutions.{layer}", f"feed_forwards.{layer}"
        x = normalized(h, conv)
        update = linear(x, w[f"{conv}.branch.root.weight"], w[f"{conv}.branch.root.bias"])
        update = update + 0.5 * linear(arcs.T @ x, w[f"{conv}.branch.incoming.weight"])
        update = update + 0.5 * linear(arcs @ x, w[f"{conv}.branch.outgoing.weight"])
        h = h + w[f"{conv}.scale"] * silu(update)
        x = normalized(h, feed)
        x = silu(linear(x, w[f"{feed}.branch.0.weight"], w[f"{feed}.branch.0.bias"]))
        x = linear(x, w[f"{feed}.branch.2.weight"], w[f"{feed}.branch.2.bias"])
        h = h + w[f"{feed}.scale"] * x
    return h


@pytest.mark.slow
@pytest.mark.parametrize(("transformation", "connectivity"), SETTINGS)
@pytest.mark.parametrize("name", GRAPHS)
def test_network_is_that_of_the_dense_adjacency(
    name: str, transformation: Transformation, connectivity: Connectivity
) -> None:
    n = neighbourhoods(GRAPHS[name], transformation, connectivity)
    arcs = precedes(GRAPHS[name], transformation, connectivity).double()
    model = DirGNN(4, 2, generator=seeded(0)).double()
    h = states(2, n.n_nodes, 4)
    found, expected = model(h, n), dense_dirgnn(model, h, arcs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    weights = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), weights),
        torch.autograd.grad(expected.square().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-8)


@settings(max_examples=15)
@given(choice=CHOICES)
def test_network_on_random_graphs(choice: tuple[int, int, int, bool, int]) -> None:
    ends = thinned(choice)
    model = DirGNN(3, 2, generator=seeded(choice[-1])).double()
    for transformation in ("line", "incidence"):
        n = neighbourhoods(ends, transformation)
        arcs = precedes(ends, transformation, "observed").double()
        h = states(n.n_nodes, 3, seed=choice[-1])
        torch.testing.assert_close(
            model(h, n), dense_dirgnn(model, h, arcs), rtol=1e-10, atol=1e-10
        )


@pytest.mark.slow
# What PyTorch Geometric does when it is imported is not ours to mend.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("root_weight", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_convolution_is_that_of_pytorch_geometric(name: str, root_weight: bool) -> None:
    """On the explicit line graph; their own-state maps and biases add up to one of each here."""
    import torch_geometric.nn as pyg  # here, since it takes a second

    graph, width, alpha = GRAPHS[name], 5, dirgnn.ALPHA
    theirs: Any = pyg.DirGNNConv(pyg.GraphConv(width, width), alpha=alpha, root_weight=root_weight)
    theirs = theirs.double()
    into, out = theirs.conv_in, theirs.conv_out
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(states(*parameter.shape, seed=parameter.numel()))
    root = alpha * out.lin_root.weight + (1 - alpha) * into.lin_root.weight
    bias = alpha * out.lin_rel.bias + (1 - alpha) * into.lin_rel.bias
    if root_weight:
        root, bias = root + theirs.lin.weight, bias + theirs.lin.bias
    ours = DirectedGraphConv(width, generator=seeded(0)).double()
    ours.load_state_dict(
        {
            "incoming.weight": into.lin_rel.weight,
            "outgoing.weight": out.lin_rel.weight,
            "root.weight": root,
            "root.bias": bias,
        }
    )
    h = states(graph.n_edges, width)
    expected = theirs(h, line_graph(graph))
    torch.testing.assert_close(ours(h, neighbourhoods(graph)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("transformation", "connectivity"), SETTINGS)
def test_renumbering_components_permutes_the_states(
    transformation: Transformation, connectivity: Connectivity
) -> None:
    ends = Endpoints.of(GRAPHS["grouped"])
    changed = renumbered(ends, seed=5)
    nodes = changed.nodes(transformation)
    old, new = (neighbourhoods(each, transformation, connectivity) for each in (ends, changed.ends))
    model = DirGNN(4, 3, generator=seeded(1)).double()
    h = states(2, old.n_nodes, 4)
    torch.testing.assert_close(
        model(h[:, nodes], new), model(h, old)[:, nodes], rtol=1e-10, atol=1e-10
    )


def test_alpha_weighs_successors_against_predecessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirgnn, "ALPHA", 0.25)
    graph = GRAPHS["plain"]
    n, arcs = neighbourhoods(graph), precedes(graph, "line", "observed").double()
    conv = DirectedGraphConv(3, generator=seeded(0)).double()
    h = states(n.n_nodes, 3)
    expected = conv.root(h) + 0.25 * conv.outgoing(arcs @ h) + 0.75 * conv.incoming(arcs.T @ h)
    torch.testing.assert_close(conv(h, n), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("transformation", "connectivity"), SETTINGS)
def test_mean_divides_by_the_degrees_of_the_dense_adjacency(
    transformation: Transformation, connectivity: Connectivity
) -> None:
    n = neighbourhoods(GRAPHS["grouped"], transformation, connectivity)
    arcs = precedes(GRAPHS["grouped"], transformation, connectivity).double()
    conv = DirectedGraphConv(3, aggregation="mean", generator=seeded(0)).double()
    h = states(2, n.n_nodes, 3)
    before = arcs.T @ h / arcs.sum(0).clamp_min(1)[:, None]
    after = arcs @ h / arcs.sum(1).clamp_min(1)[:, None]
    expected = conv.root(h) + 0.5 * conv.incoming(before) + 0.5 * conv.outgoing(after)
    torch.testing.assert_close(conv(h, n), expected, rtol=1e-10, atol=1e-10)


def test_dropout_drops_whole_branches_at_its_limit_and_nothing_in_evaluation() -> None:
    n = neighbourhoods(GRAPHS["smallest"])
    h = states(n.n_nodes, 4)
    plain, dropping = (DirGNN(4, 2, dropout=rate, generator=seeded(0)) for rate in (0.0, 1.0))
    plain, dropping = plain.double(), dropping.double()
    assert torch.equal(dropping(h, n, seeded(1)), h)
    with pytest.raises(ValueError, match=r"give a torch\.Generator as noise, or call eval"):
        dropping(h, n)
    assert torch.equal(dropping.eval()(h, n), plain(h, n))


def test_without_arcs_nodes_do_not_see_each_other() -> None:
    n = neighbourhoods(GRAPHS["plain"], "line", "none")
    model = DirGNN(4, 2).double()
    h = states(n.n_nodes, 4)
    alone = torch.stack([model(row[None], neighbourhoods_of_one()) for row in h])[:, 0]
    torch.testing.assert_close(model(h, n), alone)


def neighbourhoods_of_one() -> Neighbourhoods:
    one = Endpoints(
        n_writers=1,
        n_readers=1,
        edge_writers=torch.tensor([0]),
        edge_readers=torch.tensor([0]),
        feeding=torch.empty(0, dtype=torch.int64),
        fed=torch.empty(0, dtype=torch.int64),
        writer_rank=torch.tensor([0]),
        reader_rank=torch.tensor([0]),
    )
    return neighbourhoods(one)


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
@pytest.mark.parametrize("transformation", ["line", "incidence"])
def test_large_graphs_are_computed_in_pieces(
    transformation: Transformation, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding: numbers are added up in another order. The states that came stay as they are."""
    n = neighbourhoods(GRAPHS["grouped"], transformation)
    model = DirGNN(4, 3, aggregation=aggregation).double().eval()
    h = states(n.n_nodes, 4)
    given = h.clone()
    expected = model(h, n)
    monkeypatch.setattr(dirgnn, "AT_ONCE", 7)
    with torch.no_grad():
        torch.testing.assert_close(model(h, n), expected, rtol=0, atol=1e-12)
    assert torch.equal(h, given)
    assert torch.equal(model(h, n), expected)


def test_any_leading_axes() -> None:
    n = neighbourhoods(GRAPHS["smallest"])
    model = DirGNN(4, 1).double()
    h = states(2, 3, n.n_nodes, 4)
    by_hand = torch.stack([torch.stack([model(each, n) for each in row]) for row in h])
    torch.testing.assert_close(model(h, n), by_hand)


def test_weights_come_from_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (DirGNN(4, 2, generator=seeded(seed)).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    drawn = "convolutions.1.branch.incoming.weight"
    assert not torch.equal(one[drawn], other[drawn])
    assert one[drawn].abs().max() <= 0.5
    assert one["feed_forwards.0.scale"] == pytest.approx(START_SCALE)


def test_bad_sizes_are_all_reported() -> None:
    with pytest.raises(ValueError, match=r"width must be at least 1, got 0; layers must .* got -1"):
        DirGNN(0, -1)
    with pytest.raises(ValueError, match="aggregation must be one of sum, mean, got 'max'"):
        DirGNN(2, 1, aggregation="max")
