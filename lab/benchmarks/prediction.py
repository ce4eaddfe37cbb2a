"""What the learned predictor costs beside EAP, on the same subject and prompts, and at scale.

1. On shipped subjects of 110 to 1,520 edges, 64 pairs: the shipped predictor (`gcl`), and an
   untrained one of its shape. EAP and they are called in turn and the ratio is taken within each
   turn, so that other programs slow both; the median over turns is reported.
2. On a random transformer of 1.6 million edges, 4 pairs: time, and rise of resident memory.

Times are CPU time, with one thread.

python -m lab.benchmarks.prediction [--repeats 21]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from graphcircuits import load_case
from graphcircuits.compare.measure import measure as measured
from graphcircuits.methods import localize
from graphcircuits.methods.shipped import shipped
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.model import Predictor
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.benchmarks import Measurement, growth

LIMIT = 2.0
"""Of the time in multiples of EAP's."""
SECONDS, GIBIBYTES = 6.0, 1.5
"""Limits at 1.6 million edges."""
UNTRAINED = "untrained"

Call = Callable[[Transformer, Pairs], object]


def measure(repeats: int = 21) -> Iterator[Measurement]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calls = _calls()
        for id in growth.CASES:
            yield from _small(id, calls, repeats)
        yield from _large(calls)
    finally:
        torch.set_num_threads(threads)


def _calls() -> dict[str, Call]:
    """EAP, the shipped predictor, and an untrained one of its shape."""
    model = shipped("default")
    own = Ensemble(tuple(Predictor(model.config) for _ in model.members), {})
    return {
        "eap": lambda subject, pairs: localize(subject, pairs, "eap", keep_prompts=0),
        "gcl": lambda subject, pairs: localize(subject, pairs, "gcl", keep_prompts=0),
        UNTRAINED: lambda subject, pairs: (
            own.predict_case(subject, pairs, generator=torch.Generator()).logits
        ),
    }


def _small(id: str, calls: dict[str, Call], repeats: int) -> Iterator[Measurement]:
    case = load_case(id)
    subject, pairs = case.subject(), case.pairs(growth.PAIRS, seed=0)
    edges = f"{subject.graph.n_edges} edges"
    turns: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        turns.append({name: _seconds(call, subject, pairs) for name, call in calls.items()})
    # The first turn reads the predictor's file.
    del turns[0]
    yield Measurement(f"eap, {edges}", 1e3 * min(turn["eap"] for turn in turns), "ms")
    for name in calls:
        if name != "eap":
            ratio = statistics.median(turn[name] / turn["eap"] for turn in turns)
            yield Measurement(f"{name} against eap, {edges}", ratio, "x", limit=LIMIT)


def _large(calls: dict[str, Call]) -> Iterator[Measurement]:
    _, subject, pairs = growth.random_case(*growth.SHAPES[-1])
    edges = f"{subject.graph.n_edges:,} edges"
    found = measured(lambda: _seconds(calls[UNTRAINED], subject, pairs))
    yield Measurement(f"{UNTRAINED}, {edges}", found.value, "s", limit=SECONDS)
    if found.peak_bytes is not None:
        memory = found.peak_bytes / 2**30
        yield Measurement(f"{UNTRAINED}, {edges}: memory", memory, "GiB", limit=GIBIBYTES)


def _seconds(call: Call, subject: Transformer, pairs: Pairs) -> float:
    start = time.process_time()
    call(subject, pairs)
    return time.process_time() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The predictor beside EAP, and at scale.")
    parser.add_argument("--repeats", type=int, default=21)
    for found in measure(parser.parse_args().repeats):
        limit = "" if found.limit is None else f", limit {found.limit:g}"
        print(f"{found.what}: {found.value:.3g} {found.unit}{limit}", flush=True)
