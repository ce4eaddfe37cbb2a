"""Pickles and files of `torch.save`, read as data: nothing is imported, called or allocated unseen.

A pickle is a program for a small stack machine. `read_pickle` follows the instructions that build
plain values: numbers, text, bytes, None, lists, tuples, and dictionaries with text as keys. Where
the program names a class or a function it puts a `Named`, and where it would call one a `Made`: a
record of the name, the arguments and the state. Names that the caller does not allow and
instructions that plain values do not need are refused.

A pickle can share its parts, so that a small file is an endless tree: nothing here walks values.

`pickle.Unpickler` with a `find_class` of stand-ins would run nothing either, but it cannot be told
to take less: 10 bytes make it reserve gigabytes (a memo of any length), 250 bytes keep it busy for
ever (a dictionary's key that is such a tree is hashed leaf by leaf).

A file of weights is a zip: `data.pkl` says which tensors there are, and each storage is a member
of its own. `read_weights` follows the pickle, reads the members with their checksums, and makes
each tensor only if its storage holds all of its numbers. `read_saved` does so for a mapping that
holds plain values beside its tensors. `torch.load` with `weights_only` runs no code either, but it
allocates what a file asks for, and it does not look at the checksums.
"""

import io
import math
import pickletools
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from graphcircuits.io.files import StoreError, read_bytes, short

