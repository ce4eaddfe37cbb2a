"""Subjects from TransformerLens: `HookedTransformer` of version 3, the bridge of 3 and 4.

1. A `HookedTransformer` is its settings and its state dict. `lens_settings` says which
   configuration computes the same, or everything that no subject can compute; `_fill_state` brings
   the state dict to the names of `hooked`, which stacks it.
2. What TransformerLens does another way is folded into weights, exactly: rotation of adjacent
   coordinates (reordered), scores divided by the number of the layer (into the queries), the bias
   that a gated MLP adds after its gate (into the bias of its output), norms without weights (ones).
   Layers without an MLP get one of width 1 that writes zero: the graph has a component for it.
3. A `TransformerBridge` wraps a Hugging Face model, which goes to `from_hf`, or one of
   TransformerLens's own (`boot_native`), which goes the way above. Its parts can be replaced and
   edited, so the subject has to give its logits on a short prompt, or it is refused.

The package is not imported: models are known by the names of their classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphcircuits.adapters.hf_families import few
from graphcircuits.adapters.hooked import check_size, stack_weights
from graphcircuits.adapters.lens_settings import read_settings
from graphcircuits.subject.transformer import Transformer, TransformerConfig

# Settings that a bridge's own model heeds.
_NATIVE = (
    *("n_layers", "n_heads", "n_key_value_heads", "d_model", "d_head", "d_mlp", "n_ctx"),
    *("d_vocab", "d_vocab_out", "act_fn", "normalization_type", "final_rms", "eps", "attn_only"),
    *("gated_mlp", "positional_embedding_type", "rotary_dim", "rotary_base", "rope_scaling"),
    *("attention_dir", "attn_scale", "attn_scores_soft_cap", "output_logits_soft_cap"),
)
# Positions of the prompt on which a bridge and its subject are compared.
_TRIAL = 8


def from_transformer_lens(model: Any) -> Transformer:
    """The subject that computes the logits of a model of TransformerLens."""
    names = {kind.__name__ for kind in type(model).__mro__}
    if "TransformerBridge" in names:
        subject = _from_bridge(model)
    elif hasattr(model, "cfg") and callable(getattr(model, "state_dict", None)):
        points = getattr(model, "hook_dict", {})
        if hooked := [x for x, point in points.items() if getattr(point, "fwd_hooks", ())]:
            raise ValueError(
                f"the model has hooks at {few(hooked)}, which may change what it computes; take "
                "them off with reset_hooks(including_permanent=True) first."
            )
        subject = _convert(_as_mapping(model.cfg), model.state_dict())
    else:
        raise TypeError(
            f"cannot convert {type(model).__name__}; expected a HookedTransformer or a "
            "TransformerBridge."
        )
    return replace(subject, tokenizer=getattr(model, "tokenizer", None))


def _as_mapping(cfg: Any) -> Mapping[str, Any]:
    settings = cfg if isinstance(cfg, Mapping) else vars(cfg)
    return {name: value for name, value in settings.items() if not name.startswith("_")}


def _convert(settings: Mapping[str, Any], state: Mapping[str, Tensor]) -> Transformer:
    try:
        config, weights = read_state(settings, read_settings(settings), state)
    except ValueError as error:
        raise ValueError(f"cannot convert this model of TransformerLens: {error}") from error
    return Transformer(config, weights)


def read_state(
    settings: Mapping[str, Any], config: TransformerConfig, state: Mapping[str, Tensor]
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The weights of a state dict; all that keeps them from fitting the settings is an error.

    The configuration comes back without biases where all of them are zero.
    """
    check_size(config, state)
    filled, config = _fill_state(settings, config, state)
    weights = stack_weights(config, filled)
    if settings.get("rotary_adjacent_pairs"):
        # Coordinates 0, 2, 4, ... of the rotated ones, then 1, 3, 5, ..., then the others.
        size = config.rotary_size
        order = [*range(0, size, 2), *range(1, size, 2), *range(size, config.d_head)]
        for name in ("W_Q", "W_K", "b_Q", "b_K", "q_norm_w", "k_norm_w"):
            if name in weights:
                weights[name] = weights[name][..., order]
    if settings.get("scale_attn_by_inverse_layer_idx"):
        # Behind a norm of the queries only its own weight scales them.
        scaled = ("W_Q", "b_Q") if config.qk_norm == "none" else ("q_norm_w",)
        for name in set(scaled) & weights.keys():
            layers = torch.arange(1, config.n_layers + 1).to(weights[name])
            weights[name] = weights[name] / layers.view(-1, *(1,) * (weights[name].ndim - 1))
    return config, {name: weight.detach().clone() for name, weight in weights.items()}


