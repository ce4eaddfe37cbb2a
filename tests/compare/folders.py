"""Folders of subjects as `graphcircuits build` writes them, here with random weights."""

from dataclasses import replace
from pathlib import Path

import torch

from graphcircuits import Transformer
from graphcircuits.cases.architectures import subject_config
from graphcircuits.compare.selection import Unit
from graphcircuits.subject.files import save_transformer


def save_subject(folder: Path, id: str) -> Transformer:
    """A random subject of the id of an order, in its architecture; saved under the model's name."""
    unit = Unit.of(id)
    case, order = unit.case, replace(unit.order, case=unit.case.subject_id)
    config = subject_config(case, order.architecture)
    subject = Transformer.random(config, torch.Generator().manual_seed(0), case.codec)
    save_transformer(folder / f"{order.id}.safetensors", subject)
    return subject
