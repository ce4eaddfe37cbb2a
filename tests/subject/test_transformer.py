"""The subject: plain run, decomposed run, gradients, and refusals."""

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from graphcircuits.subject.attention import _turns, _unseen
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.components import PLAIN
from graphcircuits.subject.transformer import (
    RotaryScaling,
    Run,
    Transformer,
    weight_shapes,
)
from tests.subject.slow import slow_logits
from tests.subjects import ARCHITECTURES, SOME, make_config, make_subject, make_tokens

EVERY = pytest.mark.parametrize("architecture", SOME)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def loss(logits: Tensor) -> Tensor:
    return logits.sin().sum() + logits[:, 1].square().sum()


@EVERY
def test_logits_equal_the_slow_twin(architecture: str) -> None:
    subject = make_subject(architecture)
    tokens = make_tokens(subject, batch=2, pos=4)
    close(subject.logits(tokens), slow_logits(subject, tokens))


def test_grouped_keys_equal_the_groups_written_out() -> None:
    grouped = make_subject("grouped-keys")
    names = ("W_K", "W_V", "b_K", "b_V")
    written = {name: grouped.weights[name].repeat_interleave(2, dim=1) for name in names}
    single = Transformer(replace(grouped.config, n_kv_heads=None), grouped.weights | written)
    tokens = make_tokens(grouped)
    close(grouped.logits(tokens), single.logits(tokens))


def test_a_causal_subject_ignores_the_future() -> None:
    for architecture, same in (("plain", True), ("bidirectional", False)):
        subject = make_subject(architecture)
        tokens = make_tokens(subject)
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % subject.config.d_vocab
        gap = (subject.logits(tokens) - subject.logits(changed))[:, :-1].abs().max()
        assert (float(gap) < 1e-12) == same


# The run that keeps everything


@EVERY
def test_the_run_has_the_logits(architecture: str) -> None:
    subject = make_subject(architecture)
    tokens = make_tokens(subject)
    close(subject.run(tokens).logits, subject.logits(tokens))


@EVERY
def test_messages_and_constants_sum_to_what_readers_read(architecture: str) -> None:
    subject = make_subject(architecture)
    graph, run = subject.graph, subject.run(make_tokens(subject))
    constants = subject.constants[graph.reader_stream]
    for reader, reads in enumerate(graph.reads.tolist()):
        total = run.writers[:, :, :reads].sum(2) + constants[reader]
        close(total, run.streams[graph.reader_stream[reader]])


@EVERY
def test_states_are_what_readers_make_of_their_inputs(architecture: str) -> None:
    subject = make_subject(architecture)
    config, graph, run = subject.config, subject.graph, subject.run(make_tokens(subject))
    for reader, kind in enumerate(graph.reader_kinds):
        layer, slot = divmod(reader, graph.readers_per_layer)
        read = run.streams[graph.reader_stream[reader]]
        if kind == "logits":
            close(subject.unembed(read), run.logits)
            close(subject.uncapped(read), run.states.logits)
        elif kind == "mlp":
            pre, gate, hidden = subject.mlp(read, layer)
            close(pre, run.states.pre[layer])
            close(hidden, run.states.hidden[layer])
            assert (gate is None) == (run.states.gate is None)
        else:
            index = slot if kind == "q" else (slot - config.n_heads) % config.n_groups
            W = subject.weights[f"W_{kind.upper()}"][layer, index]
            state = subject.normalize("attn_norm", read, layer) @ W
            if config.biases:
                state = state + subject.weights[f"b_{kind.upper()}"][layer, index]
            close(state, getattr(run.states, kind)[layer][:, :, index])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "architecture",
    [
        *("plain", "rms-norm", "gated", "grouped-keys", "logit-scale", "logit-cap", "neox"),
        *("qk-norm", "joint-qk-norm", "norms-after", "norms-around", "gemma-3", "everything"),
    ],
)
def test_reader_gradients_are_those_of_autograd(architecture: str) -> None:
    """Each reader in turn gets an input of its own, and autograd differentiates by it."""
    subject = make_subject(architecture)
    tokens = make_tokens(subject, batch=2, pos=4)
    run = subject.run(tokens, loss)
    for reader in range(subject.graph.n_readers):
        extra = torch.zeros_like(run.streams[0]).requires_grad_()
        value = loss(logits_with_extra_input(subject, tokens, reader, extra))
        (grad,) = torch.autograd.grad(value, extra)
        close(run.reader_gradients[:, :, reader], grad)


