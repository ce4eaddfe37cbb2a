"""Time and memory of the graph learners on component graphs of 110 to a million edges.

One context, small width, no gradients unless asked for. A power law is fitted to the graphs that
are large enough for the fixed cost of a call not to show: slope 1 is linear in the edges. Softmax
attention takes time in the arcs of the line graph, which outgrow the edges.

python -m lab.benchmarks.graph_learning [--transformation incidence] [--backward] [--device cuda]
    [--most-edges 1000000] [--repeats 3] [--plot build/benchmarks/graph_learning.png] [--json]
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from graphcircuits.compare.measure import measure as measure_call
from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.paper.dagformer import Dagformer
from graphcircuits.predictor.paper.dirgnn import DirGNN
from graphcircuits.predictor.paper.transform import (
    Connectivity,
    Neighbourhoods,
    Transformation,
    neighbourhoods,
)
from lab.benchmarks import Measurement

SHAPES = (
    (2, 4),
    (4, 4),
    (7, 4),
    (12, 4),
    (12, 8),
    (12, 12),
    (20, 12),
    (24, 16),
    (24, 24),
    (26, 32),
)
"""Layers and heads."""
WIDTH, LAYERS, HEADS = 16, 2, 2
FITTED_FROM = 10_000
"""Edges of the smallest graph that enters the fit."""
STEEPEST = 1.25
"""The largest slope that still counts as linear: caches end somewhere in this range."""


@dataclass(frozen=True)
class Learner:
    name: str
    make: Callable[[], nn.Module]
    connectivity: Connectivity = "observed"
    linear: bool = True


LEARNERS = (
    Learner("DirGNN", lambda: DirGNN(WIDTH, LAYERS)),
    Learner(
        "DAGformer factorized", lambda: Dagformer(WIDTH, LAYERS, HEADS, attention="factorized")
    ),
    Learner(
        "DAGformer factorized, complete DAG",
        lambda: Dagformer(WIDTH, LAYERS, HEADS, attention="factorized"),
        "complete",
    ),
    Learner("DAGformer softmax", lambda: Dagformer(WIDTH, LAYERS, HEADS), linear=False),
)


@dataclass(frozen=True)
class Point:
    """What one learner took on one graph."""

    learner: str
    edges: int
    seconds: float
    peak_bytes: int | None


def run(
    learner: Learner, graph: Neighbourhoods, *, backward: bool, device: str, repeats: int
) -> tuple[float, int | None]:
    """Seconds and peak memory of a call: the least of several, after one that is not counted."""
    model = learner.make().to(device)
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(1, graph.n_nodes, WIDTH, generator=generator).to(device)

    def call() -> None:
        with torch.set_grad_enabled(backward):
            out = model(h, graph)
        if backward:
            out.sum().backward()

    call()
    found = [measure_call(call, device) for _ in range(repeats)]
    peaks = [each.peak_bytes for each in found if each.peak_bytes is not None]
    return min(each.seconds for each in found), min(peaks, default=None)


def points(
    transformation: Transformation, most_edges: int, *, backward: bool, device: str, repeats: int
) -> Iterator[Point]:
    for shape in SHAPES:
        graph = ComponentGraph(*shape)
        if graph.n_edges > most_edges:
            break
        for learner in LEARNERS:
            transformed = neighbourhoods(graph, transformation, learner.connectivity).to(device)
            seconds, peak = run(
                learner, transformed, backward=backward, device=device, repeats=repeats
            )
            yield Point(learner.name, graph.n_edges, seconds, peak)


def slope(edges: list[int], values: list[float]) -> float | None:
    """The exponent of the power law through the points, by least squares in logarithms."""
    logs = [
        (math.log(edge), math.log(value))
        for edge, value in zip(edges, values, strict=True)
        if edge >= FITTED_FROM and value > 0
    ]
    if len(logs) < 2:
        return None
    x, y = torch.tensor(logs, dtype=torch.float64).T
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def summary(found: list[Point]) -> Iterator[Measurement]:
    for learner in LEARNERS:
        mine = [point for point in found if point.learner == learner.name]
        edges = [point.edges for point in mine]
        limit = STEEPEST if learner.linear else None
        time = slope(edges, [point.seconds for point in mine])
        memory = slope(edges, [float(point.peak_bytes or 0) for point in mine])
        if time is not None:
            yield Measurement(f"{learner.name}: time against edges", time, "slope", limit)
        if memory is not None:
            yield Measurement(f"{learner.name}: memory against edges", memory, "slope", limit)
        last = mine[-1]
        yield Measurement(f"{learner.name}: {last.edges} edges", last.seconds, "s")
        if last.peak_bytes is not None:
            peak = last.peak_bytes / 2**20
            yield Measurement(f"{learner.name}: {last.edges} edges, peak memory", peak, "MiB")


def plot(found: list[Point], path: Path) -> None:
    """Time and memory against edges, both axes logarithmic, one line per learner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    time_axes, memory_axes = figure.subplots(1, 2)
    for learner, marker in zip(LEARNERS, "osD^v<>", strict=False):
        mine = [point for point in found if point.learner == learner.name]
        edges = [point.edges for point in mine]
        seconds = [point.seconds for point in mine]
        peaks = [(point.peak_bytes or math.nan) / 2**20 for point in mine]
        fitted = slope(edges, seconds)
        label = learner.name if fitted is None else f"{learner.name} (slope {fitted:.2f})"
        time_axes.plot(edges, seconds, marker=marker, label=label)
        memory_axes.plot(edges, peaks, marker=marker)
    for axes, title in ((time_axes, "seconds"), (memory_axes, "peak MiB")):
        axes.set(xscale="log", yscale="log", xlabel="edges", ylabel=title)
        axes.grid(alpha=0.3)
    figure.legend(
        loc="outside lower center",
        ncols=2,
        fontsize="small",
        title="a point: a graph that was measured; slope: the power of the edges that fits",
        title_fontsize="small",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def measure() -> Iterator[Measurement]:
    """Training steps up to a hundred thousand edges, which take seconds."""
    yield from summary(list(points("line", 100_000, backward=True, device="cpu", repeats=2)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transformation", default="line", choices=("line", "incidence"))
    parser.add_argument("--backward", action="store_true", help="with gradients")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--most-edges", type=int, default=10**7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, default=Path("build/benchmarks/graph_learning.png"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = list(
        points(
            options.transformation,
            options.most_edges,
            backward=options.backward,
            device=options.device,
            repeats=options.repeats,
        )
    )
    plot(found, options.plot)
    results = list(summary(found))
    if options.json:
        record = {
            "points": [asdict(point) for point in found],
            "summary": [asdict(each) | {"kept": each.kept} for each in results],
            "plot": str(options.plot),
        }
        print(json.dumps(record, indent=1))
    else:
        for point in found:
            peak = "" if point.peak_bytes is None else f"{point.peak_bytes / 2**20:9.1f} MiB"
            print(f"{point.edges:9} edges {point.seconds:9.4f} s {peak}  {point.learner}")
        for each in results:
            limit = "" if each.limit is None else f"  (limit {each.limit:g})"
            print(f"{each.value:10.3g} {each.unit:<6}{each.what}{limit}")
        print(f"plot: {options.plot}")
    return 0 if all(each.kept for each in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