# Weights


def _fill_state(
    settings: Mapping[str, Any], config: TransformerConfig, state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], TransformerConfig]:
    """The state dict with all that the configuration asks for and nothing else.

    The configuration comes back without biases where all of them are zero, and with it whatever
    the state dict lacks to be filled.
    """
    buffers = ("mask", "IGNORE", "rotary_sin", "rotary_cos")
    filled = {
        _plain_name(name, config): weight
        for name, weight in state.items()
        if name.rpartition(".")[2] not in buffers
    }
    like = filled["embed.W_E"]
    attn_only = bool(settings.get("attn_only"))
    for layer in range(config.n_layers):
        block = f"blocks.{layer}"
        if attn_only:
            filled |= _silent_mlp(config, block, like)
        if config.gated_mlp and f"{block}.mlp.b_in" in filled:
            b_in = filled.pop(f"{block}.mlp.b_in")
            W_out, b_out = (filled.get(f"{block}.mlp.{x}_out") for x in "Wb")
            if W_out is not None and b_out is not None:
                filled[f"{block}.mlp.b_out"] = b_out + b_in @ W_out
            filled[f"{block}.mlp.b_in"] = torch.zeros_like(b_in)
        if config.qk_norm == "joint":
            for name in (f"{block}.attn.q_norm.w", f"{block}.attn.k_norm.w"):
                if name in filled:
                    filled[name] = filled[name].unflatten(0, (-1, config.d_head))
        elif config.n_groups < config.n_heads:
            filled |= _one_per_group(config, block, filled)
    if str(settings.get("normalization_type")).endswith("Pre"):
        filled |= _plain_norms(config, like)
    biases = {n: w for n, w in filled.items() if n.rpartition(".")[2].startswith("b_")}
    used = [name for name, weight in biases.items() if weight.any()]
    if config.norms_after:
        # By the names that the model has: that of a gated MLP's input is folded into the output's.
        written = (".b_O", ".b_out", *([".b_in"] if config.gated_mlp else []))
        if nonzero := [n for n, weight in state.items() if n.endswith(written) and weight.any()]:
            raise ValueError(f"{', '.join(nonzero)} must be zero where a norm follows.")
        filled = {n: w for n, w in filled.items() if not n.endswith((".b_O", ".b_out"))}
    if not used:
        config = replace(config, biases=False)
        filled = {name: weight for name, weight in filled.items() if name not in biases}
    return filled, config


def _plain_name(name: str, config: TransformerConfig) -> str:
    """As in models with keys and values for each head, and with norms before and after."""
    stem, _, last = name.rpartition(".")
    if last in ("_W_K", "_W_V", "_b_K", "_b_V"):
        return f"{stem}.{last[1:]}"
    if config.norm_places == "after" and stem.endswith((".ln1", ".ln2")):
        return f"{stem}_post.{last}"
    return name


def _silent_mlp(config: TransformerConfig, block: str, like: Tensor) -> dict[str, Tensor]:
    """An MLP that writes zero, and the norms around it."""
    made = {
        f"{block}.mlp.W_in": like.new_zeros(config.d_model, 1),
        f"{block}.mlp.W_out": like.new_zeros(1, config.d_model),
        f"{block}.mlp.b_in": like.new_zeros(1),
        f"{block}.mlp.b_out": like.new_zeros(config.d_model),
    }
    if config.norm != "none" and config.norm_places != "after":
        made[f"{block}.ln2.w"] = like.new_ones(config.d_model)
    if config.norm == "layer":
        made[f"{block}.ln2.b"] = like.new_zeros(config.d_model)
    if config.norms_after:
        made[f"{block}.ln2_post.w"] = like.new_ones(config.d_model)
    return made


