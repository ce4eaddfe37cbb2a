"""Fleets of small random subjects with unlike sizes, and a patched run by hand."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.corpus import load_case
from graphcircuits.corpus.build import case_exchange, subject_codec, subject_config
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, form
from graphcircuits.subject.transformer import Transformer
from tests.subjects import make_subject

UNLIKE: list[dict[str, Any]] = [
    {},
    {"d_model": 5, "d_head": 3, "d_mlp": 7, "n_ctx": 4, "d_vocab_out": 1, "causal": False},
    {"d_model": 12, "d_head": 2, "d_mlp": 20, "n_ctx": 5, "d_vocab": 7, "d_vocab_out": 6},
    {"d_model": 3, "d_head": 1, "d_mlp": 2, "n_ctx": 3, "d_vocab": 3, "d_vocab_out": 2},
]
MIXED = ("ib-3", "ib-13", "ib-36")
"""Two layers and four heads: a numerical output, one with None and a wide MLP, a single map."""


def unlike_subjects(**options: Any) -> list[Transformer]:
    return [make_subject(seed=i, **(sizes | options)) for i, sizes in enumerate(UNLIKE)]


def fleet_of(subjects: Sequence[Transformer]) -> Fleet:
    return form([subject.config for subject in subjects])


def inputs_of(fleet: Fleet, rows: int, seed: int = 0) -> Tensor:
    """Tokens of every member's own vocabulary and context, filled with PAD up to the fleet's."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.ones(len(fleet.members), rows, fleet.config.n_ctx, dtype=torch.int64)
    for row, member in zip(tokens, fleet.members, strict=True):
        drawn = torch.randint(member.d_vocab, (rows, member.n_ctx), generator=generator)
        row[:, : member.n_ctx] = drawn
    return tokens


def coins(*shape: int, share: float = 0.5, seed: int = 3) -> Tensor:
    """True with the given probability."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def own(fleet: Fleet, subject: int, tokens: Tensor) -> Tensor:
    """A member's tokens without the padding."""
    return tokens[subject, :, : fleet.members[subject].n_ctx]


def case_fleet(
    ids: Sequence[str] = MIXED, inputs: int = 64, pairs: int = 16
) -> tuple[list[Transformer], list[Exchange]]:
    """Random float64 subjects of cases, and their exchanges."""
    cases = [load_case(id) for id in ids]
    generator = torch.Generator().manual_seed(5)
    subjects = [
        Transformer.random(
            subject_config(case), generator, subject_codec(case), dtype=torch.float64
        )
        for case in cases
    ]
    return subjects, [case_exchange(case, inputs, pairs, 3) for case in cases]


def one_task(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Each of them as the single task of its subject."""
    return [[exchange] for exchange in exchanges]


def patched_logits(
    subject: Transformer, tokens: Tensor, donors: Tensor, parts: Iterable[str]
) -> Tensor:
    """Plain matrix products, one head at a time; the named parts hold what they did on `donors`."""
    weights, config, parts = subject.weights, subject.config, set(parts)
    states = subject.run(donors).states
    length = tokens.shape[1]
    unseen = torch.ones(length, length).triu(1).bool() if config.causal else None
    stream = weights["W_E"][tokens] + weights["W_pos"][:length]
    for layer in range(config.n_layers):
        added = weights["b_O"][layer]
        for head in range(config.n_heads):
            q, k, v = (
                stream @ weights[f"W_{x}"][layer, head] + weights[f"b_{x}"][layer, head]
                for x in "QKV"
            )
            scores = q @ k.transpose(1, 2) / config.d_head**0.5
            if unseen is not None:
                scores = scores.masked_fill(unseen, -torch.inf)
            z = scores.softmax(-1) @ v
            if f"a{layer}.h{head}" in parts:
                z = states.z[layer][:, :, head]
            added = added + z @ weights["W_O"][layer, head]
        stream = stream + added
        hidden = F.gelu(stream @ weights["W_in"][layer] + weights["b_in"][layer])
        if f"m{layer}" in parts:
            hidden = states.hidden[layer]
        stream = stream + hidden @ weights["W_out"][layer] + weights["b_out"][layer]
    return stream @ weights["W_U"] + weights["b_U"]
