"""How time and memory of every method grow with the number of edges.

python -m lab.benchmarks.growth --out docs/results --figure docs/figures/growth.png [--repeats 3]
    [--methods eap gcl] [--largest EDGES]

1. Shipped subjects of the training pool, one of each depth from 2 to 7 layers, 64 prompt pairs,
   every method: 110 to 1,520 edges.
2. Transformers with random weights, 4 prompt pairs, only methods whose number of passes does not
   depend on the edges: up to --largest edges.

A measurement is of calls with default options: the median time and the largest rise of memory over
the repeats. After a call that took longer than --budget seconds a method is not measured on larger
graphs of the same part, and once is enough on that one. The folder gets the page growth.md and its
data, growth.csv; the figure has logarithmic axes. `--redraw PAGE` measures nothing: it draws what
such a page says.
"""

import argparse
import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from graphcircuits import load_case
from graphcircuits.compare.measure import measure
from graphcircuits.drawing.library import COLOURS, save_figure
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods import METHODS, NAMED_ONLY, localize
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from graphcircuits.task.pairs import Pairs

CASES = ("ib-44", "ib-58", "ib-82", "tb-check-palindrome", "new-forward-fill", "ib-113")
"""Of the training pool: 2, 3, 4, 5, 6 and 7 layers of four heads."""
PAIRS = 64
SHAPES = ((8, 8), (12, 12), (16, 16), (24, 16), (24, 24), (32, 32))
"""Layers and heads of the random transformers, up to 1.6 million edges."""
RANDOM_PAIRS = 4
SCALABLE = ("eap", "eap-ig", "gcl")
"""Methods that need a fixed number of passes, whatever the number of edges."""
PRINTED = re.compile(r"([\d.e+,]+) s(?:, ([\d,]+) MiB)?")
"""What `cell` writes of a measurement."""


@dataclass(frozen=True)
class Point:
    """What one method took on one subject; None where it was not run."""

    subject: str
    layers: int
    d_model: int
    edges: int
    method: str
    seconds: float | None
    mebibytes: float | None
    """Rise of resident memory; None also where the system cannot tell."""


def trained() -> Iterator[tuple[str, Transformer, Pairs]]:
    for case_id in CASES:
        case = load_case(case_id)
        yield case_id, case.subject(), case.pairs(PAIRS, seed=0)


def random(largest: int) -> Iterator[tuple[str, Transformer, Pairs]]:
    for n_layers, n_heads in SHAPES:
        if ComponentGraph(n_layers, n_heads).n_edges > largest:
            return
        yield random_case(n_layers, n_heads)


def random_case(n_layers: int, n_heads: int) -> tuple[str, Transformer, Pairs]:
    """Random weights of small width: edges are many, activations few."""
    config = TransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=64,
        d_head=4,
        d_mlp=128,
        n_ctx=8,
        d_vocab=16,
        d_vocab_out=16,
        norm="layer",
    )
    generator = torch.Generator().manual_seed(0)
    subject = Transformer.random(config, generator)
    clean, corrupted = torch.randint(16, (2, RANDOM_PAIRS, 8), generator=generator)
    pairs = Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=torch.ones(clean.shape, dtype=torch.bool),
        loss_name="cross-entropy",
        targets=torch.arange(RANDOM_PAIRS),
    )
    return f"random {n_layers}x{n_heads}", subject, pairs


def grow(
    subjects: Iterator[tuple[str, Transformer, Pairs]],
    methods: Sequence[str],
    repeats: int,
    budget: float,
) -> Iterator[Point]:
    """Every method on every subject, smallest first, until it takes too long."""
    spent: dict[str, float] = {}
    for name, subject, pairs in subjects:
        for method in methods:
            if method not in spent:
                # What a first call loads is not what the method takes.
                localize(subject, pairs, method)
            skipped = spent.setdefault(method, 0.0) > budget
            took = [] if skipped else calls(subject, pairs, method, repeats, budget)
            times = [seconds for seconds, _ in took]
            peaks = [peak for _, peak in took if peak is not None]
            spent[method] = max([spent[method], *times[-1:]])
            yield Point(
                subject=name,
                layers=subject.config.n_layers,
                d_model=subject.config.d_model,
                edges=subject.graph.n_edges,
                method=method,
                seconds=median(times) if times else None,
                mebibytes=max(peaks) / 2**20 if peaks else None,
            )


def calls(
    subject: Transformer, pairs: Pairs, method: str, repeats: int, budget: float
) -> list[tuple[float, int | None]]:
    """Seconds and bytes of several calls, or of one that took too long."""
    took = []
    for _ in range(repeats):
        found = measure(lambda: localize(subject, pairs, method, keep_prompts=0))
        took.append((found.seconds, found.peak_bytes))
        if found.seconds > budget:
            break
    return took


# Reports


