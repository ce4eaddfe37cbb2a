"""Files that are whole or absent, and that say where they came from.

1. `write_atomic` (in `disk.py`): a crash leaves the old file.
2. `read_json` and `write_json` hold plain values; `content_hash` names a value by its content.
3. `save_artifact` and `load_artifact` hold tensors (safetensors) or plain values (JSON) under a
   header: kind of artifact, format version, config, seed, package version, the command that wrote
   it, and a sha256 over all of it that is checked when the file is read. Pickles are refused.
4. `load_config` builds frozen dataclasses from TOML files and mappings.
5. `save_transformer` and `load_transformer` are the artifact of a subject.
"""

import hashlib
import json
import shlex
import sys
import tomllib
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from graphcircuits import __version__
from graphcircuits.codec import Codec
from graphcircuits.disk import write_atomic
from graphcircuits.transformer import Transformer, TransformerConfig

FORMAT = "graphcircuits"
FORMAT_VERSION = 1

Config = TypeVar("Config")


class StoreError(ValueError):
    """A file that is damaged, of another kind, or not ours to read."""


# Bytes and JSON


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, without a byte order mark."""
    data = Path(path).read_bytes()
    _refuse_pickle(path, data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is not a text file: byte {error.start} is not UTF-8.") from error


def _refuse_pickle(path: str | Path, data: bytes) -> None:
    # Protocol 2 and later, also the old torch.save; the new torch.save and .npz are zip files.
    if (data[:1] == b"\x80" and data[1:2] in b"\x02\x03\x04\x05") or data[:4] == b"PK\x03\x04":
        raise StoreError(
            f"{path} is a pickle or a zip of pickles (torch.save, pickle.dump, numpy.savez), and "
            "reading one can run code; convert it with safetensors.torch.save_file or to JSON."
        )


def read_json(path: str | Path) -> Any:
    """The value in a JSON file; incomplete files and repeated keys are errors."""
    try:
        return json.loads(read_text(path), object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise StoreError(
            f"{path} is not complete JSON ({error.msg}, line {error.lineno} column "
            f"{error.colno}); it may be cut short: write it again."
        ) from error
    except KeyError as error:
        raise StoreError(f"{path} holds the key {error} twice in one object.") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return value


def write_json(path: str | Path, value: object) -> None:
    """Write a plain value or a dataclass as one line of JSON."""
    write_atomic(path, _to_json(value) + b"\n")


def _to_json(value: object) -> bytes:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
    except ValueError as error:
        raise ValueError(f"{error}; JSON has no NaN or infinity: write null instead.") from error
    return text.encode()


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"cannot store a {type(value).__name__}: {value!r}; give numbers, text, booleans, None, "
        "lists, mappings or dataclasses of them."
    )


def content_hash(*parts: object) -> str:
    """sha256 of plain values, dataclasses, bytes and tensors, nested at will, in hexadecimal.

    Equal contents hash equally: a tuple as a list, a dataclass as the mapping of its fields, a
    tensor whatever its device or strides. Tensors of different dtype or shape differ.
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
        yield from _pieces({field.name: getattr(part, field.name) for field in fields(part)})
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
    header = json.loads(_to_json(header))
    header["sha256"] = content_hash(header, held)
    if suffix == ".json":
        write_json(path, header)
    else:
        metadata = {FORMAT: _to_json(header).decode()}
        write_atomic(path, tensor_bytes(held, metadata))
    return header["sha256"]


def load_artifact(path: str | Path, kind: str) -> Artifact:
    """Read an artifact of the given kind; anything else, or a changed file, is an error."""
    header, tensors = _read_parts(path)
    check_version(path, header)
    expected = {field.name for field in fields(Artifact)} - {"tensors"} | {"format", "version"}
    problems = [f"no {name!r}" for name in sorted(expected - header.keys())]
    problems += [f"unknown key {name!r}" for name in sorted(header.keys() - expected)]
    if problems:
        raise StoreError(f"{path} is not a whole artifact: {', '.join(problems)}.")
    if header["kind"] != kind:
        raise StoreError(f"{path} holds a {header['kind']!r} artifact; expected {kind!r}.")
    stated = header.pop("sha256")
    found = content_hash(header, tensors)
    if found != stated:
        raise StoreError(
            f"{path} has changed since it was written: its content has sha256 {found[:12]}..., "
            f"its header says {str(stated)[:12]}...; restore it or make it again with: "
            f"{header['command']}"
        )
    del header["format"], header["version"]
    return Artifact(**header, tensors=tensors, sha256=stated)


