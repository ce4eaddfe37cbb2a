"""What `gcl` costs beside `eap-ig` on a model of SmolLM2-135M's shape, and where its time goes.

1. Both methods on 24 pairs of 15 tokens, random weights, called in turn: median and least seconds.
2. The parts of `gcl`, each waiting for the device at its ends: reading the subject (runs and
   gradients, and the products with them), the table of features, the network, and all of it.
   Waiting makes the whole slower, so parts are shares and not promises.
3. The operators that the host spends most time in, and how often it waits for the device.

python -m lab.benchmarks.gcl_speed [--device cuda] [--repeats 10] [--pairs 24]
    [--vocabulary 49152] [--operators 25] [--llama]

`--llama` takes Llama-3-8B's graph (1.6 million edges) with a narrow stream instead.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

import graphcircuits as gc
from graphcircuits.predictor import ensemble, invariant
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.measure import contract
from lab.benchmarks.growth import SHAPES, random_case
from lab.benchmarks.language_model import SMOLLM2_135M, random_pairs, random_subject

PAIRS, TOKENS = 24, 15
METHODS = ("eap-ig", "gcl")
PARTS = {
    "whole": (Ensemble, "predict_case"),
    "runs and gradients": (contract, "_runs_between"),
    "contractions, runs included": (invariant, "contract"),
    "invariants, contractions included": (invariant, "measure"),
    "table": (invariant, "table"),
    "reading, all of the above": (ensemble, "read_case"),
    "network": (Ensemble, "member_logits"),
    "network and facts": (Ensemble, "predict"),
    "moving the predictor": (Ensemble, "to"),
}
"""The functions that are timed, by where they are looked up."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpyAsync", "aten::item")
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernelExC")


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str) -> float:
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


@contextmanager
def timed_parts(device: str) -> Iterator[dict[str, list[float]]]:
    """Seconds of every call of the functions in PARTS."""
    found: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            results = []
            found[name].append(seconds(lambda: results.append(function(*args, **options)), device))
            return results[0]

        return call

    with ExitStack() as stack:
        for name, (owner, attribute) in PARTS.items():
            function = timed(name, getattr(owner, attribute))
            stack.enter_context(patch.object(owner, attribute, function))
        yield found


def counted(work: Callable[[], object], device: str, operators: int) -> dict[str, Any]:
    """How often one call waits, copies and launches, and the operators that take the host longest;
    the table of them is printed."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=activities) as profiler:
        seconds(work, device)
    averages = profiler.key_averages()
    print(averages.table(sort_by="self_cpu_time_total", row_limit=operators), flush=True)
    if device == "cuda":
        table = averages.table(sort_by="self_device_time_total", row_limit=operators)
        print(table, flush=True)
    calls = {event.key: event.count for event in averages}
    return {
        **{name: calls.get(name, 0) for name in WAITS},
        "launches": sum(calls.get(name, 0) for name in LAUNCHES),
        "operators": sum(count for name, count in calls.items() if name.startswith("aten::")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="gcl beside eap-ig, and where its time goes.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--vocabulary", type=int, default=SMOLLM2_135M.d_vocab)
    parser.add_argument("--operators", type=int, default=25)
    parser.add_argument("--llama", action="store_true")
    options = parser.parse_args()
    device, words = options.device, options.vocabulary
    if options.llama:
        _, subject, pairs = random_case(*SHAPES[-1])
        subject, pairs = subject.to(device), pairs.to(device)
    else:
        config = replace(SMOLLM2_135M, d_vocab=words, d_vocab_out=words)
        subject = random_subject(config, device, torch.float32)
        pairs = random_pairs(subject, options.pairs, TOKENS)
    calls = {
        name: lambda name=name: gc.localize(subject, pairs, name, keep=None, keep_prompts=0)
        for name in METHODS
    }
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "edges": subject.graph.n_edges,
        "first": {name: seconds(call, device) for name, call in calls.items()},
    }
    turns = [
        {name: seconds(calls[name], device) for name in METHODS} for _ in range(options.repeats)
    ]
    for what, of in (("median", statistics.median), ("least", min)):
        report[what] = {name: of([turn[name] for turn in turns]) for name in METHODS}
    with timed_parts(device) as parts:
        calls["gcl"]()
        parts.clear()
        for _ in range(options.repeats):
            calls["gcl"]()
    report["parts of gcl"] = {name: sum(times) / options.repeats for name, times in parts.items()}
    report["counts"] = {name: counted(calls[name], device, options.operators) for name in METHODS}
    if device == "cuda":
        for name in METHODS:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            calls[name]()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**30
            report.setdefault("GiB beyond the weights", {})[name] = peak
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
