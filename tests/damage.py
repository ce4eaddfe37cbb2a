"""Damaged and forged files, and the terms on which a reader must answer.

1. `bend` damages bytes at random: flips, cuts, insertions, splices.
2. `forge` changes one place of a plain value to another type or size; the test hashes it anew.
3. `limits` are the terms on which a reader must answer: ten seconds, two gigabytes.

`tests.fuzz` gives readers such files by the hundred.
"""

import copy
import json
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from graphcircuits.io.store import content_hash

SECONDS, BYTES = 10, 2 * 2**30


def nested(depth: int, bracket: str = "[]") -> str:
    """Text with this many brackets inside each other."""
    return bracket[0] * depth + bracket[1] * depth


WRONG: list[Any] = [
    None, True, False, 0, 1, -1, 3, 10**6, 10**12, 10**30, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "/dev/zero", "\x1b[2J", nested(100_000), "a" * 10_000, [], [1], [[]],
    {}, {"a": 1}, ["a", "b"] * 50, [0.5] * 8, json.loads(nested(60)), {"transformer": "/dev/zero"},
]  # fmt: skip


def bend(data: bytes, rng: random.Random) -> bytes:
    """The bytes, damaged in up to three places."""
    bent = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(bent) + 1)
        end = min(len(bent), start + rng.choice([1, 2, 8, 100]))
        match rng.randrange(6):
            case 0 if bent:
                bent[min(start, len(bent) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                del bent[start:]
            case 2:
                del bent[start:end]
            case 3:
                bent[start:start] = rng.randbytes(end - start)
            case 4:
                at = rng.randrange(len(bent) + 1)
                bent[at:at] = bent[start:end]
            case _:
                bent[start:end] = rng.choice([b"[", b"{", b"9", b"-", b'"', b"\x00", b"\xff"]) * (
                    end - start
                )
    return bytes(bent)


def forge(value: Any, rng: random.Random) -> Any:
    """A copy with one place changed, removed, doubled or renamed."""
    value = copy.deepcopy(value)
    place: Any = {"all": value}
    whole = place
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.2:
            break
        place = inner
    if place is whole or rng.random() < 0.7:
        place[key] = copy.deepcopy(rng.choice(WRONG))
    elif isinstance(place, dict):
        inner = place.pop(key)
        if rng.random() < 0.5:
            place[rng.choice(["x", f"{key}\x1b[2J", "W_E"])] = inner
    else:
        place.insert(key, place[key]) if rng.random() < 0.5 else place.pop(key)
    return whole["all"]


# Files of ours, opened and closed again


def split_artifact(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a safetensors artifact."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["graphcircuits"])
    return header, safetensors.torch.load(data)


def rehashed(header: Any, tensors: dict[str, Tensor]) -> Any:
    """The header with the hash that a writer would have given it."""
    if isinstance(header, dict) and "sha256" in header:
        rest = {name: value for name, value in header.items() if name != "sha256"}
        return rest | {"sha256": content_hash(rest, tensors)}
    return header


def join_artifact(path: Path, header: Any, tensors: dict[str, Tensor]) -> None:
    metadata = {"graphcircuits": json.dumps(rehashed(header, tensors))}
    path.write_bytes(safetensors.torch.save(tensors, metadata))


def rehashed_result(content: Any) -> Any:
    """A result in JSON with the hash of what it holds now."""
    block = content.get("graphcircuits") if isinstance(content, dict) else None
    if isinstance(block, dict) and "sha256" in block:
        del block["sha256"]
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        block["sha256"] = content_hash(text.encode())
    return content


# The terms


@contextmanager
def limits() -> Iterator[None]:
    """Ten seconds and, where the system says how much the process has, two gigabytes more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    top = soft
    if pages.exists():
        top = int(pages.read_text().split()[0]) * resource.getpagesize() + BYTES

    def expire(*_: object) -> None:
        raise TimeoutError(f"a reader took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (top, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
