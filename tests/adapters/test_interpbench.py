"""InterpBench's layout in and out: the same subject and circuit, and nothing in a file is run."""

import json
import os
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graphcircuits import load_case
from graphcircuits.adapters.hooked import read_edges
from graphcircuits.adapters.interpbench import (
    CONFIG,
    EDGES,
    META,
    MODEL,
    import_interpbench,
)
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from lab.benchmarks.interpbench_export import export_interpbench, write_edges
from tests.damage import limits

# The list that InterpBench publishes for its case 3, order included.
PUBLISHED_CASE_3 = [
    ("blocks.1.attn.hook_result[2]", "blocks.1.hook_resid_post"),
    ("blocks.0.hook_mlp_out", "blocks.1.hook_q_input[2]"),
    ("blocks.0.hook_mlp_out", "blocks.1.hook_k_input[2]"),
    ("blocks.0.hook_mlp_out", "blocks.1.hook_v_input[2]"),
    ("hook_embed", "blocks.0.hook_mlp_in"),
    ("hook_pos_embed", "blocks.1.hook_q_input[2]"),
    ("hook_pos_embed", "blocks.1.hook_k_input[2]"),
    ("hook_pos_embed", "blocks.1.hook_v_input[2]"),
    ("blocks.1.hook_q_input[2]", "blocks.1.attn.hook_q[2]"),
    ("blocks.1.hook_k_input[2]", "blocks.1.attn.hook_k[2]"),
    ("blocks.1.hook_v_input[2]", "blocks.1.attn.hook_v[2]"),
]
SIZES = TransformerConfig(
    n_layers=2, n_heads=4, d_model=12, d_head=3, d_mlp=48, n_ctx=5, d_vocab=6, d_vocab_out=1
)


def random_subject(
    config: TransformerConfig = SIZES, codec: Codec | None = None, seed: int = 0
) -> Transformer:
    generator = torch.Generator().manual_seed(seed)
    subject = Transformer.random(config, generator, codec, dtype=torch.float64)
    biases = {
        name: torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        for name, weight in subject.weights.items()
        if name.startswith("b_")
    }
    return replace(subject, weights=subject.weights | biases)


def random_circuit(graph: ComponentGraph, seed: int = 0) -> Circuit:
    generator = torch.Generator().manual_seed(seed)
    return Circuit.from_mask(graph, torch.rand(graph.n_edges, generator=generator) < 0.3)


def hooked_logits(state: dict[str, Tensor], settings: dict[str, Any], tokens: Tensor) -> Tensor:
    """A HookedTransformer's forward pass, from its state dict and settings alone."""
    stream = state["embed.W_E"][tokens] + state["pos_embed.W_pos"][: tokens.shape[1]]
    for layer in range(settings["n_layers"]):
        own = {key.split(".", 2)[2]: w for key, w in state.items() if f"blocks.{layer}." in key}
        q, k, v = (
            torch.einsum("bpd,hdc->bphc", stream, own[f"attn.W_{x}"]) + own[f"attn.b_{x}"]
            for x in "QKV"
        )
        scores = torch.einsum("bphc,bshc->bhps", q, k) / settings["d_head"] ** 0.5
        if settings["attention_dir"] == "causal":
            pos = tokens.shape[1]
            scores = torch.where(own["attn.mask"][:pos, :pos], scores, own["attn.IGNORE"])
        z = torch.einsum("bhps,bshc->bphc", scores.softmax(-1), v)
        out = torch.einsum("bphc,hcd->bpd", z, own["attn.W_O"])
        stream = stream + out + own["attn.b_O"]
        pre = stream @ own["mlp.W_in"] + own["mlp.b_in"]
        hidden = pre * (1 + torch.erf(pre / 2**0.5)) / 2
        stream = stream + hidden @ own["mlp.W_out"] + own["mlp.b_out"]
    return stream @ state["unembed.W_U"] + state["unembed.b_U"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subject = random_subject()
    circuit = random_circuit(subject.graph)
    export_interpbench(tmp_path / "3", subject, circuit, {"lr": 0.01, "epochs": 2000})
    return tmp_path / "3"


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (3, 2)])
def test_round_trip(tmp_path: Path, causal: bool, shape: tuple[int, int]) -> None:
    config = replace(SIZES, n_layers=shape[0], n_heads=shape[1], causal=causal)
    subject = random_subject(config)
    circuit, meta = random_circuit(subject.graph), {"lr": 0.01, "act_fn": "gelu", "seed": None}
    export_interpbench(tmp_path, subject, circuit, meta)
    back = import_interpbench(tmp_path)
    assert back.transformer.config == config
    assert back.transformer.codec is None
    assert (back.circuit, back.meta) == (circuit, meta)
    tokens = torch.randint(6, (8, 5), generator=torch.Generator().manual_seed(1))
    assert torch.equal(back.transformer.logits(tokens), subject.logits(tokens))