def logits_with_extra_input(
    subject: Transformer, tokens: Tensor, reader: int, extra: Tensor
) -> Tensor:
    """Logits when one reader alone reads `extra` on top of its stream."""
    config, graph, w = subject.config, subject.graph, subject.weights
    stream = subject.embed(tokens)

    def read(this: int) -> Tensor:
        return stream + extra if this == reader else stream

    for layer in range(config.n_layers):
        first = layer * graph.readers_per_layer
        vectors = []
        for name, count in (
            ("Q", config.n_heads),
            ("K", config.n_groups),
            ("V", config.n_groups),
        ):
            block = []
            for index in range(count):
                x = (
                    subject.normalize("attn_norm", read(first), layer)
                    @ w[f"W_{name}"][layer, index]
                )
                block.append(x + w[f"b_{name}"][layer, index] if config.biases else x)
                first += 1
            vectors.append(torch.stack(block, dim=1))
        z = subject.attend(*vectors, layer=layer)
        before = stream
        stream = stream + torch.einsum("bhpk,hkd->bpd", z, subject.write_weight("W_O", layer))
        stream = stream + (w["b_O"][layer] if "b_O" in w else 0)
        after = stream
        stream = before if config.parallel else after
        *_, hidden = subject.mlp(read(first), layer)
        stream = after + hidden @ subject.write_weight("W_out", layer)
        stream = stream + (w["b_out"][layer] if "b_out" in w else 0)
    return subject.unembed(read(graph.n_readers - 1))


@pytest.mark.parametrize("architecture", ["plain", "gated", "llama", "neox"])
def test_state_gradients_explain_the_weight_gradients(architecture: str) -> None:
    """The gradient of a matrix is what it multiplies, times the gradient at what it makes."""
    subject = make_subject(architecture)
    tokens = make_tokens(subject)
    run = subject.run(tokens, loss)
    states, at = run.states, run.gradients
    assert at is not None
    weights = {name: w.clone().requires_grad_() for name, w in subject.weights.items()}
    value = loss(Transformer(subject.config, weights).logits(tokens))
    grads = dict(zip(weights, torch.autograd.grad(value, list(weights.values())), strict=True))
    layers = range(subject.config.n_layers)
    attn = [subject.normalize("attn_norm", run.streams[2 * n], n) for n in layers]
    mlp = [subject.normalize("mlp_norm", run.streams[2 * n + 1], n) for n in layers]
    for name in "qkv":
        made = torch.einsum("lbpd,lbphk->lhdk", torch.stack(attn), getattr(at, name))
        close(made, grads[f"W_{name.upper()}"])
    close(torch.einsum("lbpd,lbpm->ldm", torch.stack(mlp), at.pre), grads["W_in"])
    if at.gate is not None:
        close(torch.einsum("lbpd,lbpm->ldm", torch.stack(mlp), at.gate), grads["W_gate"])
    # Written vectors: moving z or hidden along itself scales W_O or W_out.
    close((states.z * at.z).sum((1, 2, 4)), (weights["W_O"] * grads["W_O"]).sum((2, 3)).detach())
    scaled = (weights["W_out"] * grads["W_out"]).sum((1, 2)).detach()
    close((states.hidden * at.hidden).sum((1, 2, 3)), scaled)
    final = subject.normalize("final_norm", run.streams[-1]) * subject.config.logit_scale
    close(torch.einsum("bpd,bpo->do", final, at.logits), grads["W_U"])
    by_token = torch.zeros_like(subject.weights["W_E"]).index_put((tokens,), at.input, True)
    close(by_token, grads["W_E"])


def test_a_run_with_a_loss_is_detached_and_leaves_weights_alone() -> None:
    subject = make_subject()
    weights = {name: w.clone().requires_grad_() for name, w in subject.weights.items()}
    run = Transformer(subject.config, weights).run(make_tokens(subject), loss)
    assert run.gradients is not None
    for states in (run.states, run.gradients):
        for field in fields(states):
            state = getattr(states, field.name)
            assert state is None or not state.requires_grad
    assert all(weight.grad is None for weight in weights.values())
    with torch.no_grad():
        close(subject.run(make_tokens(subject), loss).reader_gradients, run.reader_gradients)


