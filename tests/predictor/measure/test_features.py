"""The six features: against finite differences, patched runs, identities and changes of basis."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.resume import single_edge
from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.measure.features import FEATURES, Features, features
from graphcircuits.subject.transformer import Transformer
from tests.methods.tasks import make_pairs
from tests.nudged import Nudged, plain_message, read_bias, slope, spread
from tests.predictor.cases import AT, edge_features, vector_at_reader, write_factor
from tests.subjects import SOME, make_subject

FAMILIES = ("plain", "gpt-2", "neox", "llama", "grouped-keys", "logit-scale", "everything")


def rows(made: Features) -> tuple[Tensor, Tensor]:
    return made.pair, made.position


def all_edges(made: Features) -> list[dict[str, Tensor]]:
    return [edge_features(made, edge) for edge in range(made.graph.n_edges)]


def assert_same(first: Features, second: Features) -> None:
    assert torch.equal(first.pair, second.pair)
    assert torch.equal(first.position, second.position)
    for one, other in zip(all_edges(first), all_edges(second), strict=True):
        for name in FEATURES:
            torch.testing.assert_close(one[name], other[name], rtol=1e-10, atol=1e-12)


# The definitions


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", FAMILIES)
def test_gradients_are_slopes_of_the_loss(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    made = features(subject, pairs)
    graph, generator = subject.graph, torch.Generator().manual_seed(3)
    places = [("writer", writer) for writer in range(graph.n_writers)]
    places += [("reader", reader) for reader in range(graph.n_readers)]
    for place, index in places:
        gradient = AT[place](made.gradient, graph, index)
        nudge = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        found = slope(subject, pairs, place, index, spread(made, pairs, nudge))
        torch.testing.assert_close((gradient * nudge).sum(), found, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", FAMILIES)
def test_transported_gradients_are_slopes_along_one_edge(architecture: str) -> None:
    """The writer moves, and only this edge carries it; a norm keeps the scale of the clean run."""
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    made, run = features(subject, pairs), subject.run(pairs.clean)
    graph, generator = subject.graph, torch.Generator().manual_seed(4)
    for edge in torch.randperm(graph.n_edges, generator=generator)[:20].tolist():
        writer, reader = int(graph.edge_writers[edge]), int(graph.edge_readers[edge])
        gradient = edge_features(made, edge)["transported_gradient"]
        nudge = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        written = spread(made, pairs, nudge) @ write_factor(made.factors, graph, writer)
        message = plain_message(run, reader, written)
        found = slope(subject, pairs, "reader", reader, message)
        torch.testing.assert_close((gradient * nudge).sum(), found, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "grouped-keys", "gated", "parallel"])
def test_swapping_a_message_is_patching_the_edge(architecture: str) -> None:
    """Without a norm, the corrupted message instead of the clean one is the patch."""
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    made = features(subject, pairs)
    patched = single_edge(subject.run(pairs.clean), subject.run(pairs.corrupted).writers)
    for edge in range(0, subject.graph.n_edges, 3):
        found = edge_features(made, edge)
        change = spread(made, pairs, found["message_corrupted"] - found["message_clean"])
        reader = int(subject.graph.edge_readers[edge])
        nudged = Nudged(subject.config, subject.weights, reader=reader, nudge=change)
        torch.testing.assert_close(nudged.logits(pairs.clean), patched[edge])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", SOME)
def test_messages_and_states_match_the_runs(architecture: str) -> None:
    """Every message from the written vectors, and clean messages and biases add up to the state."""
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    made, graph = features(subject, pairs), subject.graph
    clean, corrupted = subject.run(pairs.clean), subject.run(pairs.corrupted)
    for reader in range(graph.n_readers):
        total = torch.zeros((), dtype=torch.float64)
        for writer in range(int(graph.reads[reader])):
            found = edge_features(made, int(graph.offsets[reader]) + writer)
            for name, run in (("clean", clean), ("corrupted", corrupted)):
                expected = plain_message(clean, reader, run.writers[:, :, writer])[rows(made)]
                torch.testing.assert_close(found[f"message_{name}"], expected)
                vector = found[f"writer_{name}"] @ write_factor(made.factors, graph, writer)
                torch.testing.assert_close(vector, run.writers[:, :, writer][rows(made)])
            total = total + found["message_clean"]
        bias = read_bias(clean, reader)[rows(made)]
        torch.testing.assert_close(total + bias, vector_at_reader(made.clean, graph, reader))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", FAMILIES)
def test_identities_hold(architecture: str) -> None:
    """g . m = transported g . a, clean and corrupted."""
    subject = make_subject(architecture)
    made = features(subject, make_pairs(subject, "cross-entropy"))
    for found in all_edges(made):
        for run in ("clean", "corrupted"):
            at_reader = (found["reader_gradient"] * found[f"message_{run}"]).sum(-1)
            at_writer = (found["transported_gradient"] * found[f"writer_{run}"]).sum(-1)
            torch.testing.assert_close(at_reader, at_writer, rtol=1e-11, atol=1e-14)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", FAMILIES)
def test_blocks_are_the_edges_one_by_one(architecture: str) -> None:
    subject = make_subject(architecture)
    made = features(subject, make_pairs(subject, "cross-entropy"))
    graph, edges = subject.graph, all_edges(made)
    seen = []
    for vectors in made.edge_vectors():
        block = vectors.block
        seen += range(graph.n_edges)[block.edges]
        for edge in range(graph.n_edges)[block.edges]:
            reader, writer = divmod(edge - block.first_edge, block.n_writers)
            assert block.first_reader + reader == graph.edge_readers[edge]
            for name in ("message_clean", "message_corrupted"):
                message = getattr(vectors, name)[:, reader, writer]
                torch.testing.assert_close(message, edges[edge][name])
            layer, head = divmod(writer - 1, graph.writers_per_layer)
            if writer == 0:
                transported = vectors.transported_input[:, reader]
            elif head == graph.n_heads:
                transported = vectors.transported_mlps[:, reader, layer]
            else:
                transported = vectors.transported_heads[:, reader, layer, head]
            torch.testing.assert_close(transported, edges[edge]["transported_gradient"])
        sizes = vectors.transported_heads.shape[2:4].numel() + vectors.transported_mlps.shape[2]
        assert 1 + sizes == block.n_writers
    assert seen == list(range(graph.n_edges))


def test_residual_views_give_the_contractions() -> None:
    subject = make_subject("llama")
    made = features(subject, make_pairs(subject, "cross-entropy"))
    for run in ("clean", "corrupted"):
        gradients = torch.cat([made.block_gradients(x) for x in subject.graph.blocks], dim=1)
        products = gradients @ made.writers(run).transpose(1, 2)
        for edge, found in enumerate(all_edges(made)):
            writer, reader = subject.graph.edge_writers[edge], subject.graph.edge_readers[edge]
            expected = (found["reader_gradient"] * found[f"message_{run}"]).sum(-1)
            torch.testing.assert_close(products[:, reader, writer], expected)


# Symmetries


def invertible(size: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.eye(size, dtype=torch.float64) + 0.4 * noise / size**0.5


def rebased(subject: Transformer, stream: bool) -> tuple[Transformer, list[Tensor], list[Tensor]]:
    """The same function in other bases, and the change of basis of each writer and reader.

    Values and heads' outputs change freely, queries and keys so that scores are kept, MLPs by a
    permutation and positive scales, and, where no norm forbids it, the stream.
    """
    config, graph, old = subject.config, subject.graph, subject.weights
    generator = torch.Generator().manual_seed(5)
    R = invertible(config.d_model, generator) if stream else torch.eye(config.d_model).double()
    new = {name: weight.clone() for name, weight in old.items()}
    for name in ("W_E", "W_pos", "W_O", "W_out", "b_O", "b_out"):
        new[name] = old[name] @ R
    for name in ("W_Q", "W_K", "W_V", "W_in", "W_U"):
        new[name] = R.inverse() @ old[name]
    writers, readers = [R], []
    for layer in range(graph.n_layers):
        scores = [invertible(config.d_head, generator) for _ in range(graph.n_groups)]
        values = [invertible(config.d_head, generator) for _ in range(graph.n_groups)]
        changes = {
            "Q": [scores[head // config.heads_per_group] for head in range(graph.n_heads)],
            "K": [change.inverse().T for change in scores],
            "V": values,
        }
        for name, by_slot in changes.items():
            for slot, change in enumerate(by_slot):
                new[f"W_{name}"][layer, slot] = new[f"W_{name}"][layer, slot] @ change
                new[f"b_{name}"][layer, slot] = old[f"b_{name}"][layer, slot] @ change
            readers += by_slot
        for head in range(graph.n_heads):
            change = values[head // config.heads_per_group]
            new["W_O"][layer, head] = change.inverse() @ new["W_O"][layer, head]
            writers.append(change)
        order = torch.randperm(config.d_mlp, generator=generator)
        scales = 0.5 + torch.rand(config.d_mlp, generator=generator, dtype=torch.float64)
        change = torch.eye(config.d_mlp, dtype=torch.float64)[:, order] * scales
        new["W_in"][layer] = new["W_in"][layer] @ change
        new["b_in"][layer] = old["b_in"][layer] @ change
        new["W_out"][layer] = change.inverse() @ new["W_out"][layer]
        writers.append(change)
        readers.append(change)
    readers.append(torch.eye(config.d_vocab_out, dtype=torch.float64))
    return Transformer(config, new), writers, readers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "stream"),
    [({}, True), ({"n_kv_heads": 2, "parallel": True}, True), ({"norm": "layer"}, False)],
)
def test_a_change_of_basis_follows_the_law(options: dict[str, Any], stream: bool) -> None:
    subject = make_subject("relu", **options)
    pairs = make_pairs(subject, "cross-entropy")
    other, writers, readers = rebased(subject, stream)
    torch.testing.assert_close(other.logits(pairs.clean), subject.logits(pairs.clean))
    before, after = (all_edges(features(x, pairs)) for x in (subject, other))
    for edge, (old, new) in enumerate(zip(before, after, strict=True)):
        A_w = writers[int(subject.graph.edge_writers[edge])]
        A_r = readers[int(subject.graph.edge_readers[edge])]
        laws = (A_w, A_w, A_r.inverse().T, A_r, A_r, A_w.inverse().T)
        for name, law in zip(FEATURES, laws, strict=True):
            torch.testing.assert_close(new[name], old[name] @ law, rtol=1e-9, atol=1e-11)


# Contexts, memory, files


def test_contexts_are_the_scored_positions() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy")
    scored = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 1, 0, 0], [1, 0, 0, 0, 1]], dtype=torch.bool)
    made = features(subject, replace(pairs, scored=scored))
    assert made.pair.tolist() == [0, 0, 1, 2, 2]
    assert made.position.tolist() == [1, 4, 2, 0, 4]
    assert len(made) == 5
    run = subject.run(pairs.corrupted)
    torch.testing.assert_close(made.corrupted.q[3, 1, 2], run.states.q[1, 2, 0, 2])


def test_each_pair_has_the_gradient_of_its_own_loss() -> None:
    subject = make_subject("gpt-2")
    pairs = make_pairs(subject, "cross-entropy")
    together = features(subject, pairs)
    for pair in range(len(pairs)):
        alone = features(subject, pairs[pair])
        torch.testing.assert_close(alone.gradient.q, together[together.pair == pair].gradient.q)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_chunks_change_nothing(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy", batch=4)
    whole = features(subject, pairs)
    assert_same(features(subject, pairs, memory_limit=1), whole)
    parts = list(whole.parts(memory_limit=1))
    assert len(parts) == len(whole)
    assert len(list(whole.parts())) == 1
    first = torch.cat([next(part.edge_vectors()).message_clean for part in parts])
    torch.testing.assert_close(first, next(whole.edge_vectors()).message_clean)


@pytest.mark.slow
def test_single_contexts_are_part_of_the_whole() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy", batch=6)
    whole = features(subject, pairs)
    rows = torch.tensor([1, 2, 7, 9])
    some = features(subject, pairs, contexts=pairs.scored.nonzero()[rows])
    assert_same(some, whole[rows])


def test_moving_changes_floats_only() -> None:
    subject = make_subject()
    made = features(subject, make_pairs(subject, "cross-entropy"))
    moved = made.to(torch.float32)
    assert moved.pair.dtype == torch.int64
    assert {x.dtype for x in edge_features(moved, 7).values()} == {torch.float32}
    torch.testing.assert_close(
        edge_features(moved, 7)["message_clean"].double(),
        edge_features(made, 7)["message_clean"],
        rtol=1e-4,
        atol=1e-6,
    )


# Bad input


@pytest.mark.parametrize(
    ("weight", "index", "message"),
    [
        ("W_Q", (1, 2), r"clean state of a1\.h2<q> is NaN or infinite for pair 0 at position 0"),
        ("W_O", (0, 3), r"clean state of m0 is"),
        ("W_U", (), r"clean state of logits is"),
    ],
)
def test_broken_numbers_name_the_first_component(
    weight: str, index: tuple[int, ...], message: str
) -> None:
    subject = make_subject()
    weights = {name: value.clone() for name, value in subject.weights.items()}
    weights[weight][index] = float("nan")
    pairs = make_pairs(subject, "cross-entropy")
    with pytest.raises(ValueError, match=message):
        features(Transformer(subject.config, weights), pairs)


def test_broken_gradients_are_refused() -> None:
    subject = make_subject()
    pairs = make_pairs(
        subject, lambda logits, _: (logits - logits.detach()).abs().sqrt().sum((1, 2))
    )
    with pytest.raises(ValueError, match="gradient of input is NaN or infinite"):
        features(subject, pairs)


def test_losses_without_a_gradient_are_refused() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "kl")
    with pytest.raises(ValueError, match="kl targets are still to be taken from the clean run"):
        features(subject, pairs)
    flat = make_pairs(subject, lambda logits, _: 0 * logits.sum((1, 2)))
    with pytest.raises(ValueError, match="gradient of the loss is zero at every component"):
        features(subject, flat)


def test_blocks_of_a_large_graph_cover_its_edges() -> None:
    graph = ComponentGraph(32, 32, n_kv_heads=8, parallel=True)
    found = list(graph.blocks)
    assert found[-1].edges.stop == graph.n_edges
    assert [block.edges.start for block in found[1:]] == [block.edges.stop for block in found[:-1]]