@pytest.mark.parametrize("causal", [True, False])
def test_exported_files_compute_what_transformer_lens_would(tmp_path: Path, causal: bool) -> None:
    subject = random_subject(replace(SIZES, causal=causal, d_vocab_out=4))
    export_interpbench(tmp_path, subject, random_circuit(subject.graph))
    state = torch.load(tmp_path / MODEL, weights_only=True)
    settings = pickle.loads((tmp_path / CONFIG).read_bytes())
    tokens = torch.randint(6, (8, 4), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(hooked_logits(state, settings, tokens), subject.logits(tokens))
    assert settings["dtype"] == torch.float64


def test_exported_weights_carry_no_others(tmp_path: Path) -> None:
    subject = random_subject(replace(SIZES, n_layers=8, d_mlp=400))
    export_interpbench(tmp_path, subject, random_circuit(subject.graph))
    held = sum(weight.nbytes for weight in subject.weights.values())
    assert (tmp_path / MODEL).stat().st_size < 1.5 * held


def test_the_codec_travels_with_the_subject(tmp_path: Path) -> None:
    codec = Codec(("a", 1, None, False), (0.5, "x", True))
    subject = random_subject(replace(SIZES, d_vocab_out=3), codec)
    export_interpbench(tmp_path, subject, random_circuit(subject.graph), {"lr": 1})
    back = import_interpbench(tmp_path)
    assert back.transformer.codec == codec
    assert repr(back.transformer.codec) == repr(codec)
    assert back.meta == {"lr": 1}
    assert back.transformer.apply(["a", 1]) == subject.apply(["a", 1])


def test_exported_files_are_plain_for_pickle_too(folder: Path) -> None:
    edges = pickle.loads((folder / EDGES).read_bytes())
    assert isinstance(edges, list)
    assert {type(end) for pair in edges for end in pair} == {str}
    assert json.loads((folder / META).read_text()) == {"lr": 0.01, "epochs": 2000}


# Files as published


def test_the_published_edges_of_case_3(folder: Path) -> None:
    (folder / EDGES).write_bytes(pickle.dumps(PUBLISHED_CASE_3))
    assert import_interpbench(folder).circuit == load_case("ib-3").labels("paper")


def test_edges_are_written_with_the_published_names(tmp_path: Path) -> None:
    circuit = load_case("ib-3").labels("paper")
    export_interpbench(tmp_path, random_subject(), circuit)
    written = pickle.loads((tmp_path / EDGES).read_bytes())
    embeddings = {"hook_embed", "hook_pos_embed"}
    # Which embedding is read is not known to us: both are written.
    assert {p for p in written if p[0] not in embeddings} == {
        p for p in PUBLISHED_CASE_3 if p[0] not in embeddings
    }
    assert set(PUBLISHED_CASE_3) < set(written)
    assert len(written) == len(set(written))


def test_every_edge_has_a_name_of_its_own() -> None:
    graph = ComponentGraph(3, 2)
    for name in graph.edge_names:
        written = write_edges(Circuit.from_names(graph, [name]))
        assert read_edges(graph, written) == ({name}, [])


def test_steps_within_a_component_and_the_start_of_the_stream(folder: Path) -> None:
    pairs = [
        ["blocks.0.hook_resid_pre", "blocks.0.hook_mlp_in"],
        ["blocks.0.hook_mlp_in", "blocks.0.hook_mlp_out"],
        ["blocks.0.attn.hook_v[1]", "blocks.0.attn.hook_result[1]"],
    ]
    (folder / EDGES).write_bytes(pickle.dumps(pairs))
    assert import_interpbench(folder).circuit.edges == {"input->m0"}


def published_settings(**changes: Any) -> dict[str, Any]:
    """Settings as TransformerLens dumps them: every field, numpy numbers among them."""
    return {
        "n_layers": 2, "d_model": 12, "n_ctx": 5, "d_head": 3, "model_name": "custom",
        "n_heads": 4, "d_mlp": 48, "act_fn": "gelu", "d_vocab": 6, "eps": 1e-05,
        "use_attn_result": True, "use_attn_scale": True, "attn_scale": np.float64(3**0.5),
        "use_split_qkv_input": True, "use_hook_mlp_in": True, "use_attn_in": False,
        "use_local_attn": False, "original_architecture": None, "from_checkpoint": False,
        "checkpoint_index": None, "tokenizer_name": None, "window_size": None,
        "attn_types": None, "init_mode": "gpt2", "normalization_type": None, "device": "cuda",
        "n_devices": 1, "attention_dir": "bidirectional", "attn_only": False, "seed": 0,
        "initializer_range": np.float64(0.8 / 12**0.5), "init_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "positional_embedding_type": "standard",
        "final_rms": False, "d_vocab_out": 1, "parallel_attn_mlp": False, "rotary_dim": None,
        "n_params": 3456, "use_hook_tokens": False, "gated_mlp": False,
        "default_prepend_bos": True, "dtype": torch.float32, "n_key_value_heads": None,
        "rotary_base": 10000, "attn_scores_soft_cap": -1.0, "output_logits_soft_cap": -1.0,
        "num_experts": None, "use_NTK_by_parts_rope": False, "NTK_by_parts_factor": 8.0,
    } | changes  # fmt: skip


def test_settings_as_published(folder: Path) -> None:
    (folder / CONFIG).write_bytes(pickle.dumps(published_settings()))
    assert import_interpbench(folder).transformer.config == replace(SIZES, causal=False)


@pytest.mark.parametrize("module", ["HookedTransformerConfig", "config.hooked_transformer_config"])
def test_settings_as_an_object(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    name = f"transformer_lens.{module}"
    kind = type("HookedTransformerConfig", (), {"__module__": name})
    stand_in = types.ModuleType(name)
    stand_in.HookedTransformerConfig = kind  # pyright: ignore[reportAttributeAccessIssue]
    value = kind()
    vars(value).update(published_settings(attention_dir="causal"))
    with monkeypatch.context() as patch:
        for parent in ("transformer_lens", "transformer_lens.config"):
            patch.setitem(sys.modules, parent, types.ModuleType(parent))
        patch.setitem(sys.modules, name, stand_in)
        (folder / CONFIG).write_bytes(pickle.dumps(value))
    assert import_interpbench(folder).transformer.config == SIZES
    assert not any(loaded.startswith("transformer_lens") for loaded in sys.modules)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalization_type": "BN"}, "normalization_type must be one of None, LN, .*, got 'BN'"),
        ({"act_fn": "solu"}, "act_fn must be one of gelu, gelu_new, .*, got 'solu'"),
        ({"attention_dir": "sideways"}, "attention_dir must be one of causal, bidirectional, got"),
        ({"attention_dir": ["causal"]}, "attention_dir must be one of causal, bidirectional, got"),
        ({"positional_embedding_type": "alibi"}, "positional_embedding_type must be one of stan"),
        ({"attn_scale": 0}, "float division by zero"),
        ({"attn_scale": "wide"}, "could not convert string to float: 'wide'"),
        ({"n_key_value_heads": 3}, "n_kv_heads must divide n_heads"),
        ({"use_local_attn": True, "attn_types": ["local"] * 2}, "windows look back, so"),
        ({"num_experts": 8, "clip_qkv": 2.0}, "num_experts must be off, got 8; clip_qkv must be"),
        ({"a_new_trick": "strong"}, "a_new_trick must be off, got 'strong'"),
        ({"d_model": 12.0}, "d_model must be a whole number from 1, got 12.0"),
        ({"n_layers": True}, "n_layers must be a whole number from 1, got True"),
    ],
)
def test_unsupported_models(folder: Path, changes: dict[str, Any], reason: str) -> None:
    (folder / CONFIG).write_bytes(pickle.dumps(published_settings(**changes)))
    with pytest.raises(StoreError, match=f"a model that is not supported: {reason}"):
        import_interpbench(folder)


