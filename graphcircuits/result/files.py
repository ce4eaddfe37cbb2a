"""The files of a result: the JSON that EAP-IG and the MIB leaderboard use, and safetensors.

1. `to_json_file` gives the JSON: their cfg, nodes and edges, and one block of ours under our name.
   EAP-IG ranks edges by the absolute value of `score` unless told otherwise, in float32. So `score`
   is never negative: it is our score where no score is negative, and the edge's place in the
   ranking counted from the worst, ties sharing one, where some are. On request it is the signed
   effect instead, by which MIB ranks unless told otherwise. Our own numbers are in the block,
   together with a hash of the whole file.
2. `from_json_file` reads such a file, or one without our block, which is theirs.
3. `write_tensor_file` and `from_tensor_file` write and read an artifact of kind `result`.

EAP-IG gives every head its own keys and values. A graph with grouped ones is written with the
group's score at each of its heads, and read back from that. `grouped` brings scores of single heads
to such a graph.

A result may come with a `FaithfulnessCurve`, how faithful its best edges were found to be, with
probabilities, with prompts (`result_prompts`), and with a hash of every prompt that it was found
on. Files without them have no word of it.

Readers give the fields of a `Result`, and `Result.load` names the file in what they raise. They
compare sizes with what the file holds before they build a graph: a graph of the sizes in a file can
be larger than any memory.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.config import build_config
from graphcircuits.io.files import read_json, short, to_json
from graphcircuits.io.store import (
    DTYPES,
    FORMAT,
    StoreError,
    check_types,
    check_version,
    content_hash,
    load_artifact,
    origin,
    save_artifact,
)
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.prompts import (
    PATTERNS,
    prompt_tensors,
    prompts_from_json,
    prompts_from_tensors,
    prompts_to_json,
    texts_to_json,
)

if TYPE_CHECKING:
    from graphcircuits.result.result import Result

ABOUT: Mapping[str, tuple[type, ...]] = {
    "subject": (str,),
    "task": (str,),
    "method": (str,),
    "options": (dict,),
    "seed": (int, type(None)),
    "seconds": (float, int, type(None)),
    "notes": (list,),
}
"""What a result says of itself, in every file of ours."""
_BLOCK: Mapping[str, tuple[type, ...]] = {
    **{name: (int if name == "version" else str,) for name in origin("")},
    **ABOUT,
    "n_kv_heads": (int,),
    "dtype": (str,),
    "chosen": (bool,),
    "scores": (list,),
    "sha256": (str,),
}
_BESIDE = ("probabilities", "signed")
"""Numbers that a result may have for each edge beside its score."""
_SCORES = (float, int, type(None))
NO_EDGE_SCORES = "it scores nodes, not edges; a result needs a score for each edge."
_CURVE: Mapping[str, tuple[type, ...]] = {
    "sizes": (list,),
    "faithfulness": (list,),
    "by": (str,),
    "pairs": (int,),
    "seed": (int, type(None)),
}


# Writing


def to_json_file(
    result: "Result", circuit: Circuit | None, shown: Float[Tensor, " edge"]
) -> dict[str, Any]:
    """The content of a JSON file, with the scores `shown` to EAP-IG and MIB; the edges of `circuit`
    are marked `in_graph`."""
    graph, scores, prompts = result.graph, result.scores, result.prompts
    full, shared = ungrouped(graph)
    mask = torch.zeros(graph.n_edges, dtype=torch.bool)
    touched: list[str] = []
    if circuit is not None:
        mask, touched = circuit.on(graph).mask, components(graph, circuit)
    edges = zip(full.edge_names, shown[shared].tolist(), mask[shared].tolist(), strict=True)
    block = origin("result") | {
        **{name: getattr(result, name) for name in ABOUT},
        "n_kv_heads": graph.n_groups,
        "dtype": str(scores.dtype).removeprefix("torch."),
        "chosen": circuit is not None,
        "scores": scores.tolist(),
        **_optional(result, None if prompts is None else prompts_to_json(prompts)),
    }
    for name in _BESIDE:
        if (values := getattr(result, name)) is not None:
            block[name] = values.tolist()
    content = {
        "cfg": {
            "n_layers": graph.n_layers,
            "n_heads": graph.n_heads,
            # EAP-IG needs a number here and, for scores of edges, does nothing with it.
            "d_model": result.d_model or 0,
            "parallel_attn_mlp": graph.parallel,
        },
        "nodes": {
            # The logits are in every circuit, says EAP-IG.
            name: {"in_graph": name in touched or name == "logits"}
            for name in (*graph.writer_names, "logits")
        },
        "edges": {name: {"score": s, "in_graph": chosen} for name, s, chosen in edges},
        FORMAT: block,
    }
    block["sha256"] = _hash(content)
    return content


def write_tensor_file(path: str | Path, result: "Result", circuit: Circuit | None) -> None:
    """Write a safetensors file; `circuit` is stored as the chosen one."""
    graph, prompts = result.graph, result.prompts
    given = {
        "scores": result.scores,
        **{name: getattr(result, name) for name in _BESIDE},
        "chosen": None if circuit is None else circuit.on(graph).mask,
    }
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    about = {name: getattr(result, name) for name in ABOUT if name != "seed"}
    meta = about | {"d_model": result.d_model}
    meta |= _optional(result, None if prompts is None else texts_to_json(prompts))
    if prompts is not None:
        tensors |= prompt_tensors(prompts)
    save_artifact(path, kind="result", config=graph, seed=result.seed, tensors=tensors, meta=meta)


def _optional(result: "Result", prompts: Mapping[str, Any] | None) -> dict[str, Any]:
    """What either kind of file has a word of only where the result has it."""
    given = {
        "curve": None if result.curve is None else result.curve.to_json(),
        "prompts": prompts,
        "prompt_hashes": list(result.prompt_hashes) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def signless(scores: Float[Tensor, " edge"]) -> Float[Tensor, " edge"]:
    """Numbers from 0 that rank the edges as the scores do, whether or not signs are dropped."""
    if (scores >= 0).all():
        return scores
    # Places are exact in float32 up to 16 million; a shifted score could round two scores to one.
    return scores.unique(return_inverse=True)[1].double()


def _hash(content: Mapping[str, Any]) -> str:
    """Of the whole file but for the hash itself."""
    block = {name: value for name, value in content[FORMAT].items() if name != "sha256"}
    return content_hash(to_json({**content, FORMAT: block}, sort_keys=True))


def components(graph: ComponentGraph, circuit: Circuit) -> list[str]:
    """The components that a circuit touches, in the order of the graph."""
    touched = circuit.components
    return [name for name in (*graph.writer_names, "logits") if name in touched]


def ungrouped(graph: ComponentGraph) -> tuple[ComponentGraph, Int[Tensor, " edge"]]:
    """The same graph with keys and values for each head, and the edge behind each of its edges."""
    full = ComponentGraph(graph.n_layers, graph.n_heads, parallel=graph.parallel)
    slots = torch.cat([graph.head_slots.T.flatten(), torch.tensor([graph.readers_per_layer - 1])])
    layers = torch.arange(graph.n_layers)[:, None] * graph.readers_per_layer
    readers = torch.cat([(layers + slots).flatten(), torch.tensor([graph.n_readers - 1])])
    return full, graph.offsets[readers][full.edge_readers] + full.edge_writers


def grouped(graph: ComponentGraph, scores: Float[Tensor, " single"]) -> Float[Tensor, " edge"]:
    """Scores of single heads on a graph whose heads share keys and values.

    Of the heads that share a key or a value, the best counts.
    """
    _, shared = ungrouped(graph)
    best = scores.new_full((graph.n_edges,), -math.inf)
    return best.scatter_reduce(0, shared, scores, "amax")


def added_up(graph: ComponentGraph, effects: Float[Tensor, " single"]) -> Float[Tensor, " edge"]:
    """Effects of single heads on a graph whose heads share keys and values: to first order that of
    the one edge into a group is the sum over its heads."""
    _, shared = ungrouped(graph)
    return effects.new_zeros(graph.n_edges).index_add_(0, shared, effects)


# Reading


def _read_curve(
    path: str | Path, block: Mapping[str, Any], graph: ComponentGraph
) -> FaithfulnessCurve | None:
    """The curve in a block of ours, where it has one."""
    if "curve" not in block:
        return None
    check_types(path, {"curve": block["curve"]}, {"curve": (dict,)}, "result")
    # Files from before had no other measure.
    curve = {"by": "loss", **block["curve"]}
    check_types(path, curve, _CURVE, "curve")
    for name, kinds in (("sizes", (int,)), ("faithfulness", (int, float))):
        if any(type(value) not in kinds for value in curve[name]):
            raise ValueError(f"{name} must be numbers, got {short(curve[name])}.")
    return FaithfulnessCurve(
        n_edges=graph.n_edges,
        sizes=curve["sizes"],
        faithfulness=list(map(float, curve["faithfulness"])),
        n_pairs=curve["pairs"],
        by=curve["by"],
        seed=curve["seed"],
    )


def _read_beside(
    block: Mapping[str, Any], name: str, dtype: torch.dtype
) -> Float[Tensor, " edge"] | None:
    """Numbers of this name in a block of ours, where it has some."""
    if name not in block:
        return None
    values, count = block[name], len(block["scores"])
    if (
        type(values) is not list
        or len(values) != count
        or any(type(value) not in (int, float) for value in values)
    ):
        raise ValueError(
            f"{name} must be a number for each of {count} scores, got {short(values)}."
        )
    return torch.tensor(values, dtype=dtype)


def from_tensor_file(path: str | Path) -> dict[str, Any]:
    """The fields of a result in a safetensors file."""
    artifact = load_artifact(path, "result")
    kinds = {name: kinds for name, kinds in ABOUT.items() if name != "seed"}
    meta = dict(artifact.meta)
    optional = ("curve", "prompts", "prompt_hashes")
    given = {name: meta.pop(name) for name in optional if name in meta}
    check_types(path, meta, {**kinds, "d_model": (int, type(None))}, "result")
    present = artifact.tensors.keys() & {"chosen", *_BESIDE, *PATTERNS}
    check_types(path, artifact.tensors, dict.fromkeys(["scores", *present], (Tensor,)), "result")
    scores = artifact.tensors["scores"]
    chosen, likely, signed = (artifact.tensors.get(name) for name in ("chosen", *_BESIDE))
    if scores.dtype not in DTYPES.values() or scores.ndim != 1:
        raise ValueError(
            f"scores must be one row of numbers of {', '.join(DTYPES)}, got "
            f"{scores.dtype} of shape {tuple(scores.shape)}."
        )
    for name, tensor, dtype, words in (
        ("chosen", chosen, torch.bool, "a boolean"),
        ("probabilities", likely, torch.float32, "a float32"),
        ("signed", signed, scores.dtype, f"a {str(scores.dtype).removeprefix('torch.')}"),
    ):
        if tensor is not None and (tensor.dtype, tensor.shape) != (dtype, scores.shape):
            raise ValueError(
                f"{name} must be {words} for each of {len(scores)} scores, got "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}."
            )
    sizes = dict(artifact.config)
    n_layers, n_heads = sizes.get("n_layers"), sizes.get("n_heads")
    if type(n_layers) is int and type(n_heads) is int:
        _check_count(n_layers, n_heads, len(scores))
    graph = build_config(ComponentGraph, sizes)
    return {
        "graph": graph,
        "scores": scores,
        "seed": artifact.seed,
        "chosen": None if chosen is None else Circuit.from_mask(graph, chosen),
        "curve": _read_curve(path, given, graph),
        "probabilities": likely,
        "signed": signed,
        "prompts": prompts_from_tensors(path, given, artifact.tensors, graph),
        "prompt_hashes": given.get("prompt_hashes", ()),
        **meta,
    }


def _check_count(n_layers: int, n_heads: int, edges: int) -> None:
    """Refuse sizes whose graph must have more edges than there are."""
    # The edges into the queries alone: one writer and all heads of the layers before.
    least = n_layers * n_heads + n_heads * n_heads * n_layers * (n_layers - 1) // 2
    if min(n_layers, n_heads) > 0 and least > edges:
        raise ValueError(
            f"there are too few edges for {short(n_layers)} x {short(n_heads)} heads: {edges}."
        )


def from_json_file(path: str | Path) -> dict[str, Any]:
    """The fields of a result in a JSON file: all of a file or an error."""
    content = read_json(path)
    ours = content.get(FORMAT) if isinstance(content, dict) else None
    if ours is not None:
        _check_block(path, content, ours)
    parts = ("cfg", "nodes", "edges")
    if not isinstance(content, dict) or any(type(content.get(part)) is not dict for part in parts):
        raise StoreError(f"{path} is not a circuit: it must hold the objects cfg, nodes and edges.")
    cfg: dict[str, Any] = content["cfg"]
    n_layers, n_heads, d_model = (cfg.get(name) for name in ("n_layers", "n_heads", "d_model"))
    if not (type(n_layers) is int and type(n_heads) is int and min(n_layers, n_heads) > 0):
        raise ValueError("cfg must hold n_layers and n_heads, whole numbers from 1.")
    if type(d_model) not in (int, type(None)):
        raise ValueError(f"d_model in cfg must be a whole number, got {short(d_model)}.")
    _check_count(n_layers, n_heads, len(content["edges"]))
    graph = ComponentGraph(
        n_layers,
        n_heads,
        n_kv_heads=ours["n_kv_heads"] if ours else None,
        parallel=bool(cfg.get("parallel_attn_mlp", False)),
    )
    full, shared = ungrouped(graph)
    scores, marked = _edge_values(content, full)
    if ours is None:
        chosen = Circuit.from_mask(graph, marked) if marked.any() else None
        about = {"d_model": d_model or None, "chosen": chosen}
        return {"graph": graph, "scores": scores, "signed": effects_in(scores), **about}
    values = torch.zeros(graph.n_edges, dtype=scores.dtype)
    mask = torch.zeros(graph.n_edges, dtype=torch.bool)
    values[shared], mask[shared] = scores, marked
    agree = values[shared].isclose(scores, rtol=0, atol=0, equal_nan=True)
    differ = ~agree | (mask[shared] != marked)
    if differ.any():
        name = full.edge_name(int(differ.nonzero()[0]))
        raise ValueError(
            f"{name} differs from another head of its group, but the header says that "
            f"{graph.n_heads} heads share {graph.n_groups} keys and values."
        )
    dtype = DTYPES[ours["dtype"]]
    return {
        "graph": graph,
        "scores": torch.tensor(ours["scores"], dtype=dtype),
        "d_model": d_model or None,
        "chosen": Circuit.from_mask(graph, mask) if ours["chosen"] else None,
        "curve": _read_curve(path, ours, graph),
        "probabilities": _read_beside(ours, "probabilities", torch.float32),
        "signed": _read_beside(ours, "signed", dtype),
        "prompts": prompts_from_json(path, ours, graph),
        "prompt_hashes": ours.get("prompt_hashes", ()),
        **{name: ours[name] for name in ABOUT},
    }


def effects_in(scores: Float[Tensor, " edge"]) -> Float[Tensor, " edge"] | None:
    """Scores of EAP-IG where they are effects: some have a minus sign."""
    return scores if (scores < 0).any() else None


def _check_block(path: str | Path, content: dict[str, Any], ours: Any) -> None:
    """Refuse a block that is not whole, and a file that was changed after it was written."""
    check_version(path, ours)
    sometimes = ("curve", *_BESIDE, "prompts", "prompt_hashes")
    always = {name: ours[name] for name in ours if name not in sometimes}
    check_types(path, always, _BLOCK, "result")
    if _hash(content) != ours["sha256"]:
        raise StoreError(
            f"{path} has changed since it was written: its content does not have the sha256 that "
            f"its {FORMAT!r} block says; restore it, or, to read what EAP-IG would read in it, "
            "delete that block."
        )
    if ours["dtype"] not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}.")
    if any(type(score) not in (float, int) for score in ours["scores"]):
        raise ValueError(f"the scores in its {FORMAT!r} block must be numbers.")


def _edge_values(
    content: dict[str, Any], graph: ComponentGraph
) -> tuple[Float[Tensor, " edge"], Bool[Tensor, " edge"]]:
    """Scores and `in_graph` in our edge order. A file without any scores scores its circuit 1."""
    edges = content["edges"]
    names = graph.edge_names
    unknown = sorted(edges.keys() - set(names))
    missing = [name for name in names if name not in edges]
    if unknown or missing:
        parts = [
            f"{len(group)} {words}: {', '.join(name[:80] for name in group[:3])}"
            f"{', ...' if len(group) > 3 else ''}"
            for group, words in ((unknown, "not in the graph"), (missing, "missing"))
            if group
        ]
        raise ValueError(f"the edges are not those of {graph.in_words}; {'; '.join(parts)}.")
    scores, marked = [], []
    for name in names:
        info = edges[name]
        values = (info.get("score"), info.get("in_graph", False)) if type(info) is dict else ()
        if not values or type(values[0]) not in _SCORES or type(values[1]) is not bool:
            raise ValueError(
                f'{name} must hold {{"score": number, "in_graph": true or false}}, '
                f"got {short(info)}."
            )
        scores.append(values[0])
        marked.append(values[1])
    marked = torch.tensor(marked)
    unscored = scores.count(None)
    if unscored == len(names):
        return marked.double(), marked
    if unscored:
        first = names[scores.index(None)]
        raise ValueError(f"{unscored} of {len(names)} edges have no score, first {first}.")
    scores = torch.tensor(scores, dtype=torch.float64)
    nodes = content["nodes"].values()
    if not scores.any() and any(isinstance(node, dict) and node.get("score") for node in nodes):
        raise ValueError(NO_EDGE_SCORES)
    return scores, marked
