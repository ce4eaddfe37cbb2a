"""Random programs, compiled and interpreted side by side; a failure is cut down to a minimal one.

python -m tests.rasp.fuzz --programs 20000 --seed 1 --processes 2
"""

import argparse
import collections
import math
import multiprocessing
import random
import sys
import time
from dataclasses import replace

import torch

from graphcircuits.rasp import RaspError, SOp, Value, evaluate
from graphcircuits.rasp.compile import compile_program
from graphcircuits.rasp.expression import walk
from graphcircuits.rasp.layout import layers_of
from graphcircuits.rasp.sample import SampledCase, sample_case
from tests.rasp.describe import describe

INPUTS = 12


def agree(expected: Value, got: Value) -> bool:
    """Whether the compiled model's answer is the interpreter's; None may decode as anything."""
    if expected is None:
        return True
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-6, abs_tol=1e-6)
    return expected == got


def failure(case: SampledCase, seed: int) -> str | None:
    """What goes wrong with a program on random inputs of mixed length; None if nothing does."""
    choice = random.Random(seed)
    lengths = [choice.randint(1, case.max_seq_len - 1) for _ in range(INPUTS - 2)]
    lengths += [1, case.max_seq_len - 1]
    inputs = [[choice.choice(case.vocab) for _ in range(length)] for length in lengths]
    try:
        model = compile_program(
            case.program, vocab=case.vocab, max_seq_len=case.max_seq_len, causal=case.causal
        )
        outputs = model.apply_batch(inputs)
    except RaspError as error:
        return f"refused: {error}"
    for given, got in zip(inputs, outputs, strict=True):
        expected = evaluate(case.program, given, causal=case.causal)
        if not all(map(agree, expected, got)):
            return f"on {given}: interpreter {expected}, compiled {got}"
    return None


def minimal(case: SampledCase, seed: int) -> SampledCase:
    """The smallest failing part of a failing program, then on the shortest failing length."""
    parts = [sop for sop in walk(case.program) if isinstance(sop, SOp)]
    smaller = [replace(case, program=sop) for sop in parts]
    failing = [part for part in smaller if failure(part, seed)]
    case = min(failing, key=lambda part: len(describe(part.program)), default=case)
    for length in range(2, case.max_seq_len):
        if failure(shorter := replace(case, max_seq_len=length), seed):
            return shorter
    return case


def report(case: SampledCase, seed: int) -> str:
    """A failing program as a text to start debugging from."""
    small = minimal(case, seed)
    return "\n".join(
        [
            f"seed {seed}: {failure(small, seed)}",
            f"vocab {small.vocab}, max_seq_len {small.max_seq_len}, causal {small.causal}",
            *describe(small.program),
        ]
    )


def sampled(seed: int) -> SampledCase:
    return sample_case(torch.Generator().manual_seed(seed))


def check(seed: int) -> tuple[int, str | None]:
    """Layers of one random program, and its report if it fails."""
    torch.set_num_threads(1)
    case = sampled(seed)
    layers = 1 + max(layers_of(case.program).values(), default=0)
    return layers, report(case, seed) if failure(case, seed) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="first seed; one program per seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started, layers, failures = time.monotonic(), collections.Counter(), 0
    seeds = range(options.seed, options.seed + options.programs)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, (depth, text) in enumerate(pool.imap_unordered(check, seeds, 32), start=1):
            layers[depth] += 1
            if text:
                failures += 1
                print(text, "\n", flush=True)
            if done % 1000 == 0:
                print(f"{done} programs, {failures} failures", flush=True)
    print(
        f"{options.programs} programs, {failures} failures, {time.monotonic() - started:.0f} s, "
        f"layers {dict(sorted(layers.items()))}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