def test_settings_of_other_models_of_transformer_lens(folder: Path) -> None:
    settings = published_settings(use_attn_scale=False, output_logits_soft_cap=30.0, act_fn="relu")
    (folder / CONFIG).write_bytes(pickle.dumps(settings))
    config = import_interpbench(folder).transformer.config
    changes: dict[str, Any] = {"attention_scale": 1.0, "logit_cap": 30.0, "activation": "relu"}
    assert config == replace(SIZES, causal=False, **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"d_vocab": 2}, r"embed\.W_E must have shape \(2, 12\), got \(6, 12\)"),
        ({"d_model": 10**12, "normalization_type": "LNPre"}, r"embed\.W_E must have shape"),
        ({"n_layers": 10**12, "attn_only": True}, "it has 2 layers, the configuration n_layers=1"),
        ({"normalization_type": "LN"}, r"missing weights: blocks\.0\.ln1\.b, "),
        ({"n_key_value_heads": 2, "d_head": 2}, r"blocks\.0\.attn\.W_Q must have shape"),
    ],
)
def test_settings_of_other_weights(folder: Path, changes: dict[str, Any], reason: str) -> None:
    (folder / CONFIG).write_bytes(pickle.dumps(published_settings(**changes)))
    with limits(), pytest.raises(StoreError, match=rf"does not fit ll_model_cfg\.pkl: .*{reason}"):
        import_interpbench(folder)


