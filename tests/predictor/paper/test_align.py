"""The paper's aligner: against a twin that aligns edge by edge, and with permuted coordinates."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphcircuits.predictor.measure.features import FEATURES, Features, features
from graphcircuits.predictor.paper.align import FeatureAttention, TabpfnAligner
from graphcircuits.predictor.paper.transform import TRANSFORMATIONS, Transformation, neighbourhoods
from graphcircuits.subject.sites import Factors, Interfaces
from tests.methods.tasks import make_pairs
from tests.predictor.cases import AT, edge_features, vector_at_reader
from tests.subjects import make_subject
from tests.tiers import some

WRITES = ("z", "hidden")


def make_features(architecture: str = "plain", contexts: int = 3) -> Features:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    scored = pairs.scored.nonzero()
    drawn = torch.randperm(len(scored), generator=torch.Generator().manual_seed(0))
    return features(subject, pairs, contexts=scored[drawn[:contexts].sort().values])


def make_aligner(**options: int | bool) -> TabpfnAligner:
    generator = torch.Generator().manual_seed(7)
    sizes = {"d_align": 6, "heads": 2, "identifiers": 5} | options
    return TabpfnAligner(**sizes, generator=generator).double()  # pyright: ignore[reportArgumentType]


def identifiers_of(aligner: TabpfnAligner, made: Features) -> Interfaces:
    """Identifiers in the place of states, so that a component's can be looked up: leading axes of
    a state are (context, ...), here (identifier, ...)."""
    drawn = aligner.draw(made, torch.Generator().manual_seed(2))
    return Interfaces(**{name: given.movedim(-1, 0) for name, given in drawn.items()})


def align_alone(aligner: TabpfnAligner, vector: Tensor, identifiers: Tensor, role: str) -> Tensor:
    """One vector by the formulas, every token computed in every layer."""
    tokens = torch.stack(
        [
            aligner.value.weight[:, 0] * value
            + aligner.value.bias
            + aligner.coordinate.weight @ identifier
            + aligner.role[FEATURES.index(role)]
            for value, identifier in zip(vector, identifiers, strict=True)
        ]
        + [aligner.summary]
    )
    for layer in aligner.layers:
        assert isinstance(layer, FeatureAttention)
        normed = layer.norm(tokens)
        keys, values = layer.key_value(normed).chunk(2, dim=-1)
        attended = []
        queries = layer.query(normed)
        size = aligner.d_align // layer.heads
        for head in range(layer.heads):
            part = slice(head * size, (head + 1) * size)
            scores = queries[:, part] @ keys[:, part].T / size**0.5
            attended.append(scores.softmax(-1) @ values[:, part])
        tokens = tokens + layer.out(torch.cat(attended, dim=-1))
        tokens = tokens + layer.feed(layer.feed_norm(tokens))
    return aligner.norm(tokens[-1])


def sizes_of(made: Features) -> dict[str, float]:
    """Root mean square of states and gradients at writers and readers, one vector at a time."""
    graph, sizes = made.graph, {}
    for kind, vectors in (("state", made.clean), ("gradient", made.gradient)):
        writers = [vectors.writer(graph, n) for n in range(graph.n_writers)]
        readers = [vector_at_reader(vectors, graph, n) for n in range(graph.n_readers)]
        for side, found in (("writer", writers), ("reader", readers)):
            joined = torch.cat([vector.flatten() for vector in found])
            sizes[f"{kind} {side}"] = float(joined.square().mean().sqrt())
    return sizes


ROLES = {
    "writer_clean": ("state", "writer"),
    "writer_corrupted": ("state", "writer"),
    "reader_gradient": ("gradient", "reader"),
    "message_clean": ("state", "reader"),
    "message_corrupted": ("state", "reader"),
    "transported_gradient": ("gradient", "writer"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("architecture", "layers", "standardize"),
    some([("llama", 2, True), ("plain", 1, True), ("neox", 2, False), ("gpt-2", 1, False)]),
)
def test_shared_vectors_aligned_once_are_those_of_every_edge(
    architecture: str, layers: int, standardize: bool
) -> None:
    made = make_features(architecture, contexts=1)
    aligner = make_aligner(layers=layers, standardize=standardize)
    graph, identifiers = made.graph, identifiers_of(aligner, made)
    line = aligner(made, torch.Generator().manual_seed(2))
    assert line.shape == (1, graph.n_edges, aligner.width)
    incidence = aligner(made, torch.Generator().manual_seed(2), "incidence")
    sizes = sizes_of(made) if standardize else dict.fromkeys(sizes_of(made), 1.0)
    generator = torch.Generator().manual_seed(6)
    for edge in torch.randperm(graph.n_edges, generator=generator)[:25].tolist():
        writer, reader = int(graph.edge_writers[edge]), int(graph.edge_readers[edge])
        owners = {
            "writer": identifiers.writer(graph, writer),
            "reader": vector_at_reader(identifiers, graph, reader),
        }
        alone = {
            role: align_alone(
                aligner,
                vector[0] / sizes[f"{ROLES[role][0]} {ROLES[role][1]}"],
                owners[ROLES[role][1]].T,
                role,
            )
            for role, vector in edge_features(made, edge).items()
        }
        torch.testing.assert_close(line[0, edge], torch.cat(list(alone.values())))
        node = int(neighbourhoods(graph, "incidence", "observed").edge_nodes[edge])
        last = torch.cat([alone[role] for role in FEATURES[3:]])
        torch.testing.assert_close(incidence[0, node], torch.cat([torch.zeros_like(last), last]))
        # Writer and reader have the states that the edge has, and as many zeros behind them.
        d = aligner.d_align
        torch.testing.assert_close(incidence[0, writer, : 2 * d], line[0, edge, : 2 * d])
        at_reader = incidence[0, graph.n_writers + reader]
        torch.testing.assert_close(at_reader[2 * d : 3 * d], line[0, edge, 2 * d : 3 * d])
        assert not at_reader[3 * d :].any()
        assert not incidence[0, writer, 3 * d :].any()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_components_of_the_incidence_graph_have_their_own_vectors(architecture: str) -> None:
    made = make_features(architecture, contexts=1)
    aligner = make_aligner(layers=1)
    graph, identifiers = made.graph, identifiers_of(aligner, made)
    nodes = aligner(made, torch.Generator().manual_seed(2), "incidence")[0]
    assert len(nodes) == graph.n_nodes + graph.n_edges
    sizes = sizes_of(made)
    for node in range(graph.n_nodes):
        writing = node < graph.n_writers
        side = "writer" if writing else "reader"
        index = node if writing else node - graph.n_writers
        expected = [
            align_alone(
                aligner,
                AT[side](vectors, graph, index)[0] / sizes[f"{kind} {side}"],
                AT[side](identifiers, graph, index).T,
                role,
            )
            for vectors, kind, role in zip(
                (made.clean, made.corrupted, made.gradient),
                ("state", "state", "gradient"),
                FEATURES[:3],
                strict=True,
            )
        ]
        torch.testing.assert_close(nodes[node, : 3 * aligner.d_align], torch.cat(expected))


@pytest.mark.slow
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_coordinates_may_be_permuted_with_their_identifiers(
    architecture: str, transformation: Transformation
) -> None:
    made = make_features(architecture)
    aligner = make_aligner()
    drawn = aligner.draw(made, torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(3)
    order = {
        name: torch.randperm(x.shape[-1], generator=generator)
        for name, x in vars(made.clean).items()
    }
    stream = order["input"]
    factors = {name: x[..., stream] for name, x in vars(made.factors).items() if name in WRITES}
    factors = {name: x[..., order[name], :] for name, x in factors.items()}
    for name, x in vars(made.factors).items():
        if name not in WRITES:
            factors[name] = x[..., stream, :][..., order[name]]
    permuted = replace(
        made,
        factors=Factors(**factors),
        **{
            kind: Interfaces(**{n: x[..., order[n]] for n, x in vars(getattr(made, kind)).items()})
            for kind in ("clean", "corrupted", "gradient")
        },
    )
    moved = {name: given[..., order[name], :] for name, given in drawn.items()}
    expected = aligner.align(made, drawn, transformation)
    torch.testing.assert_close(aligner.align(permuted, moved, transformation), expected)
    # The identifiers matter: without theirs, coordinates are told apart.
    assert not torch.allclose(aligner.align(permuted, drawn, transformation), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_chunks_change_nothing(transformation: Transformation) -> None:
    made = make_features("llama")
    results = []
    for memory_limit in (2**30, 2**18):
        aligner = make_aligner(layers=2, memory_limit=memory_limit)
        found = aligner(made, torch.Generator().manual_seed(2), transformation)
        found.square().sum().backward()
        results.append([found, *(p.grad for p in aligner.parameters())])
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole)


@pytest.mark.slow
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("layers", [1, 2])
def test_every_parameter_gets_a_gradient(transformation: Transformation, layers: int) -> None:
    aligner = make_aligner(layers=layers)
    found = aligner(make_features(), torch.Generator().manual_seed(2), transformation)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    (found * weights).sum().backward()
    for name, parameter in aligner.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-8, name


@pytest.mark.slow
def test_contexts_are_aligned_by_themselves() -> None:
    made = make_features(contexts=4)
    aligner = make_aligner(standardize=False)
    whole = aligner(made, torch.Generator().manual_seed(2))
    order = torch.tensor([2, 0])
    some = aligner(made[order], torch.Generator().manual_seed(2))
    torch.testing.assert_close(some, whole[order])


@pytest.mark.slow
def test_standardized_values_forget_the_size_of_the_gradient() -> None:
    made = make_features()
    smaller = replace(made, gradient=made.gradient.map(lambda x: 1e-6 * x))
    for standardize in (True, False):
        aligner = make_aligner(standardize=standardize)
        one, other = (aligner(x, torch.Generator().manual_seed(2)) for x in (made, smaller))
        assert torch.allclose(one, other) == standardize


@pytest.mark.slow
def test_the_generators_decide() -> None:
    made = make_features()
    first, second = make_aligner(), make_aligner()
    state = torch.get_rng_state()
    one, other = (x(made, torch.Generator().manual_seed(2)) for x in (first, second))
    assert torch.equal(one, other)
    assert not torch.allclose(first(made, torch.Generator().manual_seed(3)), one)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_a_silent_subject_has_finite_features() -> None:
    made = make_features()
    silent = replace(made, clean=made.clean.map(torch.zeros_like))
    assert make_aligner()(silent, torch.Generator()).isfinite().all()


@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="heads must divide d_align=6, got 4"):
        make_aligner(heads=4)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0; identifiers must be"):
        make_aligner(layers=0, identifiers=0)
    made, aligner = make_features(), make_aligner()
    with pytest.raises(ValueError, match="one of line, incidence, got 'dual'"):
        aligner(made, torch.Generator(), "dual")
    with pytest.raises(ValueError, match=r"must be torch\.float64 on cpu like the aligner, got"):
        aligner(made.to(torch.float32), torch.Generator())
