"""TransformerLens's words for what a subject of ours is made of, and back.

1. `read_settings` and `write_settings`: its configuration. What a subject without norms, with gelu
   and learned positions does not have is refused, all of it at once.
2. `stack_weights` and `name_weights`: its state dict, one entry per layer and weight. The names
   are those of all its models; which of them there are is for the configuration to say.
3. `read_edges` and `write_edges`: its hook points. `blocks.0.hook_mlp_out` and
   `blocks.1.hook_q_input[2]` are the ends of `m0->a1.h2<q>`; token and position embedding are both
   `input`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import short
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes

# Settings

_SIZES = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "n_ctx", "d_vocab", "d_vocab_out")
_FIXED = {
    "act_fn": "gelu",
    "normalization_type": None,
    "positional_embedding_type": "standard",
    "use_attn_scale": True,
}
DIRECTIONS = {"causal": True, "bidirectional": False}
# What is none of our business: devices, seeds, tokenizers, hooks, and the details of norms, rotary
# positions and experts, which are switched on elsewhere. Any other setting has to be off.
NEUTRAL = re.compile(
    r"device|dtype|n_devices|n_params|model_name|original_architecture|from_checkpoint"
    r"|checkpoint_\w+|seed|init_\w+|initializer_range|weight_init_mode|train_seq_length"
    r"|tokenizer_\w+|trust_remote_code|default_prepend_bos|decoder_start_token_id"
    r"|use_(attn_in|attn_result|hook_mlp_in|hook_tokens|split_qkv_input)"
    r"|ungroup_grouped_query_attention|eps|final_rms|layer_norm_folding|experts_per_token"
    r"|(rotary|NTK|yarn|relative_attention)_\w+"
)


def read_settings(settings: Mapping[str, Any]) -> tuple[TransformerConfig | None, list[str]]:
    """The configuration, or None and everything that keeps it from being one of ours."""
    problems = [*_size_problems(settings)]
    problems += [
        f"{name} must be {value!r}, got {_shown(settings, name)}"
        for name, value in _FIXED.items()
        # Comparing types as well keeps 1 from passing for True.
        if name not in settings or (type(settings[name]), settings[name]) != (type(value), value)
    ]
    direction = settings.get("attention_dir")
    if not isinstance(direction, str) or direction not in DIRECTIONS:
        problems.append(
            f"attention_dir must be {' or '.join(map(repr, DIRECTIONS))}, "
            f"got {_shown(settings, 'attention_dir')}"
        )
    if problems:
        return None, problems
    if problems := _feature_problems(settings):
        return None, problems
    sizes = {name: settings[name] for name in _SIZES}
    return TransformerConfig(**sizes, causal=DIRECTIONS[str(direction)]), []


def _size_problems(settings: Mapping[str, Any]) -> Iterable[str]:
    for name in _SIZES:
        # The vocabulary counts BOS, PAD and at least one symbol.
        low = 3 if name == "d_vocab" else 1
        if type(settings.get(name)) is not int or settings[name] < low:
            yield f"{name} must be a whole number from {low}, got {_shown(settings, name)}"


def _feature_problems(settings: Mapping[str, Any]) -> list[str]:
    # -1 stands for the square root of d_head in the scale, and for no cap.
    special = {
        "attn_scale": (-1, math.sqrt(settings["d_head"])),
        "n_key_value_heads": (None, settings["n_heads"]),
        "attn_scores_soft_cap": (-1,),
        "output_logits_soft_cap": (-1,),
    }
    problems = [
        f"{name} must be {' or '.join(map(str, wanted))}, got {_shown(settings, name)}"
        for name, wanted in special.items()
        if name in settings and not any(_same(settings[name], value) for value in wanted)
    ]
    known = {*_SIZES, *_FIXED, *special, "attention_dir"}
    return problems + [
        f"{name} must be off, got {short(value)}"
        for name, value in settings.items()
        if name not in known
        and not NEUTRAL.fullmatch(name)
        and value is not None
        and value is not False
    ]


def _same(value: object, wanted: int | float | None) -> bool:
    if wanted is None or not isinstance(value, int | float):
        return value is wanted
    return math.isclose(value, wanted, rel_tol=1e-6)


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return short(settings[name]) if name in settings else "nothing"


def write_settings(transformer: Transformer) -> dict[str, Any]:
    """The settings of a subject; an error where TransformerLens's names do not cover it."""
    config = transformer.config
    plain = TransformerConfig(**{n: getattr(config, n) for n in _SIZES}, causal=config.causal)
    # Details of what is switched on elsewhere; n_groups says all about n_kv_heads.
    details = ("n_kv_heads", "rotary_dim", "rotary_base", "norm_eps")
    names = [field.name for field in fields(config) if field.name not in details]
    others = [
        f"{name}={getattr(config, name)!r}"
        for name in (*names, "n_groups")
        if getattr(config, name) != getattr(plain, name)
    ]
    if others:
        raise ValueError(
            f"there is no place for {', '.join(others)}; only subjects with learned positions, "
            "gelu, biases and no norm can be written."
        )
    hooks = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in")
    return {
        **{name: getattr(config, name) for name in _SIZES},
        **_FIXED,
        "attention_dir": "causal" if config.causal else "bidirectional",
        "model_name": "custom",
        "device": "cpu",
        "dtype": transformer.dtype,
        **dict.fromkeys(hooks, True),
    }


