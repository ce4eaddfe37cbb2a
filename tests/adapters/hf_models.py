"""Small random models of every family of Hugging Face, with the options that change the logits."""

from typing import Any

import torch
import transformers

SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
    "vocab_size": 19,
}
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 16, "vocab_size": 19}
GEMMA = SIZES | {"head_dim": 16, "num_key_value_heads": 2, "pad_token_id": None}
FULL, SLIDING = "full_attention", "sliding_attention"
# Of the four frequencies of a head of 8, one stays, two are in between, one is divided.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
LOCAL = {"rope_type": "default", "rope_theta": 20.0}


def models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind and options, by the names that tests call them."""
    theta = {"rope_theta": 500.0, "rope_type": "default"}
    slides = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    caps = {"attn_logit_softcapping": 0.2, "final_logit_softcapping": 0.5}
    by_layer = {FULL: LINEAR, SLIDING: LOCAL}
    return {
        "gpt2": ("GPT2", GPT2),
        "gpt2-untied": ("GPT2", GPT2 | {"tie_word_embeddings": False, "n_inner": 20}),
        "gpt2-relu": ("GPT2", GPT2 | {"activation_function": "relu", "layer_norm_epsilon": 0.1}),
        "neox": ("GPTNeoX", SIZES | {"rotary_pct": 0.25}),
        "neox-sequential": ("GPTNeoX", SIZES | {"use_parallel_residual": False}),
        "neox-full-rotary": ("GPTNeoX", SIZES | {"rotary_pct": 1.0, "tie_word_embeddings": True}),
        "llama": ("Llama", SIZES),
        "llama-grouped": ("Llama", SIZES | {"num_key_value_heads": 2, "rope_parameters": theta}),
        "llama-biases": ("Llama", SIZES | {"attention_bias": True, "rms_norm_eps": 0.1}),
        "llama-tied": ("Llama", SIZES | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        "llama-wide-heads": ("Llama", SIZES | {"head_dim": 16}),
        "llama3": ("Llama", SIZES | {"rope_parameters": LLAMA3, "max_position_embeddings": 128}),
        "llama-linear": ("Llama", SIZES | {"rope_parameters": LINEAR}),
        "mistral": ("Mistral", SIZES | {"sliding_window": None, "num_key_value_heads": 2}),
        "mistral-window": (
            "Mistral",
            SIZES | {"sliding_window": 4, "head_dim": 16, "num_key_value_heads": 4},
        ),
        "qwen2": ("Qwen2", SIZES | {"num_key_value_heads": 4}),
        "qwen2-upper": ("Qwen2", SIZES | slides | {"num_key_value_heads": 2}),
        "qwen2-lower": (
            "Qwen2",
            SIZES
            | slides
            | {"layer_types": [SLIDING, FULL], "tie_word_embeddings": True}
            | {"num_key_value_heads": 4},
        ),
        "qwen3": ("Qwen3", SIZES | {"head_dim": 16, "num_key_value_heads": 2}),
        "qwen3-biases": (
            "Qwen3",
            SIZES
            | slides
            | {"attention_bias": True, "rope_parameters": LINEAR, "head_dim": 8}
            | {"num_key_value_heads": 4},
        ),
        "gemma2": ("Gemma2", GEMMA | caps | {"sliding_window": 4, "query_pre_attn_scalar": 3}),
        "gemma2-untied": (
            "Gemma2",
            GEMMA | dict.fromkeys(caps) | {"sliding_window": 16, "tie_word_embeddings": False},
        ),
        "gemma3": (
            "Gemma3",
            GEMMA
            | {"sliding_window": 3, "layer_types": [SLIDING, FULL], "query_pre_attn_scalar": 3}
            | {"rope_parameters": by_layer},
        ),
        "gemma3-full": (
            "Gemma3",
            GEMMA
            | {"layer_types": [FULL, FULL], "final_logit_softcapping": 0.5}
            | {"tie_word_embeddings": False, "query_pre_attn_scalar": 16},
        ),
        "olmo2": ("Olmo2", SIZES | {"pad_token_id": None}),
        "olmo2-grouped": (
            "Olmo2",
            SIZES
            | {"pad_token_id": None, "num_key_value_heads": 2, "tie_word_embeddings": True}
            | {"rope_parameters": theta},
        ),
    }


def make_config(name: str) -> Any:
    kind, options = models()[name]
    kind = "Gemma3Text" if kind == "Gemma3" else kind
    return getattr(transformers, f"{kind}Config")(**options)


def make_model(name: str) -> Any:
    kind = models()[name][0]
    torch.manual_seed(0)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(
        make_config(name)
    )
    return jolted(model)


def jolted(model: Any) -> Any:
    """Fresh models have zero biases and unit norms, which would hide a mistake."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def tokens() -> torch.Tensor:
    return torch.randint(19, (3, 11), generator=torch.Generator().manual_seed(0))


def make_tokenizer() -> Any:
    """Words with spaces between; unknown ones are 0."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", "not", "to", "be", "or"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