def _read_parts(path: str | Path) -> tuple[Any, dict[str, Tensor]]:
    """The header, whatever it is, and the tensors."""
    if Path(path).suffix == ".json":
        return read_json(path), {}
    data = Path(path).read_bytes()
    try:
        tensors = read_tensors(data)
    except (SafetensorError, KeyError) as error:
        # Only now: a header of 640 bytes begins like a pickle.
        _refuse_pickle(path, data)
        raise StoreError(
            f"{path} is not a whole safetensors file ({error}); it may be cut short: make it again."
        ) from error
    # The layout has been checked by now: eight bytes of length, then JSON.
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    try:
        return json.loads(metadata.get(FORMAT, "null")), tensors
    except json.JSONDecodeError as error:
        raise StoreError(f"{path} has a damaged {FORMAT} header: {error}.") from error


def check_version(path: str | Path, header: object) -> None:
    """Refuse a header that is not ours or that a later version of the package wrote."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise StoreError(f"{path} was not written by graphcircuits: it has no {FORMAT} header.")
    version = header.get("version")
    if not isinstance(version, int) or version < 1:
        raise StoreError(f"{path} has format version {version!r}; expected a whole number from 1.")
    if version > FORMAT_VERSION:
        raise StoreError(
            f"{path} has format version {version}, written by graphcircuits "
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
        # Without the folder of the program: that is nobody else's business.
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


# Configuration


def load_config(cls: type[Config], source: str | Path | Mapping[str, Any]) -> Config:
    """Build a dataclass from a TOML file or a mapping; all problems are reported at once."""
    if isinstance(source, Mapping):
        label, values = cls.__name__, source
    else:
        label = str(source)
        try:
            values = tomllib.loads(read_text(source))
        except tomllib.TOMLDecodeError as error:
            raise StoreError(f"{source} is not TOML: {error}.") from error
    problems: list[str] = []
    config = _build(cls, values, "", problems)
    if problems:
        raise ValueError(f"{label}: {'; '.join(problems)}.")
    return config


def _build(cls: type, values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    known = {field.name: field for field in fields(cls) if field.init}
    start = len(problems)
    for name in values.keys() - known.keys():
        near = get_close_matches(str(name), known, n=3)
        hint = (
            f"did you mean {', '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}"
        )
        problems.append(f"unknown key '{prefix}{name}' ({hint})")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            problems.append(f"missing key '{prefix}{name}'")
    hints = get_type_hints(cls)
    given = {
        name: _convert(hints[name], values[name], prefix + name, problems)
        for name in known
        if name in values
    }
    if len(problems) == start:
        try:
            return cls(**given)
        except ValueError as error:
            problems.append(f"{prefix.rstrip('.')}: {error}".removeprefix(": ").rstrip("."))
    return None


def _convert(hint: Any, value: Any, name: str, problems: list[str]) -> Any:
    """The value as the hinted type; a mismatch becomes a problem."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return _build(hint, value, f"{name}.", problems)
    if origin in (Union, types.UnionType):
        for option in args:
            attempt: list[str] = []
            converted = _convert(option, value, name, attempt)
            if not attempt:
                return converted
    elif origin is Literal and value in args:
        return value
    elif origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        items = args[:1] * len(value) if args[1:] == (...,) else args
        if len(items) == len(value):
            pairs = enumerate(zip(items, value, strict=True))
            return tuple(_convert(h, v, f"{name}[{i}]", problems) for i, (h, v) in pairs)
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif hint is Any:
        return value
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif hint is int and isinstance(value, bool):
        pass  # True is an int to Python, and a mistake to us
    elif isinstance(base := origin or hint, type) and isinstance(value, base):
        return value
    words = getattr(hint, "__name__", str(hint)) if origin is None else str(hint)
    problems.append(f"'{name}' must be {words}, got {value!r}")
    return None


# Subjects


def save_transformer(
    path: str | Path,
    transformer: Transformer,
    *,
    seed: int | None = None,
    meta: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> str:
    """Write a transformer with its config and codec; return the sha256 of the artifact."""
    codec = transformer.codec
    for symbol in () if codec is None else (*codec.vocab, *(codec.outputs or ())):
        if symbol is not None and not isinstance(symbol, str | int | float):
            raise TypeError(
                f"only text, numbers and booleans can be stored as symbols: {symbol!r}."
            )
    return save_artifact(
        path,
        kind="transformer",
        config={"transformer": transformer.config, "codec": codec},
        seed=seed,
        tensors=transformer.weights,
        meta=meta,
        command=command,
    )


def load_transformer(path: str | Path) -> Transformer:
    """Read what `save_transformer` wrote; its meta is in `load_artifact(path, "transformer")`."""
    artifact = load_artifact(path, "transformer")
    config = load_config(TransformerConfig, artifact.config["transformer"])
    codec = artifact.config["codec"]
    if codec is not None:
        outputs = None if codec["outputs"] is None else tuple(codec["outputs"])
        codec = Codec(tuple(codec["vocab"]), outputs)
    return Transformer(config, dict(artifact.tensors), codec)
