"""Files are whole or absent, and say what they are: round trips, crashes, damage, refusals."""

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphcircuits import __version__
from graphcircuits.io.store import (
    StoreError,
    content_hash,
    load_artifact,
    read_json,
    save_artifact,
    taken_apart,
    write_json,
)
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import RotaryScaling, Transformer, TransformerConfig
from tests.subjects import make_subject

shared_folder = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def save(path: Path, **changes: Any) -> str:
    given: dict[str, Any] = {
        "kind": "thing",
        "config": {"layers": 2},
        "seed": 7,
        "tensors": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False])},
        "meta": {"accuracy": 0.5},
        "command": "graphcircuits build",
    }
    return save_artifact(path, **(given | changes))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a safetensors artifact without touching its hash."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["graphcircuits"])
    change(header)
    metadata = {"graphcircuits": json.dumps(header)}
    path.write_bytes(safetensors.torch.save(safetensors.torch.load(data), metadata))


# JSON and hashes


def test_writer_that_fails_midway_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError, match=r"cannot store a set: \{1\}; give numbers, text"):
        write_json(path, {"fine": 1, "broken": {1}})
    assert read_json(path) == {"old": 1}
    assert names(tmp_path) == ["value.json"]


@shared_folder
@given(value=plain)
def test_json_round_trip(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value


def test_json_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON has no NaN or infinity: write null instead"):
        write_json(tmp_path / "value.json", [float("nan")])
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": [1, 2', r"is not complete JSON \(Expecting .* line 1 column 12\); it may be cut"),
        (b"", "is not complete JSON .Expecting value, line 1 column 1"),
        (b'{"a": 1, "a": 2}', "holds the key 'a' twice in one object"),
        (b"\xff\xfe", "is not a text file: byte 0 is not UTF-8"),
        (pickle.dumps({"a": 1}), "is a pickle or a zip of pickles .* reading one can run code"),
    ],
)
def test_json_damage_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=message):
        read_json(path)


@given(value=plain)
def test_hash_survives_json(value: Any) -> None:
    assert content_hash(json.loads(json.dumps(value))) == content_hash(value)


@dataclass(frozen=True)
class Held:
    name: str
    values: Tensor


