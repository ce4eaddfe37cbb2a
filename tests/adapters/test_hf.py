"""Hugging Face models: the same logits both ways, and refusals."""

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from graphcircuits.adapters.hf import from_hf, to_hf
from graphcircuits.graph import ComponentGraph
from tests.adapters.hf_models import (
    GPT2,
    SIZES,
    make_model,
    models,
    tokens,
)
from tests.damage import limits
from tests.subjects import make_subject
from tests.tiers import some


@pytest.fixture(autouse=True)
def random_state() -> Any:
    """Their constructors draw from the global generator; leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


FAST = (
    "gpt2",
    "neox",
    "llama",
    "llama3",
    "qwen2-upper",
    "qwen3-biases",
    "gemma2",
    "gemma3",
    "olmo2",
)
# What a simpler type can hold comes back as that.
HELD_BY = {"mistral": "Llama", "qwen2": "Llama"}


@pytest.mark.parametrize("name", some(models(), fast=FAST))
def test_same_logits_both_ways(name: str) -> None:
    model = make_model(name)
    subject = from_hf(model)
    with torch.no_grad():
        expected = model(tokens()).logits
        torch.testing.assert_close(subject.logits(tokens()), expected, rtol=1e-5, atol=1e-5)
        back = to_hf(subject)
        kind = HELD_BY.get(name, models()[name][0])
        assert type(back).__name__ == (
            "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
        )
        torch.testing.assert_close(back(tokens()).logits, expected, rtol=1e-5, atol=1e-5)
    again = from_hf(back)
    assert again.config == subject.config
    for weight, twin in subject.weights.items():
        # Gemma's norms are stored less one, which costs the last digits.
        tolerance = 1e-6 if "gemma" in name and "norm" in weight else 0.0
        torch.testing.assert_close(again.weights[weight], twin, rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("name", some(models(), fast=("qwen2-upper", "gemma3")))
def test_padded_prompts_have_the_same_logits(name: str) -> None:
    model = make_model(name)
    subject = from_hf(model)
    lengths = torch.tensor([[5], [11], [8]])
    right = torch.arange(11) < lengths
    for mask in (right, right.flip(1)):
        places = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            expected = model(tokens(), attention_mask=mask.long(), position_ids=places).logits
            found = subject.logits(tokens(), attention_mask=mask)
        torch.testing.assert_close(found[mask], expected[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "change"),
    some(
        [
            ("llama3", {"rotary_scaling": None}),
            ("llama-linear", {"rotary_scaling": None}),
            ("mistral-window", {"windows": None}),
            ("qwen2-upper", {"windows": (3, 3)}),
            ("gemma2", {"score_cap": None}),
            ("gemma2", {"logit_cap": None}),
            ("gemma2", {"attention_scale": None}),
            ("gemma2", {"embedding_scale": 1.0}),
            ("gemma3", {"window_rotary_base": 500.0}),
        ]
    ),
)
def test_every_option_changes_the_logits(name: str, change: dict[str, Any]) -> None:
    """So that the comparisons above would see it wrong."""
    subject = from_hf(make_model(name))
    other = replace(subject, config=replace(subject.config, **change))
    assert (subject.logits(tokens()) - other.logits(tokens())).abs().max() > 1e-3


def test_the_graph_of_a_converted_model() -> None:
    assert from_hf(make_model("neox")).graph == ComponentGraph(2, 4, parallel=True)
    assert from_hf(make_model("llama-grouped")).graph == ComponentGraph(2, 4, n_kv_heads=2)


def test_the_subject_does_not_share_memory_with_the_model() -> None:
    model = make_model("gpt2")
    subject = from_hf(model)
    before = subject.logits(tokens())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(subject.logits(tokens()), before)


def test_a_name_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("gpt2")
    asked: list[str] = []

    def load(name: str, *, trust_remote_code: bool, **options: Any) -> Any:
        assert not trust_remote_code
        assert options["output_loading_info"]
        asked.append(name)
        return model, dict.fromkeys(("missing_keys", "unexpected_keys", "mismatched_keys"), ())

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    assert torch.equal(from_hf("someone/model").logits(tokens()), from_hf(model).logits(tokens()))
    assert asked == ["someone/model"]


def saved(folder: Path, name: str = "gpt2", **changes: Any) -> str:
    """A folder whose configuration says something else than its weights."""
    make_model(name).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


@pytest.mark.parametrize("name", ["gpt2", "neox", "llama-tied"])
def test_a_folder_is_loaded(tmp_path: Path, name: str) -> None:
    loaded = from_hf(saved(tmp_path, name))
    expected = from_hf(make_model(name))
    assert loaded.config == expected.config
    assert all(torch.equal(loaded.weights[x], w) for x, w in expected.weights.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 3}, r"its files lack transformer\.h\.2\.attn\.c_attn\.bias, .* and 9 more"),
        ({"n_layer": 1}, r"its configuration has no place for transformer\.h\.1\.attn\."),
        (
            {"n_positions": 20},
            r"its files hold transformer\.wpe\.weight of shape \(16, 32\), not",
        ),
        ({"n_layer": 10**9}, r"that has \d+ weights, and its files hold \d+ bytes"),
        ({"n_embd": 10**6}, r"that has \d+ weights, and its files hold \d+ bytes"),
    ],
)
def test_weights_that_do_not_fit_the_configuration(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Missing weights would be drawn at random, and the answer with them."""
    folder = saved(tmp_path, **changes)
    message = f"the weights of .* do not fit its config.json: {message}"
    with limits(), pytest.raises(ValueError, match=message):
        from_hf(folder)


def test_biases_without_a_place_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, "llama-biases", attention_bias=False)
    with pytest.raises(ValueError, match=r"has no place for model\.layers\.0\.self_attn\.k_"):
        from_hf(folder)


def test_damaged_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="its weights cannot be read: "):
        from_hf(folder)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("GPT2", GPT2 | {"scale_attn_weights": False}, "scale_attn_weights=False"),
        ("GPT2", GPT2 | {"activation_function": "tanh"}, "activation 'tanh'; known ones: gelu, "),
        ("GPTNeoX", SIZES | {"attention_bias": False}, "attention_bias=False"),
        ("Llama", SIZES | {"mlp_bias": True}, "mlp_bias=True: its gate has a bias"),
        (
            "Llama",
            SIZES | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rotary positions of type 'linear', only 'default'",
        ),
    ],
)
def test_what_a_subject_cannot_compute_is_refused(
    kind: str, options: dict[str, Any], message: str
) -> None:
    config = getattr(transformers, f"{kind}Config")(**options)
    with pytest.raises(ValueError, match=message):
        from_hf(transformers.AutoModelForCausalLM.from_config(config))


def test_unknown_types_are_refused() -> None:
    config = transformers.OPTConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, ffn_dim=8, vocab_size=9
    )
    with pytest.raises(ValueError, match="type 'opt'; known types: gpt2, gpt_neox, llama"):
        from_hf(transformers.AutoModelForCausalLM.from_config(config))


def test_subjects_that_no_model_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="no model type can hold this subject") as caught:
        to_hf(make_subject())
    for need in ("gpt2: needs d_vocab_out=d_vocab, needs no output bias", "llama: ", "norm=rms"):
        assert need in str(caught.value)
    subject = from_hf(make_model("llama"))
    scaled = replace(subject, config=replace(subject.config, logit_scale=2.0))
    with pytest.raises(ValueError, match="needs logit_scale=1"):
        to_hf(scaled)


def test_without_transformers_the_error_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"pip install 'graphcircuits\[hf\]'"):
        from_hf("gpt2")
