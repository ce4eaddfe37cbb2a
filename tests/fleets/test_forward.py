"""A padded stack computes what each of its subjects computes alone, whatever its architecture."""

import itertools

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.fleets.batch import part_names
from graphcircuits.fleets.fleet import stack
from graphcircuits.fleets.forward import forward, forward_cut, patch_of, writers
from tests.fleets.fleets import (
    SOME_FLEETS,
    coins,
    fleet_of,
    inputs_of,
    own,
    padding_is_zero,
    patched_logits,
    unlike_subjects,
)

ROWS = 5


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("architecture", SOME_FLEETS)
def test_forward_is_each_subjects_own_run(architecture: str, layers: int) -> None:
    subjects = unlike_subjects(architecture, n_layers=layers)
    fleet = fleet_of(subjects)
    tokens = inputs_of(fleet, ROWS)
    logits, held = forward(fleet, stack(fleet, subjects), tokens)
    for s, subject in enumerate(subjects):
        config, run = subject.config, subject.run(own(fleet, s, tokens))
        close(logits[s, :, : config.n_ctx, : config.d_vocab_out], run.logits)
        for layer in range(layers):
            z, hidden = held.heads[layer][s], held.mlps[layer][s]
            close(z[:, : config.n_ctx, :, : config.d_head], run.states.z[layer])
            close(hidden[:, : config.n_ctx, : config.d_mlp], run.states.hidden[layer])
            assert not z[..., config.d_head :].any()
            assert not hidden[..., config.d_mlp :].any()


@pytest.mark.parametrize("architecture", SOME_FLEETS)
def test_a_shorter_input_is_a_run_of_its_length(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    tokens = inputs_of(fleet, ROWS)[:, :, :3]
    logits, _ = forward(fleet, stack(fleet, subjects), tokens)
    for s, subject in enumerate(subjects):
        close(logits[s, :, :, : subject.config.d_vocab_out], subject.logits(tokens[s]))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("architecture", SOME_FLEETS)
def test_a_patch_is_the_same_patch_by_hand(architecture: str, many: bool) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    names = part_names(fleet)
    tokens, donors = (inputs_of(fleet, len(names), seed) for seed in (1, 2))
    weights = stack(fleet, subjects)
    some = coins(len(subjects), len(names), len(names), share=0.4)
    patched = some if many else torch.eye(len(names)).bool().expand_as(some)
    _, donor = forward(fleet, weights, donors)
    logits, held = forward(fleet, weights, tokens, patch_of(fleet, donor, patched))
    for (s, subject), row in itertools.product(enumerate(subjects), range(len(names))):
        parts = list(itertools.compress(names, patched[s, row].tolist()))
        mine, theirs = (own(fleet, s, x)[row, None] for x in (tokens, donors))
        expected = patched_logits(subject, mine, theirs, parts)[0]
        close(logits[s, row, : subject.config.n_ctx, : subject.config.d_vocab_out], expected)
    in_first_head = patched[:, :, names.index("a0.h0")]
    taken, given = held.heads[0][:, :, :, 0], donor.heads[0][:, :, :, 0]
    assert torch.equal(taken[in_first_head], given[in_first_head])
    assert not torch.allclose(taken[~in_first_head], given[~in_first_head])


@pytest.mark.parametrize("architecture", SOME_FLEETS)
def test_writers_are_those_of_the_run(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    tokens, weights = inputs_of(fleet, ROWS), stack(fleet, subjects)
    _, held = forward(fleet, weights, tokens)
    put_out = writers(fleet, weights, tokens, held)
    few = writers(fleet, weights, tokens[:, :2], held.first(2))
    close(few, put_out[:, :2])
    for s, subject in enumerate(subjects):
        config = subject.config
        expected = subject.run(own(fleet, s, tokens)).writers
        close(put_out[s, :, : config.n_ctx, :, : config.d_model], expected)
        assert not put_out[s, ..., config.d_model :].any()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("architecture", SOME_FLEETS)
def test_cut_edges_are_masks_of_zero(architecture: str, share: float) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    graph = subjects[0].graph
    assert fleet.graph == graph
    weights = stack(fleet, subjects)
    tokens, donors = (inputs_of(fleet, ROWS, seed) for seed in (1, 2))
    _, held = forward(fleet, weights, donors)
    given = writers(fleet, weights, donors, held)
    cut = coins(len(subjects), ROWS, graph.n_readers, graph.n_writers, share=share)
    logits = forward_cut(fleet, weights, tokens, given, cut)
    for (s, subject), row in itertools.product(enumerate(subjects), range(ROWS)):
        mask = (~cut[s, row][graph.edge_readers, graph.edge_writers]).double()
        mine, theirs = (own(fleet, s, x)[row, None] for x in (tokens, donors))
        expected = masked_logits(subject, mine, mask, subject.run(theirs).writers)[0]
        close(logits[s, row, : subject.config.n_ctx, : subject.config.d_vocab_out], expected)


@pytest.mark.parametrize("architecture", SOME_FLEETS)
def test_padding_gets_no_gradient(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    weights = {name: w.requires_grad_() for name, w in stack(fleet, subjects).items()}
    tokens = inputs_of(fleet, ROWS)
    logits, held = forward(fleet, weights, tokens)
    given = writers(fleet, weights, tokens, held).flip(1)
    cut = coins(len(subjects), ROWS, fleet.graph.n_readers, fleet.graph.n_writers)
    both = logits.sin() + forward_cut(fleet, weights, tokens, given, cut).cos()
    exists = torch.zeros(both.shape, dtype=torch.bool)
    for s, member in enumerate(fleet.members):
        exists[s, :, : member.n_ctx, : member.d_vocab_out] = True
    gradients = torch.autograd.grad((both * exists).sum(), list(weights.values()))
    assert padding_is_zero(subjects, dict(zip(weights, gradients, strict=True)))
    assert all(gradient.any() for gradient in gradients)