def test_a_run_without_a_loss_follows_the_weights() -> None:
    subject = make_subject()
    weights = {name: w.clone().requires_grad_() for name, w in subject.weights.items()}
    run = Transformer(subject.config, weights).run(make_tokens(subject))
    assert run.writers.requires_grad
    with pytest.raises(ValueError, match=r"no gradients; give run\(tokens, loss=\.\.\.\) a loss"):
        _ = run.reader_gradients


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_pulling_through_a_norm_is_its_vector_jacobian_product(norm: str) -> None:
    config = make_config(norm=norm)
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, 3, 4, config.d_model, generator=generator).double().unbind()
    weight = torch.randn(config.d_model, generator=generator).double()
    bias = torch.zeros_like(weight)
    x.requires_grad_()
    (pulled,) = torch.autograd.grad(PLAIN.normalize(config, x, weight, bias), x, grad)
    close(PLAIN.pull_through_norm(config, x, weight, grad), pulled)


# Values, devices, refusals


def test_dtypes_and_copies() -> None:
    subject = make_subject("llama")
    single = subject.to(torch.float32)
    assert (single.dtype, subject.dtype) == (torch.float32, torch.float64)
    assert single.device == torch.device("cpu")
    tokens = make_tokens(subject)
    gap = (single.logits(tokens).double() - subject.logits(tokens)).abs().max()
    assert 0 < float(gap) < 1e-4
    assert subject.to(torch.bfloat16).run(tokens).writers.dtype == torch.bfloat16


def test_random_is_reproducible_and_scaled() -> None:
    config = make_config(norm="layer")
    one, two, large = (
        Transformer.random(config, torch.Generator().manual_seed(seed), scale=scale)
        for seed, scale in ((3, 1.0), (3, 1.0), (3, 2.0))
    )
    for name in weight_shapes(config):
        assert torch.equal(one.weights[name], two.weights[name])
    assert torch.equal(2 * one.weights["W_Q"], large.weights["W_Q"])
    assert not one.weights["b_O"].any()
    assert bool((one.weights["mlp_norm_w"] == 1).all())


def test_apply_encodes_runs_and_decodes() -> None:
    codec = Codec(("a", "b", "c"), ("x", "y", "z"))
    plain = make_subject()
    subject = Transformer(plain.config, plain.weights, codec)
    logits = subject.logits(torch.tensor([[0, 3, 2]]))[0]
    assert subject.apply(["b", "a"]) == codec.decode(logits)
    several = Transformer(plain.config, plain.weights, Codec(("a", "b"), ("x", "y", "z"), ("t",)))
    logits = several.logits(torch.tensor([[4, 3, 2]]))[0]
    assert several.apply(["b", "a"], task="t") == codec.decode(logits)
    with pytest.raises(ValueError, match=r"no codec; call \.logits"):
        plain.apply(["b"])
    with pytest.raises(ValueError, match="at most n_ctx - 1 = 5 fit"):
        subject.apply(["a"] * 6)
    with pytest.raises(ValueError, match="codec has d_vocab=4, the configuration 5"):
        Transformer(plain.config, plain.weights, Codec(("a", "b"), ("x", "y", "z")))


def test_the_graph_follows_the_configuration() -> None:
    graph = make_subject("grouped-keys", parallel=True).graph
    assert (graph.n_layers, graph.n_heads, graph.n_kv_heads, graph.parallel) == (2, 4, 2, True)


