"""A corpus of three small shards, and stand-ins for training it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases.collection import Member, Shard
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig
from graphcircuits.cases.subjects import Finished
from graphcircuits.fleets.recipes import recipe
from graphcircuits.fleets.train import TrainedSubject
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from lab.factory.shards import CorpusConfig, Manifest, write_manifest

BUILD = BuildConfig(inputs=32, interchanges=8, verify_inputs=32, verify_interchanges=8)
CONFIG = CorpusConfig(
    natural=4, planted=2, architectures=("plain", "llama"), layers=2, shard=2, build=BUILD
)
FAILING = "ib-36.natural.plain.0"
"""The subject that the stand-ins do not train."""


def member(case: str, fleet: str = "natural", architecture: str = "plain", fold: int = 0) -> Member:
    return Member(Order(case, fleet, architecture), fold, case)


PLAN = (
    Shard("natural-plain-2-0", (member("ib-4"), member("ib-36", fold=1)), 10_000),
    Shard("natural-llama-2-0", tuple(member(id, "natural", "llama") for id in ("ib-4", "ib-8")), 9),
    Shard("planted-plain-2-0", (member("ib-4", "planted"), member("ib-8", "planted", fold=2)), 9),
)


def begun(folder: Path, config: CorpusConfig = CONFIG) -> Manifest:
    """A folder with a plan and nothing else."""
    manifest = Manifest(config, PLAN)
    write_manifest(folder, manifest)
    return manifest


def all_files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def instantly(subjects: list[Transformer], *rest: Any, **_: Any) -> list[TrainedSubject]:
    """Stands for `train_fleet`: all pass as they came; one check is reported."""
    progress = rest[4]
    progress(250, len(subjects), len(subjects))
    return [TrainedSubject(subject, 1.0, 250, passed=True) for subject in subjects]


def unmeasured(trained: Any, data: dict[Order, Any], *_: Any) -> list[Finished]:
    """Stands for `verified`: one of them did not pass."""
    return [
        Finished(order, one.subject.to(torch.float16), report(order))
        for order, one in zip(data, trained, strict=True)
    ]


def report(order: Order) -> dict[str, Any]:
    passed = order.id != FAILING
    return {"case": order.case, "passed": passed, "accuracy": 0.999 if passed else 0.5, "steps": 9}


def quick(settings: CorpusConfig = CONFIG, **options: Any) -> CorpusConfig:
    """Settings under which real training takes a second."""
    given = {"rows": 16, "check_every": 20, "check_rows": 32, "lr": 2e-2, **options}
    return replace(settings, build=replace(BUILD, siit=replace(recipe("natural"), **given)))


def tiny() -> Transformer:
    """A subject with symbols, in half precision."""
    sizes: dict[str, Any] = {
        "n_layers": 1,
        "n_heads": 1,
        "d_head": 2,
        "d_model": 2,
        "d_mlp": 2,
        "n_ctx": 3,
    }
    config = TransformerConfig(**sizes, d_vocab=4, d_vocab_out=2)
    codec = Codec(("a", "b"), (True, False))
    subject = Transformer.random(config, torch.Generator().manual_seed(0), codec)
    return subject.to(torch.float16)
