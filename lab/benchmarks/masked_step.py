"""A gradient step of masks: forward and backward through a masked run, with random weights.

1. Seconds (median and best), GiB that a step adds to what is in use, CUDA kernels and the seconds
   they take, in each precision, beside the same step recorded by plain autograd where that fits.
2. How far gradients in a precision are from those of the first that is named: cosine, and relative
   distance.

Shapes: `small` with 110 edges, 8 masks on 16 prompts; `medium`, 4 layers x 8 heads; `smollm2`, 4
masks on 16 prompts of 15 tokens; `llama3-8b` in bfloat16, one mask on 8 prompts of 32 tokens. What
the arithmetic costs does not depend on what the weights are.

python -m lab.benchmarks.masked_step --shape smollm2 --device cuda --precision full tf32 bfloat16
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphcircuits.compare.measure import measure as measure_call
from graphcircuits.engine.graphed import CALLS_BEFORE
from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.precision import PRECISIONS
from graphcircuits.methods.prepare import MaskedLosses
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from lab.benchmarks.engine import make_subject
from lab.benchmarks.language_model import LLAMA_3_8B, SMOLLM2_135M, random_pairs, random_subject


@dataclass(frozen=True)
class Shape:
    """What a step runs."""

    config: TransformerConfig
    dtype: torch.dtype
    masks: int
    prompts: int
    pos: int
    plain: bool = True
    """Whether the step is also recorded by plain autograd."""


SMALL = replace(make_subject(2, 40).config, d_vocab_out=8)
MEDIUM = replace(make_subject(4, 128, n_heads=8, n_ctx=16).config, d_vocab_out=8)
SHAPES = {
    "small": Shape(SMALL, torch.float32, 8, 16, 11),
    "medium": Shape(MEDIUM, torch.float32, 4, 16, 16),
    "smollm2": Shape(SMOLLM2_135M, torch.float32, 4, 16, 15),
    "llama3-8b": Shape(LLAMA_3_8B, torch.bfloat16, 1, 8, 32, plain=False),
}


def make_step(shape: Shape, subject: Transformer, precision: str, way: str) -> Callable[[], Tensor]:
    """A step that returns the gradient by its masks.

    Ways: `graph`, repeated as a CUDA graph; `autograd`, through `masked_logits`; `plain`, the same
    as autograd records it where corrupted outputs ask for gradients as well.
    """
    pairs = random_pairs(subject, shape.prompts, shape.pos)
    size = (shape.masks, subject.graph.n_edges)
    masks = torch.rand(size, generator=torch.Generator().manual_seed(2)).to(subject.device)
    rows = torch.arange(len(pairs), device=subject.device)
    if way == "graph":
        run = MaskedLosses(subject, pairs, None, precision)
        # Of the mean over masks, as below.
        return lambda: run.gradients(masks, rows, rows)[1] / shape.masks
    with torch.no_grad():
        corrupted = subject.run(pairs.corrupted).writers
    corrupted.requires_grad_(way == "plain")
    masks.requires_grad_()

    def step() -> Tensor:
        losses = masked_logits(
            subject,
            pairs.clean,
            masks,
            corrupted,
            metric=pairs.loss_at_columns,
            columns=pairs.columns,
            precision=precision,
        )
        return torch.autograd.grad(losses.mean(), masks)[0]

    return step


def kernels(step: Callable[[], Tensor], *, table: bool = False) -> dict[str, float]:
    """CUDA kernels that a step launches, and the seconds that they take."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    if table:
        for key in ("self_cuda_time_total", "self_cpu_time_total"):
            sys.stderr.write(profile.key_averages().table(sort_by=key, row_limit=25))
    found = [event for event in profile.events() or [] if event.device_type.name == "CUDA"]
    busy = sum(event.self_device_time_total for event in found) / 1e6
    return {"kernels": len(found), "busy": busy}


def measure(
    step: Callable[[], Tensor], device: str, repeats: int, *, table: bool = False
) -> dict[str, Any]:
    for _ in range(CALLS_BEFORE + 1):
        step()
    found = [measure_call(step, device) for _ in range(repeats)]
    seconds = sorted(each.seconds for each in found)
    peak = max(each.peak_bytes or 0 for each in found) / 2**30
    row = {"seconds": statistics.median(seconds), "best": seconds[0], "GiB": round(peak, 3)}
    return row | (kernels(step, table=table) if device == "cuda" else {})


def compare(found: Tensor, reference: Tensor) -> dict[str, float]:
    """How far a gradient is from another."""
    found, reference = found.double().flatten(), reference.double().flatten()
    return {
        "cosine": float(torch.cosine_similarity(found, reference, dim=0)),
        "distance": float((found - reference).norm() / reference.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["full"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--no-plain", action="store_true", help="leave plain autograd out")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    subject = random_subject(shape.config, options.device, shape.dtype)
    rows: dict[str, Any] = {"shape": options.shape, "edges": subject.graph.n_edges}
    ways = [(way, each) for each in options.precision for way in ("graph", "autograd")]
    if shape.plain and not options.no_plain:
        ways.append(("plain", options.precision[0]))
    reference = None
    for way, precision in ways:
        step = make_step(shape, subject, precision, way)
        row = measure(step, options.device, options.repeats, table=options.profile)
        gradient = step()
        reference = gradient if reference is None else reference
        rows[f"{way}, {precision}"] = row | compare(gradient, reference)
        del step, gradient
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
