"""Results as text for other programs: CSV for tables, Graphviz source for pictures."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.io.files import csv_text
from graphcircuits.result.files import components


def edges_csv(
    ranked: Sequence[tuple[str, float]],
    others: Mapping[str, Float[Tensor, " edge"] | None],
    ranking: Int[Tensor, " edge"],
) -> str:
    """A line per edge, from best to worst: rank, edge, ends, score, and the `others` that there are
    (in edge order)."""
    given = {name: x[ranking].tolist() for name, x in others.items() if x is not None}
    lines: list[list[object]] = [["rank", "edge", "writer", "reader", "score", *given]]
    for index, (name, score) in enumerate(ranked):
        values = [f"{column[index]:.6g}" for column in given.values()]
        lines.append([index + 1, name, *name.split("->"), repr(score), *values])
    return csv_text(lines)


def circuit_dot(circuit: Circuit, scores: Float[Tensor, " edge"]) -> str:
    """Graphviz source of a circuit; better edges thicker."""
    some = scores[circuit.mask]
    low, high = (some.min().item(), some.max().item()) if len(some) else (0.0, 0.0)
    lines = [f'  "{name}" [shape=box];' for name in components(circuit.graph, circuit)]
    for (name, writer, ends), score in zip(circuit.links(), some.tolist(), strict=True):
        width = 0.5 + 3.5 * (score - low) / (high - low or 1.0)
        label = f'label="{name[-2]}", ' if name.endswith(">") else ""
        style = f'{label}penwidth={width:.2f}, tooltip="{name}: {score:.4g}"'
        lines += [f'  "{writer}" -> "{end}" [{style}];' for end in ends]
    return "\n".join(["digraph circuit {", *lines, "}"]) + "\n"
