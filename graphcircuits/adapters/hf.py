"""Subjects from Hugging Face `transformers` models, and back: GPT-2, GPT-NeoX and Llama.

1. `from_hf` takes a model, or loads one by name, and picks the family by its `model_type`. Weights
   that the model needs and the files lack are refused: `transformers` would draw them at random.
2. The family gives the configuration and the weights by our names, a layer at a time. What a
   subject cannot compute is refused, never left out.
3. `to_hf` picks the first family that can hold a subject, builds a model of its configuration and
   fills it with the same maps turned round.

`transformers` is an optional dependency; it is imported when one of the two is called.
"""

import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError

from graphcircuits.adapters.hf_families import (
    FAMILIES,
    Family,
    load_transformers,
    norm_in,
    norm_out,
)
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes

_WEIGHTS = (".safetensors", ".bin")
# Constants that old files carry along: masks, and the frequencies of rotary positions.
_BUFFER = re.compile(r"\.(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$")


def from_hf(
    model_or_name: Any,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Transformer:
    """The subject that computes the logits of a causal language model, given or named."""
    transformers = load_transformers()
    model = _load(transformers, model_or_name) if isinstance(model_or_name, str) else model_or_name
    family, config = _family(model.config), _config(model.config)
    head = model.get_output_embeddings()
    state = {name: weight.detach() for name, weight in model.base_model.state_dict().items()}
    weights = {"W_E": state[f"{family.embedding}.weight"].clone()}
    if family.positions is not None:
        weights["W_pos"] = state[f"{family.positions}.weight"].clone()
    weights |= norm_in("final_norm", state, family.final_norm)
    layers = []
    for layer in range(config.n_layers):
        prefix = f"{family.layer_prefix}.{layer}."
        own = {name.removeprefix(prefix): w for name, w in state.items() if name.startswith(prefix)}
        layers.append(family.layer_in(config, own))
    weights |= {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    if not config.tied_unembedding:
        weights["W_U"] = head.weight.detach().T.clone()
    if config.biases:
        weights["b_U"] = weights["W_E"].new_zeros(config.d_vocab_out)
    moved = {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
    return Transformer(config, moved)


def _family(settings: Any) -> Family:
    family = FAMILIES.get(settings.model_type)
    if family is None:
        raise ValueError(
            f"cannot convert a model of type {settings.model_type!r}; "
            f"known types: {', '.join(FAMILIES)}."
        )
    return family


def _config(settings: Any) -> TransformerConfig:
    return TransformerConfig(
        d_vocab=settings.vocab_size,
        d_vocab_out=settings.vocab_size,
        tied_unembedding=settings.tie_word_embeddings,
        **_family(settings).config_in(settings),
    )


def _load(transformers: ModuleType, name: str) -> Any:
    """The model of a name or folder, with every weight from its files and none left out."""
    if Path(name).is_dir():
        _check_size(transformers, Path(name))
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            name, trust_remote_code=False, ignore_mismatched_sizes=True, output_loading_info=True
        )
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"{name}: its weights cannot be read: {error}") from error
    problems = []
    if missing := sorted(found["missing_keys"]):
        problems.append(f"its files lack {_few(missing)}")
    if unexpected := sorted(x for x in found["unexpected_keys"] if not _BUFFER.search(x)):
        problems.append(f"its configuration has no place for {_few(unexpected)}")
    if other := sorted(found["mismatched_keys"]):
        shapes = [f"{x[0]} of shape {tuple(x[1])}, not {tuple(x[2])}" for x in other]
        problems.append(f"its files hold {_few(shapes)}")
    if problems:
        raise ValueError(
            f"the weights of {name} do not fit its config.json: {'; '.join(problems)}."
        )
    return model


def _check_size(transformers: ModuleType, folder: Path) -> None:
    """Refuse a folder whose configuration has more weights than its files have bytes."""
    config = _config(transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False))
    shapes = weight_shapes(config)
    # Matrices alone: biases that a family lacks are made here, not read.
    least = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("W_"))
    held = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in _WEIGHTS)
    if least > held:
        raise ValueError(
            f"the weights of {folder} do not fit its config.json: that has {least} weights, and "
            f"its files hold {held} bytes."
        )


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def to_hf(subject: Transformer) -> Any:
    """A `transformers` model with the logits of `subject`, in the first family that can hold it."""
    transformers = load_transformers()
    reasons = {name: _obstacles(name, subject) for name in FAMILIES}
    name = next((name for name, reason in reasons.items() if not reason), None)
    if name is None:
        listed = "; ".join(f"{name}: {', '.join(reason)}" for name, reason in reasons.items())
        raise ValueError(f"no model type can hold this subject ({listed}).")
    family, config = FAMILIES[name], subject.config
    model = transformers.AutoModelForCausalLM.from_config(family.config_out(subject))
    state = {f"{family.embedding}.weight": subject.weights["W_E"]}
    if family.positions is not None:
        state[f"{family.positions}.weight"] = subject.weights["W_pos"]
    state |= norm_out("final_norm", subject.weights, family.final_norm)
    layered = {
        name: weight
        for name, weight in subject.weights.items()
        if name not in ("W_E", "W_pos", "W_U", "b_U") and not name.startswith("final_norm")
    }
    for layer in range(config.n_layers):
        own = family.layer_out(config, {name: weight[layer] for name, weight in layered.items()})
        state |= {f"{family.layer_prefix}.{layer}.{name}": weight for name, weight in own.items()}
    model = model.to(device=subject.device, dtype=subject.dtype).eval()
    missing = model.base_model.load_state_dict(state, strict=False).missing_keys
    assert not missing, missing
    if not config.tied_unembedding:
        with torch.no_grad():
            model.get_output_embeddings().weight.copy_(subject.weights["W_U"].T)
    return model


def _obstacles(name: str, subject: Transformer) -> list[str]:
    """Why a model type cannot hold a subject; empty if it can."""
    config, weights = subject.config, subject.weights
    llama = name == "llama"
    needs: dict[str, bool] = {
        "causal": config.causal,
        "logit_scale=1": config.logit_scale == 1.0,
        "d_vocab_out=d_vocab": config.d_vocab_out == config.d_vocab,
        "no output bias": not config.biases or not weights["b_U"].any(),
        f"norm={'rms' if llama else 'layer'}": config.norm == ("rms" if llama else "layer"),
        f"gated_mlp={llama}": config.gated_mlp == llama,
    }
    if name == "gpt2":
        needs["positions=learned"] = config.positions == "learned"
    else:
        needs["positions=rotary"] = config.positions == "rotary"
    if name != "gpt_neox":
        needs["parallel=False"] = not config.parallel
    if llama:
        zero = all(not weights[bias].any() for bias in ("b_in", "b_out") if bias in weights)
        needs["no MLP biases"] = zero
        needs["rotary_dim=d_head"] = config.rotary_size == config.d_head
    else:
        needs["biases"] = config.biases
        needs["n_kv_heads=n_heads"] = config.n_groups == config.n_heads
        needs["d_model=n_heads d_head"] = config.d_model == config.n_heads * config.d_head
    return [f"needs {need}" for need, met in needs.items() if not met]
