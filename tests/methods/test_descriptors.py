"""Descriptors against dense maps, and what they must not depend on."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphcircuits.methods.descriptors import (
    DESCRIPTORS,
    FLOOR,
    N_SINGULAR,
    describe,
    standardized,
)
from graphcircuits.subject.sites import READER_KINDS, WRITER_KINDS
from graphcircuits.subject.transformer import Transformer
from tests.methods.tasks import planted
from tests.subjects import SOME, make_subject

EVERY = pytest.mark.parametrize("architecture", SOME)
PLACE = {name: place for place, name in enumerate(DESCRIPTORS)}


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


def through_norm(subject: Transformer, name: str, layer: int | None, W: Tensor) -> Tensor:
    """The norm as a dense matrix, without its scale, times W."""
    config = subject.config
    if f"{name}_w" not in subject.weights:
        return W
    weight = subject.weights[f"{name}_w"]
    weight = weight if layer is None else weight[layer]
    eye = torch.eye(config.d_model, dtype=W.dtype)
    centre = eye - 1 / config.d_model if config.norm == "layer" else eye
    return centre @ weight.diag() @ W


def dense_factors(subject: Transformer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every map whole, by the names of writers and readers; heads and groups one by one."""
    config, w = subject.config, subject.weights
    tables = [w["W_E"] * config.embedding_scale / math.sqrt(config.d_vocab)]
    if config.positions == "learned":
        tables.append(w["W_pos"] / math.sqrt(config.n_ctx))
    writers, readers = {"input": torch.cat(tables)}, {}
    letter = "h" if config.n_groups == config.n_heads else "g"
    for layer in range(config.n_layers):
        Q, K, V = (
            [through_norm(subject, "attn_norm", layer, W) for W in w[f"W_{name}"][layer]]
            for name in "QKV"
        )
        if config.qk_norm == "head":
            Q, K = [W * w["q_norm_w"][layer] for W in Q], [W * w["k_norm_w"][layer] for W in K]
        if config.qk_norm == "joint":
            Q = [W * weight for W, weight in zip(Q, w["q_norm_w"][layer], strict=True)]
            K = [W * weight for W, weight in zip(K, w["k_norm_w"][layer], strict=True)]
        out, W_out = w["W_O"][layer], w["W_out"][layer]
        if config.norm_places != "before":
            out, W_out = out * w["attn_out_norm_w"][layer], W_out * w["mlp_out_norm_w"][layer]
        group_of = [head // config.heads_per_group for head in range(config.n_heads)]
        for head, group in enumerate(group_of):
            writers[f"a{layer}.h{head}"] = V[group] @ out[head]
            readers[f"a{layer}.h{head}<q>"] = Q[head] @ K[group].T
        for group in range(config.n_groups):
            heads = [head for head in range(config.n_heads) if group_of[head] == group]
            keys = [K[group] @ Q[head].T for head in heads]
            readers[f"a{layer}.{letter}{group}<k>"] = torch.cat(keys, dim=1)
            values = [V[group] @ out[head] for head in heads]
            readers[f"a{layer}.{letter}{group}<v>"] = torch.cat(values, dim=1)
        read = through_norm(subject, "mlp_norm", layer, w["W_in"][layer])
        if config.gated_mlp:
            gate = through_norm(subject, "mlp_norm", layer, w["W_gate"][layer])
            read = torch.cat([read, gate], dim=1)
        readers[f"m{layer}"], writers[f"m{layer}"] = read, W_out
    unembedding = w["W_E"].T if config.tied_unembedding else w["W_U"]
    readers["logits"] = through_norm(subject, "final_norm", None, unembedding) * config.logit_scale
    return writers, readers


def slow_describe(subject: Transformer) -> Tensor:
    """Edge by edge from dense maps."""
    graph, n_layers = subject.graph, subject.config.n_layers
    writers, readers = dense_factors(subject)
    ends = {name: tuple(name.split("->")) for name in graph.edge_names}
    maps = {name: writers[writer] @ readers[reader] for name, (writer, reader) in ends.items()}
    norm = {name: W.norm() for name, W in maps.items()}
    composition = {
        name: norm[name] / (writers[writer].norm() * readers[reader].norm())
        for name, (writer, reader) in ends.items()
    }

    def cosine(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum() / (a.norm() * b.norm())

    served = {
        reader: {graph.writer_names[writer] for writer in graph.components_of(number)}
        for number, reader in enumerate(graph.reader_names)
    }
    leaving = {writer: [e for e in ends if ends[e][0] == writer] for writer in writers}
    entering = {reader: [e for e in ends if ends[e][1] == reader] for reader in readers}
    sent = {
        writer: torch.stack([maps[e] @ maps[e].T for e in edges]).sum(0)
        for writer, edges in leaving.items()
    }
    received = {
        reader: torch.stack([maps[e].T @ maps[e] for e in edges]).sum(0)
        for reader, edges in entering.items()
    }
    rows = []
    for name, (writer, reader) in ends.items():
        W = maps[name]
        singular = torch.linalg.svdvals(W)
        top = [*(singular / norm[name]), *[torch.tensor(0.0)] * N_SINGULAR][:N_SINGULAR]
        shares = [
            torch.log(norm[name] ** 2 / torch.stack([norm[e] ** 2 for e in beside]).mean())
            for beside in (leaving[writer], entering[reader])
        ]
        feeding = [reader for reader in readers if writer in served[reader]]
        before = [composition[e] for reader in feeding for e in entering[reader]]
        after = [composition[e] for writer in served[reader] for e in leaving[writer]]
        layers = [
            int(part[1 : part.find(".")] if "." in part else part[1:])
            for part in (
                "m-1" if writer == "input" else writer,
                f"m{n_layers}" if reader == "logits" else reader,
            )
        ]
        kinds = ["head" if writer[0] == "a" else "mlp" if writer[0] == "m" else "input"]
        kinds += [reader[-2] if reader[0] == "a" else "mlp" if reader[0] == "m" else "logits"]
        rows.append(
            [
                norm[name].log(),
                *top,
                torch.log(singular.square().sum() ** 2 / (singular**4).sum()),
                composition[name],
                writers[writer].norm().log(),
                readers[reader].norm().log(),
                *shares,
                cosine(W @ W.T, sent[writer]),
                cosine(W.T @ W, received[reader]),
                max(before, default=1.0),
                max(after, default=1.0),
                *((layer + 1) / (n_layers + 1) for layer in layers),
                *(kind == kinds[0] for kind in WRITER_KINDS),
                *(kind == kinds[1] for kind in READER_KINDS),
            ]
        )
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.slow
@EVERY
def test_descriptors_equal_those_of_dense_maps(architecture: str) -> None:
    subject = make_subject(architecture)
    described = describe(subject)
    assert described.shape == (subject.graph.n_edges, len(DESCRIPTORS))
    close(described, slow_describe(subject))


def test_heads_wider_than_the_stream() -> None:
    subject = make_subject(d_model=3, d_head=5, d_mlp=2)
    close(describe(subject), slow_describe(subject))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["plain", "layer-norm", "grouped-keys", "one-key"])
def test_the_basis_inside_a_head_does_not_matter(architecture: str) -> None:
    subject = make_subject(architecture, n_layers=2)
    generator = torch.Generator().manual_seed(3)
    shape = (2, 2, subject.config.n_groups, 4, 4)
    ov, qk = torch.randn(shape, generator=generator, dtype=torch.float64)
    w = subject.weights

    def by_head(x: Tensor) -> Tensor:
        return subject.expand_groups(x, dim=1)

    turned = {
        "W_V": w["W_V"] @ ov,
        "W_O": by_head(ov.inverse()) @ w["W_O"],
        "W_K": w["W_K"] @ qk,
        "W_Q": w["W_Q"] @ by_head(qk.inverse().mT),
    }
    close(describe(Transformer(subject.config, w | turned)), describe(subject))


@pytest.mark.parametrize("architecture", ["plain", "gated"])
def test_the_order_of_neurons_and_the_basis_of_the_stream_do_not_matter(architecture: str) -> None:
    subject = make_subject(architecture)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(subject.config.d_mlp, generator=generator)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q
    w = dict(subject.weights)
    for name in w.keys() & {"W_in", "W_gate"}:
        w[name] = turn.T @ w[name][..., order]
    w["W_out"] = w["W_out"][:, order] @ turn
    for name in ("W_E", "W_pos", "W_O"):
        w[name] = w[name] @ turn
    for name in ("W_Q", "W_K", "W_V", "W_U"):
        w[name] = turn.T @ w[name]
    close(describe(Transformer(subject.config, w)), describe(subject))


def test_biases_and_the_norms_scale_do_not_matter() -> None:
    subject = make_subject("layer-norm")
    w = {
        name: x + 1 if name.startswith("b_") or name.endswith("_b") else x
        for name, x in subject.weights.items()
    }
    other = Transformer(replace(subject.config, norm_eps=0.1), w)
    assert torch.equal(describe(other), describe(subject))


def test_silent_components_have_a_description() -> None:
    subject, _ = planted(make_subject())
    described = describe(subject)
    assert described.isfinite().all()
    silent = described[subject.graph.edge_index("m0->logits")]
    names = ("singular_0", "log_rank", "composition", "beside_writer", "beside_reader")
    assert [silent[PLACE[name]].item() for name in names] == [0.0] * len(names)
    largest = described[:, PLACE["log_norm"]].max()
    assert silent[PLACE["log_norm"]] == pytest.approx(largest.item() + math.log(FLOOR))
    assert silent[PLACE["log_share_of_writer"]] == pytest.approx(math.log(FLOOR))


def test_standardized() -> None:
    described = torch.tensor([[1.0, 0.1, 5.0], [3.0, 0.1, 5.0]], dtype=torch.float64)
    expected = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    close(standardized(described), expected)
    found = standardized(describe(make_subject("gpt-2")))
    close(found.mean(0), torch.zeros(len(DESCRIPTORS), dtype=torch.float64))
    close(found.square().mean(0), torch.ones(len(DESCRIPTORS), dtype=torch.float64))


def test_a_float32_subject_is_described_in_float64() -> None:
    subject = make_subject()
    single = describe(subject.to(torch.float32))
    assert single.dtype == torch.float64
    torch.testing.assert_close(single, describe(subject), rtol=1e-4, atol=1e-4)
