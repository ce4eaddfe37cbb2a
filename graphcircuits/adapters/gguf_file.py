"""A GGUF file, the format of llama.cpp, as values: its metadata and its tensors.

1. `read_gguf` maps a regular file and walks its header. Every count and length is compared with the
   bytes that are left before anything of that size is made, and every tensor must lie inside the
   file, so that a forged or cut file is refused at once, whatever it claims.
2. `GgufFile.numbers` reads the blocks of one tensor, some at a time, so that beside the numbers
   that were asked for nothing large is held, and nothing of the file.

The reader of the `gguf` package makes one array per token of the vocabulary, which takes seconds,
and it takes a file at its word; so files are read here.
"""

import math
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.adapters.gguf_packing import NAMES, TYPES, unpack
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import all_finite

_VERSIONS = (2, 3)
_TEXT, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_ALIGNMENT = "general.alignment"
_MAX_DIMS = 4
_CHUNK = 2**20
"""How many numbers are unpacked at a time: fewer take more time, more only more memory."""
# What an entry takes at least: a key, its type and a value; a name, its dimensions, type and place.
_LEAST_PAIR, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. The last axis of its shape is the one that is contiguous."""

    shape: tuple[int, ...]
    kind: str
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class GgufFile:
    """What a file says (arrays of text as lists, of numbers as arrays), and its tensors by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self.tensors.items()}

    def numbers(
        self, name: str, out: Float[Tensor, " number"] | None = None
    ) -> Float[Tensor, "..."]:
        """One tensor in float32, or in the dtype of `out`, at whose beginning it is written."""
        stored = self.tensors[name]
        block, block_bytes = TYPES[stored.kind]
        n = math.prod(stored.shape)
        values = torch.empty(n) if out is None else out[:n]
        step = max(1, _CHUNK // block)
        for i, ours in enumerate(values.split(step * block)):
            size = len(ours) // block * block_bytes
            first = stored.start + i * step * block_bytes
            blocks = np.fromfile(self.path, np.uint8, size, offset=first)
            if len(blocks) < size:
                raise _cut_short(self.path, f"{short(name)} ends at byte {first + size}")
            exact = unpack(stored.kind, torch.from_numpy(blocks).view(-1, block_bytes)).flatten()
            if not all_finite(ours.copy_(exact)):
                if not all_finite(exact):
                    raise StoreError(
                        f"{self.path}: {short(name)} holds numbers that are not finite; the file "
                        "is damaged: fetch it again."
                    )
                wanted = str(ours.dtype).removeprefix("torch.")
                raise StoreError(
                    f"{self.path}: {short(name)} holds numbers that {wanted} cannot hold; load it "
                    "as bfloat16 or float32."
                )
        return values.view(stored.shape)


def read_gguf(path: str | Path) -> GgufFile:
    """The metadata of a GGUF file and where its tensors lie; the tensors stay on disk."""
    path = Path(path)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file.")
    if status.st_size < 4:
        raise StoreError(f"{path} is not a GGUF file: it holds {status.st_size} bytes.")
    data = np.memmap(path, dtype=np.uint8, mode="r")
    header = _Header(path, data.data)
    n_tensors, n_pairs = header.opening()
    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = header.text()
        if key in metadata:
            raise StoreError(f"{path} holds the key {short(key)} twice.")
        metadata[key] = header.value(header.number("I"))
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(n_tensors):
        name = header.text()
        if name in entries:
            raise StoreError(f"{path} holds the tensor {short(name)} twice.")
        entries[name] = header.shape(name), header.number("I"), header.number("Q")
    _check_types(path, {name: kind for name, (_, kind, _) in entries.items()})
    start = _first_tensor(path, metadata, header.offset)
    tensors = {}
    for name, (shape, number, offset) in entries.items():
        kind = NAMES[number]
        block, block_bytes = TYPES[kind]
        if shape[-1] % block:
            raise StoreError(
                f"{path}: {short(name)} has rows of {shape[-1]} numbers, and {kind} packs "
                f"{block} at a time."
            )
        size = math.prod(shape) // block * block_bytes
        if start + offset + size > len(data):
            raise _cut_short(path, f"{short(name)} ends at byte {start + offset + size}")
        tensors[name] = StoredTensor(shape, kind, start + offset, size)
    if sum(stored.size for stored in tensors.values()) > len(data):
        raise StoreError(f"{path} names more numbers than it holds: its tensors share bytes.")
    return GgufFile(path, metadata, tensors)


def _check_types(path: Path, numbers: dict[str, int]) -> None:
    kinds = {
        name: NAMES[number] if number < len(NAMES) else f"type {number}"
        for name, number in numbers.items()
    }
    if others := {kind: name for name, kind in kinds.items() if kind not in TYPES}:
        listed = ", ".join(f"{kind} ({short(name)})" for kind, name in others.items())
        raise StoreError(
            f"{path} holds tensors of types that cannot be read: {listed}; "
            f"known types: {', '.join(TYPES)}."
        )


def _first_tensor(path: Path, metadata: Mapping[str, Any], offset: int) -> int:
    """Where the first tensor lies, given where the header ends."""
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise StoreError(f"{path}: {_ALIGNMENT} must be a power of two, got {short(alignment)}.")
    return -(-offset // alignment) * alignment


def _cut_short(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path} is not a whole GGUF file: {what}, and it holds {path.stat().st_size} bytes; "
        "it may be cut short: fetch it again."
    )


class _Header:
    """Reads on through the header of a file, and never past its end."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.offset = path, data, 0

    def opening(self) -> tuple[int, int]:
        """How many tensors and pairs follow."""
        if bytes(self.take(4)) != b"GGUF":
            raise StoreError(
                f"{self.path} is not a GGUF file: it begins with {bytes(self.data[:4])!r}, "
                "not with b'GGUF'."
            )
        version = self.number("I")
        if version not in _VERSIONS:
            written = f"version {version}"
            if version & 0xFFFF == 0:
                written = "the byte order of big-endian machines"
            raise StoreError(
                f"{self.path} is a GGUF file in {written}; versions 2 and 3 in little-endian byte "
                "order are read: convert the model again."
            )
        n_tensors, n_pairs = self.number("Q"), self.number("Q")
        self.expect(n_tensors * _LEAST_TENSOR + n_pairs * _LEAST_PAIR, "its header")
        return n_tensors, n_pairs

    def expect(self, size: int, what: str) -> None:
        if size > len(self.data) - self.offset:
            raise _cut_short(self.path, f"{what} takes {size} bytes from byte {self.offset} on")

    def take(self, size: int) -> memoryview:
        self.expect(size, "its header")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        offset = self.offset
        content = self.take(self.number("Q"))
        try:
            return str(content, "utf-8")
        except UnicodeDecodeError as error:
            raise StoreError(
                f"{self.path} is not a GGUF file: the text at byte {offset} is not UTF-8."
            ) from error

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self.array(self.number("I"), self.number("Q"))
        return self.number(self.code(kind))

    def array(self, kind: int, count: int) -> Any:
        if kind == _TEXT:
            self.expect(8 * count, f"an array of {count} texts")
            return [self.text() for _ in range(count)]
        dtype = np.dtype(self.code(kind)).newbyteorder("<")
        return np.frombuffer(self.take(dtype.itemsize * count), dtype)

    def code(self, kind: int) -> str:
        if kind not in _SCALARS:
            what = "an array of arrays" if kind == _ARRAY else f"a value of type {kind}"
            raise StoreError(
                f"{self.path}: {what} before byte {self.offset}; no model that is read has one."
            )
        return _SCALARS[kind]

    def shape(self, name: str) -> tuple[int, ...]:
        n_dims = self.number("I")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise StoreError(
                f"{self.path}: {short(name)} has {n_dims} dimensions, expected 1 to {_MAX_DIMS}."
            )
        sizes = struct.unpack(f"<{n_dims}Q", self.take(8 * n_dims))
        if 0 in sizes:
            raise StoreError(f"{self.path}: {short(name)} is empty: its shape is {sizes[::-1]}.")
        return sizes[::-1]