def test_all_problems_of_the_settings_at_once(folder: Path) -> None:
    (folder / CONFIG).write_bytes(pickle.dumps({"n_layers": 2, "act_fn": "solu"}))
    with pytest.raises(StoreError) as caught:
        import_interpbench(folder)
    for part in ("d_model must be", "act_fn must be one of gelu", "attention_dir must be"):
        assert part in str(caught.value)
    assert "d_model must be a whole number from 1, got None" in str(caught.value)


# Malice


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.canary}",)


def with_trap(trap: Trap) -> dict[str, Callable[[Path], object]]:
    return {
        CONFIG: lambda path: path.write_bytes(pickle.dumps(published_settings(seed=trap))),
        EDGES: lambda path: path.write_bytes(pickle.dumps([*PUBLISHED_CASE_3, trap])),
        MODEL: lambda path: torch.save({"embed.W_E": torch.zeros(2), "x": trap}, path),
    }


@pytest.mark.parametrize("name", [CONFIG, EDGES, MODEL])
def test_a_file_that_would_run_code_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    with_trap(Trap(canary))[name](folder / name)
    with pytest.raises(StoreError, match=rf"{name} is refused and nothing of it was run: .*system"):
        import_interpbench(folder)
    assert not canary.exists()


def test_the_edges_may_name_nothing_at_all(folder: Path) -> None:
    (folder / EDGES).write_bytes(pickle.dumps([torch.float32]))
    with pytest.raises(StoreError, match=r"edges\.pkl is refused .* it asks for 'torch.float32'"):
        import_interpbench(folder)


# Damage


@pytest.mark.parametrize("name", [MODEL, CONFIG, EDGES, META])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"InterpBench's layout: no {name}; expected"):
        import_interpbench(folder)


def test_a_missing_folder_lists_all_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no {MODEL}, {CONFIG}, {EDGES}, {META};"):
        import_interpbench(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [MODEL, CONFIG, EDGES, META])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_files_cut_short(folder: Path, name: str, share: float) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(StoreError, match=f"{name} .*(cut short|damaged)"):
        import_interpbench(folder)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (CONFIG, [1], "must hold a configuration, got \\[1\\]"),
        (EDGES, {"a": 1}, "must hold a list of pairs of hook names, got {'a': 1}"),
        (EDGES, [("hook_embed",), "x"], "2 of 2 entries are not edges: \\('hook_embed',\\); 'x'"),
        (EDGES, [("hook_embed", "hook_q")], "1 of 1 entries are not edges: 'hook_embed' -> 'hook"),
        (EDGES, [("hook_embed", "blocks.0.hook_resid_post")], "1 of 1 entries are not edges"),
        (EDGES, [("blocks.0.hook_q_input[1]", "blocks.0.attn.hook_k[1]")], "are not edges"),
        (EDGES, [("blocks.0.hook_q_input[1]", "blocks.0.attn.hook_q[2]")], "are not edges"),
        (EDGES, [("hook_embed", "blocks.9.hook_mlp_in")], "unknown edge 'input->m9'"),
        (EDGES, [("hook_embed", "blocks.0.hook_q_input[7]")], "unknown edge 'input->a0.h7<q>'"),
        (EDGES, [("blocks.1.hook_mlp_out", "blocks.0.hook_mlp_in")], "m0 reads only the writers"),
    ],
)
def test_files_with_other_contents(folder: Path, name: str, value: object, reason: str) -> None:
    (folder / name).write_bytes(pickle.dumps(value))
    with pytest.raises(StoreError, match=f"{name}.*{reason}"):
        import_interpbench(folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "must hold a JSON object, got \\[1\\]"),
        ('{"graphcircuits": 3}', "'graphcircuits' must be a JSON object, got 3"),
        ('{"graphcircuits": {"vocab": ["a"], "wings": 2}}', "unknown key 'wings'"),
        ('{"graphcircuits": {"vocab": ["a", "b"]}}', "the codec has d_vocab=4"),
    ],
)
def test_other_notes(folder: Path, text: str, reason: str) -> None:
    (folder / META).write_text(text)
    with pytest.raises(ValueError, match=reason):
        import_interpbench(folder)


