"""Files of `torch.save` as data: equal to what torch reads, checked byte by byte, and inert."""

import io
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.io.pickles import read_weights
from graphcircuits.io.store import StoreError
from tests.damage import limits

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]


def save(path: Path, value: Any, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def test_what_torch_reads(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    stack = torch.randn(3, 4, 5, generator=generator)
    state = {str(dtype): stack.to(dtype) for dtype in DTYPES} | {
        "slice": torch.randn(20, generator=generator)[3:9],
        "turned": torch.randn(4, 6, generator=generator).T,
        "number": torch.tensor(-torch.inf),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(stack.clone()),
    }
    path = save(tmp_path / "weights.pth", state)
    found, expected = read_weights(path), torch.load(path, weights_only=True)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == weight.dtype
        assert torch.equal(found[name], weight), name


def test_the_state_of_a_module(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    state = module.state_dict()
    assert isinstance(state, OrderedDict)
    assert hasattr(state, "_metadata")
    found = read_weights(save(tmp_path / "weights.pth", state))
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], weight) for name, weight in state.items())


def test_every_changed_byte_of_a_member_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "weights.pth", {"a": torch.arange(40.0)})
    whole = path.read_bytes()
    start = whole.index(struct.pack("<4f", 1, 2, 3, 4)) - 4
    for place in range(start, start + 160, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        # Torch itself does not look.
        assert not torch.equal(torch.load(path, weights_only=True)["a"], torch.arange(40.0))
        with pytest.raises(StoreError, match=r"not a whole file of weights \(Bad CRC-32"):
            read_weights(path)


def rezipped(path: Path, **options: Any) -> None:
    """The same members in a zip written otherwise."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_members_that_grow_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "weights.pth", {"a": torch.zeros(10**6)})
    rezipped(path, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000
    with pytest.raises(StoreError, match="a member is compressed"):
        read_weights(path)
    rezipped(path)
    assert torch.equal(read_weights(path)["a"], torch.zeros(10**6))


@pytest.mark.parametrize(
    ("flag", "message"), [(0x1, "encrypted"), (0x40, "strong encryption"), (0x20, "patched data")]
)
def test_members_that_zipfile_cannot_read_are_refused(
    tmp_path: Path, flag: int, message: str
) -> None:
    path = save(tmp_path / "weights.pth", {"a": torch.zeros(3)})
    rezipped(path)
    data = bytearray(path.read_bytes())
    # The flags of the first member, in its own header and in the list of all.
    data[6] |= flag
    data[data.index(b"PK\x01\x02") + 8] |= flag
    path.write_bytes(data)
    with pytest.raises(StoreError, match=rf"not a whole file of weights \(.*{message}"):
        read_weights(path)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(1).expand(10**5, 10**5), r"shape \(100000, 100000\) from 0 on exceeds 1 num"),
        (torch.zeros(3).to_sparse(), "it asks for 'torch._utils._rebuild_sparse_tensor'"),
        (torch.zeros(3, dtype=torch.complex64), "it asks for 'torch.ComplexFloatStorage'"),
        (torch.zeros(2**41, 0), r"shape \(2199023255552, 0\) from 0 on exceeds 0 numbers"),
    ],
)
def test_tensors_that_claim_more_than_there_is(
    tmp_path: Path, weight: Tensor, message: str
) -> None:
    path = save(tmp_path / "weights.pth", {"a": weight})
    with limits(), pytest.raises(StoreError, match=message):
        read_weights(path)


def test_memory_that_many_tensors_share(tmp_path: Path) -> None:
    shared = torch.zeros(10**4)
    path = save(tmp_path / "weights.pth", {"tied": shared, "embedding": shared})
    assert read_weights(path).keys() == {"tied", "embedding"}
    save(path, {str(number): shared for number in range(200)})
    with pytest.raises(StoreError, match=r"names more numbers than it holds: its tensors share"):
        read_weights(path)


def test_a_storage_of_another_size(tmp_path: Path) -> None:
    path = save(tmp_path / "weights.pth", {"a": torch.zeros(3)})
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data + b"1234" if name.endswith("data/0") else data)
    with pytest.raises(StoreError, match="'a' is not a whole tensor: 3 numbers of torch"):
        read_weights(path)


def test_other_files(tmp_path: Path) -> None:
    path = save(tmp_path / "old.pth", {"a": torch.ones(2)}, _use_new_zipfile_serialization=False)
    with pytest.raises(StoreError, match=r"the format of torch.save before version 1.6; load it"):
        read_weights(path)
    for value in ([torch.ones(2)], torch.ones(2), {"a": 1}, {}):
        save(path, value)
        if value == {}:
            assert read_weights(path) == {}
            continue
        with pytest.raises(StoreError, match=r"must hold (weights|values) by name, got "):
            read_weights(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/b", b"")
    with pytest.raises(StoreError, match=r"is not a file of weights: expected one data.pkl"):
        read_weights(path)
