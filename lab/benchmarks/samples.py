"""How diverse random programs are: layers, heads, circuit sizes, circuits, structures, outputs.

python benchmarks/samples.py --programs 1000 [--json]
"""

import argparse
import json
import time
from collections import Counter

from graphcircuits.cases import load_case
from graphcircuits.cases.random_programs import GUESSABLE, facts_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    cases = [load_case(f"rnd-{options.seed + i}") for i in range(options.programs)]
    seconds = time.perf_counter() - started
    facts = [facts_of(case) for case in cases]
    sizes = sorted(len(case.circuit) for case in cases)
    record = {
        "programs": options.programs,
        "seed": options.seed,
        "ms_a_program": round(1000 * seconds / options.programs, 1),
        "layers": dict(sorted(Counter(case.layout.n_layers for case in cases).items())),
        "heads_in_the_widest_layer": dict(
            sorted(Counter(case.layout.n_heads for case in cases).items())
        ),
        "causal": sum(case.causal for case in cases),
        "numerical_output": sum(not case.categorical for case in cases),
        "circuit_edges_min_q1_median_q3_max": [
            sizes[round(q * (len(sizes) - 1))] for q in (0, 0.25, 0.5, 0.75, 1)
        ],
        "distinct_circuits": len({case.circuit.edges for case in cases}),
        "distinct_structures": len({fact.structure for fact in facts}),
        "distinct_programs": len({fact.program for fact in facts}),
        "constant": sum(fact.guessable == 1 for fact in facts),
        "guessable": sum(fact.guessable > GUESSABLE for fact in facts),
    }
    if options.json:
        print(json.dumps(record))
    else:
        for name, value in record.items():
            print(f"{name:38} {value}")


if __name__ == "__main__":
    main()
