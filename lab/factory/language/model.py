"""Making one small language model: trained, written, read back, judged, kept.

1. `train` trains it on the token stream that lies ready in a folder of data.
2. It is written beside its place as a Hugging Face folder, in bfloat16, with its tokenizer, and
   read back with `load_model`. What is judged is what was read back: its loss on held-out text, and
   the share of prompts that it answers right in every task.
3. A model that is not better than counts of neighbours has not learned; its report is kept, it is
   not.
"""

import math
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcircuits.adapters.hf import no_bar
from graphcircuits.adapters.hf_families import load_transformers
from graphcircuits.adapters.load import load_model
from graphcircuits.io.files import read_json
from lab.factory.language import folder as folders
from lab.factory.language.designs import Design
from lab.factory.language.train import held_out_loss, task_shares, train
from lab.files import writing


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageConfig:
    """How models are trained; all of a folder are trained alike."""

    steps: int = 2000
    batch: int = 2**15
    """Tokens per step."""
    lr: float = 3e-3
    """The highest learning rate of a model 64 wide; it falls with the root of the width."""
    mib: float = 32.0
    """Text, at most."""
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {least} or more, got {value}"
            for name, least in (("steps", 1), ("batch", 1), ("seed", 0))
            if (value := getattr(self, name)) < least
        ]
        problems += [
            f"{name} must be a number above 0, got {value}"
            for name in ("lr", "mib")
            if not 0 < (value := getattr(self, name)) < math.inf
        ]
        if problems:
            raise ValueError(f"{'; '.join(problems)}.")


@dataclass(frozen=True)
class ModelJob:
    """One model to make, of what lies in a folder of data."""

    design: Design
    folder: Path
    data: Path
    config: LanguageConfig
    device: str


def make_model(job: ModelJob) -> Generator[tuple[int, float] | dict[str, Any], None, None]:
    """Train, write, read back and judge a model.

    Yields the steps so far and the loss, now and then, and at last the report that is written with
    the model.
    """
    began, design, config = time.monotonic(), job.design, job.config
    data = job.data / design.tokenizer
    about = read_json(data / "about.json")
    tokenizer = load_transformers().PreTrainedTokenizerFast.from_pretrained(data)
    training, held_out = (_stream(data / f"{x}.npy", job.device) for x in ("train", "held_out"))
    # The library draws weights and dropout from PyTorch's own generators.
    cuda = [torch.device(job.device)] if job.device != "cpu" else []
    with torch.random.fork_rng(cuda):
        torch.manual_seed(config.seed)
        model = design.model(len(tokenizer), tokenizer.eos_token_id).to(job.device)
        yield from train(
            model,
            training,
            context=design.context,
            steps=config.steps,
            batch=config.batch,
            lr=config.lr * math.sqrt(64 / design.width),
            weight_decay=design.weight_decay,
            seed=config.seed,
        )
    report = {
        "model": design.name,
        **asdict(design),
        "heads": design.heads,
        "context": design.context,
        "vocabulary": len(tokenizer),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dropout": design.dropout,
        "weight_decay": design.weight_decay,
        "training": asdict(config),
        "bigram_loss": about["bigram_loss"],
    }
    with folders.staged(job.folder, design.name) as place:
        with no_bar(load_transformers()), writing(job.folder):
            # Half the size, and in the numbers of what is judged.
            model.to(torch.bfloat16).save_pretrained(place)
            tokenizer.save_pretrained(place)
        # Weights that are not finite would be refused as a damaged file.
        finite = all(bool(weight.isfinite().all()) for weight in model.parameters())
        subject = load_model(place, device=job.device, dtype="float32") if finite else None
        loss = held_out_loss(subject, held_out, design.context) if subject else math.nan
        report |= _judged(loss, about)
        if subject and report["problem"] is None:
            shares, refused = task_shares(subject)
            report |= {"tasks": shares, "not_asked": refused}
        report["seconds"] = round(time.monotonic() - began, 1)
        if report["problem"] is None:
            report = folders.keep_model(place, job.folder, report)
        else:
            report = folders.keep_failure(job.folder, report)
    yield report


def _judged(loss: float, about: dict[str, float]) -> dict[str, Any]:
    if not math.isfinite(loss):
        problem = "its loss is not finite"
    elif loss >= about["bigram_loss"]:
        counts = f"{about['bigram_loss']:.3f}, what counts of neighbours reach"
        problem = f"its held-out loss of {loss:.3f} is not below {counts}"
    else:
        problem = None
    bits = loss / math.log(2) / about["characters_per_token"]
    finite = math.isfinite(loss)
    return {
        "problem": problem,
        "loss": loss if finite else None,
        "bits_per_character": bits if finite else None,
    }


def _stream(path: Path, device: str) -> Tensor:
    # Ids are below 2^15; unsigned numbers of 16 bits cannot be gathered.
    return torch.from_numpy(np.load(path).astype(np.int16)).to(device)
