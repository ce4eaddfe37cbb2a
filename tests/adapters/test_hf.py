"""Hugging Face models: the same logits both ways, and refusals."""

import builtins
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers

from graphcircuits.adapters import hub
from graphcircuits.adapters.hf import from_hf, to_hf
from graphcircuits.graph import ComponentGraph
from tests.adapters import hf_models
from tests.adapters.hf_models import (
    GPT2,
    SIZES,
    make_model,
    make_tokenizer,
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


FAST = ("gpt2", "llama3", "qwen3-biases", "gemma2", "gemma3", "olmo2")
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
    expected = from_hf(model).logits(tokens())
    asked: list[str] = []

    def read_config(name: str, *, trust_remote_code: bool) -> Any:
        assert not trust_remote_code
        return model.config

    def load(name: str, *, trust_remote_code: bool, **options: Any) -> Any:
        assert not trust_remote_code
        assert options["output_loading_info"]
        assert options["config"] is model.config
        assert options["dtype"] == "auto"
        asked.append(name)
        return model, dict.fromkeys(("missing_keys", "unexpected_keys", "mismatched_keys"), ())

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", read_config)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    monkeypatch.setattr("transformers.utils.hub.has_file", lambda name, file: False)
    subject = from_hf("someone/model")
    assert torch.equal(subject.logits(tokens()), expected)
    assert subject.tokenizer is None
    assert asked == ["someone/model"]
    # What was loaded here is given up layer by layer.
    assert not any(parameter.numel() for parameter in model.transformer.h.parameters())


def test_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, **options: Any) -> Any:
        raise OSError(f"{name} is not a valid model identifier\nIf this is private, log in.")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", absent)
    monkeypatch.setattr(hub, "_answers", lambda address: True)
    said = (
        "^no model 'no/such': there is no such file or folder, and the Hugging Face hub does not "
        "give it: no/such is not a valid model identifier$"
    )
    with pytest.raises(FileNotFoundError, match=said):
        from_hf("no/such")


def test_nobody_waits_for_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, **options: Any) -> Any:
        assert huggingface_hub.constants.HF_HUB_OFFLINE  # so that its client does not try again
        raise OSError("not in the cache")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refused)

    def silent(place: tuple[str, int], timeout: float) -> None:
        hang.wait()
        raise OSError

    monkeypatch.setattr(hub.socket, "create_connection", silent)
    monkeypatch.setattr(hub, "PATIENCE", 0.05)
    hang, before = threading.Event(), time.perf_counter()
    with pytest.raises(FileNotFoundError, match="the Hugging Face hub cannot be reached from here"):
        from_hf("no/such")
    assert time.perf_counter() - before < 5
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    hang.set()


def test_what_cannot_be_a_server_does_not_answer() -> None:
    assert not hub._answers(f"https://{'a' * 64}.example")  # a label has 63 letters at most


def saved(folder: Path, name: str = "gpt2", **changes: Any) -> str:
    """A folder whose configuration says something else than its weights."""
    make_model(name).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


@pytest.mark.parametrize("name", some(["gpt2", "neox", "llama-tied", "gemma3"], fast=["gemma3"]))
def test_a_folder_is_loaded(tmp_path: Path, name: str) -> None:
    loaded = from_hf(saved(tmp_path, name))
    expected = from_hf(make_model(name))
    assert loaded.config == expected.config
    assert all(torch.equal(loaded.weights[x], w) for x, w in expected.weights.items())
    assert loaded.tokenizer is None


def test_a_folder_with_a_tokenizer(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    tokenizer = from_hf(saved(tmp_path)).tokenizer
    assert tokenizer("to be")["input_ids"] == [2, 3]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=f"{tmp_path}: its tokenizer cannot be read: "):
        from_hf(str(tmp_path))


def test_weights_come_as_stored_or_as_asked(tmp_path: Path) -> None:
    make_model("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    stored = from_hf(str(tmp_path))
    assert stored.dtype == torch.bfloat16
    wide = from_hf(str(tmp_path), dtype=torch.float32)
    assert wide.dtype == torch.float32
    assert all(torch.equal(wide.weights[x], w.float()) for x, w in stored.weights.items())
    narrow = from_hf(make_model("llama"), dtype=torch.float16)
    assert {weight.dtype for weight in narrow.weights.values()} == {torch.float16}


def test_the_text_part_of_a_model_that_reads_images() -> None:
    text = hf_models.make_config("gemma3").to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    config.mm_tokens_per_image = 4
    model = hf_models.jolted(transformers.Gemma3ForConditionalGeneration(config))
    subject = from_hf(model)
    assert subject.config == from_hf(make_model("gemma3")).config
    with torch.no_grad():
        expected = model(tokens()).logits
    torch.testing.assert_close(subject.logits(tokens()), expected, rtol=1e-5, atol=1e-5)


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


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not complete JSON"):
        from_hf(folder)
    hf_models.make_config("gemma3").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"query_pre_attn_scalar": 0}))
    with pytest.raises(ValueError, match=r"its config\.json makes no model: ZeroDivisionError: "):
        from_hf(folder)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    hf_models.make_config("gpt2").save_pretrained(tmp_path)
    (tmp_path / "other.bin").write_bytes(bytes(10**6))
    with pytest.raises(FileNotFoundError, match="its weights are not there: "):
        from_hf(str(tmp_path))