# Weights

_WHOLE = {
    "W_E": "embed.W_E",
    "W_pos": "pos_embed.W_pos",
    "W_U": "unembed.W_U",
    "b_U": "unembed.b_U",
    "final_norm_w": "ln_final.w",
    "final_norm_b": "ln_final.b",
}
_BY_LAYER = {f"{x}_{y}": f"attn.{x}_{y}" for x in "Wb" for y in "QKVO"} | {
    f"{x}_{y}": f"mlp.{x}_{y}" for x in "Wb" for y in ("in", "out")
}
_BY_LAYER |= {"W_gate": "mlp.W_gate", "q_norm_w": "attn.q_norm.w", "k_norm_w": "attn.k_norm.w"}
_BY_LAYER |= {
    f"{ours}_{end}": f"{theirs}.{end}"
    for ours, theirs in {
        "attn_norm": "ln1",
        "mlp_norm": "ln2",
        "attn_out_norm": "ln1_post",
        "mlp_out_norm": "ln2_post",
    }.items()
    for end in "wb"
}
_BUFFER = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE)")


def stack_weights(
    config: TransformerConfig, state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a subject, or everything that keeps the state dict from holding them."""
    layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    if layers != config.n_layers:
        return {}, [f"it has {layers} layers, the configuration n_layers={config.n_layers}"]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in weight_shapes(config).items():
        keys = _keys(config, name)
        shapes |= dict.fromkeys(keys, shape if name in _WHOLE else shape[1:])
    problems = []
    if missing := sorted(shapes.keys() - state.keys()):
        problems.append(f"missing weights: {', '.join(missing)}")
    if unknown := sorted(key for key in state.keys() - shapes.keys() if not _BUFFER.fullmatch(key)):
        problems.append(f"unknown weights: {', '.join(unknown)}")
    present = {key: state[key] for key in shapes if key in state}
    problems += [
        f"{key} must have shape {shapes[key]}, got {tuple(weight.shape)}"
        for key, weight in present.items()
        if weight.shape != shapes[key]
    ]
    kinds = {weight.dtype for weight in present.values()}
    if len(kinds) > 1 or not all(kind.is_floating_point for kind in kinds):
        names = ", ".join(sorted(map(str, kinds)))
        problems.append(f"weights must share one floating dtype, got {names}")
    if problems:
        return {}, problems
    layers = {name: [state[key] for key in _keys(config, name)] for name in weight_shapes(config)}
    return {n: ws[0] if n in _WHOLE else torch.stack(ws) for n, ws in layers.items()}, []


def name_weights(transformer: Transformer) -> dict[str, Tensor]:
    """The state dict of a subject, with the constants that TransformerLens expects in it."""
    config, state = transformer.config, {}
    for name, weight in transformer.weights.items():
        layers = [weight] if name in _WHOLE else weight.unbind()
        # Copies: a saved slice would carry the whole stack with it.
        copies = [layer.detach().cpu().clone() for layer in layers]
        state |= zip(_keys(config, name), copies, strict=True)
    for layer in range(config.n_layers):
        # The mask is triangular whatever the direction of attention.
        mask = torch.ones(config.n_ctx, config.n_ctx, dtype=torch.bool).tril()
        state[f"blocks.{layer}.attn.mask"] = mask
        state[f"blocks.{layer}.attn.IGNORE"] = torch.tensor(-torch.inf)
    return state


def _keys(config: TransformerConfig, name: str) -> list[str]:
    if name in _WHOLE:
        return [_WHOLE[name]]
    return [f"blocks.{layer}.{_BY_LAYER[name]}" for layer in range(config.n_layers)]


# Edges

_EMBEDDINGS = ("hook_embed", "hook_pos_embed")
_STREAM_START = "blocks.0.hook_resid_pre"
_HEAD_OUT = re.compile(r"blocks\.(\d+)\.attn\.hook_result\[(\d+)\]")
_HEAD_IN = re.compile(r"blocks\.(\d+)\.hook_([qkv])_input\[(\d+)\]")
_MLP_OUT = re.compile(r"blocks\.(\d+)\.hook_mlp_out")
_MLP_IN = re.compile(r"blocks\.(\d+)\.hook_mlp_in")
_INSIDE = re.compile(
    r"(blocks\.\d+)\.("
    r"hook_([qkv])_input(\[\d+\]) \1\.attn\.hook_\3\4"
    r"|attn\.hook_[qkv](\[\d+\]) \1\.attn\.hook_result\5"
    r"|hook_mlp_in \1\.hook_mlp_out)"
)


def read_edges(graph: ComponentGraph, pairs: Sequence[object]) -> tuple[set[str], list[str]]:
    """Names of the edges, and the entries that are none.

    Published lists also hold steps within one component; those are no edges of ours.
    """
    names, problems = set(), []
    for pair in pairs:
        match pair:
            case [str(out), str(into)]:
                writer, reader = _writer(out), _reader(into, graph)
                if writer is not None and reader is not None:
                    names.add(f"{writer}->{reader}")
                elif not _INSIDE.fullmatch(f"{out} {into}"):
                    problems.append(f"{short(out)} -> {short(into)}")
            case _:
                problems.append(short(pair))
    return names, problems


def _writer(hook: str) -> str | None:
    if hook in (*_EMBEDDINGS, _STREAM_START):
        return "input"
    if head := _HEAD_OUT.fullmatch(hook):
        return f"a{head[1]}.h{head[2]}"
    mlp = _MLP_OUT.fullmatch(hook)
    return f"m{mlp[1]}" if mlp else None


def _reader(hook: str, graph: ComponentGraph) -> str | None:
    if hook == _stream_end(graph):
        return "logits"
    if head := _HEAD_IN.fullmatch(hook):
        return f"a{head[1]}.h{head[3]}<{head[2]}>"
    mlp = _MLP_IN.fullmatch(hook)
    return f"m{mlp[1]}" if mlp else None


def _stream_end(graph: ComponentGraph) -> str:
    return f"blocks.{graph.n_layers - 1}.hook_resid_post"


def write_edges(circuit: Circuit) -> list[tuple[str, str]]:
    """Pairs of hook points; then, as in published lists, the step into the head for its inputs.

    Hook points tell token from position embedding: an edge from `input` is written from both.
    """
    edges: list[tuple[str, str]] = []
    inside: dict[tuple[str, str], None] = {}
    for name in circuit:
        writer, reader = name.split("->")
        hook = _reader_hook(reader, circuit.graph)
        edges += [(from_hook, hook) for from_hook in _writer_hooks(writer)]
        if reader.startswith("a"):
            inside[hook, re.sub(r"hook_([qkv])_input", r"attn.hook_\1", hook)] = None
    return [*edges, *inside]


def _writer_hooks(name: str) -> tuple[str, ...]:
    if name == "input":
        return _EMBEDDINGS
    layer, _, head = name[1:].partition(".h")
    return (f"blocks.{layer}." + (f"attn.hook_result[{head}]" if head else "hook_mlp_out"),)


def _reader_hook(name: str, graph: ComponentGraph) -> str:
    if name == "logits":
        return _stream_end(graph)
    layer, _, head = name[1:].partition(".h")
    # The head's part reads such as `2<q>`.
    return f"blocks.{layer}." + (f"hook_{head[-2]}_input[{head[:-3]}]" if head else "hook_mlp_in")
