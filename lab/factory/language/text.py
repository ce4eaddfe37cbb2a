"""Text that every machine with Python has: sources, documentation and licences of its packages.

1. Below each root (the standard library, the installed packages) files are found by their endings
   and grouped by the first part of their path. Within a group they stand in the order of the
   SHA-256 of their paths, which is a shuffle that comes out the same everywhere.
2. The groups take turns, a file at a time, so that no large package is all of the text, until so
   many MiB are there. A file is taken if it is plain ASCII, of ordinary length, with ordinary
   lines, and not a copy of one that was taken; tabs become four spaces.
3. About one file in twenty is held out, again by the hash of its path.

The SHA-256 of all that was taken names the text: two machines with the same packages have the same.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".py", ".pyi", ".md", ".rst", ".txt")
NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "METADATA", "AUTHORS")
"""How names of files without such an ending begin."""
LONGEST_FILE = 2**18
LONGEST_LINE = 400
"""Beyond these, in bytes and in characters, a file is rather data."""
HELD_OUT = 20
"""One file in so many."""
LEAST_TEXT = 2**18
"""Bytes to train on, below which no model learns anything worth having."""
LEAST_HELD_OUT = 2**12
_PLAIN = frozenset(range(32, 127)) | {10}
_ELSEWHERE = ("site-packages", "dist-packages", "__pycache__")


@dataclass(frozen=True)
class SourceText:
    """Documents to train on, and others to judge by."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    sha256: str
    groups: dict[str, int]
    """How many bytes came from which package, or folder of the standard library."""

    @property
    def size(self) -> int:
        """Characters, which are bytes."""
        return sum(self.groups.values())


def installed_roots() -> list[Path]:
    """The folders of the standard library and of the packages that are installed here."""
    paths = sysconfig.get_paths()
    return [
        Path(path) for path in dict.fromkeys(paths[x] for x in ("stdlib", "purelib", "platlib"))
    ]


def collect(roots: Sequence[Path], mib: float) -> SourceText:
    """At most so many MiB of text from below the roots."""
    for root in roots:
        if not root.is_dir():
            raise FileNotFoundError(f"no text in {root}: there is no such folder.")
    train: list[str] = []
    held_out: list[str] = []
    groups: dict[str, int] = {}
    digest, seen, left = hashlib.sha256(), set[bytes](), int(mib * 2**20)
    for group, key, path in _in_turn(roots):
        document = read_plain(path)
        content = hashlib.sha256((document or "").encode()).digest()
        if document is None or content in seen:
            continue
        if len(document) > left:
            break
        seen.add(content)
        left -= len(document)
        groups[group] = groups.get(group, 0) + len(document)
        apart = int(key[-8:], 16) % HELD_OUT == 0
        (held_out if apart else train).append(document)
        digest.update(content + (b"1" if apart else b"0"))
    text = SourceText(tuple(train), tuple(held_out), digest.hexdigest(), groups)
    _require(text, roots)
    return text


def _require(text: SourceText, roots: Sequence[Path]) -> None:
    enough = {"train on": (text.train, LEAST_TEXT), "hold out": (text.held_out, LEAST_HELD_OUT)}
    for purpose, (documents, least) in enough.items():
        if (found := sum(map(len, documents))) < least:
            raise ValueError(
                f"too little text: {found} bytes to {purpose}, at least {least} are needed; "
                f"plain ASCII files ending in {', '.join(SUFFIXES)} count, in "
                f"{', '.join(map(str, roots))}."
            )


def read_plain(path: Path) -> str | None:
    """The text of a file, or None if it is not plain."""
    try:
        if path.stat().st_size > LONGEST_FILE:
            return None
        data = path.read_bytes()
    except OSError:
        return None  # removed in between, or not ours to read
    data = data.replace(b"\r\n", b"\n").replace(b"\t", b"    ")
    if not data.strip() or not _PLAIN.issuperset(data):
        return None
    text = data.decode("ascii")
    return None if max(map(len, text.split("\n"))) > LONGEST_LINE else text


def _in_turn(roots: Sequence[Path]) -> Iterator[tuple[str, str, Path]]:
    """Group, hash and path of every file, the groups taking turns."""
    groups: dict[tuple[int, str], list[tuple[str, Path]]] = {}
    for place, root in enumerate(roots):
        for path in _files(root):
            parts = path.relative_to(root).parts
            key = hashlib.sha256("/".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
            group = parts[0] if len(parts) > 1 else "."
            groups.setdefault((place, group), []).append((key, path))
    waiting = [(name, iter(sorted(groups[place, name]))) for place, name in sorted(groups)]
    while waiting:
        still = []
        for name, files in waiting:
            if (found := next(files, None)) is not None:
                yield name, *found
                still.append((name, files))
        waiting = still


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _ELSEWHERE and name[0] != "."]
        for name in files:
            if name.endswith(SUFFIXES) or name.upper().startswith(NAMES):
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    yield path
