"""Methods with given options on natural subjects of the pool: how small circuits by output are.

Subjects are trained on their task alone, for programs that predictors and settings may learn from,
and kept in FOLDER. A method is found on 32 pairs and judged on 64 fresh ones: the mean of
`log_area`, and geometric means of `edges_for` .8, .9 and .95 (all edges where a curve stays below).

python -m lab.benchmarks.rivals FOLDER [--subjects ib-2,ib-67] eap-ig ig-own:rate=0.5,spread=2 ...
"""

import argparse
import time
from pathlib import Path
from statistics import geometric_mean, mean

import numpy as np
import torch

from graphcircuits.cases import load_case
from graphcircuits.commands.options import method_options
from graphcircuits.evaluation.evaluate import CROSSINGS, faithfulness_curve
from graphcircuits.methods import localize
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer

SUBJECTS = {
    "ib-2": "plain",
    "ib-67": "llama",
    "tb-histogram": "gpt2",
    "new-count-distinct": "neox",
    "new-pointer-fixed-point": "llama-gqa",
    "tb-sum-with-next": "rms",
    "new-mirror-match-fraction": "plain",
    "new-sort-descending-gap": "rotary",
}
"""Cases of the pool and the architectures of their subjects: 82 to 761 edges."""
FRESH = 1000
"""The seed of the prompts that circuits are judged on."""


def subject_of(folder: Path, id: str) -> Transformer:
    """The natural subject of a case, trained if the folder has none."""
    path = folder / f"{id}.{SUBJECTS[id]}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_transformer(path, load_case(id).train("natural", SUBJECTS[id], steps=4000).subject)
    return load_transformer(path)


def measured(folder: Path, id: str, method: str) -> tuple[float, ...]:
    """Log area, edges for every crossing, and seconds."""
    name, _, options = method.partition(":")
    given = method_options(name, options.split(",") if options else [])
    case, subject = load_case(id), subject_of(folder, id)
    began = time.perf_counter()
    result = localize(subject, case.pairs(32, seed=0), name, keep_prompts=0, **given)
    seconds = time.perf_counter() - began
    n_edges = subject.graph.n_edges
    sizes = np.unique(np.geomspace(1, n_edges, 40).round().astype(int)).tolist()
    curve = faithfulness_curve(subject, case.pairs(64, seed=FRESH), result, sizes=sizes)
    return (curve.log_area, *(curve.edges_for(t) or n_edges for t in CROSSINGS), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("methods", nargs="+", metavar="METHOD[:NAME=VALUE,...]")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="cases, as a,b,c")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ids = options.subjects.split(",")
    print(f"| method | log area | {' | '.join(f'edges for {t:g}' for t in CROSSINGS)} | s |")
    print(f"| --- {'| --- ' * (2 + len(CROSSINGS))}|")
    for method in options.methods:
        area, *edges, seconds = zip(
            *(measured(options.folder, id, method) for id in ids), strict=True
        )
        counts = " | ".join(f"{geometric_mean(each):.1f}" for each in edges)
        print(f"| {method} | {mean(area):.4f} | {counts} | {mean(seconds):.2f} |", flush=True)


if __name__ == "__main__":
    main()
