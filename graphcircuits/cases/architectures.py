"""The architectures that subjects are built in, by name, and the sizes a case has in each.

They are what people train: with and without norms, learned or rotary positions, gated MLPs, grouped
keys, parallel layers. `plain` has the sizes of the planted subjects; the others have round ones, as
people choose them.

Torch is imported only where configurations are made, so that names can be listed quickly.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case
    from graphcircuits.cases.multitask import MultiCase
    from graphcircuits.graph import ComponentGraph
    from graphcircuits.subject.transformer import TransformerConfig

NARROW, WIDE = 8, 16
"""Width of heads in all architectures but `plain`: wide where a plain head is wider than narrow,
which is where the compiled ones are wider than 16."""
MLP_UNIT = 8
"""Gated MLPs are a multiple of this wide."""


class UnfitError(ValueError):
    """An architecture cannot hold a case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubjectArchitecture:
    """What all subjects of one kind share, and how naturally trained ones are regularized."""

    norm: Literal["none", "layer", "rms"] = "none"
    positions: Literal["learned", "rotary"] = "learned"
    rotary_share: float = 1.0
    """The share of a head's coordinates that is rotated."""
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = "gelu"
    gated_mlp: bool = False
    parallel: bool = False
    biases: bool = True
    heads_per_group: int = 1
    """Heads that share keys and values."""
    weight_decay: float = 0.0
    dropout: float = 0.0

    def options(self, n_heads: int, d_head: int) -> dict[str, Any]:
        """What a configuration says besides its sizes, for so many heads of this width."""
        grouped, rotated = self.heads_per_group > 1, self.rotary_share < 1
        same = ("positions", "norm", "activation", "gated_mlp", "parallel", "biases")
        return {name: getattr(self, name) for name in same} | {
            "n_kv_heads": n_heads // self.heads_per_group if grouped else None,
            "rotary_dim": 2 * round(d_head * self.rotary_share / 2) if rotated else None,
        }


LLAMA = SubjectArchitecture(
    norm="rms",
    positions="rotary",
    activation="silu",
    gated_mlp=True,
    biases=False,
    weight_decay=0.1,
)
ARCHITECTURES = {
    "plain": SubjectArchitecture(),
    "relu": SubjectArchitecture(activation="relu"),
    "rotary": SubjectArchitecture(positions="rotary"),
    "gpt2": SubjectArchitecture(
        norm="layer", activation="gelu-tanh", weight_decay=0.01, dropout=0.1
    ),
    "neox": SubjectArchitecture(norm="layer", positions="rotary", rotary_share=0.5, parallel=True),
    "llama": LLAMA,
    "llama-gqa": replace(LLAMA, heads_per_group=2),
    "rms": SubjectArchitecture(norm="rms", activation="silu"),
}
"""By name. `plain` is that of the planted subjects that ship."""


def find_architecture(name: str) -> SubjectArchitecture:
    """The architecture of that name."""
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"unknown architecture {name!r}; choose from {known}.")
    return ARCHITECTURES[name]


def subject_config(
    case: "Case | MultiCase", architecture: str = "plain", widen: float = 1.0
) -> "TransformerConfig":
    """The subject's configuration: the case's graph, context and vocabularies.

    `widen` multiplies the width of heads, stream and MLPs. Refused where heads cannot be grouped.
    """
    from graphcircuits.subject.transformer import TransformerConfig

    chosen, dims, codec = find_architecture(architecture), case.subject_dims, case.codec
    if dims.n_heads % chosen.heads_per_group:
        raise UnfitError(
            f"case {case.id!r} has {dims.n_heads} heads, which {architecture} cannot put in groups "
            f"of {chosen.heads_per_group}; choose another architecture."
        )
    if architecture == "plain":
        d_head = max(1, round(dims.d_head * widen))
        wide = 1.0 if widen == 1.0 else d_head * dims.n_heads / dims.d_model
        d_model, d_mlp = round(dims.d_model * wide), round(dims.d_mlp * wide)
    else:
        # Rotation takes coordinates in pairs, and half of a head may be rotated.
        d_head = max(4, 4 * round((WIDE if dims.d_head > NARROW else NARROW) * widen / 4))
        d_model = dims.n_heads * d_head
        gated = MLP_UNIT * round(8 * d_model / 3 / MLP_UNIT)
        d_mlp = gated if chosen.gated_mlp else 4 * d_model
    return TransformerConfig(
        n_layers=dims.n_layers,
        n_heads=dims.n_heads,
        d_head=d_head,
        d_model=d_model,
        d_mlp=d_mlp,
        n_ctx=case.max_seq_len,
        d_vocab=codec.d_vocab,
        d_vocab_out=codec.d_vocab_out,
        causal=case.causal,
        **chosen.options(dims.n_heads, d_head),
    )


def misfit(
    case_id: str, components: Iterable[str], edges: Iterable[str], graph: "ComponentGraph"
) -> str | None:
    """Why a circuit of these components and edges, of heads with keys and values of their own,
    cannot be planted in this graph; None where it can."""
    if graph.parallel:
        missing = sorted(edge for edge in edges if _within_layer(edge))
        if missing:
            return (
                f"case {case_id!r}: the program reads along {missing[0]}, and in parallel layers "
                "an MLP does not read the heads of its layer; choose another architecture."
            )
    heads = graph.n_heads // graph.n_groups
    owners: dict[tuple[str, int], str] = {}
    for name in sorted(name for name in components if ".h" in name):
        layer, _, head = name.partition(".h")
        group = (layer, int(head) // heads)
        if group in owners:
            return (
                f"case {case_id!r}: the program's heads {owners[group]} and {name} would share "
                "keys and values; choose another architecture."
            )
        owners[group] = name
    return None


def _within_layer(edge: str) -> bool:
    """Whether an MLP reads a head of its own layer."""
    writer, _, reader = edge.partition("->")
    return writer.partition(".")[0] == f"a{reader[1:]}" and reader.startswith("m")
