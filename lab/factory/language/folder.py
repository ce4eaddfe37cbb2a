"""A folder of small language models, in which every model is whole or absent.

    language.json      the version of this layout, the settings, the text they were trained on
    NAME/              a Hugging Face folder: configuration, weights, tokenizer; and report.json
    failed/NAME.json   the report of a model that did not learn

1. `held` keeps other runs out, and removes what a killed one left.
2. `check_begun` refuses a folder of something else, of another version or of other settings;
   `begin` writes down what it is made of.
3. A model is written beside its place (`staged`) and moved there when it is complete
   (`keep_model`). `finished` gives its report if its weights still are what was written: one that
   was damaged is made again.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from graphcircuits.cases.collection import REPORT
from graphcircuits.io.files import StoreError, read_json, short, write_json
from graphcircuits.io.store import check_version, origin
from graphcircuits.jobs.command import driver_command
from lab.factory.language.report import check_report
from lab.files import hold

LAYOUT = 1
MANIFEST, FAILED = "language.json", "failed"
WEIGHTS = "model.safetensors"
_STAGED = ".staged-"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this run alone; removed again if nothing came of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder, f"another run is writing to {folder}; wait for it."):
        _remove_staged(folder)
        try:
            yield
        finally:
            _remove_staged(folder)
            with suppress(OSError):
                folder.rmdir()


def _remove_staged(folder: Path) -> None:
    for left in folder.glob(f"{_STAGED}*"):
        shutil.rmtree(left, ignore_errors=True)


def check_begun(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a folder was begun with; None if it is new. Anything else is refused."""
    if not (folder / MANIFEST).exists():
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        if strange := [path.name for path in found if path.name[0] != "."]:
            raise ValueError(
                f"{folder} holds other things, such as {short(strange[0])}; name a new folder, or "
                "one that was begun by this command."
            )
        return None
    manifest = read_json(folder / MANIFEST)
    check_version(folder / MANIFEST, manifest)
    if manifest.get("layout") != LAYOUT:
        raise StoreError(
            f"{folder} was written by graphcircuits {short(manifest.get('package'))} in layout "
            f"{short(manifest.get('layout'))}, and this version has layout {LAYOUT}; name another "
            "folder."
        )
    begun = manifest.get("settings")
    if not isinstance(begun, dict) or not isinstance(manifest.get("text"), dict):
        raise StoreError(f"{folder / MANIFEST} is not whole; name another folder.")
    other = [
        f"--{name} {begun.get(name)}, not {value}"
        for name, value in settings.items()
        if begun.get(name) != value
    ]
    if other:
        raise ValueError(
            f"{folder} was begun with {'; '.join(other)}: give the same, or name another folder."
        )
    return manifest


def begin(folder: Path, settings: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Write down what the models are made of; a folder of another text is refused."""
    begun = check_begun(folder, settings)
    if begun is None:
        made = origin("language-models", driver_command())
        about = {**made, "layout": LAYOUT, "settings": settings, "text": text}
        write_json(folder / MANIFEST, about)
    elif begun["text"].get("sha256") != text["sha256"]:
        raise ValueError(
            f"{folder} was begun with another text: packages have been installed, removed or "
            "changed since. Name another folder."
        )


def finished(folder: Path, name: str) -> dict[str, Any] | None:
    """The report of a model that is there, or of one that failed; None if it is to be made."""
    place = folder / name
    try:
        report = check_report(place / REPORT, read_json(place / REPORT))
        if report["sha256"] == _sha256(place / WEIGHTS) and report["model"] == name:
            return report
    except (OSError, StoreError, KeyError):
        pass
    try:
        path = folder / FAILED / f"{name}.json"
        report = check_report(path, read_json(path))
        return report if report["model"] == name and report["problem"] else None
    except (OSError, StoreError, KeyError):
        return None


@contextmanager
def staged(folder: Path, name: str) -> Iterator[Path]:
    """An empty folder beside the model's place, removed at the end if it is still there."""
    place = Path(tempfile.mkdtemp(prefix=f"{_STAGED}{name}-", dir=folder))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def keep_model(place: Path, folder: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    """Move a model that is complete to its place, with its report."""
    whole = {**report, "sha256": _sha256(place / WEIGHTS)}
    write_json(place / REPORT, whole)
    final = folder / whole["model"]
    if final.exists():
        shutil.rmtree(final)  # damaged, or it would not have been made again
    place.chmod(0o755)  # temporary folders are for their owner alone
    place.rename(final)
    return whole


def keep_failure(folder: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    write_json(folder / FAILED / f"{report['model']}.json", report)
    return dict(report)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
