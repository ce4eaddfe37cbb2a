"""How long a model file takes to load, and how much memory beside the weights.

    python -m lab.benchmarks.loading build/models/qwen2.5-coder-1.5b.gguf --dtype bfloat16

Memory is the most that the process holds while it loads, above what it held with PyTorch imported;
each run needs a process of its own. Times are of the file as it lies in the system's cache.
"""

import argparse
import resource
from pathlib import Path

import torch

from graphcircuits.adapters.load import DTYPES, load_model
from graphcircuits.compare.measure import measure


def main() -> None:
    parser = argparse.ArgumentParser(description="how long a model takes to load")
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF)
    loaded = measure(
        lambda: load_model(options.model, device=options.device, dtype=options.dtype),
        options.device,
    )
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    weights = sum(weight.nbytes for weight in loaded.value.weights.values())
    print(
        f"{options.model.name}, {str(loaded.value.dtype).removeprefix('torch.')}, "
        f"{weights / 1e9:.2f} GB of weights: {loaded.seconds:.1f} s with {torch.get_num_threads()} "
        f"threads, {seconds:.1f} s of processors"
    )
    if loaded.peak_bytes is not None:
        peak = loaded.peak_bytes
        print(f"at most {peak / 1e9:.2f} GB held, {peak / weights:.2f} times the weights")


if __name__ == "__main__":
    main()
