"""Artifacts: files that say where they came from, and that are checked when they are read.

They hold tensors (safetensors) or plain values (JSON) under a header: kind of artifact, format
version, config, seed, package version, the command that wrote it, and a sha256 over all of it that
is checked when the file is read. Pickles are refused.

A hash tells damage, not intent: whoever writes a file can hash it. So the types are checked too.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from graphcircuits import __version__
from graphcircuits.io.files import (
    StoreError,
    parse_json,
    read_bytes,
    read_json,
    refuse_pickle,
    short,
    to_json,
    write_atomic,
    write_json,
)

FORMAT = "graphcircuits"
FORMAT_VERSION = 1
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
"""What weights and scores are stored as."""


# Hashes


def content_hash(*parts: object) -> str:
    """sha256 of plain values, dataclasses, bytes and tensors, nested at will, in hexadecimal.

    Equal contents hash equally: a tuple as a list, a dataclass as the mapping of its fields (but
    those that are not compared), a tensor whatever its device or strides. Tensors of different
    dtype or shape differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            digest.update(piece)
    return digest.hexdigest()


def _pieces(part: object) -> Iterator[bytes | memoryview]:
    """Bytes of a value, each preceded by type and size, so that no two values share a stream."""
    if isinstance(part, Tensor):
        values = part.detach().cpu().contiguous()
        yield f"tensor {values.dtype} {tuple(values.shape)}\n".encode()
        yield values.reshape(-1).view(torch.uint8).numpy().data
    elif isinstance(part, bytes):
        yield f"bytes {len(part)}\n".encode() + part
    elif is_dataclass(part) and not isinstance(part, type):
        compared = [field.name for field in fields(part) if field.compare]
        yield from _pieces({name: getattr(part, name) for name in compared})
    elif isinstance(part, Mapping):
        if any(not isinstance(name, str) for name in part):
            raise TypeError(f"keys must be text to be hashed, got {list(part)}.")
        yield f"mapping {len(part)}\n".encode()
        for name in sorted(part):
            yield from _pieces(name)
            yield from _pieces(part[name])
    elif isinstance(part, Sequence) and not isinstance(part, str):
        yield f"list {len(part)}\n".encode()
        for item in part:
            yield from _pieces(item)
    elif part is None or isinstance(part, bool | int | float | str):
        data = json.dumps(part).encode()
        yield f"value {len(data)}\n".encode() + data
    else:
        raise TypeError(
            f"cannot hash a {type(part).__name__} by content: {part!r}; give tensors, bytes, "
            "numbers, text, booleans, None, lists, mappings or dataclasses of them."
        )