def changed(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    state = torch.load(folder / MODEL, weights_only=True)
    change(state)
    torch.save(state, folder / MODEL)
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.pop("embed.W_E"), "missing weights: embed.W_E"),
        (lambda s: s.update({"ln_final.w": torch.ones(2)}), "unknown weights: ln_final.w"),
        (
            lambda s: s.update({"blocks.1.mlp.W_in": s["blocks.1.mlp.W_in"].T.clone()}),
            r"blocks.1.mlp.W_in must have shape \(12, 48\), got \(48, 12\)",
        ),
        (
            lambda s: s.update({"embed.W_E": s["embed.W_E"].float()}),
            "weights must share one floating dtype, got torch.float32, torch.float64",
        ),
        (
            lambda s: s.update({"blocks.2.attn.W_Q": torch.ones(2)}),
            "it has 3 layers, the configuration n_layers=2",
        ),
    ],
)
def test_weights_that_do_not_fit(
    folder: Path, change: Callable[[dict[str, Tensor]], object], reason: str
) -> None:
    with pytest.raises(
        StoreError, match=rf"ll_model\.pth does not fit ll_model_cfg\.pkl: {reason}"
    ):
        import_interpbench(changed(folder, change))


def test_weights_that_are_none(folder: Path) -> None:
    torch.save([torch.ones(2)], folder / MODEL)
    with pytest.raises(StoreError, match=r"must hold values by name, got \[<made by torch\."):
        import_interpbench(folder)


class HookedTransformerConfig:
    """Pickled as a nest of calls that share their arguments; its name is an allowed one."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __reduce__(self) -> tuple[object, ...]:
        return HookedTransformerConfig, ((self.inner, self.inner),)


def test_settings_that_print_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("transformer_lens")
    monkeypatch.setitem(sys.modules, "transformer_lens", module)
    monkeypatch.setattr(HookedTransformerConfig, "__module__", "transformer_lens")
    monkeypatch.setattr(module, "HookedTransformerConfig", HookedTransformerConfig, raising=False)
    tree: object = None
    for _ in range(40):
        tree = HookedTransformerConfig(tree)
    (folder / CONFIG).write_bytes(pickle.dumps(published_settings(d_model=tree)))
    with limits(), pytest.raises(StoreError, match=r"d_model must be .*, got <made by transf"):
        import_interpbench(folder)


# What cannot be written


def test_subjects_without_a_place_in_the_layout(tmp_path: Path) -> None:
    config = replace(
        SIZES, norm="rms", activation="relu", n_kv_heads=2, biases=False, score_cap=3.0
    )
    subject = Transformer.random(config, torch.Generator().manual_seed(0))
    reason = (
        r"no place for norm='rms', activation='relu', biases=False, score_cap=3\.0, n_groups=2;"
    )
    with pytest.raises(ValueError, match=reason):
        export_interpbench(tmp_path / "x", subject, random_circuit(subject.graph))
    assert not (tmp_path / "x").exists()


def test_circuits_of_another_graph(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="export a circuit of the subject's own graph"):
        export_interpbench(tmp_path, random_subject(), random_circuit(ComponentGraph(3, 4)))


def test_notes_that_take_our_place(tmp_path: Path) -> None:
    subject = random_subject()
    with pytest.raises(ValueError, match="meta must not have the key 'graphcircuits'"):
        export_interpbench(tmp_path, subject, random_circuit(subject.graph), {"graphcircuits": 1})


def test_symbols_that_json_would_change(tmp_path: Path) -> None:
    subject = random_subject(codec=Codec(("a", (1, 2), "b", "c")))
    with pytest.raises(TypeError, match=r"can be stored as symbols: \(1, 2\)"):
        export_interpbench(tmp_path, subject, random_circuit(subject.graph))
