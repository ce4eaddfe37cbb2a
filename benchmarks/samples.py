"""How diverse random programs are: layers, heads, circuit sizes, distinct circuits and shapes.

python benchmarks/samples.py --programs 1000 [--json]
"""

import argparse
import json
import time
from collections import Counter

import networkx as nx
import torch

from graphcircuits.circuit import Circuit
from graphcircuits.rasp.compile import compile_program
from graphcircuits.rasp.sample import sample_case


def shape(circuit: Circuit) -> str:
    """A hash that isomorphic circuits share, component kinds and q/k/v told apart."""
    graph = nx.DiGraph()
    for edge in circuit.edges:
        writer, _, reader = edge.partition("->")
        for name in (writer, reader):
            graph.add_node(name, kind=name[0] + name[name.find("<") :] if "<" in name else name[0])
        graph.add_edge(writer, reader)
        # A reader feeds the component it belongs to.
        component = reader.partition("<")[0]
        if component != reader:
            graph.add_node(component, kind=component[0])
            graph.add_edge(reader, component)
    return nx.weisfeiler_lehman_graph_hash(graph, node_attr="kind", iterations=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    started = time.perf_counter()
    cases = [sample_case(generator) for _ in range(options.programs)]
    seconds = time.perf_counter() - started
    models = [
        compile_program(c.program, vocab=c.vocab, max_seq_len=c.max_seq_len, causal=c.causal)
        for c in cases
    ]
    sizes = sorted(len(model.circuit) for model in models)
    record = {
        "programs": options.programs,
        "seed": options.seed,
        "ms_a_program": round(1000 * seconds / options.programs, 1),
        "layers": dict(sorted(Counter(m.layout.n_layers for m in models).items())),
        "heads_in_the_widest_layer": dict(
            sorted(Counter(m.layout.n_heads for m in models).items())
        ),
        "causal": sum(case.causal for case in cases),
        "numerical_output": sum(m.transformer.codec.outputs is None for m in models),  # pyright: ignore
        "circuit_edges_min_q1_median_q3_max": [
            sizes[round(q * (len(sizes) - 1))] for q in (0, 0.25, 0.5, 0.75, 1)
        ],
        "distinct_circuits": len({model.circuit.edges for model in models}),
        "distinct_shapes": len({shape(model.circuit) for model in models}),
    }
    if options.json:
        print(json.dumps(record))
    else:
        for name, value in record.items():
            print(f"{name:38} {value}")


if __name__ == "__main__":
    main()