def _one_per_group(
    config: TransformerConfig, block: str, filled: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Keys and values that a bridge repeats for every head, once for each group."""
    names = [f"{block}.attn.{x}_{y}" for x in "Wb" for y in "KV"]
    return {
        name: filled[name][:: config.heads_per_group]
        for name in names
        if name in filled and len(filled[name]) == config.n_heads
    }


def _plain_norms(config: TransformerConfig, like: Tensor) -> dict[str, Tensor]:
    """Weights of norms that have none."""
    norms = [
        f"blocks.{layer}.{name}" for layer in range(config.n_layers) for name in ("ln1", "ln2")
    ]
    made = {f"{norm}.w": like.new_ones(config.d_model) for norm in (*norms, "ln_final")}
    if config.norm == "layer":
        made |= {f"{norm}.b": like.new_zeros(config.d_model) for norm in (*norms, "ln_final")}
    return made


# The bridge


def _from_bridge(bridge: Any) -> Transformer:
    if getattr(bridge, "_weights_processed", False):
        raise ValueError(
            "the bridge has processed its weights (compatibility mode), so they are no longer "
            "those of the model it wraps; convert a bridge on which enable_compatibility_mode was "
            "not called, or was called with no_processing=True."
        )
    try:
        original = bridge.original_model
    except AttributeError as error:
        raise ValueError(f"the bridge has no model of its own: {error}") from error
    if hasattr(getattr(original, "config", None), "model_type"):
        from graphcircuits.adapters.hf import from_hf

        subject = from_hf(_unwrapped(original))
    else:
        subject = _convert(_native_settings(bridge.cfg), dict(bridge.tl_parameters()))
    _check_logits(bridge, subject)
    return subject


def _native_settings(cfg: Any) -> Mapping[str, Any]:
    """What a model of TransformerLens's own heeds of its settings, in `HookedTransformer`'s sense.

    It always scales its scores, and always rotates adjacent coordinates.
    """
    settings = _as_mapping(cfg)
    heeded = {name: settings[name] for name in _NATIVE if name in settings}
    if not (settings.get("use_attn_scale", True) and heeded.get("attn_scale", -1) > 0):
        heeded["attn_scale"] = -1
    return heeded | {"rotary_adjacent_pairs": heeded["positional_embedding_type"] == "rotary"}


def _unwrapped(original: Any) -> Any:
    """The Hugging Face model without what a bridge has put around its parts.

    It is built without weights and given those of the wrapped one, which stays as it is.
    """
    inside = "._original_component"
    state = {name.replace(inside, ""): weight for name, weight in original.state_dict().items()}
    with torch.device("meta"):
        model = type(original)(original.config)
    wanted = model.state_dict().keys()
    if missing := sorted(wanted - state.keys()):
        raise ValueError(
            f"the model in the bridge lacks {few(missing)}; convert the Hugging Face model itself."
        )
    model.load_state_dict({name: state[name] for name in wanted}, assign=True)
    return model


@torch.no_grad()
def _check_logits(bridge: Any, subject: Transformer) -> None:
    """Refuse a bridge that does not compute what the subject made of it does."""
    config = subject.config
    generator = torch.Generator().manual_seed(0)
    shape = (1, min(_TRIAL, config.n_ctx))
    tokens = torch.randint(config.d_vocab, shape, generator=generator).to(subject.device)
    theirs = bridge(tokens).to(subject.device, torch.float64)
    far = float((subject.logits(tokens).double() - theirs).abs().max())
    size = float(theirs.abs().max())
    rounding = 0.05 if subject.dtype.itemsize < 4 else 1e-3
    if not far <= rounding * max(size, 1e-6):
        raise ValueError(
            f"the bridge computes other logits than a subject made of it (by {far:.3g} of "
            f"{size:.3g} on a trial prompt): its parts were edited or have hooks; take the hooks "
            "off, or convert the Hugging Face model itself."
        )
