"""Runs of circuits against masked runs, and that what cuts leave unchanged is not computed."""

from collections import Counter
from itertools import product

import pytest
import torch
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.engine.circuits import CutRun, circuit_logits
from graphcircuits.engine.masked import ABLATIONS, ablated_writers, masked_logits
from graphcircuits.subject.transformer import Transformer
from tests.subjects import ARCHITECTURES, make_subject, make_tokens

COLUMNS = slice(2, 4)
SHARES = torch.tensor([0.0, 0.02, 0.05, 0.2, 0.6, 1.1])
"""Of the edges of each mask: from none to all."""


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def make_cut(subject: Transformer, tokens: Tensor, ablation: str) -> CutRun:
    if ablation == "zero":
        return CutRun.of_zeros(subject, tokens.shape[1])
    if ablation == "mean":
        return CutRun.of_mean(subject.trace(subject.embed(part)) for part in tokens.split(2))
    return CutRun.of_trace(subject.trace(subject.embed(tokens)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "ablation"),
    [
        *product(ARCHITECTURES, ABLATIONS[:1]),
        *product(("plain", "gpt-2", "llama", "gemma-3"), ABLATIONS[1:]),
    ],
)
def test_a_circuit_is_a_mask_of_ones_and_zeros(architecture: str, ablation: str) -> None:
    subject = make_subject(architecture)
    clean, other = (make_tokens(subject, seed=seed) for seed in (1, 2))
    generator = torch.Generator().manual_seed(0)
    chances = torch.rand(len(SHARES), subject.graph.n_edges, generator=generator)
    masks = chances < SHARES[:, None]
    expected = masked_logits(
        subject, clean, masks.double(), ablated_writers(subject, other, ablation)
    )
    cut = make_cut(subject, other, ablation)
    # Together every component moves; alone, few edges leave most of them out.
    close(circuit_logits(subject, clean, masks, cut, COLUMNS), expected[:, :, COLUMNS])
    for mask, logits in zip(masks[:4], expected, strict=False):
        close(circuit_logits(subject, clean, mask[None], cut)[0], logits)


@pytest.mark.parametrize(
    ("names", "computed"),
    [
        ([], {}),
        # Nothing reaches them from the input.
        (["m0->m1", "a0.h0->a1.h0<v>", "m1->logits"], {}),
        (["input->m1", "m1->logits"], {"m1": 1}),
        (["input->a0.h1<k>", "a0.h1->m1"], {"a0": 1, "m1": 1}),
        (["input->a0.h1<k>", "input->a0.h2<q>", "input->m0"], {"a0": 2, "m0": 1}),
    ],
)
def test_components_that_nothing_reaches_are_not_computed(
    names: list[str], computed: dict[str, int]
) -> None:
    found: Counter[str] = Counter()

    class Watched(Transformer):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, dim: int = -3) -> Tensor:
            found[f"a{layer}"] += q.shape[dim]
            return super().attend(q, k, v, layer, dim)

        def mlp(self, stream: Tensor, layer: int) -> tuple[Tensor, Tensor | None, Tensor]:
            found[f"m{layer}"] += 1
            return super().mlp(stream, layer)

    plain = make_subject()
    subject = Watched(plain.config, plain.weights)
    clean, other = (make_tokens(subject, seed=seed) for seed in (1, 2))
    mask = Circuit.from_names(subject.graph, names).mask[None]
    cuts = {ablation: make_cut(plain, other, ablation) for ablation in ("corrupted", "zero")}
    circuit_logits(subject, clean, mask, cuts["corrupted"])
    assert found == computed
    # Where cut edges carry nothing, components compute of nothing something else.
    found.clear()
    circuit_logits(subject, clean, mask, cuts["zero"])
    assert found == {"a0": 4, "a1": 4, "m0": 1, "m1": 1}


@pytest.mark.gpu
def test_circuits_on_a_gpu() -> None:
    subject = make_subject("llama")
    clean, other = (make_tokens(subject, seed=seed) for seed in (1, 2))
    masks = torch.rand(3, subject.graph.n_edges, generator=torch.Generator().manual_seed(0)) < 0.3
    expected = circuit_logits(subject, clean, masks, make_cut(subject, other, "corrupted"))
    cuda = subject.to("cuda")
    cut = make_cut(cuda, other.cuda(), "corrupted")
    close(circuit_logits(cuda, clean.cuda(), masks, cut).cpu(), expected)