def refused(config: Any, message: str) -> None:
    """The configuration is refused before any weight is looked at."""
    with pytest.raises(ValueError, match=message):
        from_hf(SimpleNamespace(config=config))


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
CHUNKED = [hf_models.FULL, "chunked_attention"]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("GPT2", GPT2 | {"scale_attn_weights": False}, "GPT-2 .* scale_attn_weights=False"),
        (
            "GPT2",
            GPT2 | {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx=True",
        ),
        ("GPT2", GPT2 | {"add_cross_attention": True}, "add_cross_attention=True"),
        ("GPT2", GPT2 | {"activation_function": "tanh"}, "activation 'tanh'; known ones: gelu, "),
        ("GPTNeoX", SIZES | {"attention_bias": False}, "GPT-NeoX .* attention_bias=False"),
        ("Llama", SIZES | {"mlp_bias": True}, r"cannot convert a Llama model with mlp_bias=True\."),
        (
            "Llama",
            SIZES | {"rope_parameters": YARN},
            "rotary positions of type 'yarn'; known ones: default, linear, llama3",
        ),
        (
            "Llama",
            SIZES | {"rope_parameters": hf_models.LINEAR | {"partial_rotary_factor": 0.5}},
            r"rotary positions with partial_rotary_factor=0\.5",
        ),
        (
            "Llama",
            SIZES | {"quantization_config": {"quant_method": "awq"}},
            "with a quantization_config; take the model that it was made of, or a GGUF file",
        ),
        ("Qwen2", SIZES | {"layer_types": CHUNKED}, "Qwen 2 .* layers of chunked_attention"),
        (
            "Qwen2",
            SIZES | {"layer_types": [hf_models.SLIDING, hf_models.FULL]},
            "layers of sliding_attention, but sliding_window=None",
        ),
        (
            "Gemma2",
            hf_models.GEMMA | {"attention_bias": True},
            "Gemma 2 model with attention_bias=True",
        ),
        (
            "Gemma2",
            hf_models.GEMMA | {"use_bidirectional_attention": True},
            "use_bidirectional_attention=True",
        ),
        (
            "Gemma3Text",
            hf_models.GEMMA | {"attn_logit_softcapping": 50.0},
            r"Gemma 3 model with attn_logit_softcapping=50\.0",
        ),
        (
            "Gemma3Text",
            hf_models.GEMMA
            | {
                "rope_parameters": {
                    hf_models.FULL: hf_models.LINEAR,
                    hf_models.SLIDING: hf_models.LINEAR,
                }
            },
            "rotary positions of type 'linear' in sliding layers",
        ),
        ("Olmo2", SIZES | {"attention_bias": True}, "OLMo 2 model with attention_bias=True"),
    ],
)
def test_what_a_subject_cannot_compute_is_refused(
    kind: str, options: dict[str, Any], message: str
) -> None:
    refused(getattr(transformers, f"{kind}Config")(**options), message)


def test_options_of_other_kinds_are_refused() -> None:
    """Which their own code would leave out, or which no configuration of theirs has yet."""
    config = hf_models.make_config("mistral-window")
    config.layer_types = [hf_models.SLIDING, hf_models.FULL]
    refused(config, "Mistral model with layer_types=")
    config = hf_models.make_config("llama")
    config.rope_parameters = hf_models.LINEAR | {"mrope_section": [1, 1, 2]}
    refused(config, "rotary positions of type 'linear' with mrope_section")
    config.rope_parameters = {
        hf_models.FULL: hf_models.LINEAR,
        hf_models.SLIDING: hf_models.LINEAR | {"factor": 2.0},
    }
    refused(config, "rotary positions that differ by layer")