def test_tokens_are_checked() -> None:
    subject = make_subject()
    for tokens, message in (
        (torch.tensor([[0, 5]]), r"tokens must be in 0\.\.4, got values from 0 to 5"),
        (torch.tensor([[0, -1]]), r"got values from -1 to 0"),
        (torch.zeros(1, 7, dtype=torch.int64), "7 positions, BOS included; at most n_ctx = 6 fit"),
        (torch.zeros(0, 3, dtype=torch.int64), r"must not be empty, got shape \(0, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            subject.logits(tokens)
        with pytest.raises(ValueError, match=message):
            subject.run(tokens)


def test_weights_are_checked_all_at_once() -> None:
    subject = make_subject()
    weights = dict(subject.weights)
    weights["W_Q"] = weights["W_Q"][:1]
    weights["W_extra"] = weights.pop("W_U")
    with pytest.raises(ValueError, match="missing weights: W_U;") as caught:
        Transformer(subject.config, weights)
    assert "does not have: W_extra" in str(caught.value)
    assert "W_Q must have shape (2, 4, 8, 4), got (1, 4, 8, 4)" in str(caught.value)
    mixed = subject.weights | {"W_E": subject.weights["W_E"].float()}
    with pytest.raises(
        ValueError, match=r"share one floating dtype and one device, got torch\.float"
    ):
        Transformer(subject.config, mixed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        ({"n_kv_heads": 3}, "n_kv_heads must divide n_heads=4, got 3"),
        ({"positions": "rotary", "rotary_dim": 3}, r"rotary_dim must be even and in 2\.\.d_head=4"),
        ({"positions": "rotary", "rotary_dim": 6}, "rotary_dim must be even"),
        ({"tied_unembedding": True}, "needs d_vocab_out equal to d_vocab, got 3 and 5"),
        ({"score_cap": -1.0}, r"score_cap must be a number above 0, got -1\.0"),
        ({"logit_cap": math.nan}, "logit_cap must be a number above 0, got nan"),
        ({"windows": (2, 0)}, r"windows must be None or at least 1, got \(2, 0\)"),
        ({"windows": (2,)}, "windows must hold one entry per layer, 2 in all, got 1"),
        ({"windows": (2, 2), "causal": False}, "windows look back, so they need causal=True"),
        ({"embedding_scale": 0.0}, r"embedding_scale must be a number above 0, got 0\.0"),
        ({"rotary_scaling": RotaryScaling("linear", 2.0)}, "rotary_scaling needs positions=rotary"),
        ({"window_rotary_base": 10.0}, "window_rotary_base needs positions=rotary and windows"),
        (
            {"norm": "layer", "norm_places": "both"},
            r"norms after components \(norm_places=both\) must be rms, got norm='layer'",
        ),
        ({"attention_scale": 0.0}, r"attention_scale must be a number above 0, got 0\.0"),
    ],
)
def test_configurations_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**options)


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("positions", "sinus", "learned, rotary, none"),
        ("norm", "batch", "none, layer, rms"),
        ("activation", "elu", "gelu, gelu-tanh, relu, silu"),
        ("qk_norm", "layer", "none, head, joint"),
        ("norm_places", "around", "before, after, both"),
    ],
)
def test_unknown_choices_are_refused(name: str, value: str, known: str) -> None:
    config = make_config()
    # The type checker of the test session would refuse it first, in its own words.
    object.__setattr__(config, name, value)
    with pytest.raises(ValueError, match=f"{name} must be one of {known}, got '{value}'"):
        config.__post_init__()


def test_rotary_scalings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"factor must be a number above 0, got 0\.0;") as caught:
        RotaryScaling("llama3", 0.0, 4.0, 1.0, 0)
    assert "above low_freq_factor, and both above 0, got 1.0 and 4.0" in str(caught.value)
    assert "original_n_ctx must be at least 1, got 0." in str(caught.value)
    scaling = RotaryScaling("linear", 2.0)
    object.__setattr__(scaling, "kind", "yarn")
    with pytest.raises(ValueError, match="kind must be one of linear, llama3, got 'yarn'"):
        scaling.__post_init__()


@pytest.mark.slow
def test_every_weight_is_read() -> None:
    """No architecture lists a weight that its logits do not depend on."""
    for architecture in ARCHITECTURES:
        subject = make_subject(architecture)
        weights = {name: w.clone().requires_grad_() for name, w in subject.weights.items()}
        run: Run = Transformer(subject.config, weights).run(make_tokens(subject))
        grads = torch.autograd.grad(loss(run.logits), list(weights.values()))
        for name, grad in zip(weights, grads, strict=True):
            # A shift of all keys moves every score of a query alike, so b_K has no effect
            # unless positions rotate it.
            rotary = subject.config.positions == "rotary"
            assert bool(grad.abs().max() > 1e-12) or (name == "b_K" and not rotary), name


def test_a_subject_prints_in_one_line() -> None:
    subject = make_subject("llama")
    sizes = (
        "n_layers=2, n_heads=4, d_model=8, d_head=4, d_mlp=12, n_ctx=6, d_vocab=5, d_vocab_out=3"
    )
    options = "n_kv_heads=2, positions='rotary', norm='rms', activation='silu', gated_mlp=True"
    count = sum(shape.numel() for shape in map(torch.Size, weight_shapes(subject.config).values()))
    assert count == 1448
    assert str(subject) == (
        f"Transformer({sizes}, {options}, biases=False; 1,448 parameters, float64, cpu)"
    )
    marked = replace(make_subject(), case="ib-3").to(torch.float16)
    assert str(marked).startswith(f"Transformer({sizes}, case='ib-3'; ")
    assert str(marked).endswith(" parameters, float16, cpu)")


def test_tables_made_in_inference_mode_serve_gradients() -> None:
    _turns.cache_clear()
    _unseen.cache_clear()
    subject = make_subject("rotary")
    tokens = make_tokens(subject)
    with torch.inference_mode():
        before = subject.logits(tokens)
    run = subject.run(tokens, loss=lambda logits: logits.square().sum())
    assert run.gradients is not None
    torch.testing.assert_close(run.logits, before.clone())
