"""Masked runs against a slow twin, their limits, gradients, chunks and refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.subject.transformer import Transformer
from tests.subjects import SOME, make_subject, make_tokens

EVERY = pytest.mark.parametrize("architecture", SOME)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def loss(logits: Tensor) -> Tensor:
    """A scalar for each mask."""
    return logits.sin().sum((-3, -2, -1)) + logits[..., 1, :].square().sum((-2, -1))


def random_masks(subject: Transformer, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) * 1.5 - 0.25


def pair(subject: Transformer) -> tuple[Tensor, Tensor]:
    return make_tokens(subject, seed=1), make_tokens(subject, seed=2)


def slow_masked_logits(
    subject: Transformer, tokens: Tensor, mask: Tensor, corrupted: Tensor
) -> Tensor:
    """One mask, (edge, pos); every reader sums its own messages, every head is on its own."""
    config, graph, w = subject.config, subject.graph, subject.weights
    running = [subject.embed(tokens)]
    constants = subject.constants[graph.reader_stream]

    def read(name: str) -> Tensor:
        reader = graph.reader_names.index(name)
        total = constants[reader].expand_as(running[0])
        for writer in range(int(graph.reads[reader])):
            m = mask[graph.edge_index(f"{graph.writer_names[writer]}->{name}")][:, None]
            total = total + m * running[writer] + (1 - m) * corrupted[:, :, writer]
        return total

    def vectors(name: str, reader: str, layer: int, index: int) -> Tensor:
        x = subject.normalize("attn_norm", read(reader), layer) @ w[f"W_{name}"][layer, index]
        return x + w[f"b_{name}"][layer, index] if config.biases else x

    letter = "h" if config.n_groups == config.n_heads else "g"
    for layer in range(config.n_layers):
        served = {"Q": "h", "K": letter, "V": letter}
        q, k, v = (
            torch.stack(
                [
                    vectors(name, f"a{layer}.{mark}{index}<{name.lower()}>", layer, index)
                    for index in range(w[f"W_{name}"].shape[1])
                ],
                dim=1,
            )
            for name, mark in served.items()
        )
        z = subject.attend(q, k, v, layer)
        W_O = subject.write_weight("W_O", layer)
        heads = [z[:, head] @ W_O[head] for head in range(config.n_heads)]
        if config.parallel:
            *_, hidden = subject.mlp(read(f"m{layer}"), layer)
            running += heads
        else:
            running += heads
            *_, hidden = subject.mlp(read(f"m{layer}"), layer)
        running.append(hidden @ subject.write_weight("W_out", layer))
    return subject.unembed(read("logits"))


@EVERY
def test_ones_are_the_plain_run_and_zeros_the_corrupted_one(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, other = pair(subject)
    corrupted = subject.run(other).writers
    masks = torch.tensor([[1.0], [0.0]]).expand(-1, subject.graph.n_edges)
    ones, zeros = masked_logits(subject, clean, masks, corrupted)
    close(ones, subject.logits(clean))
    close(zeros, subject.logits(other))


@pytest.mark.slow
@EVERY
def test_real_masks_equal_the_slow_twin(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, other = pair(subject)
    corrupted = subject.run(other).writers
    masks = random_masks(subject, 2, subject.graph.n_edges)
    by_position = random_masks(subject, 2, subject.graph.n_edges, clean.shape[1])
    found = masked_logits(subject, clean, masks, corrupted)
    found_by_position = masked_logits(subject, clean, by_position, corrupted)
    for row in range(2):
        mask = masks[row, :, None].expand(-1, clean.shape[1])
        close(found[row], slow_masked_logits(subject, clean, mask, corrupted))
        twin = slow_masked_logits(subject, clean, by_position[row], corrupted)
        close(found_by_position[row], twin)


@pytest.mark.parametrize("edge", ["a0.h2->a1.h1<q>", "m0->a1.h0<v>", "a1.h3->m1", "input->logits"])
def test_one_edge_patched_by_hand(edge: str) -> None:
    """Layer 0 runs on clean prompts; the last layer is written out with plain products."""
    subject = make_subject()
    clean, other = pair(subject)
    run, corrupted = subject.run(clean), subject.run(other).writers
    w, source = subject.weights, edge.split("->")[0]
    writer = subject.graph.writer_names.index(source)
    change = corrupted[:, :, writer] - run.writers[:, :, writer]

    def patched(reader: str, stream: Tensor) -> Tensor:
        return stream + change if edge == f"{source}->{reader}" else stream

    stream, heads = run.streams[2], []
    for head in range(4):
        q, k, v = (
            patched(f"a1.h{head}<{name}>", stream) @ w[f"W_{name.upper()}"][1, head]
            + w[f"b_{name.upper()}"][1, head]
            for name in "qkv"
        )
        scores = q @ k.transpose(1, 2) / 2
        future = torch.ones_like(scores[0]).triu(1).bool()
        pattern = scores.masked_fill(future, -torch.inf).softmax(-1)
        heads.append(pattern @ v @ w["W_O"][1, head])
    after = stream + torch.stack(heads).sum(0) + w["b_O"][1]
    pre = patched("m1", after) @ w["W_in"][1] + w["b_in"][1]
    final = after + torch.nn.functional.gelu(pre) @ w["W_out"][1] + w["b_out"][1]
    by_hand = patched("logits", final) @ w["W_U"] + w["b_U"]

    mask = torch.ones(subject.graph.n_edges)
    mask[subject.graph.edge_index(edge)] = 0
    close(masked_logits(subject, clean, mask, corrupted), by_hand)


@EVERY
def test_the_mask_gradient_at_one_is_that_of_attribution_patching(architecture: str) -> None:
    subject = make_subject(architecture)
    graph = subject.graph
    clean, other = pair(subject)
    run, corrupted = subject.run(clean, loss), subject.run(other).writers
    mask = torch.ones(graph.n_edges, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(loss(masked_logits(subject, clean, mask, corrupted)), mask)
    products = torch.einsum("bpwd,bprd->wr", run.writers - corrupted, run.reader_gradients)
    close(grad, products[graph.edge_writers, graph.edge_readers])


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["plain", "llama", "neox", "bidirectional", "gemma-3", "everything"]
)
def test_gradients_equal_those_of_the_slow_twin(architecture: str) -> None:
    plain = make_subject(architecture)
    weights = {name: w.clone().requires_grad_() for name, w in plain.weights.items()}
    subject = Transformer(plain.config, weights)
    clean, other = pair(subject)
    mask = random_masks(subject, subject.graph.n_edges).requires_grad_()
    leaves = [mask, *weights.values()]

    def gradients(logits: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(logits), leaves)

    found = gradients(masked_logits(subject, clean, mask, subject.run(other).writers))
    by_position = mask[:, None].expand(-1, clean.shape[1])
    corrupted = subject.run(other).writers
    twin = gradients(slow_masked_logits(subject, clean, by_position, corrupted))
    for a, b in zip(found, twin, strict=True):
        close(a, b)


def test_second_derivatives_by_masks() -> None:
    subject = make_subject()
    clean, other = pair(subject)
    corrupted = subject.run(other).writers
    start, step = random_masks(subject, 2, subject.graph.n_edges)

    def gradient(mask: Tensor) -> Tensor:
        value = loss(masked_logits(subject, clean, mask, corrupted))
        return torch.autograd.grad(value, mask, create_graph=True)[0]

    mask = start.clone().requires_grad_()
    (curvature,) = torch.autograd.grad(gradient(mask) @ step, mask)
    size = 1e-5
    ahead, behind = (
        gradient((start + sign * size * step).requires_grad_()).detach() for sign in (1, -1)
    )
    torch.testing.assert_close(curvature, (ahead - behind) / (2 * size), rtol=1e-4, atol=1e-6)


# Batches and chunks


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["plain", "llama"])
@pytest.mark.parametrize("positions", [(), (5,)])
def test_batched_equals_looped(architecture: str, positions: tuple[int, ...]) -> None:
    subject = make_subject(architecture)
    clean, other = pair(subject)
    corrupted = subject.run(other).writers
    masks = random_masks(subject, 7, subject.graph.n_edges, *positions)
    together = masked_logits(subject, clean, masks, corrupted)
    for mask, logits in zip(masks.split(1), together.split(1), strict=True):
        close(masked_logits(subject, clean, mask, corrupted), logits)
    if not positions:
        close(masked_logits(subject, clean, masks[0], corrupted), together[0])


def test_masks_are_chunked_to_the_memory_limit() -> None:
    subject = make_subject()
    clean, other = pair(subject)
    corrupted = subject.run(other).writers
    masks = random_masks(subject, 9, subject.graph.n_edges)
    sizes: list[int] = []

    def metric(logits: Tensor) -> Tensor:
        sizes.append(len(logits))
        return loss(logits)

    whole = masked_logits(subject, clean, masks, corrupted, metric=metric)
    assert sizes == [9]
    sizes.clear()
    close(masked_logits(subject, clean, masks, corrupted, metric=metric, memory_limit=1), whole)
    assert sizes == [1] * 9
    sizes.clear()
    masked_logits(subject, clean, masks, corrupted, metric=metric, memory_limit=400_000)
    assert 1 < sizes[0] < 9
    close(whole, loss(masked_logits(subject, clean, masks, corrupted)))


def test_chunks_have_the_same_gradients() -> None:
    plain = make_subject("llama")
    weights = {name: w.clone().requires_grad_() for name, w in plain.weights.items()}
    subject = Transformer(plain.config, weights)
    clean, other = pair(subject)
    corrupted = subject.run(other).writers.detach().requires_grad_()
    masks = random_masks(subject, 5, subject.graph.n_edges).requires_grad_()
    leaves = [masks, corrupted, *weights.values()]

    def gradients(memory_limit: int) -> tuple[Tensor, ...]:
        options: Any = {"metric": loss, "memory_limit": memory_limit}
        value = masked_logits(subject, clean, masks, corrupted, **options)
        return torch.autograd.grad(value.sum(), leaves)

    for whole, chunked in zip(gradients(2**30), gradients(1), strict=True):
        close(whole, chunked)


# What a cut edge carries


@pytest.mark.parametrize("positions", [(), (5,)])
def test_columns_are_those_of_the_whole(positions: tuple[int, ...]) -> None:
    subject = make_subject("gemma-3")
    tokens, other = pair(subject)
    corrupted = ablated_writers(subject, other)
    masks = random_masks(subject, 3, subject.graph.n_edges, *positions)
    whole = masked_logits(subject, tokens, masks, corrupted)
    some = masked_logits(subject, tokens, masks, corrupted, columns=slice(1, 3))
    close(some, whole[..., 1:3, :])


@pytest.mark.parametrize("architecture", ["plain", "parallel", "layer-norm"])
def test_ablations(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, other = pair(subject)
    writers = subject.run(other).writers
    assert torch.equal(ablated_writers(subject, other), writers)
    close(ablated_writers(subject, other, "mean"), writers.mean(0, keepdim=True))
    mask = random_masks(subject, subject.graph.n_edges)
    for ablation in ("mean", "zero"):
        carried = ablated_writers(subject, other, ablation)
        expected = torch.zeros_like(writers) if ablation == "zero" else writers.mean(0)
        spread = expected.expand_as(writers)
        found = masked_logits(subject, clean, mask, carried)
        close(found, masked_logits(subject, clean, mask, spread))
    nothing = masked_logits(
        subject, clean, torch.zeros_like(mask), ablated_writers(subject, other, "zero")
    )
    close(nothing, subject.unembed(subject.constants[-1]).expand_as(nothing))


@pytest.mark.parametrize("architecture", ["neox", "everything"])
def test_other_dtypes(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, other = pair(subject)
    masks = random_masks(subject, 3, subject.graph.n_edges)
    exact = masked_logits(subject, clean, masks, subject.run(other).writers)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        cast = subject.to(dtype)
        found = masked_logits(cast, clean, masks, cast.run(other).writers)
        assert found.dtype == dtype
        assert float((found.double() - exact).abs().max() / exact.abs().max()) < tolerance


# Refusals


def test_bad_masks() -> None:
    subject = make_subject()
    clean, other = pair(subject)
    corrupted = subject.run(other).writers
    wrong = (torch.ones(109), torch.ones(2, 111), torch.ones(2, 110, 4), torch.ones(0, 110))
    for masks in (*wrong, torch.tensor(1.0)):
        with pytest.raises(
            ValueError, match=r"must have shape \(110,\), \(mask, 110\) or"
        ) as error:
            masked_logits(subject, clean, masks, corrupted)
        assert f"got {tuple(masks.shape)}" in str(error.value)
    with pytest.raises(ValueError, match=r"floating point, got torch\.bool; call \.float\(\)"):
        masked_logits(subject, clean, torch.ones(110, dtype=torch.bool), corrupted)
    masks = torch.ones(2, 110)
    masks[1, 3] = torch.nan
    with pytest.raises(ValueError, match="must be numbers, got 1 NaN"):
        masked_logits(subject, clean, masks, corrupted)


def test_bad_corrupted_outputs() -> None:
    subject = make_subject()
    clean, other = pair(subject)
    mask = torch.ones(110)
    for tokens in (other[:, :4], other[:2]):
        corrupted = subject.run(tokens).writers
        with pytest.raises(ValueError, match=r"\(3, 5, 11, 8\) .* must have equal shapes"):
            masked_logits(subject, clean, mask, corrupted)
    with pytest.raises(ValueError, match=r"must be torch\.float64 on cpu .* got torch\.float32"):
        masked_logits(subject, clean, mask, subject.run(other).writers.float())
    with pytest.raises(ValueError, match="must be one of corrupted, zero, mean, got 'none'"):
        ablated_writers(subject, other, "none")
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.4"):
        masked_logits(subject, clean + 9, mask, subject.run(other).writers)


@pytest.mark.gpu
@EVERY
def test_cuda_equals_cpu(architecture: str) -> None:
    subject = make_subject(architecture)
    clean, other = pair(subject)
    masks = random_masks(subject, 4, subject.graph.n_edges)
    expected = masked_logits(subject, clean, masks, subject.run(other).writers)
    cuda, there = subject.to("cuda"), (clean.cuda(), other.cuda())
    found = masked_logits(cuda, there[0], masks.cuda(), cuda.run(there[1]).writers)
    close(found.cpu(), expected)
