"""Files that lie: wrong contents under a right hash are refused by type and size, never tried."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError, load_artifact, save_artifact
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.result.result import Result
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from tests.damage import join_artifact, limits, split_artifact

# Subjects and headers


def saved_subject(path: Path) -> Path:
    config = TransformerConfig(
        n_layers=1, n_heads=1, d_model=2, d_head=2, d_mlp=2, n_ctx=4, d_vocab=3, d_vocab_out=1
    )
    codec = Codec(("a",))
    save_transformer(path, Transformer.random(config, torch.Generator().manual_seed(0), codec))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(transformer="/dev/zero"), "must be a mapping of settings, got '/dev/z"),
        (lambda c: c.update(codec="x.toml"), "Codec must be a mapping of settings, got 'x.toml'"),
        (lambda c: c["codec"].update(vocab=3), r"'vocab' must be tuple.*, got 3"),
        (lambda c: c["codec"].update(vocab=[["a"]]), r"'vocab\[0\]' must be Hashable, got \['a'\]"),
        (lambda c: c.pop("codec"), r"must hold transformer and codec, got \['transformer'\]"),
        (lambda c: c["transformer"].update(n_layers="1"), "'n_layers' must be int, got '1'"),
        (
            lambda c: c["transformer"].update(rotary_base=10**400),
            "'rotary_base' must be float, got",
        ),
        (lambda c: c["transformer"].update(n_layers=10**9), r"W_Q must have shape \(1000000000, "),
    ],
)
def test_forged_subjects(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = saved_subject(tmp_path / "subject.safetensors")
    header, tensors = split_artifact(path)
    change(header["config"])
    join_artifact(path, header, tensors)
    with limits(), pytest.raises(StoreError, match=rf"subject\.safetensors: .*{message}"):
        load_transformer(path)


def test_weights_of_another_dtype(tmp_path: Path) -> None:
    path = saved_subject(tmp_path / "subject.safetensors")
    header, tensors = split_artifact(path)
    join_artifact(path, header, {name: x.to(torch.float8_e5m2) for name, x in tensors.items()})
    with pytest.raises(StoreError, match=r"one of float16, .*, got \['torch.float8_e5m2'\]"):
        load_transformer(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": "/dev/zero"}, "'config' must be dict, got '/dev/zero'"),
        (
            {"seed": True, "meta": [1]},
            "'seed' must be int or NoneType, got True; 'meta' must",
        ),
        ({"command": "\x1b[2J", "kind": 1}, "'kind' must be str, got 1"),
        ({"version": True}, "has format version True; expected a whole number"),
    ],
)
def test_forged_headers(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "thing.safetensors"
    save_artifact(path, kind="thing", config={}, seed=0, tensors={"a": torch.zeros(1)})
    header, tensors = split_artifact(path)
    join_artifact(path, header | change, tensors)
    with pytest.raises(StoreError, match=message):
        load_artifact(path, "thing")


def test_nothing_quoted_steers_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    command = "\x1b[2J\x9b2J\u202e"
    save_artifact(path, kind="thing", config={}, seed=None, command=command)
    header, tensors = split_artifact(path)
    text = json.dumps(header | {"seed": 8})
    path.write_bytes(safetensors.torch.save(tensors, {"graphcircuits": text}))
    with pytest.raises(StoreError) as caught:
        load_artifact(path, "thing")
    assert str(caught.value).endswith(r"make it again with: \x1b[2J\x9b2J\u202e")


def test_deep_headers_are_refused(tmp_path: Path) -> None:
    path, deep = tmp_path / "thing.safetensors", "[" * 100_000
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, {"graphcircuits": deep})
    with pytest.raises(StoreError, match="its header is nested deeper than 100 levels"):
        load_artifact(path, "thing")
    header = b'{"__metadata__": ' + deep.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(StoreError, match="is not a whole safetensors file"):
        load_artifact(path, "thing")


def test_a_header_without_metadata(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    header = b'{"__metadata__": null}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(StoreError, match="it has no graphcircuits header"):
        load_artifact(path, "thing")


# Predictors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["config"].update(width=10**6), "at least 1000000000000 weights each, and it"),
        (lambda h: h["config"].update(layers=10**9), "at least 64000000000 weights each, and it"),
        (
            lambda h: h["config"].update(aligner="tabpfn", prior=False, d_align=10**6),
            "at least 1000000000064 weights each",
        ),
        (lambda h: h["meta"].update(members=10**9), "1000000000 members of these sizes have at"),
        (lambda h: h["meta"].update(members=0), "members must be a whole number from 1, got 0"),
        (lambda h: h["meta"].update(members="1"), "members must be a whole number from 1, got '1'"),
        (lambda h: h["meta"].update(origin=[1]), r"origin must be a mapping .*, got \[1\]"),
        (
            lambda h: h["meta"]["origin"].update(subjects={"norm": 1, "layers": "x"}),
            r"must be lists, and layers a number: \['norm', 'layers'\]",
        ),
    ],
)
def test_forged_predictors(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = tmp_path / "own.safetensors"
    config = PredictorConfig(width=8, layers=1)
    save_ensemble(path, Ensemble((Predictor(config),), {"subjects": {"layers": 1}}))
    header, tensors = split_artifact(path)
    change(header)
    join_artifact(path, header, tensors)
    with limits(), pytest.raises(StoreError, match=message):
        load_ensemble(path)


# Results


CURVE = {"sizes": [1, 2], "faithfulness": [0.5, 1.0], "pairs": 4, "seed": None}


def forged_result(path: Path, change: Callable[[dict[str, Any]], object], **tensors: Any) -> Path:
    graph = ComponentGraph(2, 4)
    Result(graph=graph, scores=torch.zeros(graph.n_edges)).save(path)
    header, held = split_artifact(path)
    change(header)
    join_artifact(path, header, held | tensors)
    return path


@pytest.mark.parametrize(
    ("change", "tensors", "message"),
    [
        (lambda h: h["config"].update(n_layers=10**6), {}, "too few edges for 1000000 x 4 heads"),
        (lambda h: h["config"].update(n_heads=10**30), {}, "too few edges for 2 x 1000"),
        (lambda h: h["config"].update(n_layers=True), {}, "'n_layers' must be int, got True"),
        (lambda h: h.update(config={"n_layers": 2}), {}, "missing key 'n_heads'"),
        (lambda h: h["meta"].update(options=3), {}, "'options' must be dict, got 3"),
        (lambda h: h["meta"].update(seconds="1"), {}, "'seconds' must be float or int or NoneType"),
        (lambda h: h["meta"].update(curve=3), {}, "'curve' must be dict, got 3"),
        (lambda h: h["meta"].update(curve={"sizes": []}), {}, "is not a whole curve: no 'faithful"),
        (lambda h: h["meta"].update(curve=CURVE | {"seed": "1"}), {}, "'seed' must be int or None"),
        (lambda h: h["meta"].update(curve=CURVE | {"sizes": [3, 2]}), {}, r"from 0, got \(3, 2\)"),
        (
            lambda h: h["meta"].update(curve=CURVE | {"sizes": [True, 2]}),
            {},
            "sizes must be numbers, got",
        ),
        (lambda h: h["meta"].update(curve=CURVE | {"faithfulness": [0]}), {}, "each of 2 sizes"),
        (
            lambda h: h["meta"].update(curve=CURVE | {"faithfulness": [0, "1"]}),
            {},
            "be numbers, got .0, '1'",
        ),
        (lambda h: h["meta"].update(curve=CURVE | {"pairs": 0}), {}, "at least one pair, got 0"),
        (lambda h: h["meta"].update(curve=CURVE | {"sizes": [1, 111]}), {}, "of 111 edges, but th"),
        (lambda h: None, {"scores": torch.zeros(110).long()}, "got torch.int64 of shape"),
        (lambda h: None, {"scores": torch.zeros(1, 110)}, r"of shape \(1, 110\)"),
        (lambda h: None, {"chosen": torch.zeros(110)}, "chosen must be a boolean for each of 110"),
        (lambda h: None, {"chosen": torch.zeros(1) > 0}, r"torch.bool of shape \(1,\)"),
    ],
)
def test_forged_results(
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    tensors: dict[str, Any],
    message: str,
) -> None:
    path = forged_result(tmp_path / "result.safetensors", change, **tensors)
    with limits(), pytest.raises(StoreError, match=rf"result\.safetensors.*{message}"):
        Result.load(path)
