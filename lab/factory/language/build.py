"""Making small language models of what text a machine has.

1. Models that the folder holds are taken as they are.
2. For the others the text is collected, and tokenizers and token streams are made once, in a
   temporary folder.
3. The models are made in one process or several, the deepest first: begun last, they would run on
   alone.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from graphcircuits.io.files import write_json
from lab.factory.language import folder as folders
from lab.factory.language.designs import Design
from lab.factory.language.model import LanguageConfig, ModelJob
from lab.factory.language.packages import find_text
from lab.factory.language.tokens import bigram_loss, encode, make_tokenizer
from lab.factory.language.workers import Watch, make_each
from lab.files import writing


def make_models(
    designs: Sequence[Design],
    folder: Path,
    config: LanguageConfig,
    *,
    roots: Sequence[Path] | None = None,
    device: str = "cpu",
    processes: int = 1,
    watch: Watch = lambda name, step, loss: None,
    deadline: float = math.inf,
) -> Iterator[dict[str, Any]]:
    """The reports of the models, those that are there first, the others as they get ready.

    The text comes from below `roots`, or else from what is installed; one root alone may be a
    folder that `python -m lab.factory text` wrote. At the deadline, in the seconds of
    `time.monotonic`, models in training are given up.
    """
    settings = asdict(config)
    folders.check_begun(folder, settings)
    with folders.held(folder):
        there = {design: folders.finished(folder, design.name) for design in designs}
        yield from (report for report in there.values() if report is not None)
        unmade = sorted((x for x in designs if there[x] is None), key=lambda x: -x.layers)
        if not unmade:
            return
        text = find_text(roots, config.mib)
        documents = {"train": text.train, "held_out": text.held_out}
        sizes = {name: sum(map(len, found)) for name, found in documents.items()}
        about = {"sha256": text.sha256, "bytes": sizes, "groups": text.groups}
        folders.begin(folder, settings, about)
        with tempfile.TemporaryDirectory() as data:
            for kind in dict.fromkeys(design.tokenizer for design in unmade):
                _prepare(kind, Path(data, kind), documents)
            jobs = [ModelJob(design, folder, Path(data), config, device) for design in unmade]
            yield from make_each(jobs, processes, watch, deadline)


def _prepare(kind: str, place: Path, documents: dict[str, tuple[str, ...]]) -> None:
    """A tokenizer, the text in its tokens, and what counting neighbours reaches."""
    tokenizer = make_tokenizer(kind, documents["train"])
    streams = {name: encode(tokenizer, found) for name, found in documents.items()}
    with writing(place):
        tokenizer.save_pretrained(place)
        for name, stream in streams.items():
            np.save(place / f"{name}.npy", stream)
    characters = sum(map(len, documents["held_out"]))
    about = {
        "bigram_loss": bigram_loss(streams["train"], streams["held_out"], len(tokenizer)),
        "characters_per_token": characters / len(streams["held_out"]),
    }
    write_json(place / "about.json", about)
