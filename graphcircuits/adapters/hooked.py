"""TransformerLens's words for the weights and edges of a subject: its state dict and hook points.

`blocks.0.hook_mlp_out` and `blocks.1.hook_q_input[2]` are the ends of `m0->a1.h2<q>`; token and
position embedding are both `input`.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import short
from graphcircuits.subject.transformer import TransformerConfig, weight_shapes

# Weights

WHOLE = {
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


def check_size(config: TransformerConfig, state: Mapping[str, Tensor]) -> None:
    """Refuse a state dict of other layers or another width than a configuration says.

    Nothing of that size is to be made before this is known.
    """
    if "embed.W_E" not in state:
        raise ValueError("missing weights: embed.W_E.")
    layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    if layers != config.n_layers:
        raise ValueError(f"it has {layers} layers, the configuration n_layers={config.n_layers}.")
    shape, got = (config.d_vocab, config.d_model), tuple(state["embed.W_E"].shape)
    if shape != got:
        raise ValueError(f"embed.W_E must have shape {shape}, got {got}.")


def stack_weights(config: TransformerConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a subject; all that keeps the state dict from holding them is an error."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in weight_shapes(config).items():
        keys = weight_keys(config, name)
        shapes |= dict.fromkeys(keys, shape if name in WHOLE else shape[1:])
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
        raise ValueError("; ".join(problems) + ".")
    layers = {
        name: [state[key] for key in weight_keys(config, name)] for name in weight_shapes(config)
    }
    return {n: ws[0] if n in WHOLE else torch.stack(ws) for n, ws in layers.items()}


def weight_keys(config: TransformerConfig, name: str) -> list[str]:
    """The entries of a state dict that hold a weight of ours, one per layer."""
    if name in WHOLE:
        return [WHOLE[name]]
    return [f"blocks.{layer}.{_BY_LAYER[name]}" for layer in range(config.n_layers)]


# Edges

EMBEDDINGS = ("hook_embed", "hook_pos_embed")
# Hook points -> our names.
_WRITERS = {
    rf"{'|'.join(EMBEDDINGS)}|blocks\.0\.hook_resid_pre": "input",
    r"blocks\.(\d+)\.attn\.hook_result\[(\d+)\]": r"a\1.h\2",
    r"blocks\.(\d+)\.hook_mlp_out": r"m\1",
}
_READERS = {
    r"blocks\.(\d+)\.hook_([qkv])_input\[(\d+)\]": r"a\1.h\3<\2>",
    r"blocks\.(\d+)\.hook_mlp_in": r"m\1",
}
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
    readers = _READERS | {re.escape(stream_end(graph)): "logits"}
    for pair in pairs:
        match pair:
            case [str(out), str(into)]:
                writer, reader = _renamed(out, _WRITERS), _renamed(into, readers)
                if writer is not None and reader is not None:
                    names.add(f"{writer}->{reader}")
                elif not _INSIDE.fullmatch(f"{out} {into}"):
                    problems.append(f"{short(out)} -> {short(into)}")
            case _:
                problems.append(short(pair))
    return names, problems


def _renamed(hook: str, names: Mapping[str, str]) -> str | None:
    """Our name of a hook point, if one of the patterns is its."""
    found = ((re.fullmatch(pattern, hook), ours) for pattern, ours in names.items())
    return next((match.expand(ours) for match, ours in found if match), None)


def stream_end(graph: ComponentGraph) -> str:
    return f"blocks.{graph.n_layers - 1}.hook_resid_post"
