"""Time and memory on models of the size that people have, with random weights.

1. A model of SmolLM2-135M's shape, pairs of 14 tokens with a logit difference at the last: EAP,
   EAP-IG in five steps over inputs, and a faithfulness curve of twelve points. On a GPU the pairs
   are 24, on a CPU 4.
2. On a GPU, a model of Llama-3-8B's shape in bfloat16: EAP on 8 pairs of 32 tokens.

What the arithmetic costs does not depend on what the weights are. The first call of each is not
counted. Peak memory is what the call adds to the weights; that of the large model is the whole.

python -m lab.benchmarks.language_model [--device cuda] [--threads 1] [--repeats 5] [--json]
"""

from collections.abc import Callable, Iterator

import torch

from graphcircuits.compare.measure import measure as measure_call
from graphcircuits.evaluation.evaluate import FRACTIONS, faithfulness_curve
from graphcircuits.methods.eap import eap, eap_ig
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from graphcircuits.task.pairs import Pairs
from lab.benchmarks import Measurement, run_alone

SHARED = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "silu",
    "gated_mlp": True,
    "biases": False,
    "n_ctx": 2048,
}
SMOLLM2_135M = TransformerConfig(
    n_layers=30,
    n_heads=9,
    n_kv_heads=3,
    d_model=576,
    d_head=64,
    d_mlp=1536,
    d_vocab=49_152,
    d_vocab_out=49_152,
    tied_unembedding=True,
    **SHARED,
)
LLAMA_3_8B = TransformerConfig(
    n_layers=32,
    n_heads=32,
    n_kv_heads=8,
    d_model=4096,
    d_head=128,
    d_mlp=14_336,
    d_vocab=128_256,
    d_vocab_out=128_256,
    rotary_base=500_000.0,
    **SHARED,
)
LIMITS = {
    "cpu": {"curve": 8.0},
    "cuda": {"EAP": 0.1, "EAP-IG": 0.4, "curve": 0.6},
}
"""Seconds."""
LARGE_LIMIT = 40.0
"""GiB: what another implementation fills with a model an eighth as large and two prompts."""


def random_pairs(subject: Transformer, count: int, pos: int) -> Pairs:
    """Prompts that differ in three tokens, with a right and a wrong answer at the last."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = subject.config.d_vocab
    clean = torch.randint(vocabulary, (count, pos), generator=generator)
    corrupted = clean.clone()
    corrupted[:, 3:6] = torch.randint(vocabulary, (count, 3), generator=generator)
    right, wrong = torch.randint(vocabulary, (2, count), generator=generator)
    scored = torch.zeros(clean.shape, dtype=torch.bool)
    scored[:, -1] = True
    pairs = Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=scored,
        loss_name="logit-diff",
        targets=right,
        incorrect=wrong,
    )
    return pairs.to(subject.device)


def random_subject(config: TransformerConfig, device: str, dtype: torch.dtype) -> Transformer:
    return Transformer.random(config, torch.Generator(device).manual_seed(0), dtype=dtype)


def taken(work: Callable[[], object], device: str, repeats: int) -> tuple[float, float]:
    """Seconds of the fastest call, and GiB that one adds to what is in use."""
    work()
    found = [measure_call(work, device) for _ in range(repeats)]
    peak = max(each.peak_bytes or 0 for each in found)
    return min(each.seconds for each in found), peak / 2**30


def small(device: str, repeats: int) -> Iterator[Measurement]:
    subject = random_subject(SMOLLM2_135M, device, torch.float32)
    pairs = random_pairs(subject, 24 if device == "cuda" else 4, 14)
    scores = eap(subject, pairs)
    n_edges = subject.graph.n_edges
    sizes = [0, *(int(part * n_edges) for part in (*FRACTIONS[:-1], 0.8)), n_edges]
    works: dict[str, Callable[[], object]] = {
        "EAP": lambda: eap(subject, pairs),
        "EAP-IG": lambda: eap_ig(subject, pairs),
        "curve": lambda: faithfulness_curve(subject, pairs, scores, sizes=sizes),
    }
    for name, work in works.items():
        seconds, peak = taken(work, device, repeats)
        what = f"{name}, SmolLM2-135M, {len(pairs)} pairs"
        yield Measurement(what, seconds, "s", limit=LIMITS[device].get(name))
        yield Measurement(f"peak memory of {what}", peak, "GiB")


def large(device: str, repeats: int) -> Iterator[Measurement]:
    subject = random_subject(LLAMA_3_8B, device, torch.bfloat16)
    pairs = random_pairs(subject, 8, 32)
    weights = sum(each.numel() * each.itemsize for each in subject.weights.values()) / 2**30
    seconds, peak = taken(lambda: eap(subject, pairs), device, repeats)
    what = f"EAP, Llama-3-8B in bfloat16, {len(pairs)} pairs"
    yield Measurement(what, seconds, "s")
    yield Measurement(f"weights and peak memory of {what}", weights + peak, "GiB", LARGE_LIMIT)


def measure(device: str = "cpu", repeats: int = 5) -> Iterator[Measurement]:
    yield from small(device, repeats)
    if device == "cuda":
        yield from large(device, repeats)


if __name__ == "__main__":
    raise SystemExit(run_alone(measure, __doc__))
