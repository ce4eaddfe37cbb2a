"""What a method says about a subject: one score per edge, views of it, and the files people use.

1. `Result` holds the scores in the graph's edge order, larger meaning more likely in the circuit,
   and what they were computed for.
2. `top`, `circuit` and `head_level` are views, `show` writes a page; ties are broken by edge order.
3. `save` and `load` use the JSON that EAP-IG and the MIB leaderboard read and write, with our
   fields under one key, or safetensors (`files`); `load` also reads EAP-IG's `.pt` (`pt`), and
   `save` also writes CSV and Graphviz.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.drawing.figure import circuit_figure
from graphcircuits.drawing.notebook import EDGES, result_html
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import StoreError, csv_text, short, write_atomic, write_json
from graphcircuits.result import files
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.pt import from_pt_file
from graphcircuits.task.stored import StoredPrompts
from graphcircuits.viewer.page import viewer_page
from graphcircuits.viewer.payload import result_payload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from graphcircuits.certificates.certificate import Certificate

SUFFIXES = (".json", ".safetensors", ".csv", ".dot")
"""What a result can be saved as."""
_HASH = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """Scores of all edges of a graph, where they come from, and the circuit they propose.

    Example:
        result = gc.localize(subject, pairs)
        result.circuit()  # the proposed one; result.circuit(edges=20) takes the 20 best edges
        result.save("circuit.json")

    See docs/evaluate.md, and docs/exchange.md for the files.
    """

    graph: ComponentGraph
    scores: Float[Tensor, " edge"]
    """In edge order, larger meaning more likely in the circuit. Kept as a copy on the CPU."""
    subject: str = ""
    task: str = ""
    method: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's options: text, numbers, booleans, None, lists and mappings of them."""
    seed: int | None = None
    seconds: float | None = None
    """Wall-clock time of the method."""
    d_model: int | None = None
    """Width of the subject, which EAP-IG wants to know."""
    chosen: Circuit | None = None
    """The proposed circuit, which `circuit()` gives; files mark its edges `in_graph`."""
    notes: Sequence[str] = ()
    """What a reader of the scores should know, such as why the method was chosen."""
    curve: FaithfulnessCurve | None = None
    """How faithful the best edges were found to be, where that was measured."""
    probabilities: Float[Tensor, " edge"] | None = None
    """That the edge is in the circuit, where the method says so; in single precision on the CPU."""
    signed: Float[Tensor, " edge"] | None = None
    """The mean effect of noising the edge on the loss, where the method knows it: above 0 where the
    edge helps, below where it hinders. Scores say how much it matters, whichever way."""
    prompts: StoredPrompts | None = None
    """Some of the prompts, and what each head attended to in them, where they were kept."""
    prompt_hashes: Sequence[str] = ()
    """Of all clean prompts that the scores were found on (`graphcircuits.task.fresh`)."""

    def __post_init__(self) -> None:
        scores = self._checked("scores", self.scores)
        if self.signed is not None:
            signed = self._checked("signed", self.signed).to(scores.dtype)
            object.__setattr__(self, "signed", signed)
        if self.probabilities is not None:
            likely = self.probabilities.detach().to("cpu", torch.float32, copy=True)
            if likely.shape != scores.shape or not ((likely >= 0) & (likely <= 1)).all():
                raise ValueError(
                    f"probabilities must be one number in 0..1 for each of {len(scores)} edges, "
                    f"got shape {tuple(likely.shape)} with {short(likely.flatten()[:3].tolist())}."
                )
            object.__setattr__(self, "probabilities", likely)
        if self.chosen is not None and self.chosen.graph != self.graph:
            raise ValueError(
                f"the chosen circuit is of {self.chosen.graph}, the scores of {self.graph}; "
                "bring it over with chosen.on(graph)."
            )
        if self.curve is not None and self.curve.n_edges != self.graph.n_edges:
            raise ValueError(
                f"the curve is of a graph of {self.curve.n_edges} edges, the scores of one of "
                f"{self.graph.n_edges}."
            )
        if self.prompts is not None:
            heads, expected = self.prompts.heads, (self.graph.n_layers, self.graph.n_heads)
            if heads != expected:
                raise ValueError(
                    f"the prompts have patterns of {heads[0]} layers x {heads[1]} heads, the "
                    f"graph has {expected[0]} x {expected[1]}."
                )
        try:
            options = json.loads(json.dumps(dict(self.options), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise TypeError(f"options must be JSON values, got {self.options}: {error}.") from error
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "options", options)
        if not isinstance(self.notes, list | tuple) or any(type(x) is not str for x in self.notes):
            raise TypeError(f"notes must be a list of texts, got {self.notes!r}.")
        object.__setattr__(self, "notes", tuple(self.notes))
        hashes = self.prompt_hashes
        if not isinstance(hashes, list | tuple) or not all(
            isinstance(one, str) and _HASH.fullmatch(one) for one in hashes
        ):
            raise TypeError(f"prompt_hashes must be a list of hashes, got {short(hashes)}.")
        object.__setattr__(self, "prompt_hashes", tuple(hashes))

    def _checked(self, name: str, given: Tensor) -> Float[Tensor, " edge"]:
        """A copy on the CPU, if it is one finite number per edge."""
        values = given.detach().to("cpu", copy=True)
        if values.shape != (self.graph.n_edges,):
            raise ValueError(
                f"{name} must be one number for each of {self.graph.n_edges} edges, "
                f"got shape {tuple(values.shape)}."
            )
        bad = (~values.isfinite()).nonzero().flatten().tolist()
        if bad:
            edges = [f"{self.graph.edge_name(edge)} ({values[edge].item()})" for edge in bad[:3]]
            raise ValueError(
                f"{name} must be finite, {len(bad)} of {len(values)} are not: {', '.join(edges)}"
                f"{', ...' if len(bad) > 3 else ''}; look for a division by zero or an overflow."
            )
        return values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        names = ("graph", "d_model", "chosen", "curve", "prompts", "prompt_hashes", *files.ABOUT)
        tensors = ("scores", "probabilities", "signed")
        return all(getattr(self, name) == getattr(other, name) for name in names) and all(
            _equal(getattr(self, name), getattr(other, name)) for name in tensors
        )

    def __repr__(self) -> str:
        """What it is in one line, without the scores."""
        method, subject = self.method or "a method", self.subject or "a subject"
        size = (
            "no circuit proposed" if self.chosen is None else f"{len(self.chosen):,} in the circuit"
        )
        ((best, score),) = self.top(1)
        return (
            f"Result({method} on {subject}: {self.graph.n_edges:,} edges, {size}, best {best} with "
            f"{score:.4g})"
        )

    # Views

    def ranking(self) -> Int[Tensor, " edge"]:
        """Edges from the largest score to the smallest."""
        return self.scores.sort(descending=True, stable=True).indices

    def top(self, k: int = 10) -> list[tuple[str, float]]:
        """The k best edges, at most all, with their scores."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}.")
        best = self.ranking()[:k]
        names = self.graph.names_of(best)
        return list(zip(names, self.scores[best].tolist(), strict=True))

    def top_probabilities(self, k: int = 10) -> list[float] | None:
        """Of the k best edges, in the order of `top`; None where the method gave none."""
        likely = self.probabilities
        return None if likely is None else likely[self.ranking()[:k]].tolist()

    def circuit(
        self,
        *,
        edges: int | None = None,
        threshold: float | None = None,
        fraction: float | None = None,
        prune: bool = False,
    ) -> Circuit:
        """The proposed circuit or, if one is given, the best edges: this many, those that score at
        least so much, or this part of all.

        `prune` then drops edges on no path from input to logits. A fraction is rounded down to
        whole edges.
        """
        choices = {"edges": edges, "threshold": threshold, "fraction": fraction}
        given = [name for name, value in choices.items() if value is not None]
        if len(given) > 1:
            raise ValueError(
                f"give one of edges, threshold and fraction, got {' and '.join(given)}."
            )
        if not given:
            if self.chosen is None:
                raise ValueError(
                    "these scores come without a proposed circuit, which graphcircuits.localize "
                    "adds where it can (else result.notes says why not); give edges, threshold or "
                    "fraction, such as result.circuit(edges=20)."
                )
            return self.chosen.pruned() if prune else self.chosen
        if threshold is not None:
            if math.isnan(threshold):
                raise ValueError("threshold must be a number, got NaN.")
            mask = self.scores >= threshold
        else:
            if fraction is not None:
                if not 0 <= fraction <= 1:
                    raise ValueError(f"fraction must be in 0..1, got {fraction}.")
                # 0.29 * 100 falls short of 29 by a rounding error.
                edges = math.floor(fraction * self.graph.n_edges + 1e-9)
            assert edges is not None
            if not 0 <= edges <= self.graph.n_edges:
                raise ValueError(f"edges must be in 0..{self.graph.n_edges}, got {edges}.")
            mask = self._best(edges)
        circuit = Circuit.from_mask(self.graph, mask)
        return circuit.pruned() if prune else circuit

    def _best(self, edges: int) -> Bool[Tensor, " edge"]:
        """The first edges of the ranking; selecting them is ten times faster than sorting all."""
        if edges == 0:
            return torch.zeros_like(self.scores, dtype=torch.bool)
        # By NumPy, which has no half precision: PyTorch would wake its threads for each short step.
        half = self.scores.dtype in (torch.float16, torch.bfloat16)
        scores = (self.scores.float() if half else self.scores).numpy()
        cut = np.partition(scores, len(scores) - edges)[len(scores) - edges]
        mask = scores > cut
        tied = np.flatnonzero(scores == cut)
        mask[tied[: edges - np.count_nonzero(mask)]] = True
        return torch.from_numpy(mask)

    def on(self, graph: ComponentGraph) -> "Result":
        """The same scores on a graph whose heads share keys and values, as files of EAP-IG and MIB
        never have them: of the heads that share one, the best counts."""
        if graph == self.graph:
            return self
        if replace(graph, n_kv_heads=graph.n_heads) != self.graph:
            raise ValueError(f"the scores are of {self.graph}, which cannot be brought to {graph}.")
        chosen, likely, signed = self.chosen, self.probabilities, self.signed
        if chosen is not None:
            chosen = Circuit.from_mask(graph, files.grouped(graph, chosen.mask.float()).bool())
        return replace(
            self,
            graph=graph,
            scores=files.grouped(graph, self.scores),
            chosen=chosen,
            probabilities=None if likely is None else files.grouped(graph, likely),
            signed=None if signed is None else files.added_up(graph, signed),
            curve=None,  # it counted edges of the other graph
        )

    def by_sign(self) -> "Result":
        """The result with signed effects as its scores: edges that help come first and those that
        hinder last, as MIB ranks them for its CPR."""
        if self.signed is None:
            raise ValueError(
                f"these scores{f' of {self.method}' if self.method else ''} come without signs; "
                "eap, eap-ig, eap-gp, relp, nap and exact give them, and read_graph reads "
                "EAP-IG's."
            )
        # The rest was said of the other ranking.
        return replace(self, scores=self.signed, chosen=None, curve=None, probabilities=None)

    def head_level(self) -> dict[str, float]:
        """The best of q, k and v for each pair of components; `input->logits` is left out."""
        scores = self.graph.promote(self.scores).tolist()
        return dict(zip(self.graph.head_edges, scores, strict=True))

    def to_csv(self) -> str:
        """Edges from best to worst, with rank, ends, score and, where there are, probability and
        signed effect."""
        others = {"probability": self.probabilities, "signed": self.signed}
        best = self.ranking()
        given = {name: x[best].tolist() for name, x in others.items() if x is not None}
        lines: list[list[object]] = [["rank", "edge", "writer", "reader", "score", *given]]
        for index, (name, score) in enumerate(self.top(self.graph.n_edges)):
            values = [f"{column[index]:.6g}" for column in given.values()]
            lines.append([index + 1, name, *name.split("->"), repr(score), *values])
        return csv_text(lines)

    def to_dot(self, circuit: Circuit | None = None) -> str:
        """Graphviz source of a circuit, the chosen one or else all edges; better edges thicker."""
        if circuit is None:
            circuit = self.circuit(fraction=1.0) if self.chosen is None else self.chosen
        circuit = circuit.on(self.graph)
        some = self.scores[circuit.mask]
        low, high = (some.min().item(), some.max().item()) if len(some) else (0.0, 0.0)
        lines = [f'  "{name}" [shape=box];' for name in files.components(self.graph, circuit)]
        for (name, writer, ends), score in zip(circuit.links(), some.tolist(), strict=True):
            width = 0.5 + 3.5 * (score - low) / (high - low or 1.0)
            label = f'label="{name[-2]}", ' if name.endswith(">") else ""
            style = f'{label}penwidth={width:.2f}, tooltip="{name}: {score:.4g}"'
            lines += [f'  "{writer}" -> "{end}" [{style}];' for end in ends]
        return "\n".join(["digraph circuit {", *lines, "}"]) + "\n"

    def show(
        self,
        path: str | Path,
        *,
        circuit: Circuit | None = None,
        truth: Circuit | None = None,
        others: "Sequence[Result]" = (),
        notes: Mapping[str, str] | None = None,
        roles: Mapping[str, object] | None = None,
        curve: FaithfulnessCurve | None = None,
        certificate: "Certificate | None" = None,
    ) -> None:
        """Write the circuit viewer as one HTML page that opens from disk.

        It opens at the circuit of the `certificate`, beside which stands what was measured of it,
        else at `circuit`, else at the proposed one, or the 20 best edges if there is none.
        `truth` is a known circuit to compare with, `others` are results on the same subject,
        `notes` gives a word to write under a component, such as its variable, `roles` a sentence on
        what it does, and `curve` is how faithful the best edges are (`faithfulness_curve`), by
        default what the result has.
        """
        if Path(path).suffix not in (".html", ".htm"):
            raise ValueError(f"a page is written as .html, got {path}.")
        shown = self if circuit is None else replace(self, chosen=circuit.on(self.graph))
        if curve is not None:
            shown = replace(shown, curve=curve)
        payload = result_payload(
            [shown, *others], truth=truth, notes=notes, roles=roles, certificate=certificate
        )
        write_atomic(path, viewer_page(payload).encode())

    def plot(
        self,
        *,
        circuit: Circuit | None = None,
        edges: int | None = None,
        truth: Circuit | None = None,
        ax: "Axes | None" = None,
    ) -> "Figure":
        """Draw a circuit for a paper, better edges thicker; needs matplotlib.

        By default the proposed circuit, or the 20 best edges if there is none. With `truth`, hits,
        misses and false alarms. On `ax`, or on a figure of its own; `plot().savefig("circuit.pdf")`
        writes it.
        """
        if circuit is not None and edges is not None:
            raise ValueError(f"give a circuit or a number of edges, got both, and {edges} edges.")
        if circuit is None and edges is None:
            circuit = self.chosen
        if circuit is None:
            circuit = self.circuit(edges=min(20, self.graph.n_edges) if edges is None else edges)
        circuit = circuit.on(self.graph)
        true = None if truth is None else truth.on(self.graph)
        drawn = (circuit if true is None else circuit | true).mask.nonzero().flatten()
        named = " of ".join(text for text in (self.method, self.subject) if text)
        return circuit_figure(
            self.graph,
            circuit.edge_numbers,
            truth=None if true is None else true.edge_numbers,
            scores=dict(zip(drawn.tolist(), self.scores[drawn].tolist(), strict=True)),
            title=named,
            ax=ax,
        )

    def _repr_html_(self) -> str:
        few = (
            self._best(min(EDGES, self.graph.n_edges)) if self.chosen is None else self.chosen.mask
        )
        edges = few.nonzero().flatten()
        best = edges[self.scores[edges].sort(descending=True, stable=True).indices][:EDGES]
        return result_html(
            self.graph,
            facts={
                "subject": self.subject,
                "task": self.task,
                "method": self.method,
                "seed": self.seed,
                "seconds": None if self.seconds is None else f"{self.seconds:.3g}",
            },
            notes=self.notes,
            best=best.tolist(),
            chosen=None if self.chosen is None else len(self.chosen),
            scores=self.scores,
            probabilities=self.probabilities,
        )

    # Files

    def save(
        self, path: str | Path, *, circuit: Circuit | None = None, signed: bool = False
    ) -> None:
        """Write `.json` (for EAP-IG and MIB), `.safetensors`, `.csv` or `.dot`, by the suffix.

        The edges of `circuit`, by default the chosen one, are marked `in_graph`. With `signed` the
        `score` that EAP-IG and MIB read in JSON is the signed effect; `load` gives both back.
        """
        circuit = self.chosen if circuit is None else circuit
        suffix = Path(path).suffix
        if suffix not in SUFFIXES:
            raise ValueError(f"a result is saved as .json, .safetensors, .csv or .dot, got {path}.")
        if suffix == ".json":
            shown = self.by_sign().scores if signed else files.signless(self.scores)
            write_json(path, files.to_json_file(self, circuit, shown))
        elif suffix == ".safetensors":
            files.write_tensor_file(path, self, circuit)
        elif suffix == ".csv":
            write_atomic(path, self.to_csv().encode())
        else:
            write_atomic(path, self.to_dot(circuit).encode())

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Read `.json`, ours or that of EAP-IG and MIB, `.safetensors`, or EAP-IG's `.pt`."""
        readers = {
            ".json": files.from_json_file,
            ".safetensors": files.from_tensor_file,
            ".pt": from_pt_file,
        }
        read = readers.get(Path(path).suffix)
        if read is None:
            raise ValueError(f"a result is read from .json, .safetensors or .pt, got {path}.")
        try:
            return cls(**read(path))
        except StoreError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"{path}: {error}") from error


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
