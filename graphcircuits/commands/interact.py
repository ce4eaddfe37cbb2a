"""`graphcircuits interact`: which edges act together, and how much."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands.checks import (
    device_there,
    in_range,
    known_dtype,
    prompt_count,
    refuse,
    seed_range,
    suffix,
    writable,
)
from graphcircuits.commands.given import Given
from graphcircuits.commands.output import (
    Json,
    print_json,
    print_table,
    save,
    say,
    write,
)
from graphcircuits.commands.progress import late_progress
from graphcircuits.commands.subjects import Device, Model, TaskName, Words

if TYPE_CHECKING:
    from torch import Tensor

    from graphcircuits.interactions import Effects, Integral, SharedRead
    from graphcircuits.methods import Progress
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

STRONGEST = 12
"""Edges that are paired where none are named."""
LEAST_ORDER, LARGEST_ORDER = 3, 100
"""Of a quadrature: beyond, its points cost much and are no longer exact to the last digits."""
LARGE_ERROR = 0.01
"""Share of an integral from which on its error estimate is worth a word."""


def interact(
    case: Annotated[
        str | None,
        typer.Argument(
            help="A case such as ib-13; your own model: a file or a folder; or, with --model, your "
            "own program as path/to/file.py:name, or nothing."
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Argument(
            help="Prompt pairs, .csv or .jsonl; a case or program draws its own if left out."
        ),
    ] = None,
    model: Model = None,
    task: TaskName = None,
    reader: Annotated[
        str | None, typer.Option(help="All edges into one reader, such as m1 or 'a1.h0<q>'.")
    ] = None,
    edges: Annotated[
        list[str] | None,
        typer.Option(help="Only these edges: 'input->m1,a0.h0->m1', or given several times."),
    ] = None,
    draw: Annotated[
        int, typer.Option(help="Prompt pairs to draw for a case, a program or a task.")
    ] = 32,
    seed: Annotated[int, typer.Option(help="Draws those prompts.")] = 0,
    words: Words = False,
    top: Annotated[int, typer.Option(help="Pairs of edges to list.")] = 10,
    integrals: Annotated[
        int, typer.Option(help="Pairs of edges whose exact integral is computed as well.")
    ] = 0,
    order: Annotated[int, typer.Option(help="Order of the integral's quadrature.")] = 8,
    decay: Annotated[
        bool, typer.Option("--decay", help="Fit how fast the local form becomes right.")
    ] = False,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="With --json: the matrices at each position.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write heat maps as a page.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write heat maps as a picture.")] = None,
    device: Device = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float64, float32, bfloat16 or float16, to compute in.")
    ] = "float64",
    as_json: Json = False,
) -> None:
    """Interactions of edges: how far their joint effect is from the sum of their single effects.

    Edges into one reader are also compared at each position of what it reads: by the definition
    (finite), its Hessian (local) and, for some pairs, the exact integral. Numbers are averages over
    prompts, and at a read over positions as well. Without --reader and --edges the edges with the
    largest single effects are paired.
    """
    from graphcircuits.viewer.heatmap import heat_map_page, heat_maps

    given = Given.of(case, pairs, model)
    refuse(
        ["give --reader or --edges, not both"] if reader is not None and edges is not None else [],
        prompt_count("--draw", draw),
        seed_range(seed),
        in_range("--top", top, 1),
        in_range("--integrals", integrals, 0),
        in_range("--order", order, LEAST_ORDER, LARGEST_ORDER),
        suffix("--html", html, ".html", ".htm"),
        suffix("--svg", svg, ".svg"),
        device_there(device),
        known_dtype(dtype),
        writable({"--html": html, "--svg": svg}, read=given.files),
        given.problems(task, words=words),
        ["--by-position goes with --json"] if by_position and not as_json else [],
    )
    (loaded,) = given.load(device, dtype, task=task, words=words, n=draw, seed=seed)
    title, prompts = loaded.title, loaded.pairs
    with late_progress() as bar:
        step = bar.add_task(f"interactions in {title}", total=None)
        report = _InteractReport.of(
            loaded.subject,
            prompts,
            reader,
            _listed(edges),
            lambda done, total: bar.update(step, completed=done, total=total),
        )
        record = report.record(top, integrals, order, decay=decay, by_position=by_position)
    record = {"subject": title, "task": loaded.task, "pairs": len(prompts), **record}
    about = f"{title}: edge interactions" + (f" at {report.reader}" if report.reader else "")
    labels, panels = report.labels, {name: x.tolist() for name, x in report.panels.items()}
    text = " ".join([loaded.task, *record["remarks"]])
    saved = save(
        {
            svg: lambda path: write(path, heat_maps(labels, panels, title=about)),
            html: lambda path: write(path, heat_map_page(labels, panels, title=about, text=text)),
        }
    )
    if as_json:
        print_json(record)
        saved.tell(quiet=True)
        return
    say(f"{about}, {len(prompts)} pairs of prompts")
    _print(record)
    saved.tell()


@dataclass(frozen=True, kw_only=True)
class _InteractReport:
    """All that is printed about some edges of a subject."""

    reader: str | None
    """The reader that all edges share, if there is one; what follows is None if there is none."""
    whole: "Effects"
    read: "SharedRead | None" = None
    finite: "Tensor | None" = None
    local: "Tensor | None" = None
    """None where it does not apply."""

    @classmethod
    def of(
        cls,
        subject: "Transformer",
        pairs: "Pairs",
        reader: str | None,
        edges: Sequence[str] | None,
        progress: "Progress",
    ) -> "_InteractReport":
        from graphcircuits.interactions import SharedRead, edge_interactions, finite, local

        if edges is None and reader is None:
            edges = _strongest(subject, pairs, progress)
        elif edges is None:
            assert reader is not None
            edges = SharedRead.of(subject, pairs, reader).edges
        whole = edge_interactions(subject, pairs, edges, progress=progress)
        first, *others = (edge.partition("->")[2] for edge in edges)
        if any(other != first for other in others):
            return cls(reader=None, whole=whole)
        read = SharedRead.of(subject, pairs, first, edges=edges)
        return cls(
            reader=first,
            whole=whole,
            read=read,
            finite=finite(read).interaction,
            local=None if read.kinks else local(read),
        )

    @property
    def edges(self) -> tuple[str, ...]:
        return self.whole.edges

    @property
    def labels(self) -> list[str]:
        """Writers alone, where all edges have one reader."""
        return [edge.partition("->")[0] if self.reader else edge for edge in self.edges]

    @property
    def panels(self) -> "dict[str, Tensor]":
        """Averages over prompts and positions, by the names of the heat maps."""
        panels = {"whole edges": self.whole.interaction.mean(-1)}
        if self.finite is not None:
            panels["one position, finite"] = self.finite.mean((-1, -2))
        if self.local is not None:
            panels["one position, local"] = self.local.mean((-1, -2))
        return panels

    @property
    def remarks(self) -> list[str]:
        if self.read is None:
            return ["These edges have several readers; --reader shows the edges into one of them."]
        if self.read.kinks:
            return [
                f"The local and integral forms do not apply: downstream of {self.reader} there is "
                f"{' and '.join(self.read.kinks)}, which has kinks."
            ]
        return []

    def record(
        self, top: int, integrals: int, order: int, *, decay: bool, by_position: bool
    ) -> dict[str, Any]:
        """What --json prints; the table and the lines below it are made of it."""
        import torch

        from graphcircuits import interactions

        smooth = self.read is not None and not self.read.kinks
        if (integrals or decay) and not smooth:
            raise ValueError(f"--integrals and --decay do not apply. {self.remarks[0]}")
        if by_position and self.finite is None:
            raise ValueError(f"--by-position does not apply. {self.remarks[0]}")
        sizes = self.whole.interaction.abs().mean(-1)
        first, second = torch.triu_indices(len(self.edges), len(self.edges), 1)
        ranked = sizes[first, second].argsort(descending=True).tolist()
        best = [(int(first[rank]), int(second[rank])) for rank in ranked[: max(top, integrals)]]
        record: dict[str, Any] = {
            "reader": self.reader,
            "edges": list(self.edges),
            "kinks": [] if self.read is None else list(self.read.kinks),
            "remarks": self.remarks,
            "interactions": [self._row(one, other) for one, other in best[:top]],
            "matrices": {name: values.tolist() for name, values in self.panels.items()},
        }
        if by_position:
            assert self.finite is not None
            forms = {"finite": self.finite, "local": self.local}
            record["by_position"] = {
                name: None if values is None else values.mean(-1).permute(2, 0, 1).tolist()
                for name, values in forms.items()
            }
        if integrals:
            assert self.read is not None
            chosen = [(self.edges[one], self.edges[other]) for one, other in best[:integrals]]
            found = interactions.integral(self.read, chosen, order=order)
            record["integrals"] = self._integrals(found)
            record["remarks"] += _doubts(record["integrals"], order)
        if decay:
            assert self.read is not None
            fit = interactions.decay(self.read)
            record["decay"] = {"scales": fit.scales, "errors": fit.errors, "slope": fit.slope}
        return record

    def _row(self, one: int, other: int) -> dict[str, Any]:
        whole = self.whole
        return {
            "edges": [self.edges[one], self.edges[other]],
            "single": [whole.single[one].mean().item(), whole.single[other].mean().item()],
            "joint": whole.joint[one, other].mean().item(),
            "interaction": whole.interaction[one, other].mean().item(),
            "size": whole.interaction[one, other].abs().mean().item(),
            "finite": None if self.finite is None else self.finite[one, other].mean().item(),
            "local": None if self.local is None else self.local[one, other].mean().item(),
        }

    def _integrals(self, found: "Integral") -> list[dict[str, Any]]:
        assert self.finite is not None
        rows = []
        for pair, value, error in zip(found.pairs, found.value, found.error, strict=True):
            one, other = (self.edges.index(edge) for edge in pair)
            rows.append(
                {
                    "edges": list(pair),
                    "integral": value.mean().item(),
                    "size": value.abs().mean().item(),
                    "error": error.mean().item(),
                    "finite": self.finite[one, other].mean().item(),
                }
            )
        return rows


def _print(record: dict[str, Any]) -> None:
    columns = ["edge", "edge", "single", "single", "joint", "interaction", "mean |.|"]
    at_read = [name for name in ("finite", "local") if record["interactions"][0][name] is not None]
    rows = []
    for row in record["interactions"]:
        values = [*row["single"], row["joint"], row["interaction"], row["size"]]
        values += [row[name] for name in at_read]
        rows.append([*row["edges"], *(f"{value:.4g}" for value in values)])
    titles = [*columns, *(f"{name} at a position" for name in at_read)]
    print_table(titles, rows, numbers=len(titles) - 2)
    for row in record.get("integrals", []):
        say(
            f"integral of {' and '.join(row['edges'])}: {row['integral']:.6g} "
            f"(error about {row['error']:.1e}; finite {row['finite']:.6g})"
        )
    if "decay" in record:
        say(
            f"the error of the local form falls with power {record['decay']['slope']:.3f} "
            "of the message size"
        )
    for line in record["remarks"]:
        say(line)


def _doubts(integrals: list[dict[str, Any]], order: int) -> list[str]:
    """What to do about integrals whose error estimate is large."""
    shares = [row["error"] / row["size"] for row in integrals if row["size"] > 0]
    if max(shares, default=0.0) <= LARGE_ERROR:
        return []
    said = f"The error estimate is up to {max(shares):.0%} of the integral: "
    if order < LARGEST_ORDER:
        better = min(2 * order, LARGEST_ORDER)
        return [f"{said}raise --order, which is {order}, to {better} or more."]
    return [f"{said}the read is too sharp for this quadrature; rely on the finite form."]


def _strongest(subject: "Transformer", pairs: "Pairs", progress: "Progress") -> list[str]:
    from graphcircuits.methods.exact import exact

    graph = subject.graph
    scores = exact(subject, pairs, progress=progress)
    best = scores.topk(min(STRONGEST, graph.n_edges)).indices.sort().values
    return [graph.edge_name(edge) for edge in best.tolist()]


def _listed(edges: list[str] | None) -> list[str] | None:
    return None if edges is None else [name.strip() for text in edges for name in text.split(",")]
