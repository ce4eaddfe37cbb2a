"""Models of TransformerLens: the logits it computes, and clear words where that is impossible."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from graphcircuits.adapters.transformer_lens import from_transformer_lens
from tests.adapters.lens import MODELS, HookedTransformer, model


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformer_lens(name: str) -> None:
    row = MODELS[name]
    subject = from_transformer_lens(model(name))
    tokens = torch.tensor(row["tokens"])
    expected = torch.tensor(row["logits"], dtype=torch.float64)
    # Frequencies of Llama 3 are float32 there, whatever the dtype of the model.
    torch.testing.assert_close(subject.logits(tokens), expected, rtol=0, atol=1e-6)
    single = subject.to(torch.float32).logits(tokens)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gptj", "llama", "gemma3", "olmo2", "stanford"])
def test_every_fact_depends_on_every_weight(name: str) -> None:
    # Otherwise a weight that is read wrongly would go unnoticed.
    row, tokens = MODELS[name], torch.tensor(MODELS[name]["tokens"])
    expected = torch.tensor(row["logits"], dtype=torch.float64)
    for weight in row["weights"]:
        changed = model(name)
        changed.state[weight] = changed.state[weight].roll(1, -1) + 0.3
        far = (from_transformer_lens(changed).logits(tokens) - expected).abs().max()
        # Biases of keys shift all scores of a query alike, if nothing bends them.
        assert far > 1e-5 or weight.endswith("b_K"), weight


def test_what_comes_with_a_model() -> None:
    source = model("gpt2")
    source.tokenizer = object()
    subject = from_transformer_lens(source)
    assert subject.tokenizer is source.tokenizer
    assert subject.dtype == torch.float64
    before = subject.weights["W_E"].clone()
    source.state["embed.W_E"] += 1
    assert torch.equal(subject.weights["W_E"], before)


def test_layers_without_an_mlp_have_a_silent_one() -> None:
    subject = from_transformer_lens(model("attention only"))
    assert subject.config.d_mlp == 1
    assert "m0->a1.h0<q>" in subject.graph.edge_names
    writers = subject.run(torch.tensor(MODELS["attention only"]["tokens"])).writers
    mlps = [subject.graph.writer_names.index(name) for name in ("m0", "m1")]
    assert not writers[:, :, mlps].any()


def test_biases_that_are_all_zero_are_left_out() -> None:
    source = model("gpt2")
    assert from_transformer_lens(source).config.biases
    for name, weight in source.state.items():
        if name.rpartition(".")[2].startswith("b_"):
            weight.zero_()
    assert not from_transformer_lens(source).config.biases


# What cannot be converted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_yarn_rope": True}, "use_yarn_rope must be off, got True"),
        ({"num_experts": 4}, "num_experts must be off, got 4"),
        ({"clip_qkv": 8.0}, r"clip_qkv must be off, got 8\.0"),
        ({"use_attention_sinks": True}, "use_attention_sinks must be off, got True"),
        ({"post_embedding_ln": True}, "post_embedding_ln must be off, got True"),
        ({"something_new": 3}, "something_new must be off, got 3"),
        ({"final_rms": True}, "final_rms must be off where the other norms are LayerNorm"),
        (
            {"use_normalization_before_and_after": True},
            "use_normalization_before_and_after must be off for LayerNorm",
        ),
        (
            {"positional_embedding_type": "alibi"},
            "positional_embedding_type must be one of standard, rotary, got 'alibi'",
        ),
        ({"act_fn": "solu_ln"}, r"act_fn must be one of gelu, gelu_new, .*, got 'solu_ln'"),
        ({"normalization_type": ["LN"]}, r"normalization_type must be .* RMSPre, got \['LN'\]"),
        ({"n_layers": 0}, "n_layers must be a whole number from 1, got 0"),
        ({"d_mlp": None}, "d_mlp must be a whole number from 1, got None"),
        ({"n_key_value_heads": 3}, "n_kv_heads must divide n_heads=2, got 3"),
        ({"n_layers": 2}, "it has 1 layers, the configuration n_layers=2"),
        ({"d_mlp": 7}, r"blocks\.0\.mlp\.W_in must have shape \(4, 7\), got \(4, 3\)"),
        ({"normalization_type": "RMS"}, r"unknown weights: blocks\.0\.ln1\.b, blocks\.0\.ln2\.b"),
    ],
)
def test_settings_that_no_subject_has(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(
        ValueError, match=f"cannot convert this model of TransformerLens: .*{reason}"
    ):
        from_transformer_lens(model("gpt2", **changes))


def test_all_reasons_at_once() -> None:
    with pytest.raises(ValueError, match=r"act_fn must .*; use_yarn_rope must .*; final_rms must "):
        from_transformer_lens(model("gpt2", act_fn="xielu", use_yarn_rope=True, final_rms=True))


def test_rotary_settings_that_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="rotary_base_local must be off with use_NTK_by_parts"):
        from_transformer_lens(model("gemma3", use_NTK_by_parts_rope=True))


@pytest.mark.parametrize("name", ["attn.b_O", "mlp.b_out", "mlp.b_in"])
def test_biases_that_a_norm_would_take_in(name: str) -> None:
    source = model("gemma2")
    source.state[f"blocks.1.{name}"] = torch.ones_like(source.state[f"blocks.1.{name}"])
    with pytest.raises(ValueError, match=rf"Lens: blocks\.1\.{name} must be zero where a norm"):
        from_transformer_lens(source)


def test_missing_weights() -> None:
    source = model("llama")
    del source.state["blocks.0.attn._W_K"], source.state["ln_final.w"]
    with pytest.raises(ValueError, match=r"missing weights: blocks\.0\.attn\.W_K, ln_final\.w"):
        from_transformer_lens(source)
    source.state = {}
    with pytest.raises(ValueError, match=r"missing weights: embed\.W_E"):
        from_transformer_lens(source)


def test_hooks_that_are_still_on() -> None:
    source = model("gpt2")
    point = nn.Identity()
    source.hook_dict = {"blocks.0.hook_mlp_out": point}
    from_transformer_lens(source)
    object.__setattr__(point, "fwd_hooks", ["a hook"])
    with pytest.raises(ValueError, match=r"hooks at blocks\.0\.hook_mlp_out, which may change"):
        from_transformer_lens(source)


def test_other_things() -> None:
    with pytest.raises(TypeError, match="cannot convert int; expected a HookedTransformer or a Tr"):
        from_transformer_lens(3)


# The bridge


class Wrapped(nn.Module):
    """A part of a Hugging Face model as a bridge replaces it."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self._original_component = part

    def forward(self, *values: Any, **options: Any) -> Any:
        return self._original_component(*values, **options)