# Artifacts


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What a file written by `save_artifact` holds."""

    kind: str
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    """What the content was made from: enough to make it again, with the seed."""
    seed: int | None
    meta: Mapping[str, Any]
    """Anything measured or said about the content."""
    package: str
    """Version of graphcircuits that wrote it."""
    command: str
    sha256: str
    """Content hash of everything above; two files with one hash are the same artifact."""


def save_artifact(
    path: str | Path,
    *,
    kind: str,
    config: object,
    seed: int | None,
    tensors: Mapping[str, Tensor] | None = None,
    meta: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> str:
    """Write an artifact and return its sha256.

    `.safetensors` files hold tensors, `.json` files none. `config` is a dataclass or a mapping;
    `command` is the running command line unless given.
    """
    suffix = Path(path).suffix
    if suffix not in (".safetensors", ".json"):
        raise ValueError(f"an artifact is a .safetensors or a .json file, got {path}.")
    if suffix == ".json" and tensors:
        raise ValueError(f"{path} would hold tensors; name it .safetensors.")
    # Own copies: safetensors refuses tensors that share memory.
    held = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in (tensors or {}).items()
    }
    header = origin(kind, command) | {"config": config, "seed": seed, "meta": meta or {}}
    # Through JSON once, so that the hash is of what a reader will see.
    header = json.loads(to_json(header))
    header["sha256"] = content_hash(header, held)
    if suffix == ".json":
        write_json(path, header)
    else:
        metadata = {FORMAT: to_json(header).decode()}
        write_atomic(path, tensor_bytes(held, metadata))
    return header["sha256"]


_HEADER: Mapping[str, tuple[type, ...]] = {
    "format": (str,),
    "version": (int,),
    "kind": (str,),
    "config": (dict,),
    "seed": (int, type(None)),
    "meta": (dict,),
    "package": (str,),
    "command": (str,),
    "sha256": (str,),
}


def load_artifact(path: str | Path, kind: str) -> Artifact:
    """Read an artifact of the given kind; anything else, or a changed file, is an error."""
    header, tensors = _read_parts(path)
    check_version(path, header)
    check_types(path, header, _HEADER, "artifact")
    if header["kind"] != kind:
        raise StoreError(f"{path} holds a {short(header['kind'])} artifact; expected {kind!r}.")
    stated = header.pop("sha256")
    computed = content_hash(header, tensors)
    if computed != stated:
        raise StoreError(
            f"{path} has changed since it was written: its content has sha256 {computed[:12]}..., "
            f"its header says {stated[:12]}...; restore it or make it again with: "
            f"{header['command']}"
        )
    del header["format"], header["version"]
    return Artifact(**header, tensors=tensors, sha256=stated)


def _read_parts(path: str | Path) -> tuple[Any, dict[str, Tensor]]:
    """The header, whatever it is, and the tensors."""
    if Path(path).suffix == ".json":
        return read_json(path), {}
    data = read_bytes(path)
    try:
        # Checks that the tensors fill the file, neither more nor less, before it makes any.
        tensors = read_tensors(data)
    except (SafetensorError, KeyError) as error:
        # Only now: a header of 640 bytes begins like a pickle.
        refuse_pickle(path, data)
        raise StoreError(
            f"{path} is not a whole safetensors file ({error}); it may be cut short: make it again."
        ) from error
    # The layout has been checked by now: eight bytes of length, then JSON.
    length = int.from_bytes(data[:8], "little")
    try:
        metadata = parse_json(data[8 : 8 + length].decode()).get("__metadata__") or {}
        return parse_json(metadata.get(FORMAT, "null")), tensors
    except json.JSONDecodeError as error:
        raise StoreError(f"{path} has a damaged {FORMAT} header: {error}.") from error
    except StoreError as error:
        raise StoreError(f"{path}: its header {error}") from error


def check_types(
    path: str | Path, given: Mapping[str, Any], expected: Mapping[str, tuple[type, ...]], noun: str
) -> None:
    """Refuse a mapping whose keys are not the expected ones, or whose given have other types."""
    problems = [f"no {name!r}" for name in sorted(expected.keys() - given.keys())]
    problems += [f"unknown key {name!r}" for name in sorted(given.keys() - expected.keys())]
    if problems:
        raise StoreError(f"{path} is not a whole {noun}: {', '.join(problems)}.")
    problems = [
        f"{name!r} must be {' or '.join(kind.__name__ for kind in kinds)}, got {short(given[name])}"
        for name, kinds in expected.items()
        # By identity: True is an int to Python.
        if type(given[name]) not in kinds
    ]
    if problems:
        raise StoreError(f"{path} is not a whole {noun}: {'; '.join(problems)}.")


def check_finite(source: object, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights among which a number is NaN or infinite: the source is damaged."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            bad = tensor.numel() - int(tensor.isfinite().sum())
            raise StoreError(
                f"{source} holds numbers that are not finite, {bad} of {tensor.numel()} in "
                f"{short(name)}: it is damaged, or its training diverged."
            )


def all_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite: as the least and the largest are. Takes no memory."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.aminmax())


_NOT_WHOLE = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError


@contextmanager
def taken_apart(path: str | Path, noun: str) -> Iterator[None]:
    """Errors met while the content of a file is taken apart, as a StoreError: it is not whole."""
    try:
        yield
    except StoreError:
        raise
    except _NOT_WHOLE as error:
        what = short(f"{type(error).__name__}: {error}")
        raise StoreError(
            f"{path} is not a whole {noun} ({what}); delete it to start afresh."
        ) from error


def check_version(path: str | Path, header: object) -> None:
    """Refuse a header that is not ours or that a later version of the package wrote."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise StoreError(f"{path} was not written by graphcircuits: it has no {FORMAT} header.")
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise StoreError(
            f"{path} has format version {short(version)}; expected a whole number from 1."
        )
    if version > FORMAT_VERSION:
        raise StoreError(
            f"{path} has format version {short(version)}, written by graphcircuits "
            f"{header.get('package')}; this is {__version__}, which reads up to version "
            f"{FORMAT_VERSION}: upgrade with pip install -U graphcircuits."
        )


def origin(kind: str, command: str | None = None) -> dict[str, Any]:
    """What every file of ours says of itself; the command is the running one unless given."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "kind": kind,
        "package": __version__,
        "command": command or running_command(sys.argv[1:]),
    }


def running_command(arguments: Sequence[str]) -> str:
    """The running program with these words, as it can be given again.

    A module of the package or of the laboratory beside it goes by `python -m`, other programs go
    without their folder, which is nobody else's business.
    """
    path, root = Path(sys.argv[0]), Path(__file__).parents[2]
    words = [path.name]
    if path.suffix == ".py" and path.is_relative_to(root):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in ("graphcircuits", "lab"):
            words = ["python", "-m", ".".join(parts).removesuffix(".__main__")]
    return shlex.join([*words, *arguments])
