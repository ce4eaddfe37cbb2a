"""Small tasks for random subjects, and one subject with a planted circuit."""

import torch
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import LossFunction, Pairs
from tests.subjects import make_tokens


def make_pairs(subject: Transformer, loss_name: str | LossFunction = "kl", batch: int = 3) -> Pairs:
    """Random prompts; the classes of cross-entropy are random, other targets the clean run's."""
    clean, corrupted = (make_tokens(subject, seed=seed, batch=batch) for seed in (1, 2))
    classes = torch.arange(batch) % subject.config.d_vocab_out
    return Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=torch.ones(clean.shape, dtype=torch.bool),
        loss_name=loss_name,
        targets=classes if loss_name == "cross-entropy" else None,
    )


def output_sum(logits: Tensor, pairs: Pairs) -> Tensor:
    """A loss that is linear in the logits, with a different weight at each position."""
    weights = torch.linspace(0.5, 2, logits.shape[1] * logits.shape[2]).to(logits)
    return (logits.flatten(1) * weights).sum(-1)


def planted(subject: Transformer) -> tuple[Transformer, Circuit]:
    """The subject with all components but a0.h1 and m1 silent, and the circuit that is left."""
    weights = {name: weight.clone() for name, weight in subject.weights.items()}
    weights["W_O"][0, [0, 2, 3]] = 0
    weights["W_O"][1] = 0
    weights["W_out"][0] = 0
    names = [f"input->a0.h1<{kind}>" for kind in "qkv"]
    names += ["input->m1", "a0.h1->m1", "m1->logits", "input->logits", "a0.h1->logits"]
    silent = Transformer(subject.config, weights)
    return silent, Circuit.from_names(subject.graph, names)


def ranks_right(scores: Tensor, circuit: Circuit) -> float:
    """The share of (inside, outside) pairs in the right order, ties counting half."""
    gaps = scores[circuit.mask][:, None] - scores[~circuit.mask]
    return ((gaps > 0).double() + 0.5 * (gaps == 0)).mean().item()
