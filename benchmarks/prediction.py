"""What the learned predictor costs beside EAP, on the same subject and prompts.

Both are called in turn and the ratio is taken within each turn, so that other programs slow both;
the median over turns is reported, in CPU time, with one thread.

python -m benchmarks.prediction
"""

import statistics
import time
from collections.abc import Iterator

import torch

from benchmarks import Measurement
from graphcircuits import load_case, localize

CASES = ("ib-44", "ib-113")
"""The smallest and the largest graph of the pool."""
LIMIT = 2.0


def measure(repeats: int = 21) -> Iterator[Measurement]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for id in CASES:
            yield from _measured(id, repeats)
    finally:
        torch.set_num_threads(threads)


def _measured(id: str, repeats: int) -> Iterator[Measurement]:
    case = load_case(id)
    subject, pairs = case.subject(), case.pairs(64)
    edges = subject.graph.n_edges
    turns: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        turn = {}
        for method in ("gcl", "eap"):
            start = time.process_time()
            localize(subject, pairs, method)
            turn[method] = time.process_time() - start
        turns.append(turn)
    # The first turn reads the predictor's file.
    del turns[0]
    for method in ("gcl", "eap"):
        fastest = min(turn[method] for turn in turns)
        yield Measurement(f"{method}, {edges} edges, 64 pairs", 1e3 * fastest, "ms")
    ratio = statistics.median(turn["gcl"] / turn["eap"] for turn in turns)
    yield Measurement(f"gcl against eap, {edges} edges", ratio, "x", limit=LIMIT)


if __name__ == "__main__":
    for found in measure():
        limit = "" if found.limit is None else f", limit {found.limit:g}"
        print(f"{found.what}: {found.value:.3g} {found.unit}{limit}")
