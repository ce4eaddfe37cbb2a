"""What a certificate costs, question by question.

Without a model the case ib-13 on one thread, its proposed circuit of `eap-ig`; with one, so many of
the best edges of `eap-ig` on a task of the library.

python -m lab.benchmarks.certify_speed [--repeats 3]
    [--model build/models/smollm2.gguf --task ioi --edges 500 --device cuda]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from graphcircuits import load_case, localize
from graphcircuits.certificates.certify import certify
from graphcircuits.circuit import Circuit
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.benchmarks.certificates import PAIRS, drawn

METHOD = "eap-ig"


def main(given: Sequence[str] | None = None) -> int:
    """Certify one circuit some times, and print the seconds."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--repeats", type=int, default=3)
    words.add_argument("--model", type=Path)
    words.add_argument("--task", default="ioi")
    words.add_argument("--edges", type=int, default=500)
    words.add_argument("--device", default="cpu")
    chosen = words.parse_args(given)
    torch.set_num_threads(1)
    if chosen.model is None:
        case = load_case("ib-13")
        subject, pairs, fresh = case.subject(), case.pairs(64), case.pairs(64, seed=1000)
        circuit = localize(subject, pairs, METHOD).circuit()
    else:
        subject, pairs, fresh = _language(chosen.model, chosen.task, chosen.device)
        ranking = localize(subject, pairs, METHOD, keep=None, keep_prompts=0)
        circuit = ranking.circuit(edges=chosen.edges)
    for _ in range(chosen.repeats):
        print(_line(subject, pairs, fresh, circuit))
    return 0


def _language(model: Path, task: str, device: str) -> tuple[Transformer, Pairs, Pairs]:
    from graphcircuits.adapters.load import load_model

    subject = load_model(model, device=device, dtype=torch.float32)
    return subject, *drawn(subject, task, PAIRS)


def _line(subject: Transformer, pairs: Pairs, fresh: Pairs, circuit: Circuit) -> str:
    certificate = certify(subject, pairs, circuit, fresh=fresh, search=METHOD)
    parts = ", ".join(f"{name} {line.seconds:.2f}" for name, line in certificate.lines.items())
    return f"{len(circuit)} edges: {certificate.seconds:.2f} s ({parts})"


if __name__ == "__main__":
    sys.exit(main())
