"""Models of TransformerLens as facts: stand-ins with its settings and its state dict."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from graphcircuits.task.pairs import Pairs

DATA = Path(__file__).parents[1] / "data"
HEADER, *ROWS = json.loads((DATA / "transformer_lens.json").read_text())
MODELS: dict[str, dict[str, Any]] = {row["name"]: row for row in ROWS}
EAP_IG: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((DATA / "eap_ig.json").read_text())
}


@dataclass
class HookedTransformer:
    """What an adapter sees of a model: settings and weights."""

    cfg: Any
    state: dict[str, Tensor]
    tokenizer: Any = None
    hook_dict: dict[str, Any] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Tensor]:
        return self.state


def settings(row: dict[str, Any], **others: Any) -> dict[str, Any]:
    """All settings, as version 3.9 has them, with some changed."""
    return HEADER["defaults"] | row["cfg"] | {"dtype": torch.float64} | others


def model(name: str, **others: Any) -> HookedTransformer:
    """A model of the table, its weights filled with the file's numbers one after the other."""
    row, numbers, start = MODELS[name], torch.tensor(HEADER["numbers"], dtype=torch.float64), 0
    state = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in row["zeros"].items()}
    for weight, shape in row["weights"].items():
        count = torch.Size(shape).numel()
        places = torch.arange(start, start + count) % len(numbers)
        state[weight], start = numbers[places].view(shape), start + count
    return HookedTransformer(SimpleNamespace(**settings(row, **others)), state | buffers(row))


def buffers(row: dict[str, Any]) -> dict[str, Tensor]:
    """Constants that TransformerLens keeps among its weights."""
    found = {"mask": torch.empty((0, 0), dtype=torch.bool), "IGNORE": torch.tensor(-torch.inf)}
    if row["cfg"].get("positional_embedding_type") == "rotary":
        found |= {"rotary_sin": torch.zeros(5, 2), "rotary_cos": torch.ones(5, 2)}
    layers = range(row["cfg"].get("n_layers", 1))
    return {f"blocks.{n}.attn.{x}": value for n in layers for x, value in found.items()}


def scored_model(name: str) -> tuple[HookedTransformer, Pairs, dict[str, Tensor]]:
    """A model that EAP-IG has scored, the pairs, and its matrices of scores."""
    row = EAP_IG[name]
    state = {n: torch.tensor(w, dtype=torch.float64) for n, w in row["state"].items()}
    clean, corrupted, answers = (
        torch.tensor(row[part]) for part in ("clean", "corrupted", "answers")
    )
    scored = torch.zeros_like(clean, dtype=torch.bool)
    scored[:, -1] = True
    pairs = Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=scored,
        loss_name="logit-diff",
        targets=answers[:, 0],
        incorrect=answers[:, 1],
    )
    full = HEADER["defaults"] | {"attn_scale": -1, "d_vocab_out": 9} | row["cfg"]
    scores = {n: torch.tensor(s, dtype=torch.float64) for n, s in row["scores"].items()}
    return HookedTransformer(SimpleNamespace(**full), state), pairs, scores