def table(points: Sequence[Point], methods: Sequence[str]) -> str:
    """Markdown: one row per subject, one column per method."""
    by_place = {(point.subject, point.method): point for point in points}
    subjects = dict.fromkeys((p.subject, p.layers, p.d_model, p.edges) for p in points)
    lines = ["| subject | layers | d_model | edges | " + " | ".join(methods) + " |"]
    lines.append("| --- | --- | --- | --- |" + " --- |" * len(methods))
    for subject, layers, d_model, edges in subjects:
        cells = [cell(by_place.get((subject, method))) for method in methods]
        lines.append(f"| {subject} | {layers} | {d_model} | {edges:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(point: Point | None) -> str:
    if point is None:
        return ""
    if point.seconds is None:
        return "skipped"
    memory = "" if point.mebibytes is None else f", {point.mebibytes:,.0f} MiB"
    return f"{point.seconds:.3g} s{memory}"


def report(parts: Sequence[Sequence[Point]], options: argparse.Namespace) -> str:
    first, second = parts
    lines = [
        "# Growth",
        "",
        f"![Time and memory against edges]({options.figure})",
        "",
        "A colour is a method. Solid lines with circles are the trained subjects of the first "
        "table, dashed lines with squares the random ones of the second; both axes are "
        "logarithmic.",
        "",
        f"`python -m lab.benchmarks.growth --repeats {options.repeats} --budget {options.budget:g} "
        f"--out docs/results --figure docs/figures/growth.png`, torch {torch.__version__}, "
        f"{options.threads} CPU thread(s): time, and rise of resident memory, of one call with "
        "default options. Every measurement is in [growth.csv](growth.csv).",
        "",
        f"Trained subjects of the pool, four heads per layer, {PAIRS} prompt pairs. A method is "
        f"skipped once a call on a smaller graph took more than {options.budget:g} s.",
        "",
        table(first, list(dict.fromkeys(point.method for point in first))),
        "",
        f"Random weights, d_model 64, {RANDOM_PAIRS} prompt pairs of 8 tokens.",
        "",
        table(second, list(dict.fromkeys(point.method for point in second))),
        "",
        "Subjects differ in width as well as depth; `ib-113` (d_model 88, d_mlp 352) is by far the "
        "widest. On tiny random transformers with a few prompts, `gcl` is all predictor: there "
        "EAP's work on the subject is next to nothing.",
        "",
    ]
    return "\n".join(lines)


def as_csv(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Point.__dataclass_fields__)
    writer.writerows([*vars(point).values()] for point in points)
    return text.getvalue()


def plot(parts: Sequence[Sequence[Point]], path: Path) -> None:
    """Time and memory against edges; trained subjects solid, random ones dashed."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    methods = list(dict.fromkeys(point.method for part in parts for point in part))
    many = matplotlib.colormaps["tab20"]
    colours = COLOURS if len(methods) <= len(COLOURS) else [many(i) for i in range(len(methods))]
    titles = {"seconds": "seconds", "mebibytes": "rise of memory, MiB"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for part, style in zip(parts, ("o-", "s--"), strict=True):
            for i, method in enumerate(methods):
                own = [point for point in part if point.method == method]
                known = [(p.edges, getattr(p, name)) for p in own if getattr(p, name) is not None]
                edges, values = [x for x, _ in known], [y for _, y in known]
                axis.plot(edges, values, style, color=colours[i], ms=4, lw=1.2)
        axis.set(xscale="log", yscale="log", xlabel="edges", ylabel=title)
        axis.grid(alpha=0.3, which="both", lw=0.4)
    handles = {Line2D([], [], color=colours[i]): method for i, method in enumerate(methods)} | {
        Line2D([], [], color="#1c1c22", marker="o", ms=4): "solid, circles: trained subjects",
        Line2D(
            [], [], color="#1c1c22", marker="s", ms=4, ls="--"
        ): "dashed, squares: random weights",
    }
    figure.legend(
        list(handles),
        list(handles.values()),
        loc="outside lower center",
        ncols=6,
        fontsize=8,
        frameon=False,
    )
    save_figure(figure, path)


def read_page(path: Path) -> list[list[Point]]:
    """The points of a page that this program wrote, from its two tables, as they are printed."""
    parts: list[list[Point]] = []
    header: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| subject"):
            header = cells[4:]
            parts.append([])
        elif line.startswith("| ") and not line.startswith("| ---"):
            subject, layers, width, edges = cells[0], *(int(x.replace(",", "")) for x in cells[1:4])
            for method, words in zip(header, cells[4:], strict=True):
                if found := PRINTED.fullmatch(words):
                    seconds, mebibytes = (
                        float(x.replace(",", "")) if x else None for x in found.groups()
                    )
                    parts[-1].append(
                        Point(subject, layers, width, edges, method, seconds, mebibytes)
                    )
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description="Growth of time and memory with the edges.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page and its data")
    parser.add_argument("--figure", type=Path, help="growth.png in that folder if left out")
    parser.add_argument("--redraw", type=Path, help="a growth.md of before; nothing is measured")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), help="default: all")
    parser.add_argument("--largest", type=int, default=2_000_000, help="edges of random graphs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds a measurement may take")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    figure = options.figure or options.out / "growth.png"
    options.figure = Path(os.path.relpath(figure.resolve(), options.out.resolve())).as_posix()
    if options.redraw is not None:
        plot(read_page(options.redraw), figure)
        return 0
    torch.set_num_threads(options.threads)
    methods = options.methods or [
        name for name in METHODS if name != "random" and name not in NAMED_ONLY
    ]
    scalable = [name for name in methods if name in SCALABLE]
    parts: list[list[Point]] = []
    for subjects, chosen in ((trained(), methods), (random(options.largest), scalable)):
        parts.append([])
        for point in grow(subjects, chosen, options.repeats, options.budget):
            parts[-1].append(point)
            place = f"{point.subject:24} {point.edges:9,} {point.method:14}"
            print(place, cell(point), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.csv").write_text(as_csv([*parts[0], *parts[1]]))
    (options.out / "growth.md").write_text(report(parts, options))
    plot(parts, figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