def test_hash_follows_content_only() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    same = [
        ((1, "a"), [1, "a"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (values, values.t().contiguous().t()),
        (Held("x", values), {"name": "x", "values": values.clone()}),
    ]
    for left, right in same:
        assert content_hash(left) == content_hash(right)
    different = [
        (),
        ([],),
        ("",),
        (b"",),
        (None,),
        (0,),
        (0.0,),
        (False,),
        ("a", "b"),
        ("ab",),
        (["a", "b"],),
        (["a"], ["b"]),
        ({"a": "b"},),
        (values,),
        (values.double(),),
        (values.flatten(),),
        (values + 0.0 * 1, 1),
        (values.bfloat16(),),
        (torch.zeros(0),),
        (torch.zeros(()),),
        (torch.zeros((), dtype=torch.bool),),
    ]
    assert len({content_hash(*parts) for parts in different}) == len(different)


def test_hash_refuses_what_has_no_content() -> None:
    with pytest.raises(TypeError, match="cannot hash a builtin_function_or_method by content"):
        content_hash([1, len])
    with pytest.raises(TypeError, match=r"keys must be text to be hashed, got \[1\]"):
        content_hash({1: 2})


# Artifacts


def test_artifact_carries_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    digest = save(path)
    artifact = load_artifact(path, "thing")
    assert artifact.config == {"layers": 2}
    assert artifact.seed == 7
    assert artifact.meta == {"accuracy": 0.5}
    assert artifact.package == __version__
    assert artifact.command == "graphcircuits build"
    assert artifact.sha256 == digest
    assert torch.equal(artifact.tensors["a"], torch.arange(6.0).reshape(2, 3))
    assert artifact.tensors["b"].tolist() == [True, False]
    # Anyone can read it without us.
    assert safetensors.torch.load_file(path).keys() == {"a", "b"}


def test_command_defaults_to_the_running_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/graphcircuits", "build", "two words"])
    save(tmp_path / "thing.safetensors", command=None)
    artifact = load_artifact(tmp_path / "thing.safetensors", "thing")
    assert artifact.command == "graphcircuits build 'two words'"


def test_json_artifact(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    digest = save(path, tensors=None)
    artifact = load_artifact(path, "thing")
    assert (artifact.sha256, artifact.meta) == (digest, {"accuracy": 0.5})
    path.write_text(path.read_text().replace("0.5", "0.9"))
    with pytest.raises(StoreError, match="has changed since it was written"):
        load_artifact(path, "thing")


dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


@shared_folder
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4),
    dtype=st.sampled_from(dtypes),
    config=st.dictionaries(st.text(), plain, max_size=3),
    seed=st.none() | st.integers(0, 2**63),
)
def test_artifact_round_trip(
    tmp_path: Path, shapes: list[list[int]], dtype: torch.dtype, config: dict, seed: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        str(i): torch.randn(shape, generator=generator).to(dtype) for i, shape in enumerate(shapes)
    }
    path = tmp_path / "any.safetensors"
    save(path, tensors=tensors, config=config, seed=seed)
    artifact = load_artifact(path, "thing")
    assert (artifact.config, artifact.seed) == (config, seed)
    assert artifact.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert artifact.tensors[name].dtype == dtype
        assert torch.equal(artifact.tensors[name], tensor)


def test_shared_strided_and_tracked_tensors_can_be_saved(tmp_path: Path) -> None:
    values = torch.arange(6.0).reshape(2, 3).requires_grad_()
    save(tmp_path / "thing.safetensors", tensors={"a": values, "b": values, "t": values.t()})
    tensors = load_artifact(tmp_path / "thing.safetensors", "thing").tensors
    assert torch.equal(tensors["t"], tensors["a"].t())
    assert torch.equal(tensors["b"], values.detach())


def test_header_that_begins_like_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    save(path, meta={"note": ""})
    length = int.from_bytes(path.read_bytes()[:8], "little")
    wanted = next(n for n in range(length, 0x600) if n % 256 == 0x80)
    save(path, meta={"note": "x" * (wanted - length)})
    assert path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
    assert load_artifact(path, "thing").config == {"layers": 2}


def test_same_content_same_bytes(tmp_path: Path) -> None:
    assert save(tmp_path / "a.safetensors") == save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StoreError):
            load_artifact(path, "thing")


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    save(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 11), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError, match=r"is not a whole safetensors file .* make it again"):
            load_artifact(path, "thing")


def test_changed_tensor_names_both_hashes(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    digest = save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x01")
    message = rf"its header says {digest[:12]}...; restore it or make it again with: graphcircuits"
    with pytest.raises(StoreError, match=message):
        load_artifact(path, "thing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "format version 2, written by graphcircuits .* reads up to version 1"),
        ({"version": "x"}, "has format version 'x'; expected a whole number from 1"),
        ({"format": "other"}, "was not written by graphcircuits: it has no graphcircuits header"),
        ({"extra": 1}, "is not a whole artifact: unknown key 'extra'"),
        ({"seed": 8}, "has changed since it was written"),
        ({"kind": "other"}, "holds a 'other' artifact; expected 'thing'"),
    ],
)
def test_foreign_headers_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "thing.safetensors"
    save(path)
    rewrite_header(path, lambda header: header.update(change))
    with pytest.raises(StoreError, match=message):
        load_artifact(path, "thing")


def test_missing_header_keys_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    save(path)
    rewrite_header(path, lambda header: (header.pop("seed"), header.pop("sha256")))
    with pytest.raises(StoreError, match="is not a whole artifact: no 'seed', no 'sha256'"):
        load_artifact(path, "thing")


