"""What `torch.save` wrote, read as data: nothing is imported, called or allocated unseen.

A file of weights is a zip: `data.pkl` says which tensors there are, and each storage is a member
of its own. `read_weights` follows the pickle with `plain_pickle`, reads the members with their
checksums, and makes each tensor only if its storage holds all of its numbers. `read_saved` does so
for a mapping that holds plain values beside its tensors.

`torch.load` with `weights_only` runs no code either, but it allocates what a file asks for, and it
does not look at the checksums.
"""

import io
import math
import re
import sys
import zipfile
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from graphcircuits.io.files import StoreError, read_bytes, short
from graphcircuits.io.plain_pickle import Made, Named, Stored, parse_pickle

_STORAGES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
_EMPTY = 2**40
"""How large the sides of a tensor without numbers may be."""
_TENSOR, _PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
_ALLOWED = re.compile(
    rf"collections\.OrderedDict|{re.escape(_TENSOR)}|{re.escape(_PARAMETER)}"
    rf"|torch\.({'|'.join(_STORAGES)})Storage"
)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors by name in a file that `torch.save` wrote of a mapping of them."""
    found = _read(path, plain=False)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def read_saved(path: str | Path) -> dict[str, object]:
    """Tensors and plain values by name in a file that `torch.save` wrote of a mapping of them.

    Only values of the mapping itself are made tensors; one inside another value stays a `Made`.
    """
    return _read(path, plain=True)


def _read(path: str | Path, *, plain: bool) -> dict[str, object]:
    data = read_bytes(path)
    if data[:1] == b"\x80":
        raise StoreError(
            f"{path} is in the format of torch.save before version 1.6; load it and save it again "
            "with a later one."
        )
    try:
        members = _members(data)
    except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError) as error:
        raise StoreError(
            f"{path} is not a whole file of weights ({error}); it may be cut short: fetch it again."
        ) from error
    roots = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise StoreError(f"{path} is not a file of weights: expected one data.pkl in it.")
    order = members.get(f"{roots[0]}byteorder", b"little").decode(errors="replace")
    if order != sys.byteorder:
        raise StoreError(f"{path} has byte order {short(order)}, this machine {sys.byteorder!r}.")
    found = parse_pickle(path, members[f"{roots[0]}data.pkl"], _ALLOWED, storages=True)
    if not isinstance(found, dict) or not (
        plain or all(isinstance(made, Made) for made in found.values())
    ):
        what = "values" if plain else "weights"
        raise StoreError(f"{path} must hold {what} by name, got {short(found)}.")
    storages = {
        name.removeprefix(f"{roots[0]}data/"): content
        for name, content in members.items()
        if name.startswith(f"{roots[0]}data/")
    }
    made = {name: value for name, value in found.items() if isinstance(value, Made)}
    weights: dict[str, Tensor] = {}
    for name, value in made.items():
        try:
            weights[name] = _tensor(value, storages)
        except (ValueError, TypeError) as error:
            raise StoreError(f"{path}: {short(name)} is not a whole tensor: {error}.") from error
    # Tied matrices are stored once and counted twice.
    if sum(weight.nbytes for weight in weights.values()) > 2 * len(data):
        raise StoreError(f"{path} names more numbers than it holds: its tensors share memory.")
    return {**found, **weights}


def _members(data: bytes) -> dict[str, bytes]:
    """The members of a zip by name; reading them to the end checks their checksums."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        if len({entry.filename for entry in entries}) < len(entries):
            raise ValueError("two members have one name")
        # torch.save stores without compressing: what is read is never more than the file.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("a member is compressed")
        if sum(entry.file_size for entry in entries) > len(data):
            raise ValueError("its members are larger than the file")
        return {entry.filename: archive.read(entry) for entry in entries}


def _tensor(made: Made, storages: dict[str, bytes]) -> Tensor:
    while made.name == _PARAMETER and made.arguments and isinstance(made.arguments[0], Made):
        made = made.arguments[0]
    match made.arguments:
        case (
            Stored(id=("storage", Named(name=kind), str(key), str(), int(count))),
            int(offset), tuple(shape), tuple(strides), *_,
        ) if made.name == _TENSOR:  # fmt: skip
            pass
        case _:
            raise ValueError(f"it is a {short(made)}")
    dtype = _STORAGES.get(kind.removeprefix("torch.").removesuffix("Storage"))
    if dtype is None or key not in storages:
        raise ValueError(f"there is no storage {short(key)} of type {short(kind)}")
    content = storages[key]
    if count * dtype.itemsize != len(content):
        raise ValueError(f"{short(count)} numbers of {dtype} are not {len(content)} bytes")
    if not (_are_sizes(shape) and _are_sizes(strides) and len(shape) == len(strides)):
        raise ValueError(f"its shape is {short(shape)}, its strides {short(strides)}")
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if 0 in shape and math.prod(n or 1 for n in shape) <= _EMPTY:
        return torch.zeros(shape, dtype=dtype)
    if 0 in shape or math.prod(shape) > count or not 0 <= offset <= offset + last < count:
        raise ValueError(f"shape {short(shape)} from {short(offset)} on exceeds {count} numbers")
    return torch.frombuffer(bytearray(content), dtype=dtype).as_strided(shape, strides, offset)


def _are_sizes(values: tuple[object, ...]) -> TypeGuard[tuple[int, ...]]:
    return len(values) <= 16 and all(type(value) is int and value >= 0 for value in values)