_VALUE = re.compile(
    r"INT|BININT[12]?|LONG|LONG[14]|FLOAT|BINFLOAT|UNICODE|(SHORT_)?BINUNICODE|BINUNICODE8"
    r"|(SHORT_)?BINBYTES|BINBYTES8"
)
_ORDERED = "collections.OrderedDict"
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(frozen=True)
class Named:
    """A class, function or value that a pickle names, as `module.name`."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class Stored:
    """What a pickle refers to outside of itself: a member of a file of weights."""

    id: object


@dataclass(eq=False, repr=False)
class Made:
    """What a pickle would have made by calling something."""

    name: str
    arguments: tuple[object, ...]
    state: object = None

    def __repr__(self) -> str:
        """Without the arguments: shared ones, nested 40 deep, print for ever."""
        return f"<made by {self.name}>"


def read_pickle(path: str | Path, allowed: re.Pattern[str]) -> object:
    """The value in a pickle file; `allowed` matches the dotted names that may occur in it."""
    return parse_pickle(path, read_bytes(path), allowed)


def parse_pickle(
    path: str | Path, data: bytes, allowed: re.Pattern[str], *, storages: bool = False
) -> object:
    """The value of a pickle that was found at `path`; with `storages` it may refer to such."""
    try:
        return _follow(data, allowed, storages)
    except _Refused as refused:
        raise StoreError(
            f"{path} is refused and nothing of it was run: {refused}. A file of plain values needs "
            "no such thing; do not open this one with pickle."
        ) from None
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise StoreError(
            f"{path} is not a whole pickle ({error}); it may be cut short: fetch it again."
        ) from error


class _Refused(Exception):
    """The pickle asks for something beyond plain values."""


def _follow(data: bytes, allowed: re.Pattern[str], storages: bool) -> object:
    stack: list[object] = []
    # The stacks below each mark that is still open.
    below: list[list[object]] = []
    memo: dict[object, object] = {}
    for operation, argument, _ in pickletools.genops(data):
        match operation.name:
            case "PROTO" | "FRAME":
                pass
            case name if _VALUE.fullmatch(name):
                if isinstance(argument, int) and argument.bit_length() > 1024:
                    # Python refuses to print longer ones.
                    raise ValueError(f"a number of {argument.bit_length()} bits")
                stack.append(argument)
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "MARK":
                below.append(stack)
                stack = []
            case "TUPLE" | "LIST" | "DICT" | "APPENDS" | "SETITEMS" as name:
                items, stack = stack, below.pop()
                _gather(name, stack, items)
            case "APPEND":
                _gather("APPENDS", stack, _take(stack, 1))
            case "SETITEM":
                _gather("SETITEMS", stack, _take(stack, 2))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(_take(stack, int(name[-1]))))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_named(*str(argument).split(" ", 1), allowed=allowed))
            case "STACK_GLOBAL":
                stack.append(_named(*_take(stack, 2), allowed=allowed))
            case "REDUCE" | "NEWOBJ":
                stack.append(_made(*_take(stack, 2)))
            case "BUILD":
                _build(stack)
            case "BINPERSID" if storages:
                stack.append(Stored(*_take(stack, 1)))
            case "STOP":
                (value,) = stack
                return value
            case name:
                raise _Refused(f"it holds the instruction {name}")
    raise ValueError("it does not end")


def _take(stack: list[object], count: int) -> list[object]:
    """The top of the stack, removed from it."""
    if len(stack) < count:
        raise ValueError(f"an instruction needs {count} values and finds {len(stack)}")
    taken = stack[-count:]
    del stack[-count:]
    return taken


def _gather(name: str, stack: list[object], items: list[object]) -> None:
    """Make a container of the items, or add them to the one on top of the stack."""
    if name == "TUPLE":
        stack.append(tuple(items))
        return
    if name in ("LIST", "DICT"):
        stack.append([] if name == "LIST" else {})
    into = stack[-1]
    if name in ("LIST", "APPENDS") and isinstance(into, list):
        into.extend(items)
    elif name in ("DICT", "SETITEMS") and isinstance(into, dict) and len(items) % 2 == 0:
        # Text alone: hashing nested tuples that share their parts can take forever.
        if not all(isinstance(key, str) for key in items[::2]):
            raise TypeError("a dictionary has keys other than text")
        into.update(zip(items[::2], items[1::2], strict=True))
    else:
        raise ValueError(f"{name} does not fit a {type(into).__name__}")


def _named(module: object, name: object, *, allowed: re.Pattern[str]) -> Named:
    if not (isinstance(module, str) and isinstance(name, str)):
        raise TypeError("a name is not text")
    if not allowed.fullmatch(f"{module}.{name}"):
        raise _Refused(f"it asks for {f'{module}.{name}'!r}")
    return Named(f"{module}.{name}")


def _made(what: object, arguments: object) -> object:
    if not (isinstance(what, Named) and isinstance(arguments, tuple)):
        raise _Refused("it calls something that is not a name")
    # A dictionary in all but name; the instructions that fill it expect one.
    if what.name == _ORDERED and not arguments:
        return {}
    return Made(what.name, arguments)


def _build(stack: list[object]) -> None:
    (state,) = _take(stack, 1)
    into = stack[-1] if stack else None
    if isinstance(into, Made):
        into.state = state
    # An OrderedDict can have attributes: a state dict keeps the versions of its modules there.
    elif not (isinstance(into, dict) and isinstance(state, dict)):
        raise _Refused(f"it sets the state of a {type(into).__name__}")


# Files of weights

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
    values = read_saved(path)
    weights = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if len(weights) < len(values):
        raise StoreError(f"{path} must hold weights by name, got {short(values)}.")
    return weights


def read_saved(path: str | Path) -> dict[str, object]:
    """Tensors and plain values by name in a file that `torch.save` wrote of a mapping of them.

    Only values of the mapping itself are made tensors; one inside another value stays a `Made`.
    """
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
    values = parse_pickle(path, members[f"{roots[0]}data.pkl"], _ALLOWED, storages=True)
    if not isinstance(values, dict):
        raise StoreError(f"{path} must hold values by name, got {short(values)}.")
    storages = {
        name.removeprefix(f"{roots[0]}data/"): content
        for name, content in members.items()
        if name.startswith(f"{roots[0]}data/")
    }
    made = {name: value for name, value in values.items() if isinstance(value, Made)}
    weights: dict[str, Tensor] = {}
    for name, value in made.items():
        try:
            weights[name] = _tensor(value, storages)
        except (ValueError, TypeError) as error:
            raise StoreError(f"{path}: {short(name)} is not a whole tensor: {error}.") from error
    # Tied matrices are stored once and counted twice.
    if sum(weight.nbytes for weight in weights.values()) > 2 * len(data):
        raise StoreError(f"{path} names more numbers than it holds: its tensors share memory.")
    return {**values, **weights}


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