def test_other_peoples_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(StoreError, match="it has no graphcircuits header"):
        load_artifact(path, "thing")
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, {"graphcircuits": "{"})
    with pytest.raises(StoreError, match="has a damaged graphcircuits header"):
        load_artifact(path, "thing")


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "thing.safetensors"
    writers: list[Callable[[], object]] = [
        lambda: torch.save({"a": torch.zeros(1)}, path),
        lambda: torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False),
        lambda: (
            np.savez(path.with_suffix(".npz"), a=np.zeros(1))
            or path.with_suffix(".npz").replace(path)
        ),
        *(lambda p=p: path.write_bytes(pickle.dumps([1], protocol=p)) for p in (2, 3, 4, 5)),
    ]
    for write in writers:
        write()
        with pytest.raises(StoreError, match="is a pickle or a zip of pickles"):
            load_artifact(path, "thing")


def test_suffix_decides_the_form(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a .safetensors or a .json file, got .*thing\.pt"):
        save(tmp_path / "thing.pt")
    with pytest.raises(ValueError, match=r"would hold tensors; name it \.safetensors"):
        save(tmp_path / "thing.json")
    assert names(tmp_path) == []


# Subjects


@pytest.mark.parametrize(
    "codec",
    [None, Codec(("a", 2, 2.5, True), (0.5, None)), Codec(("a", 2), (0, 1), ("copy", "count"))],
)
def test_transformer_round_trip(tmp_path: Path, codec: Codec | None) -> None:
    config = TransformerConfig(
        n_layers=2, n_heads=2, d_model=6, d_head=3, d_mlp=5, n_ctx=4, d_vocab=6, d_vocab_out=2
    )
    subject = Transformer.random(config, torch.Generator().manual_seed(0), codec)
    path = tmp_path / "subject.safetensors"
    save_transformer(path, subject, seed=0, meta={"accuracy": 1.0})
    loaded = load_transformer(path)
    assert (loaded.config, loaded.codec) == (config, codec)
    tokens = torch.tensor([[0, 2, 3, 4], [0, 5, 5, 2]])
    assert torch.equal(loaded.logits(tokens), subject.logits(tokens))
    assert load_artifact(path, "transformer").meta == {"accuracy": 1.0}


def test_windows_and_rotary_scaling_survive_a_file(tmp_path: Path) -> None:
    subject = make_subject("everything")
    path = tmp_path / "subject.safetensors"
    save_transformer(path, subject)
    loaded = load_transformer(path).config
    assert loaded == subject.config
    assert (loaded.windows, type(loaded.rotary_scaling)) == ((None, 2), RotaryScaling)
    settings = load_artifact(path, "transformer").config["transformer"]
    wrong = {"windows": [2, "all"], "rotary_scaling": {"kind": "yarn", "factor": 2.0}}
    config = {"transformer": settings | wrong, "codec": None}
    save_artifact(path, kind="transformer", config=config, seed=0, tensors=subject.weights)
    with pytest.raises(StoreError, match="'windows' must be ") as caught:
        load_transformer(path)
    assert "'rotary_scaling' must be" in str(caught.value)


def test_transformer_symbols_must_survive_json(tmp_path: Path) -> None:
    config = TransformerConfig(
        n_layers=1, n_heads=1, d_model=2, d_head=2, d_mlp=2, n_ctx=4, d_vocab=3, d_vocab_out=1
    )
    subject = Transformer.random(config, torch.Generator().manual_seed(0), Codec((("a", 1),)))
    with pytest.raises(TypeError, match=r"can be stored as symbols: \('a', 1\)"):
        save_transformer(tmp_path / "subject.safetensors", subject)


@pytest.mark.parametrize(
    "error",
    [KeyError("step"), TypeError("no"), ValueError("\x1b[2J"), IndexError(), RuntimeError("x")],
)
def test_what_goes_wrong_inside_a_file_is_said_of_the_file(error: Exception) -> None:
    with (
        pytest.raises(StoreError, match=r"^a/b is not a whole checkpoint \(") as caught,
        taken_apart("a/b", "checkpoint"),
    ):
        raise error
    assert type(error).__name__ in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert str(caught.value).endswith("; delete it to start afresh.")
    with pytest.raises(OSError, match="disk"), taken_apart("a/b", "checkpoint"):
        raise OSError("disk")
