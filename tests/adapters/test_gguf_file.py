"""The bytes of GGUF files: every packing by a slow twin, and files that lie about themselves."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from graphcircuits.adapters import gguf_file
from graphcircuits.adapters.gguf import load_gguf
from graphcircuits.adapters.gguf_file import read_gguf
from graphcircuits.adapters.gguf_packing import NAMES, TYPES
from graphcircuits.io.files import StoreError
from tests.adapters.gguf_models import write_model
from tests.damage import limits


def half(data: bytes) -> float:
    return struct.unpack("<e", data)[0]


def q4_0(b: bytes) -> list[float]:
    low, high = [x & 15 for x in b[2:]], [x >> 4 for x in b[2:]]
    return [half(b[:2]) * (q - 8) for q in low + high]


def q4_1(b: bytes) -> list[float]:
    low, high = [x & 15 for x in b[4:]], [x >> 4 for x in b[4:]]
    return [half(b[:2]) * q + half(b[2:4]) for q in low + high]


def q5_0(b: bytes) -> list[float]:
    fifth = int.from_bytes(b[2:6], "little")
    four = [x & 15 for x in b[6:]] + [x >> 4 for x in b[6:]]
    return [half(b[:2]) * ((q | (fifth >> i & 1) << 4) - 16) for i, q in enumerate(four)]


def q8_0(b: bytes) -> list[float]:
    return [half(b[:2]) * q for q in struct.unpack("<32b", b[2:])]


def scale_and_least(s: bytes, j: int) -> tuple[int, int]:
    """Six bits each of the eight scales and eight minima in twelve bytes."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def q4_k(b: bytes, fifth: bytes = bytes(32)) -> list[float]:
    values = []
    for j in range(8):
        scale, least = scale_and_least(b[4:16], j)
        for i, x in enumerate(b[-128:][j // 2 * 32 : j // 2 * 32 + 32]):
            q = (x & 15 if j % 2 == 0 else x >> 4) | (fifth[i] >> j & 1) << 4
            values.append(half(b[:2]) * scale * q - half(b[2:4]) * least)
    return values


def q5_k(b: bytes) -> list[float]:
    return q4_k(b, b[16:48])


def q6_k(b: bytes) -> list[float]:
    low, high, scales = b[:128], b[128:192], struct.unpack("<16b", b[192:208])
    values = []
    for i in range(256):
        part, rest = divmod(i, 128)
        quarter, place = divmod(rest, 32)
        four = low[64 * part + 32 * (quarter % 2) + place] >> 4 * (quarter // 2) & 15
        two = high[32 * part + place] >> 2 * quarter & 3
        values.append(half(b[208:]) * scales[i // 16] * ((four | two << 4) - 32))
    return values


TWINS: dict[str, tuple[Callable[[bytes], list[float]], tuple[int, ...]]] = {
    "F32": (lambda b: list(struct.unpack("<f", b)), ()),
    "F16": (lambda b: [half(b)], (0,)),
    "BF16": (lambda b: list(struct.unpack("<f", b"\0\0" + b)), ()),
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q8_0": (q8_0, (0,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}


def test_every_type_has_a_twin() -> None:
    assert TWINS.keys() == TYPES.keys()


def test_types_as_the_package_numbers_them() -> None:
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        if kind.value < len(NAMES):
            assert NAMES[kind] == kind.name
            assert TYPES.get(kind.name, sizes) == sizes


@pytest.mark.parametrize("kind", TYPES)
def test_packed_blocks_against_a_slow_twin(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random bytes, with scales that are ordinary numbers; five blocks at a time."""
    twin, scales = TWINS[kind]
    packing = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[packing]
    monkeypatch.setattr(gguf_file, "_CHUNK", 5 * block)
    rng = np.random.default_rng(0)
    rows = rng.integers(256, size=(3, 4, size), dtype=np.uint8)
    if kind in ("F32", "BF16"):
        rows[..., -1] = 63  # of the order of one
    for at in scales:
        rows[..., at : at + 2] = rng.normal(size=(3, 4, 1)).astype(np.float16).view(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("first", np.ones(3, dtype=np.float32))
    writer.add_tensor("packed", rows.reshape(3, -1), raw_dtype=packing)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(tmp_path / "a.gguf").numbers("packed")
    expected = [[x for b in row for x in twin(b.tobytes())] for row in rows]
    assert found.shape == (3, 4 * block)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    # And bit for bit what the package makes of them.
    assert found.flatten().tolist() == gguf.quants.dequantize(rows, packing).flatten().tolist()
    assert read_gguf(tmp_path / "a.gguf").numbers("first").tolist() == [1, 1, 1]


def test_metadata_as_the_package_reads_it(tmp_path: Path) -> None:
    path, _ = write_model(tmp_path / "a.gguf", "gemma3", some__words=["a", "ü"], some__flag=True)
    theirs = gguf.GGUFReader(path)
    ours = read_gguf(path)
    for key, value in ours.metadata.items():
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        assert plain == theirs.fields[key].contents(), key
    assert len(ours.metadata) == len([key for key in theirs.fields if not key.startswith("GGUF.")])
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].start == tensor.data_offset
        np.testing.assert_array_equal(ours.numbers(tensor.name), tensor.data)


# Forged headers


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(
    *,
    version: int = 3,
    tensors: int = 0,
    pairs: int = 0,
    body: bytes = b"",
    pad: int = 0,
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + body + bytes(pad)


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


HUGE = 2**62
FORGED = {
    "nothing": (b"", r"is not a GGUF file: it holds 0 bytes"),
    "another format": (b"PK\3\4" + bytes(60), r"begins with b'PK\\x03\\x04', not with b'GGUF'"),
    "half a header": (
        b"GGUF\3\0\0\0",
        r"not a whole GGUF file: its header takes 8 bytes from byte 8",
    ),
    "the first version": (header(version=1), "in version 1; versions 2 and 3"),
    "another byte order": (header(version=3 << 24), "byte order of big-endian machines"),
    "tensors without end": (header(tensors=HUGE), "its header takes"),
    "pairs without end": (header(pairs=HUGE), "its header takes"),
    "a long key": (header(pairs=1, body=struct.pack("<Q", HUGE), pad=9), "its header takes"),
    "a long text": (
        header(pairs=1, body=text("a") + struct.pack("<IQ", 8, HUGE)),
        "its header takes 4611686018427387904 bytes",
    ),
    "a long array of texts": (
        header(pairs=1, body=text("a") + struct.pack("<IIQ", 9, 8, HUGE)),
        "an array of 4611686018427387904 texts takes",
    ),
    "a long array": (
        header(pairs=1, body=text("a") + struct.pack("<IIQ", 9, 5, HUGE)),
        "its header takes",
    ),
    "nested arrays": (
        header(pairs=1, body=text("a") + struct.pack("<IIQ", 9, 9, 1), pad=20),
        "an array of arrays before byte",
    ),
    "an unknown value": (
        header(pairs=1, body=text("a") + struct.pack("<I", 13), pad=20),
        "a value of type 13 before byte",
    ),
    "a key twice": (
        header(pairs=2, body=2 * (text("a") + struct.pack("<IB", 0, 1))),
        "holds the key 'a' twice",
    ),
    "no text": (
        header(pairs=1, body=struct.pack("<QBI", 1, 255, 0), pad=9),
        "the text at byte 24 is not UTF-8",
    ),
    "a tensor twice": (
        header(tensors=2, body=2 * tensor("a", [1]), pad=99),
        "holds the tensor 'a' twice",
    ),
    "many dimensions": (
        header(tensors=1, body=tensor("a", [1] * 5), pad=99),
        "'a' has 5 dimensions, expected 1 to 4",
    ),
    "no dimensions": (
        header(tensors=1, body=tensor("a", []), pad=99),
        "'a' has 0 dimensions, expected 1 to 4",
    ),
    "an empty tensor": (
        header(tensors=1, body=tensor("a", [0, 3]), pad=99),
        r"'a' is empty: its shape is \(3, 0\)",
    ),
    "a giant tensor": (
        header(tensors=1, body=tensor("a", [HUGE, HUGE]), pad=99),
        "'a' ends at byte .* and it holds .* bytes; it may be cut short",
    ),
    "a tensor beyond the end": (
        header(tensors=1, body=tensor("a", [4], offset=HUGE), pad=99),
        "'a' ends at byte",
    ),
    "one byte short": (
        header(tensors=1, body=tensor("a", [4]), pad=22),
        "'a' ends at byte 80, and it holds 79 bytes",
    ),
    "tensors over each other": (
        header(tensors=9, body=b"".join(tensor(str(i), [70]) for i in range(9)), pad=320),
        "names more numbers than it holds: its tensors share bytes",
    ),
    "a ragged block": (
        header(tensors=1, body=tensor("a", [33], kind=2), pad=99),
        "'a' has rows of 33 numbers, and Q4_0 packs 32 at a time",
    ),
    "unknown packings": (
        header(tensors=2, body=tensor("a", [32], kind=7) + tensor("b", [32], kind=999), pad=99),
        r"types that cannot be read: Q5_1 \('a'\), type 999 \('b'\); known types: F32, F16, BF16, ",
    ),
    "alignment of three": (
        header(
            tensors=1,
            pairs=1,
            body=text("general.alignment") + struct.pack("<II", 4, 3) + tensor("a", [1]),
            pad=99,
        ),
        "general.alignment must be a power of two, got 3",
    ),
    "not finite": (
        header(
            tensors=1,
            pairs=1,
            body=text("general.alignment") + struct.pack("<II", 4, 1) + tensor("a", [1]),
        )
        + struct.pack("<f", float("nan")),
        "'a' holds numbers that are not finite",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_files_are_refused(tmp_path: Path, name: str) -> None:
    content, message = FORGED[name]
    path = tmp_path / "forged.gguf"
    path.write_bytes(content)
    with limits(), pytest.raises(StoreError, match=message) as caught:
        read_gguf(path).numbers("a")
    assert str(path) in str(caught.value)


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a regular file"):
        read_gguf(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(StoreError, match="is not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")
    with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
        read_gguf(tmp_path / "none.gguf")


TINY = {
    "tokenizer__ggml__model": "llama",
    "tokenizer__ggml__tokens": ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "b", "ab"],
    "tokenizer__ggml__scores": [0.0, 0.0, 0.0, -9.0, -8.0, -1.0, -7.0, -2.0],
    "tokenizer__ggml__token_type": [2, 3, 3, 1, 1, 1, 1, 1],
}


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9, 0.999])
def test_cut_files_are_refused(tmp_path: Path, share: float) -> None:
    path, _ = write_model(tmp_path / "model.gguf", "llama", **TINY)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with limits(), pytest.raises(StoreError, match="it may be cut short: fetch it again"):
        load_gguf(path)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_changed_bytes_load_or_are_refused(tmp_path: Path, seed: int) -> None:
    """No byte of the header leads to another error, to a hang, or to memory without end."""
    with torch.random.fork_rng(devices=[]):
        path, _ = write_model(tmp_path / "model.gguf", "llama", **TINY)
    content = path.read_bytes()
    first = min(stored.start for stored in read_gguf(path).tensors.values())
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(400 if seed else 25):
        changed = bytearray(content)
        for at in rng.integers(first, size=rng.integers(1, 3)):
            changed[at] = rng.integers(256)
        path.write_bytes(changed)
        try:
            with limits():
                load_gguf(path)
        except StoreError:
            refused += 1
    assert refused > 0
