"""The three forms of an interaction: equal where they must be, and as far apart as predicted."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.resume import single_edge
from graphcircuits.interactions import (
    SharedRead,
    decay,
    edge_interactions,
    finite,
    integral,
    interaction_matrix,
    local,
)
from graphcircuits.methods.prepare import prepare
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.interactions.test_read import patched_losses
from tests.methods.tasks import make_pairs, output_sum
from tests.subjects import make_subject
from tests.tiers import some


def squares(logits: Tensor, pairs: Pairs) -> Tensor:
    """A loss that is quadratic in the logits, all positions and classes mixed."""
    weights = torch.linspace(-1, 2, logits.shape[1] * logits.shape[2]).to(logits)
    flat = logits.flatten(1)
    return (flat @ weights) ** 2 + (flat**2 * weights).sum(-1)


def quadratic_read() -> SharedRead:
    """Values pass through fixed attention and no MLP to a quadratic loss."""
    subject = make_subject()
    weights = {name: weight.clone() for name, weight in subject.weights.items()}
    weights["W_out"][1] = 0
    silent = Transformer(subject.config, weights)
    return SharedRead.of(silent, make_pairs(silent, squares), "a1.h1<v>")


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def all_pairs(read: SharedRead) -> list[tuple[str, str]]:
    return list(combinations(read.edges, 2))


def above(square: Tensor) -> Tensor:
    """The pairs above the diagonal, in the order of `all_pairs`."""
    first, second = torch.triu_indices(len(square), len(square), 1)
    return square[first, second]


@pytest.mark.slow
def test_all_forms_agree_on_a_quadratic_read() -> None:
    read = quadratic_read()
    by_definition = finite(read).interaction
    assert by_definition.abs().mean() > 1e-2
    close(local(read), by_definition, 1e-8)
    exact = integral(read, all_pairs(read), order=3)
    close(exact.value, above(by_definition), 1e-8)
    assert exact.error.max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "reader"),
    [("plain", "m0"), ("relu", "m1"), ("llama", "a1.g0<k>"), ("gpt-2", "a1.h1<q>")],
)
def test_finite_is_four_plain_runs(architecture: str, reader: str) -> None:
    subject = make_subject(architecture)
    read = SharedRead.of(subject, make_pairs(subject), reader)
    found = finite(read)
    clean = patched_losses(read, [])
    one, other = (patched_losses(read, [edge]) for edge in read.edges[:2])
    both = patched_losses(read, read.edges[:2])
    close(found.single[0], one - clean, 1e-9)
    close(found.joint[0, 1], both - clean, 1e-9)
    close(found.interaction[0, 1], both - one - other + clean, 1e-9)
    close(found.joint.diagonal(), found.single.movedim(0, -1), 1e-12)
    assert found.interaction.diagonal().abs().max() == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("architecture", "reader"),
    some([("llama", "m1"), ("plain", "m0"), ("silu", "a1.h2<k>"), ("layer-norm", "logits")]),
)
@pytest.mark.usefixtures("unchecked")
def test_the_integral_is_the_finite_form(architecture: str, reader: str) -> None:
    subject = make_subject(architecture)
    read = replace(SharedRead.of(subject, make_pairs(subject), reader), scale=0.5)
    pairs = all_pairs(read)[:3]
    exact = integral(read, pairs, order=14)
    gap = (exact.value - above(finite(read).interaction)[:3]).abs()
    assert gap.max() < 1e-6
    # The estimate is that of the coarser rule, so it is an upper bound but for rounding.
    assert (gap <= exact.error + 1e-12).all()
    rough = integral(read, pairs, order=4)
    assert rough.error.max() > exact.error.max()


@pytest.mark.parametrize("reader", ["m0", "a1.h1<k>", "logits"])
def test_local_is_the_hessian_between_two_changes(reader: str) -> None:
    subject = make_subject("rms-norm")
    read = SharedRead.of(subject, make_pairs(subject), reader, positions=[2])
    found = local(read)
    one = replace(read, pairs=read.pairs[1])

    def loss(u: Tensor) -> Tensor:
        return one.losses(u[None, None])[0, 0]

    hessian = torch.autograd.functional.hessian(loss, one.inputs[0, 0])
    assert isinstance(hessian, Tensor)
    changes = one.changes[:, 0, 0]
    expected = (changes @ hessian @ changes.T).fill_diagonal_(0)
    close(found[:, :, 0, 1], expected, 1e-10)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("architecture", "reader"),
    [("plain", "m0"), ("plain", "a1.h1<q>"), ("layer-norm", "logits"), ("llama", "a1.g1<v>")],
)
def test_the_error_of_the_local_form_falls_with_the_third_power(
    architecture: str, reader: str
) -> None:
    subject = make_subject(architecture)
    found = decay(SharedRead.of(subject, make_pairs(subject, "cross-entropy"), reader))
    assert found.slope == pytest.approx(3, abs=0.2)
    assert sorted(found.errors, reverse=True) == list(found.errors)


def test_a_linear_way_to_the_loss_has_no_interaction() -> None:
    subject = make_subject()
    read = SharedRead.of(subject, make_pairs(subject, output_sum), "logits")
    assert local(read).abs().max() == 0
    assert integral(read, all_pairs(read)[:2]).value.abs().max() == 0
    assert finite(read).interaction.abs().max() < 1e-12
    for scale in (0.0, 1.0):
        with pytest.raises(ValueError, match="agree to within rounding at logits: no error to fit"):
            decay(replace(read, scale=scale))


def test_without_norms_the_read_map_may_count_as_downstream_or_not() -> None:
    """The interaction in the stream is the one at the pre-activations that it leads to."""
    subject = make_subject()
    read = SharedRead.of(subject, make_pairs(subject), "m1", positions=[4])
    W_in, W_out = subject.weights["W_in"][1], subject.weights["W_out"][1]
    run = subject.run(read.pairs.clean)

    def losses(pre: Tensor) -> Tensor:
        hidden = run.states.hidden[1].clone()
        hidden[:, 4] = subject.hidden(pre, None, 1)
        return read.pairs.loss(
            subject.unembed(run.streams[-1] + (hidden - run.states.hidden[1]) @ W_out)
        )

    pre, changes = run.states.pre[1][:, 4], read.changes[:, 0] @ W_in
    expected = losses(pre + changes[0] + changes[1]) - losses(pre + changes[0])
    expected = expected - losses(pre + changes[1]) + losses(pre)
    close(finite(read).interaction[0, 1, 0], expected, 1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_memory_limits_change_nothing() -> None:
    subject = make_subject("gated")
    read = SharedRead.of(subject, make_pairs(subject, batch=4), "a1.h1<q>")
    close(finite(read, memory_limit=1).joint, finite(read).joint, 1e-12)
    close(local(read, memory_limit=1), local(read), 1e-12)
    pairs = all_pairs(read)[:2]
    small, large = (integral(read, pairs, order=3, memory_limit=limit) for limit in (1, 2**30))
    close(small.value, large.value, 1e-12)
    close(small.error, large.error, 1e-12)


def test_matrix() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    read = SharedRead.of(subject, pairs, "m1")
    by_position = interaction_matrix(subject, pairs, "m1", per_position=True)
    close(by_position, local(read).mean(-1), 1e-12)
    close(by_position, by_position.transpose(0, 1), 1e-10)
    close(interaction_matrix(subject, pairs, "m1"), by_position.mean(-1), 1e-12)
    edges = ["a0.h1->m1", "input->m1"]
    some = interaction_matrix(subject, pairs, "m1", edges=edges, form="finite")
    close(some[0, 1], finite(read).interaction[2, 0].mean(), 1e-12)
    with pytest.raises(ValueError, match="form must be one of finite, local, got 'exact'"):
        interaction_matrix(subject, pairs, "m1", form="exact")


def test_kinks_leave_the_finite_form() -> None:
    subject = make_subject("relu")
    read = SharedRead.of(subject, make_pairs(subject), "m0")
    assert finite(read).interaction.abs().max() > 1e-3
    text = "does not apply: downstream of m0 there is relu in m0, m1, which has kinks; use the f"
    with pytest.raises(ValueError, match=f"the local form {text}"):
        local(read)
    with pytest.raises(ValueError, match=f"the integral form {text}"):
        integral(read, all_pairs(read))
    with pytest.raises(ValueError, match=text):
        decay(read)
    with pytest.raises(ValueError, match=text):
        interaction_matrix(subject, read.pairs, "m0")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda read: integral(read, all_pairs(read), order=2), "order must be at least 3, got 2"),
        (lambda read: integral(read, []), "pairs must be one or more of the edges .* got none"),
        (lambda read: integral(read, [("input->m0", "x")]), r"got input->m0, x\."),
        (lambda read: decay(read, [0.1]), r"two or more numbers above 0, got \[0.1\]"),
        (lambda read: decay(read, [0.1, 0.0]), r"above 0, got \[0.1, 0.0\]"),
    ],
)
def test_refusals(call: Any, text: str) -> None:
    subject = make_subject()
    read = SharedRead.of(subject, make_pairs(subject), "m1")
    with pytest.raises(ValueError, match=text):
        call(read)


def test_decay_needs_double_precision() -> None:
    subject = make_subject().to(torch.float32)
    read = SharedRead.of(subject, make_pairs(subject), "m1")
    with pytest.raises(ValueError, match=r"float64 subject, got torch.float32; call .to\(torch"):
        decay(read)


# Whole edges

EDGES = ["input->m1", "a0.h1->m1", "a0.h1->a1.h2<k>", "m1->logits"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["relu", "llama"])
def test_four_masked_runs(architecture: str) -> None:
    subject = make_subject(architecture)
    edges = EDGES if architecture != "llama" else [e.replace("h2<k>", "g1<k>") for e in EDGES]
    pairs = prepare(subject, make_pairs(subject))
    found = edge_interactions(subject, pairs, edges)
    corrupted = subject.run(pairs.corrupted).writers

    def loss(*cut: str) -> Tensor:
        mask = torch.ones(subject.graph.n_edges, dtype=torch.float64)
        mask[subject.graph.edge_indices(cut)] = 0
        return pairs.loss(masked_logits(subject, pairs.clean, mask, corrupted))

    clean, single = loss(), torch.stack([loss(edge) for edge in edges])
    torch.testing.assert_close(found.single, single - clean)
    for i, j in combinations(range(len(edges)), 2):
        both = loss(edges[i], edges[j])
        expected = both - single[i] - single[j] + clean
        for row, column in ((i, j), (j, i)):
            torch.testing.assert_close(found.joint[row, column], both - clean)
            torch.testing.assert_close(found.interaction[row, column], expected)
    assert found.interaction.diagonal().abs().max() == 0
    assert found.interaction.abs().max() > 1e-3


def test_single_effects_are_those_of_one_edge_at_a_time() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy")
    seen: list[tuple[int, int]] = []
    found = edge_interactions(
        subject, pairs, EDGES, memory_limit=1, progress=lambda *run: seen.append(run)
    )
    runs = (1 + 4 + 6) * len(pairs)
    assert seen == sorted(seen)
    assert (seen[-1], len(seen)) == ((runs, runs), runs)
    clean, corrupted = subject.run(pairs.clean), subject.run(pairs.corrupted)
    edges = subject.graph.edge_indices(EDGES)
    losses = single_edge(clean, corrupted.writers, edges, metric=pairs.loss)
    torch.testing.assert_close(found.single, losses - pairs.loss(clean.logits))


def test_edges_into_logits_add_up_under_a_linear_loss() -> None:
    subject = make_subject()
    edges = [f"{writer}->logits" for writer in subject.graph.writer_names]
    found = edge_interactions(subject, make_pairs(subject, output_sum), edges)
    assert found.single.abs().max() > 0.1
    assert found.interaction.abs().max() < 1e-12


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ([], "an interaction needs two or more different edges, got none"),
        (["input->m0"], "two or more different edges, got input->m0"),
        (["input->m0", "input->m0"], "two or more different edges, got input->m0, input->m0"),
        (["input->m0", "input->m9"], "unknown edge 'input->m9'"),
    ],
)
def test_edges_that_are_refused(edges: list[str], text: str) -> None:
    subject = make_subject()
    with pytest.raises(ValueError, match=text):
        edge_interactions(subject, make_pairs(subject), edges)
