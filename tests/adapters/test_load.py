"""`load_model`: every kind of source goes to its own reader, and what cannot be read is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from graphcircuits.adapters.hf import from_hf
from graphcircuits.adapters.load import find_device, find_dtype, load_model, load_with_circuit
from graphcircuits.circuit import Circuit
from graphcircuits.io.files import StoreError
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from lab.benchmarks.interpbench_export import export_interpbench
from tests.adapters.hf_models import make_model, make_tokenizer
from tests.subjects import make_subject


@pytest.fixture(autouse=True)
def random_state() -> Any:
    """The constructors of transformers draw from the global generator; leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


def reader(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """Put a reader in the place of an adapter's; what it is given, in order."""
    given: list[Any] = []

    def read(source: Any, **_: Any) -> Transformer:
        given.append(source)
        return make_subject()

    monkeypatch.setattr(f"graphcircuits.adapters.load.{name}", read)
    return given


def same(one: Transformer, other: Transformer) -> bool:
    return one.config == other.config and all(
        torch.equal(weight, other.weights[name]) for name, weight in one.weights.items()
    )


def test_models_of_hugging_face(tmp_path: Path) -> None:
    model = make_model("llama")
    assert same(load_model(model), from_hf(model))
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    for source in (tmp_path, str(tmp_path)):
        subject = load_model(source, dtype="float64")
        assert same(subject, from_hf(model).to(torch.float64))
        assert subject.tokenizer("be")["input_ids"] == [3]


def test_a_folder_is_read_without_a_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_model("llama").save_pretrained(tmp_path)
    logging = transformers.utils.logging
    before = logging.is_progress_bar_enabled()
    capfd.readouterr()
    load_model(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled() == before


def test_our_own_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_transformer(path, make_subject())
    assert same(load_model(path), make_subject())
    moved = load_model(path, device="cpu", dtype=torch.bfloat16)
    assert same(moved, make_subject().to(torch.bfloat16))
    path.rename(tmp_path / "mine")
    assert same(load_model(tmp_path / "mine"), make_subject())


def test_a_folder_of_interpbench_has_its_circuit(tmp_path: Path) -> None:
    subject = make_subject()
    circuit = Circuit.from_names(subject.graph, ["input->m0"])
    export_interpbench(tmp_path, subject, circuit)
    found, truth = load_with_circuit(tmp_path, dtype="float64")
    assert truth is not None
    assert list(truth) == ["input->m0"]
    assert same(found, subject.to(torch.float64))
    assert same(load_model(tmp_path), subject)


@pytest.mark.parametrize(
    ("file", "start", "name"),
    [
        ("tiny.gguf", b"GGUF\3\0\0\0", "load_gguf"),
        ("no-ending", b"GGUF\3\0\0\0", "load_gguf"),
        ("cut.gguf", b"", "load_gguf"),
        ("stories.bin", b"\x20\1\0\0", "load_llama2c"),
    ],
)
def test_files_of_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    start: bytes,
    name: str,
) -> None:
    given = reader(monkeypatch, name)
    (tmp_path / file).write_bytes(start)
    assert load_model(tmp_path / file, dtype="float64").dtype == torch.float64
    assert given == [tmp_path / file]


def test_models_of_transformer_lens(monkeypatch: pytest.MonkeyPatch) -> None:
    given = reader(monkeypatch, "from_transformer_lens")
    kind = type("HookedTransformer", (), {"__module__": "transformer_lens.HookedTransformer"})
    model = type("Mine", (kind,), {})()
    assert same(load_model(model), make_subject())
    assert given == [model]


def test_a_name_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def load(name: str, **options: Any) -> Transformer:
        asked.append((name, options))
        return make_subject()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graphcircuits.adapters.load.from_hf", load)
    for name in ("gpt2", "Qwen/Qwen2.5-0.5B"):
        load_model(name, device="cpu", dtype="bfloat16")
        assert asked.pop() == (name, {"device": torch.device("cpu"), "dtype": torch.bfloat16})


def test_what_is_not_there(tmp_path: Path) -> None:
    for source in (tmp_path / "none", "none.gguf", "a/b/c", "./none", "none.safetensors", ""):
        with pytest.raises(FileNotFoundError, match=r"^no model (at|in) "):
            load_model(source)
    with pytest.raises(FileNotFoundError) as caught:
        load_model("none.gguf")
    assert str(caught.value) == "no model at none.gguf: there is no such file or folder."
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileNotFoundError) as caught:
        load_model(tmp_path)
    assert str(caught.value) == (
        f"no model in {tmp_path}: expected config.json (Hugging Face) or ll_model.pth "
        f"(InterpBench); did you mean {tmp_path / 'tiny.gguf'}?"
    )


def test_parts_of_a_hugging_face_folder(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    with pytest.raises(StoreError, match=f"A Hugging Face model is its folder: {tmp_path}"):
        load_model(path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(StoreError, match="was not written by graphcircuits"):
        load_model(path)
    for start in (b"PK\3\4", b"\x80\2"):
        path = tmp_path / "pytorch_model.bin"
        path.write_bytes(start)
        with pytest.raises(ValueError, match=r"is a checkpoint of PyTorch; give the folder that"):
            load_model(path)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_model() -> None:
    with pytest.raises(TypeError) as caught:
        load_model(replace(make_subject()).config)
    assert str(caught.value) == (
        "cannot load a model from TransformerConfig; expected a model of transformers or "
        "TransformerLens, a file, a folder, or a name on the Hugging Face hub."
    )


def test_devices_and_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_dtype(None) is None
    assert find_dtype("bfloat16") is find_dtype(torch.bfloat16) is torch.bfloat16
    for given in ("int8", torch.int8, "half"):
        with pytest.raises(ValueError, match="the dtype must be one of float64, float32, bfloat16"):
            find_dtype(given)
    assert find_device(None) is None
    assert find_device("cpu") == torch.device("cpu")
    for given in ("tpu", "mps", torch.device("meta")):
        with pytest.raises(ValueError, match="the device must be cpu, cuda or cuda:NUMBER, got '"):
            find_device(given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match="device cuda was asked for, but PyTorch finds no GPU here"
    ):
        load_model("nothing", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="cuda:2 was asked for, but PyTorch finds only 2 GPUs"):
        find_device("cuda:2")