def test_weights_that_a_type_does_not_have() -> None:
    model = make_model("llama")
    adapted = model.model.layers[1].self_attn.q_proj
    adapted.lora_A = torch.nn.Parameter(torch.zeros(2, 32))
    said = r"with the weights layers\.1\.self_attn\.q_proj\.lora_A: .* merge adapters"
    with pytest.raises(ValueError, match=said):
        from_hf(model)
    del adapted.lora_A, adapted.weight
    with pytest.raises(ValueError, match=r"lacks the weight layers\.1\.self_attn\.q_proj\.weight"):
        from_hf(model)
    adapted.weight = torch.nn.Parameter(torch.zeros(1, 32))
    with pytest.raises(
        ValueError, match=r"a weight of layers\.1 is not of the shape that its conf"
    ):
        from_hf(model)
    adapted.weight = torch.nn.Parameter(torch.zeros(40, 32))
    said = r"W_Q of layer 1 of the model must have shape \(4, 32, 8\), got \(4, 32, 10\)"
    with pytest.raises(ValueError, match=said):
        from_hf(model)
    with pytest.raises(ValueError, match="they are on the meta device"):
        from_hf(make_model("llama").to("meta"))


def test_a_head_of_its_own_is_kept() -> None:
    """A model whose head was untied by hand still says that it is tied."""
    model = make_model("llama-tied")
    model.lm_head.weight = torch.nn.Parameter(torch.randn(19, 32))
    with torch.no_grad():
        expected = model(tokens()).logits
    subject = from_hf(model)
    assert not subject.config.tied_unembedding
    torch.testing.assert_close(subject.logits(tokens()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({}, r"config\.json lacks a model_type, got None; known types: gpt2, "),
        ({"model_type": 3}, r"config\.json lacks a model_type, got 3"),
        ({"model_type": "novel"}, r"'novel', which transformers \S+ does not know, nor do we"),
        ({"model_type": "mamba"}, "'mamba': a subject has attention heads, which this type lacks"),
        ({"model_type": "mixtral"}, "'mixtral': a subject has no mixtures of experts; known"),
        ({"model_type": "t5"}, "'t5': a subject has no encoder; known types"),
        ({"model_type": "bloom", "architectures": ["X"]}, r"'bloom' \(X\): nothing here says"),
    ],
)
def test_a_folder_of_an_unknown_type_is_told_what_is_missing(
    tmp_path: Path, stated: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ValueError, match=message):
        from_hf(str(tmp_path))


def test_unknown_types_are_refused() -> None:
    config = transformers.OPTConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, ffn_dim=8, vocab_size=9
    )
    with pytest.raises(ValueError, match=r"type 'opt'.*; known types: gpt2, .*, olmo2, gemma3\."):
        from_hf(transformers.AutoModelForCausalLM.from_config(config))


def test_subjects_that_no_model_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="no model type can hold this subject") as caught:
        to_hf(make_subject())
    for reason in ("has d_vocab_out=5, not 3, has norm=layer, not none", "llama: ", "norm=rms"):
        assert reason in str(caught.value)


def test_biases_that_no_model_holds_are_refused() -> None:
    subject = from_hf(make_model("llama-biases"))
    assert to_hf(subject).config.model_type == "llama"
    for name in ("b_in", "b_U"):
        weights = subject.weights | {name: torch.ones_like(subject.weights[name])}
        with pytest.raises(ValueError, match=f"llama: has no {name};"):
            to_hf(replace(subject, weights=weights))


@pytest.mark.parametrize(
    ("name", "change", "reasons"),
    [
        ("llama", {"logit_scale": 2.0}, ["llama: has logit_scale=1.0, not 2.0;"]),
        ("mistral-window", {"windows": (3, 4)}, ["mistral: has windows=(3, 3), not (3, 4);"]),
        ("llama", {"score_cap": 1.0}, ["llama: has score_cap=None, not 1.0; ", "gemma3_text: "]),
        ("gemma2", {"attention_scale": 0.3}, ["gemma2: has attention_scale=0.301"]),
        ("gemma2", {"embedding_scale": 2.0}, ["gemma2: has embedding_scale=5.6568"]),
        (
            "gemma2",
            {"window_rotary_base": 9.0},
            ["gemma2: has window_rotary_base=10000.0, not 9"],
        ),
        ("gemma3", {"window_rotary_base": None}, ["gemma3_text: has window_rotary_base="]),
    ],
)
def test_options_that_no_model_holds_are_refused(
    name: str, change: dict[str, Any], reasons: list[str]
) -> None:
    subject = from_hf(make_model(name))
    with pytest.raises(ValueError, match="no model type can hold this subject") as caught:
        to_hf(replace(subject, config=replace(subject.config, **change)))
    for reason in reasons:
        assert reason in str(caught.value)


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
