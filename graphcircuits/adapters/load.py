"""`load_model`: a subject from whatever a language model comes as.

Text and paths are a file, a folder, or else a name on the Hugging Face hub. GGUF is known by its
first bytes, `.bin` by its ending, any other file is one of ours; a folder by what lies in it.
No code that comes with a model is run. A model that is refused leaves nothing behind.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphcircuits.adapters.gguf import load_gguf
from graphcircuits.adapters.hf import from_hf
from graphcircuits.adapters.interpbench import import_interpbench
from graphcircuits.adapters.llama2c import load_llama2c
from graphcircuits.adapters.transformer_lens import from_transformer_lens
from graphcircuits.circuit import Circuit
from graphcircuits.io.files import StoreError
from graphcircuits.subject.files import load_transformer
from graphcircuits.subject.transformer import Transformer

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""That a subject computes in."""
SUFFIXES = (".safetensors", ".gguf", ".bin")
"""Of files that hold a model."""
# A name on the hub: one part or two, each of letters, digits, points, dashes and underscores.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)

_DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)


def load_model(
    source: Any, *, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None
) -> Transformer:
    """The subject in a model, whatever it comes as.

    Args:
        source: A model of `transformers` or TransformerLens; a GGUF file, llama2.c's `.bin` or our
            `.safetensors`; a folder of Hugging Face or of InterpBench; or a name on the hub.
        device: By default the CPU, or the device of the object.
        dtype: By default the stored one, float32 for quantized weights.

    Returns:
        The subject, with a `.tokenizer` where the model comes with one.

    Example:
        subject = gc.load_model("gpt2", dtype="float32")

    See docs/gguf.md and docs/exchange.md.
    """
    return load_with_circuit(source, device=device, dtype=dtype)[0]


def load_with_circuit(
    source: Any, *, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None
) -> tuple[Transformer, Circuit | None]:
    """`load_model`, and the circuit that a folder in InterpBench's layout holds."""
    device, dtype = find_device(device), find_dtype(dtype)
    if isinstance(source, str | Path):
        subject, circuit = _from_path(source, device, dtype)
        return replace(subject, name=model_name(source)), circuit
    packages = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    if "transformer_lens" in packages:
        return _moved(from_transformer_lens(source), device, dtype), None
    if hasattr(getattr(source, "config", None), "model_type"):
        return from_hf(source, device=device, dtype=dtype), None
    raise TypeError(
        f"cannot load a model from {type(source).__name__}; expected a model of transformers or "
        "TransformerLens, a file, a folder, or a name on the Hugging Face hub."
    )


def model_name(source: str | Path) -> str:
    """What to call a model: the name of its file or folder, or its name on the hub."""
    path = Path(source)
    return path.stem if path.is_file() else path.name


def _from_path(
    source: str | Path, device: torch.device | None, dtype: torch.dtype | None
) -> tuple[Transformer, Circuit | None]:
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_folder(path, device, dtype)
    if path.is_file():
        return _moved(_from_file(path, device, dtype), device, dtype), None
    if path.suffix not in SUFFIXES and _HUB_NAME.fullmatch(str(source)):
        return from_hf(str(source), device=device, dtype=dtype), None
    raise FileNotFoundError(f"no model at {path}: there is no such file or folder.")


def _from_folder(
    folder: Path, device: torch.device | None, dtype: torch.dtype | None
) -> tuple[Transformer, Circuit | None]:
    if (folder / "ll_model.pth").is_file():
        imported = import_interpbench(folder)
        return _moved(imported.transformer, device, dtype), imported.circuit
    if (folder / "config.json").is_file():
        return from_hf(str(folder), device=device, dtype=dtype), None
    files = sorted(path.name for path in folder.iterdir() if path.suffix in SUFFIXES)
    hint = f"; did you mean {folder / files[0]}?" if files else "."
    raise FileNotFoundError(
        f"no model in {folder}: expected config.json (Hugging Face) or ll_model.pth (InterpBench)"
        f"{hint}"
    )


def _from_file(path: Path, device: torch.device | None, dtype: torch.dtype | None) -> Transformer:
    with path.open("rb") as file:
        start = file.read(4)
    if path.suffix == ".gguf" or start == b"GGUF":
        return load_gguf(path, device=device, dtype=dtype)
    if path.suffix == ".bin":
        # A checkpoint of PyTorch is a zip file or a pickle.
        if start.startswith((b"PK\x03\x04", b"\x80")):
            raise ValueError(
                f"{path} is a checkpoint of PyTorch; give the folder that holds it together with "
                "its config.json."
            )
        return load_llama2c(path, dtype=dtype)
    try:
        return load_transformer(path)
    except StoreError as error:
        if not (path.parent / "config.json").is_file():
            raise
        raise StoreError(f"{error} A Hugging Face model is its folder: {path.parent}.") from error


def _moved(
    subject: Transformer, device: torch.device | None, dtype: torch.dtype | None
) -> Transformer:
    """A fresh subject elsewhere; it gives its weights away as they are taken over."""
    if device in (None, subject.device) and dtype in (None, subject.dtype):
        return subject
    given, moved = subject.weights, {}
    for name in list(given):
        moved[name] = given.pop(name).to(device=device, dtype=dtype)
    return replace(subject, weights=moved)


def find_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype of a name; None stays None."""
    name = str(dtype).removeprefix("torch.")
    if dtype is None or name in DTYPES:
        return None if dtype is None else getattr(torch, name)
    raise ValueError(f"the dtype must be one of {', '.join(DTYPES)}, got {name!r}.")


def find_device(device: torch.device | str | None) -> torch.device | None:
    """The device of a name, which must be there; None stays None."""
    if device is None:
        return None
    if not _DEVICE.fullmatch(str(device)):
        raise ValueError(f"the device must be cpu, cuda or cuda:NUMBER, got {str(device)!r}.")
    wanted = torch.device(device)
    if wanted.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise ValueError(f"the device {wanted} was asked for, but PyTorch finds no GPU here.")
        if (wanted.index or 0) >= count:
            raise ValueError(
                f"the device {wanted} was asked for, but PyTorch finds only {count} GPUs, from 0."
            )
    return wanted
