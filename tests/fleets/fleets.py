"""Fleets of small random subjects with unlike sizes, and a patched run by hand."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.cases.architectures import subject_config
from graphcircuits.cases.prepare import case_exchange
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, Weights, form
from graphcircuits.subject.transformer import Transformer
from tests.subjects import make_subject
from tests.tiers import some

UNLIKE: list[dict[str, Any]] = [
    {},
    {"d_model": 5, "d_head": 3, "d_mlp": 7, "n_ctx": 4, "d_vocab_out": 1, "causal": False},
    {"d_model": 12, "d_head": 2, "d_mlp": 20, "n_ctx": 5, "d_vocab": 7, "d_vocab_out": 6},
    {"d_model": 3, "d_head": 1, "d_mlp": 2, "n_ctx": 3, "d_vocab": 3, "d_vocab_out": 2},
]
MIXED = ("ib-3", "ib-13", "ib-36")
"""Two layers and four heads: a numerical output, one with None and a wide MLP, a single map."""


_LLAMA: dict[str, Any] = {
    "norm": "rms",
    "positions": "rotary",
    "d_head": 4,
    "activation": "silu",
    "gated_mlp": True,
    "biases": False,
}
FLEETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-positions": {"positions": "none", "biases": False},
    "relu": {"activation": "relu"},
    "rotary": {"positions": "rotary", "d_head": 4, "rotary_base": 100.0},
    "grouped": {"n_kv_heads": 2},
    "gated": {"gated_mlp": True, "activation": "gelu"},
    "parallel": {"parallel": True},
    "gpt2": {"norm": "layer", "activation": "gelu-tanh", "norm_eps": 1e-2},
    "neox": {
        "norm": "layer",
        "positions": "rotary",
        "rotary_dim": 2,
        "d_head": 5,
        "parallel": True,
        "biases": False,
    },
    "rms": {"norm": "rms", "activation": "silu", "norm_eps": 1e-2},
    "llama": _LLAMA,
    "llama-gqa": _LLAMA | {"n_kv_heads": 2},
    "one-key": _LLAMA | {"n_kv_heads": 1, "parallel": True, "gated_mlp": False, "d_model": 6},
}
"""Every option that fleets compute, of subjects of unlike sizes where it can be."""
SOME_FLEETS = some(FLEETS, ("plain", "gpt2", "neox", "llama-gqa"))


def unlike_subjects(architecture: str = "plain", **options: Any) -> list[Transformer]:
    options = FLEETS[architecture] | options
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


def padding_is_zero(subjects: Sequence[Transformer], weights: Weights) -> bool:
    """Whether everything outside the members' corners is exactly zero."""
    sizes = (
        (s, name, w.shape) for s, one in enumerate(subjects) for name, w in one.weights.items()
    )
    outside = {name: w.clone() for name, w in weights.items()}
    for s, name, shape in sizes:
        outside[name][s][tuple(map(slice, shape))] = 0
    return not any(w.any() for w in outside.values())


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
        Transformer.random(subject_config(case), generator, case.codec, dtype=torch.float64)
        for case in cases
    ]
    return subjects, [case_exchange(case, inputs, pairs, 3) for case in cases]


def one_task(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Each of them as the single task of its subject."""
    return [[exchange] for exchange in exchanges]


def patched_logits(
    subject: Transformer, tokens: Tensor, donors: Tensor, components: Iterable[str]
) -> Tensor:
    """A plain run in which the named components hold what they did on `donors`."""
    components = set(components)
    chosen = torch.tensor([name in components for name in subject.graph.writer_names[1:]])
    return patched_rows(subject, tokens, donors, chosen.expand(len(tokens), -1))


def patched_rows(subject: Transformer, tokens: Tensor, donors: Tensor, patched: Tensor) -> Tensor:
    """A plain run layer by layer; the components marked, by row, hold what they did on `donors`."""
    weights, config = subject.weights, subject.config
    states = subject.run(donors).states
    stream = subject.embed(tokens)
    by_layer = patched.unflatten(1, (config.n_layers, -1))[:, None]
    for layer in range(config.n_layers):
        heads, mlp = by_layer[:, :, layer, :-1], by_layer[:, :, layer, -1:]
        b_O, b_out = (subject.bias(name, layer) for name in ("b_O", "b_out"))
        z = subject.attention(stream, layer)[-1]
        z = torch.where(heads[..., None], states.z[layer], z)
        with_heads = stream + F.linear(z.flatten(2), weights["W_O"][layer].flatten(0, 1).T, b_O)
        hidden = subject.mlp(stream if config.parallel else with_heads, layer)[-1]
        hidden = torch.where(mlp, states.hidden[layer], hidden)
        stream = with_heads + F.linear(hidden, weights["W_out"][layer].T, b_out)
    return subject.unembed(stream)
