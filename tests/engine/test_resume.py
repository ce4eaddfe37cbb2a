"""Single-edge changes: the structure-aware path equals the general one."""

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.engine.resume import single_edge
from graphcircuits.subject.transformer import Transformer
from tests.subjects import SOME, make_subject, make_tokens

EVERY = pytest.mark.parametrize("architecture", SOME)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def pair(subject: Transformer) -> tuple[Tensor, Tensor]:
    return make_tokens(subject, seed=1), make_tokens(subject, seed=2)


def general(subject: Transformer, tokens: Tensor, other: Tensor) -> Tensor:
    masks = 1 - torch.eye(subject.graph.n_edges, dtype=torch.float64)
    return masked_logits(subject, tokens, masks, other)


@pytest.mark.slow
@EVERY
def test_it_equals_the_general_path(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, corrupted = pair(subject)
    other = subject.run(corrupted).writers
    close(single_edge(subject.run(clean), other), general(subject, clean, other))


def test_denoising_is_noising_the_other_way_round() -> None:
    """One clean edge in a corrupted run: its reader alone sees the clean output."""
    subject = make_subject()
    clean, corrupted = pair(subject)
    base, other = subject.run(corrupted), subject.run(clean).writers
    found = single_edge(base, other)
    close(found, general(subject, corrupted, other))
    last = subject.graph.edge_index("m1->logits")
    change = other[:, :, -1] - base.writers[:, :, -1]
    close(found[last], base.logits + change @ subject.weights["W_U"])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["plain", "llama", "parallel"])
def test_rows_follow_the_edges_asked_for(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, corrupted = pair(subject)
    run, other = subject.run(clean), subject.run(corrupted).writers
    everything = single_edge(run, other)
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 20, 200):
        edges = torch.randint(subject.graph.n_edges, (count,), generator=generator)
        close(single_edge(run, other, edges), everything[edges])


@pytest.mark.slow
def test_chunks_and_metrics() -> None:
    subject = make_subject(n_layers=3)
    clean, corrupted = pair(subject)
    run, other = subject.run(clean), subject.run(corrupted).writers
    sizes: list[int] = []

    def metric(logits: Tensor) -> Tensor:
        sizes.append(len(logits))
        return logits.square().sum((1, 2, 3))

    whole = single_edge(run, other, metric=metric)
    assert max(sizes) > 1
    sizes.clear()
    close(single_edge(run, other, metric=metric, memory_limit=1), whole)
    assert sizes == [1] * subject.graph.n_edges
    close(whole, metric(single_edge(run, other)))


@pytest.mark.parametrize("ablation", ["mean", "zero"])
def test_ablations(ablation: str) -> None:
    subject = make_subject("layer-norm")
    clean, corrupted = pair(subject)
    other = ablated_writers(subject, corrupted, ablation)
    close(single_edge(subject.run(clean), other), general(subject, clean, other))


def test_an_edge_that_carries_the_same_changes_nothing() -> None:
    subject = make_subject()
    run = subject.run(make_tokens(subject))
    same = single_edge(run, run.writers)
    close(same, run.logits.expand_as(same))


def test_the_run_is_left_as_it_was() -> None:
    subject = make_subject()
    clean, corrupted = pair(subject)
    run, other = subject.run(clean), subject.run(corrupted).writers
    before = [run.writers.clone(), run.states.z.clone(), run.states.pre.clone(), other.clone()]
    single_edge(run, other)
    after = [run.writers, run.states.z, run.states.pre, other]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_refusals() -> None:
    subject = make_subject()
    clean, corrupted = pair(subject)
    run, other = subject.run(clean), subject.run(corrupted).writers
    for edges in ([110], [-1, 3], []):
        with pytest.raises(ValueError, match=r"edges must be one or more of 0\.\.109, got"):
            single_edge(run, other, torch.tensor(edges, dtype=torch.int64))
    with pytest.raises(ValueError, match="clean and corrupted prompts must have equal shapes"):
        single_edge(run, subject.run(corrupted[:, :3]).writers)


@pytest.mark.gpu
@EVERY
def test_cuda_equals_cpu(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, corrupted = pair(subject)
    expected = single_edge(subject.run(clean), subject.run(corrupted).writers)
    cuda = subject.to("cuda")
    found = single_edge(cuda.run(clean.cuda()), cuda.run(corrupted.cuda()).writers)
    close(found.cpu(), expected)
