"""Pickles as data: equal to what pickle itself reads, and inert whatever they ask for."""

import os
import pickle
import re
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.io.pickles import Made, Named, read_pickle
from graphcircuits.io.store import StoreError
from tests.damage import limits

NOTHING = re.compile(r"(?!)")
ANYTHING = re.compile(r".*")

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
plain_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pickles") / "value.pkl"


@given(plain_values, st.sampled_from([3, 4, 5]))
def test_plain_values_come_back(path: Path, value: object, protocol: int) -> None:
    path.write_bytes(pickle.dumps(value, protocol))
    found = read_pickle(path, NOTHING)
    assert found == value
    assert repr(found) == repr(value)


@given(st.data())
def test_a_damaged_pickle_is_an_error_or_a_value(path: Path, data: st.DataObject) -> None:
    whole = pickle.dumps({"edges": [("a", "b"), ("c", 1.5)], "n": 12, "on": True}, 4)
    bent = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, max(len(bent) - 1, 0)), max_size=3)):
        if bent:
            bent[place] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(bent))
    with suppress(StoreError):
        read_pickle(path, NOTHING)


@pytest.mark.parametrize("length", [0, 1, 2, 10, 30])
def test_a_pickle_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    target = tmp_path / "cut.pkl"
    target.write_bytes(pickle.dumps([("hook_embed", "blocks.0.hook_mlp_in")], 4)[:length])
    with pytest.raises(StoreError, match=r"cut\.pkl is not a whole pickle \(.+\); it may be cut"):
        read_pickle(target, NOTHING)


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    canary, target = tmp_path / "canary", tmp_path / "trap.pkl"
    data = pickle.dumps([1, {"x": Trap(canary)}], protocol)
    target.write_bytes(data)
    # Without this the trap could be broken and the test would still pass.
    pickle.loads(data)
    assert canary.exists()
    canary.unlink()
    with pytest.raises(StoreError, match=r"refused and nothing of it was run: it asks for"):
        read_pickle(target, NOTHING)
    assert not canary.exists()


def test_even_allowed_names_are_never_called(tmp_path: Path) -> None:
    canary, target = tmp_path / "canary", tmp_path / "trap.pkl"
    target.write_bytes(pickle.dumps(Trap(canary), 4))
    found = read_pickle(target, ANYTHING)
    assert isinstance(found, Made)
    assert found.name.endswith(".system")
    assert found.arguments == (f"touch {canary}",)
    assert not canary.exists()


def test_names_and_calls_become_records(tmp_path: Path) -> None:
    target = tmp_path / "value.pkl"
    target.write_bytes(pickle.dumps({"dtype": torch.float32, "range": np.float64(0.5)}, 4))
    allowed = re.compile(r"torch\.float32|numpy\.dtype|numpy\.(_core|core)\.multiarray\.scalar")
    found = read_pickle(target, allowed)
    assert isinstance(found, dict)
    assert found["dtype"] == Named("torch.float32")
    number = found["range"]
    assert isinstance(number, Made)
    assert number.name.endswith("multiarray.scalar")
    dtype, data = number.arguments
    assert isinstance(dtype, Made)
    assert dtype.arguments[0] == "f8"
    assert isinstance(dtype.state, tuple)
    assert np.frombuffer(data, "<f8")[0] == 0.5  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_only_whole_names_are_allowed(tmp_path: Path) -> None:
    target = tmp_path / "value.pkl"
    target.write_bytes(pickle.dumps(OrderedDict(a=1), 4))
    with pytest.raises(StoreError, match=r"it asks for 'collections.OrderedDict'"):
        read_pickle(target, re.compile("collections"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x04\x8f.", "it holds the instruction EMPTY_SET"),
        (b"\x80\x04cposix\nsystem\n.", "it asks for 'posix.system'"),
        (b"\x80\x04K\x01)R.", "it calls something that is not a name"),
        (b"\x80\x04]}b.", "it sets the state of a list"),
    ],
)
def test_instructions_beyond_plain_values_are_refused(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    target = tmp_path / "odd.pkl"
    target.write_bytes(data)
    with pytest.raises(StoreError, match=rf"odd\.pkl is refused .*{reason}"):
        read_pickle(target, NOTHING)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x04}K\x01K\x02s.", "keys other than text"),
        (b"\x80\x04]K\x01K\x02s.", "SETITEMS does not fit a list"),
        (b"\x80\x04\x85.", "needs 1 values and finds 0"),
        (b"\x80\x04K\x01K\x02.", "too many values"),
        (b"\x80\x04h\x05.", "5"),
    ],
)
def test_nonsense_is_not_a_whole_pickle(tmp_path: Path, data: bytes, reason: str) -> None:
    target = tmp_path / "odd.pkl"
    target.write_bytes(data)
    with pytest.raises(StoreError, match=rf"not a whole pickle \(.*{reason}"):
        read_pickle(target, NOTHING)


class Node:
    """Pickled as a call whose argument is there twice."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __reduce__(self) -> tuple[object, ...]:
        return Node, ((self.inner, self.inner),)


def test_a_small_pickle_of_an_endless_tree(tmp_path: Path) -> None:
    tree: object = "leaf"
    for _ in range(40):
        tree = Node(tree)
    target = tmp_path / "tree.pkl"
    target.write_bytes(pickle.dumps([tree], 4))
    assert target.stat().st_size < 2_000
    with limits():
        found = read_pickle(target, ANYTHING)
        assert "made by tests.io.test_pickles.Node" in repr(found)


def test_a_small_pickle_of_an_endless_key(tmp_path: Path) -> None:
    target = tmp_path / "key.pkl"
    # A pair of the pair before, 27 times, as a key: hashing it would visit 2**27 leaves and take
    # seconds, and each time more would double that.
    key = [pickle.NONE]
    for place in range(27):
        key += [pickle.MEMOIZE, pickle.BINGET, bytes([place]), pickle.TUPLE2]
    entry = [pickle.EMPTY_DICT, *key, pickle.NONE, pickle.SETITEM]
    target.write_bytes(b"".join([pickle.PROTO, b"\x04", *entry, pickle.STOP]))
    with limits(), pytest.raises(StoreError, match="keys other than text"):
        read_pickle(target, NOTHING)


def test_a_small_pickle_of_a_long_memo(tmp_path: Path) -> None:
    target = tmp_path / "memo.pkl"
    # As pickle itself keeps a memo, its place number 2**31 - 1 takes 32 gigabytes.
    place = (2**31 - 1).to_bytes(4, "little")
    remember, recall = pickle.LONG_BINPUT + place, pickle.LONG_BINGET + place
    parts = (pickle.PROTO, b"\x04", pickle.NEWTRUE, remember, recall, pickle.TUPLE2, pickle.STOP)
    target.write_bytes(b"".join(parts))
    with limits():
        assert read_pickle(target, NOTHING) == (True, True)


def test_numbers_that_python_does_not_print(tmp_path: Path) -> None:
    target = tmp_path / "number.pkl"
    target.write_bytes(pickle.dumps(2**1023, 4))
    assert read_pickle(target, NOTHING) == 2**1023
    target.write_bytes(pickle.dumps(2**20_000, 4))
    with pytest.raises(StoreError, match=r"not a whole pickle \(a number of 20001 bits\)"):
        read_pickle(target, NOTHING)
