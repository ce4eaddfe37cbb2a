"""Writing to disk: files that are whole or absent.

`write_atomic` writes beside the target, syncs, and renames: a crash leaves the old file.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_atomic(path: str | Path, data: bytes) -> None:
    """Make `path` hold exactly `data`, or leave it as it was. Missing folders are created."""
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    # The rename itself reaches the disk with the folder; some systems cannot open folders.
    with suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