class TransformerBridge(nn.Module):
    """What an adapter sees of a bridge; its name is what it is known by."""

    _weights_processed = False

    cfg: Any
    tl_parameters: Any

    def __init__(self, original: nn.Module, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.original_model = original
        self.answer = answer
        self.tokenizer = "a tokenizer"

    def forward(self, tokens: Tensor) -> Tensor:
        return self.answer(tokens)


def bridge() -> TransformerBridge:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=6)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        original = GPT2LMHeadModel(config).eval()
    for place in range(2):
        block = original.transformer.h[place]
        assert isinstance(block.ln_1, nn.Module)
        assert isinstance(block.mlp, nn.Module)
        block.ln_1, block.mlp = Wrapped(block.ln_1), Wrapped(block.mlp)
        block.mlp.extra = nn.Linear(2, 2)
    return TransformerBridge(original, lambda tokens: original(tokens).logits)


def test_the_model_in_a_bridge() -> None:
    source = bridge()
    subject = from_transformer_lens(source)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        torch.testing.assert_close(subject.logits(tokens), source(tokens), rtol=0, atol=1e-5)
    assert subject.tokenizer == "a tokenizer"


def test_a_bridge_that_computes_something_else() -> None:
    source = bridge()
    source.answer = lambda tokens: 1.01 * source.original_model(tokens).logits
    with pytest.raises(ValueError, match=r"other logits than a subject made of it \(by .* of .*\)"):
        from_transformer_lens(source)


def test_a_bridge_with_processed_weights() -> None:
    source = bridge()
    source._weights_processed = True
    with pytest.raises(ValueError, match=r"has processed its weights .*no_processing=True"):
        from_transformer_lens(source)


def test_a_bridge_whose_model_lacks_a_weight() -> None:
    source = bridge()
    assert isinstance(source.original_model, GPT2LMHeadModel)
    del source.original_model.transformer.h[1].ln_1
    with pytest.raises(ValueError, match=r"lacks transformer\.h\.1\.ln_1\.bias, transformer"):
        from_transformer_lens(source)


def test_a_bridge_to_another_machine() -> None:
    source = bridge()
    del source.original_model
    with pytest.raises(ValueError, match=r"the bridge has no model of its own: .*original_model"):
        from_transformer_lens(source)


def test_a_model_that_the_bridge_made_itself() -> None:
    # Such a model rotates adjacent coordinates and scales its scores, whatever its settings say.
    facts = model("gptj", parallel_attn_mlp=False)
    expected = from_transformer_lens(facts)
    ignored = {"rotary_adjacent_pairs": False, "use_attn_scale": False, "parallel_attn_mlp": True}
    native = TransformerBridge(nn.Identity(), expected.logits)
    native.cfg = HookedTransformer({**vars(facts.cfg), **ignored}, {}).cfg
    state = {name: weight for name, weight in facts.state.items() if "attn." not in name}
    state |= {name: w for name, w in facts.state.items() if ".W_" in name or ".b_" in name}
    native.tl_parameters = lambda: state
    found = from_transformer_lens(native)
    assert found.config == expected.config
    assert all(torch.equal(found.weights[name], w) for name, w in expected.weights.items())
