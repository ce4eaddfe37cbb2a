"""A padded stack computes what each of its subjects computes alone, whatever its architecture."""

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.fleets.fleet import Fleet, Weights, stack, unstack
from graphcircuits.fleets.forward import Activations, Patch, forward, forward_cut, writers
from graphcircuits.subject.transformer import Transformer
from tests.fleets.fleets import (
    SOME_FLEETS,
    coins,
    fleet_of,
    inputs_of,
    own,
    padding_is_zero,
    patched_rows,
    unlike_subjects,
)

ROWS = 5
every_architecture = pytest.mark.parametrize("architecture", SOME_FLEETS)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def check_logits(fleet: Fleet, s: int, logits: Tensor, expected: Tensor) -> None:
    """A subject's logits in those of the fleet are these."""
    member = fleet.members[s]
    close(logits[s, :, : member.n_ctx, : member.d_vocab_out], expected)


@every_architecture
def test_forward_is_each_subjects_own_run(architecture: str) -> None:
    subjects = unlike_subjects(architecture, n_layers=3)
    fleet = fleet_of(subjects)
    tokens = inputs_of(fleet, ROWS)
    logits, held = forward(fleet, stack(fleet, subjects), tokens)
    for s, subject in enumerate(subjects):
        config, run = subject.config, subject.run(own(fleet, s, tokens))
        check_logits(fleet, s, logits, run.logits)
        for layer in range(3):
            z, hidden = held.heads[layer][s], held.mlps[layer][s]
            close(z[:, : config.n_ctx, :, : config.d_head], run.states.z[layer])
            close(hidden[:, : config.n_ctx, : config.d_mlp], run.states.hidden[layer])
            assert not z[..., config.d_head :].any()
            assert not hidden[..., config.d_mlp :].any()


@pytest.mark.usefixtures("unchecked")
@every_architecture
def test_a_shorter_input_and_fewer_subjects_are_a_run_of_theirs(architecture: str) -> None:
    subjects = unlike_subjects(architecture, n_layers=1)
    fleet, kept = fleet_of(subjects), [3, 1]
    tokens = inputs_of(fleet, ROWS)[kept, :, :3]
    weights = {name: w[kept] for name, w in stack(fleet, subjects).items()}
    fewer = fleet.take(kept)
    logits, _ = forward(fewer, weights, tokens)
    for place, s in enumerate(kept):
        assert fewer.members[place] == subjects[s].config
        expected = subjects[s].logits(tokens[place])
        close(logits[place, :, :, : subjects[s].config.d_vocab_out], expected)


