"""Subjects from Hugging Face `transformers` models, and back: GPT-2, GPT-NeoX and Llama.

1. `from_hf` takes a model, or loads one by name, and picks the family by its `model_type`.
2. The family gives the configuration and the weights by our names, a layer at a time. What a
   subject cannot compute is refused, never left out.
3. `to_hf` picks the first family that can hold a subject, builds a model of its configuration and
   fills it with the same maps turned round.

`transformers` is an optional dependency; it is imported when one of the two is called.
"""

from typing import Any

import torch

from graphcircuits.adapters.hf_families import FAMILIES, load_transformers, norm_in, norm_out
from graphcircuits.transformer import Transformer, TransformerConfig


def from_hf(model_or_name: Any) -> Transformer:
    """The subject that computes the logits of a causal language model, given or named."""
    transformers = load_transformers()
    model = model_or_name
    if isinstance(model, str):
        model = transformers.AutoModelForCausalLM.from_pretrained(model)
    family = FAMILIES.get(model.config.model_type)
    if family is None:
        raise ValueError(
            f"cannot convert a model of type {model.config.model_type!r}; "
            f"known types: {', '.join(FAMILIES)}."
        )
    head = model.get_output_embeddings()
    config = TransformerConfig(
        d_vocab=model.config.vocab_size,
        d_vocab_out=model.config.vocab_size,
        tied_unembedding=model.config.tie_word_embeddings,
        **family.config_in(model.config),
    )
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
    return Transformer(config, weights)


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