@pytest.mark.usefixtures("unchecked")
@every_architecture
def test_a_patch_is_the_same_patch_by_hand(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet, weights = fleet_of(subjects), stack(fleet_of(subjects), subjects)
    components = fleet.graph.n_writers - 1
    tokens, donors = (inputs_of(fleet, 2 * components, seed) for seed in (1, 2))
    some = coins(len(subjects), components, components, share=0.4)
    # Each component alone, and then several at once.
    patched = torch.cat([torch.eye(components).bool().expand_as(some), some], dim=1)
    _, donor = forward(fleet, weights, donors)
    logits, held = forward(fleet, weights, tokens, Patch(donor, patched))
    for s, subject in enumerate(subjects):
        mine, theirs = (own(fleet, s, x) for x in (tokens, donors))
        check_logits(fleet, s, logits, patched_rows(subject, mine, theirs, patched[s]))
    first_head = patched[:, :, 0]
    taken, given = held.heads[0][:, :, :, 0], donor.heads[0][:, :, :, 0]
    assert torch.equal(taken[first_head], given[first_head])
    assert not torch.allclose(taken[~first_head], given[~first_head])


@pytest.mark.usefixtures("unchecked")
@every_architecture
def test_writers_are_those_of_the_run(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    tokens, weights = inputs_of(fleet, ROWS), stack(fleet, subjects)
    _, held = forward(fleet, weights, tokens)
    put_out = writers(fleet, weights, tokens, held)
    close(writers(fleet, weights, tokens[:, :2], held.first(2)), put_out[:, :2])
    for s, subject in enumerate(subjects):
        config = subject.config
        expected = subject.run(own(fleet, s, tokens)).writers
        close(put_out[s, :, : config.n_ctx, :, : config.d_model], expected)
        assert not put_out[s, ..., config.d_model :].any()


def some_cuts(fleet: Fleet) -> Tensor:
    """Edges cut in each row: none, all, and three times some."""
    cut = coins(len(fleet.members), ROWS, fleet.graph.n_readers, fleet.graph.n_writers, share=0.3)
    cut[:, 0], cut[:, 1] = False, True
    return cut


@pytest.mark.usefixtures("unchecked")
@every_architecture
def test_cut_edges_are_masks_of_zero(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet, weights = fleet_of(subjects), stack(fleet_of(subjects), subjects)
    graph = subjects[0].graph
    assert fleet.graph == graph
    tokens, donors = (inputs_of(fleet, ROWS, seed) for seed in (1, 2))
    _, held = forward(fleet, weights, donors)
    cut = some_cuts(fleet)
    given = writers(fleet, weights, donors, held)
    logits = forward_cut(fleet, weights, tokens, given, cut)
    row = torch.arange(ROWS)
    for s, subject in enumerate(subjects):
        masks = (~cut[s][:, graph.edge_readers, graph.edge_writers]).double()
        mine, theirs = (own(fleet, s, x) for x in (tokens, donors))
        every_row = masked_logits(subject, mine, masks, subject.run(theirs).writers)
        check_logits(fleet, s, logits, every_row[row, row])


def both_runs(
    fleet: Fleet, weights: Weights, tokens: Tensor, cut: Tensor
) -> tuple[Tensor, Activations]:
    """Logits of a plain run, plus those of one whose donors are its rows in reverse order."""
    logits, held = forward(fleet, weights, tokens)
    given = writers(fleet, weights, tokens, held).flip(1)
    return logits + forward_cut(fleet, weights, tokens, given, cut), held


@every_architecture
def test_padding_gets_no_gradient(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    weights = {name: w.requires_grad_() for name, w in stack(fleet, subjects).items()}
    both, _ = both_runs(fleet, weights, inputs_of(fleet, ROWS), some_cuts(fleet))
    exists = torch.zeros(both.shape, dtype=torch.bool)
    for s, member in enumerate(fleet.members):
        exists[s, :, : member.n_ctx, : member.d_vocab_out] = True
    gradients = torch.autograd.grad((both.sin() * exists).sum(), list(weights.values()))
    assert padding_is_zero(subjects, dict(zip(weights, gradients, strict=True)))
    assert all(gradient.any() for gradient in gradients)


@pytest.mark.usefixtures("unchecked")
@every_architecture
def test_gradients_are_each_subjects_own(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    weights = {name: w.requires_grad_() for name, w in stack(fleet, subjects).items()}
    tokens = inputs_of(fleet, ROWS)
    logits, _ = forward(fleet, weights, tokens)
    for s, subject in enumerate(subjects):
        config = subject.config
        mine = logits[s, :, : config.n_ctx, : config.d_vocab_out].sin().sum()
        found = torch.autograd.grad(mine, list(weights.values()), retain_graph=True)
        leaves = {name: w.clone().requires_grad_() for name, w in subject.weights.items()}
        alone = Transformer(config, leaves).logits(own(fleet, s, tokens)).sin().sum()
        expected = torch.autograd.grad(alone, list(leaves.values()))
        theirs = unstack(fleet, dict(zip(weights, found, strict=True)), s)
        for name, gradient in zip(leaves, expected, strict=True):
            close(theirs[name], gradient)


def test_drop_is_of_the_embedding_and_of_what_heads_and_mlps_add() -> None:
    subjects = unlike_subjects("gpt2")
    fleet, weights = fleet_of(subjects), stack(fleet_of(subjects), subjects)
    tokens, dropped = inputs_of(fleet, ROWS), []

    def double(x: Tensor) -> Tensor:
        dropped.append(x)
        return 2 * x

    logits, _ = forward(fleet, weights, tokens, drop=double)
    written = ("W_E", "W_pos", "W_O", "b_O", "W_out", "b_out")
    louder = {name: w * 2 if name in written else w for name, w in weights.items()}
    close(logits, forward(fleet, louder, tokens)[0])
    stream = (len(subjects), ROWS, fleet.config.n_ctx, fleet.config.d_model)
    assert [x.shape for x in dropped] == [stream] * (1 + 2 * fleet.config.n_layers)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@every_architecture
def test_a_run_asks_for_no_value_and_takes_nothing_from_the_host(architecture: str) -> None:
    # Tensors without values stand in for those of a GPU: a step that reads one, or that meets a
    # tensor of the CPU, fails on them as it would while a CUDA graph is recorded.
    subjects = unlike_subjects(architecture)
    meta = torch.device("meta")
    fleet = fleet_of(subjects).to(meta)
    weights = {n: w.to(meta).requires_grad_() for n, w in stack(fleet, subjects).items()}
    tokens, cut = inputs_of(fleet, ROWS).to(meta), some_cuts(fleet).to(meta)
    both, held = both_runs(fleet, weights, tokens, cut)
    components = torch.zeros(len(subjects), ROWS, fleet.graph.n_writers - 1, dtype=torch.bool)
    patched, _ = forward(fleet, weights, tokens, Patch(held, components.to(meta)))
    gradients = torch.autograd.grad((both + patched).sum(), list(weights.values()))
    assert all(gradient.is_meta for gradient in gradients)


@pytest.mark.gpu
@pytest.mark.usefixtures("unchecked")
@every_architecture
def test_a_recorded_run_is_the_run(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    cuda = torch.device("cuda")
    fleet = fleet_of(subjects).to(cuda)
    weights = {n: w.to(cuda).requires_grad_() for n, w in stack(fleet, subjects).items()}
    tokens, cut = inputs_of(fleet, ROWS, 1).to(cuda), some_cuts(fleet).to(cuda)

    def gradients() -> tuple[Tensor, ...]:
        both, _ = both_runs(fleet, weights, tokens, cut)
        return torch.autograd.grad(both.sin().sum(), list(weights.values()))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        gradients()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = gradients()
    tokens.copy_(inputs_of(fleet, ROWS, 2))
    graph.replay()
    for got, expected in zip(recorded, gradients(), strict=True):
        close(got, expected)
