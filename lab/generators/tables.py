"""The paper's three tables of the benchmark, for our cases: split, graph sizes, circuit sizes.

1. `family_table`, `split_table`: how many cases of which family and depth stand where.
2. `graph_table`, `circuit_table`: sizes over the cases of a subset, as median [Q1-Q3] and min-max.
   Nodes count reads and writes apart; those of a circuit are the endpoints of its edges.
3. `discarded_table`, `difference_table`: why cases are discarded, and where the paper's own split
   of InterpBench's cases differs.
4. `random_table`: where the first random programs stand, and how much they differ.

Ten of the 84 published edge lists are not part of the package. `worked_out` is the rule that gives
the sizes of the other 74, and what `case.labels("paper")` takes in place of the ten.

`python -m lab.generators tables` prints all tables as Markdown.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from graphcircuits.cases import FAMILIES, N_FOLDS, RANDOM, case_ids, load_case, split_records
from graphcircuits.cases.case import DEFAULT_LABELS, Case
from graphcircuits.cases.random_programs import GUESSABLE, random_facts
from graphcircuits.circuit import Circuit
from graphcircuits.rasp import SelectorWidth
from graphcircuits.rasp.sample import MAX_LAYERS
from lab.generators.random_programs import N_SEEDS
from lab.programs import parser

FAMILY_NAMES = {"ib": "InterpBench", "tb": "TracrBench", "new": "new"}
SUBSETS = {
    "Pool": "pool",
    **{f"Fold {fold}": f"fold-{fold}" for fold in range(N_FOLDS)},
    "Test": "test",
}
PAPER_SUBSETS = {"Pool, InterpBench part": "paper-pool", "Test": "paper-test"}


def cases_of(split: str) -> list[Case]:
    """The cases of a split."""
    return [load_case(id) for id in case_ids(split=split)]


# --- counts --------------------------------------------------------------------------------------


def family_table() -> str:
    """Families: where their cases stand, and how many layers their programs need."""
    everything = [load_case(id) for id in case_ids()]
    deepest = max(case.layout.n_layers for case in everything)
    rows = []
    for family, name in [*FAMILY_NAMES.items(), (None, "All")]:
        cases = [case for case in everything if family in (None, case.family)]
        splits = Counter(case.split for case in cases)
        layers = Counter(case.layout.n_layers for case in cases)
        rows.append(
            [
                name,
                len(cases),
                *(splits[split] for split in ("test", "held-out", "pool", "discarded")),
            ]
            + [layers[n] for n in range(1, deepest + 1)]
        )
    depths = ["1 layer", *(str(n) for n in range(2, deepest + 1))]
    return _markdown(["Family", "Cases", "Test", "Held out", "Pool", "Discarded", *depths], rows)


def split_table() -> str:
    """The paper's table of the split: cases of each family, and groups of related cases."""
    rows = []
    for name, split in [*SUBSETS.items(), ("Held out", "held-out"), ("Discarded", "discarded")]:
        cases = cases_of(split)
        families = Counter(case.family for case in cases)
        groups = {case.group for case in cases}
        rows.append([name, len(cases), *(families[family] for family in FAMILIES), len(groups)])
    return _markdown(["Subset", "Cases", *FAMILY_NAMES.values(), "Groups"], rows)


def discarded_table() -> str:
    """Discarded cases by the check that discards them and the case that they match."""
    found: dict[tuple[str, str], list[str]] = {}
    for id, record in split_records().items():
        if record["split"] == "discarded":
            found.setdefault((record.get("to", ""), record["check"]), []).append(id)
    order = {id: number for number, id in enumerate(case_ids())}
    rows = [
        [check, to, len(ids), ", ".join(ids)]
        for (to, check), ids in sorted(found.items(), key=lambda item: order.get(item[0][0], -1))
    ]
    return _markdown(["Check", "Matches", "Cases", "Ids"], rows)


def difference_table() -> str:
    """Cases that the paper's own split puts elsewhere than ours."""
    records = split_records()
    rows = [
        [case.id, case.paper_split, case.split, _reason(records[case.id])]
        for case in cases_of("paper")
        if case.split != case.paper_split
    ]
    return _markdown(["Case", "Paper", "Ours", "Because"], rows)


def random_table() -> str:
    """The first random programs: where they stand, how many to choose from, and their layers."""
    every = [random_facts(seed) for seed in range(N_SEEDS)]
    related = [each for each in every if each.assignment.get("check") == "structure"]
    constant = [each for each in every if each.assignment.get("check") == "constant"]
    subsets = {
        name: [each for each in every if split in each.splits] for name, split in SUBSETS.items()
    }
    subsets |= {"Discarded: related": related, "Discarded: constant": constant, "All": every}
    rows = []
    for name, found in subsets.items():
        fit = {each.program: each for each in found if each.guessable <= GUESSABLE}.values()
        layers = Counter(each.n_layers for each in fit)
        groups = {each.assignment["group"] for each in found}
        listed = sum(not each.assignment["group"].startswith(RANDOM) for each in found)
        rows.append(
            [name, len(found), listed, len(groups), len(fit)]
            + [layers[n] for n in range(2, MAX_LAYERS + 1)]
        )
    depths = ["2 layers", *(str(n) for n in range(3, MAX_LAYERS + 1))]
    return _markdown(["Subset", "Seeds", "In listed groups", "Groups", "To choose", *depths], rows)


def _reason(record: Mapping[str, str]) -> str:
    return " ".join(["same", record["check"], "as", record["to"]]) if "to" in record else ""


# --- sizes ---------------------------------------------------------------------------------------


def graph_table(subsets: Mapping[str, str] = SUBSETS) -> str:
    """The paper's table of component graphs: nodes and edges."""
    sizes = {name: [_graph_size(case) for case in cases_of(subsets[name])] for name in subsets}
    return _size_table("graph", sizes)


def circuit_table(labeling: str = DEFAULT_LABELS, subsets: Mapping[str, str] = SUBSETS) -> str:
    """The paper's table of true circuits: nodes and edges under one labeling."""
    sizes = {
        name: [circuit_size(case.labels(labeling)) for case in cases_of(subsets[name])]
        for name in subsets
    }
    return _size_table("circuit", sizes)


def circuit_size(circuit: Circuit) -> tuple[int, int]:
    """Nodes that an edge touches, reads and writes apart; edges."""
    writers, readers = circuit.nodes
    return len(writers) + len(readers), len(circuit)


def summary(values: Sequence[int]) -> tuple[str, str]:
    """`median [Q1-Q3]` and `min-max`; quartiles between two values are interpolated."""
    low, q1, median, q3, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
    return f"{median:g} [{q1:g}-{q3:g}]", f"{low:g}-{high:g}"


def _graph_size(case: Case) -> tuple[int, int]:
    return case.graph.n_nodes, case.graph.n_edges


def _size_table(what: str, sizes: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    rows = []
    for name, found in sizes.items():
        nodes, edges = zip(*found, strict=True)
        rows.append([f"{name} (n={len(found)})", *summary(nodes), *summary(edges)])
    header = ["Subset"]
    for counted in ("nodes", "edges"):
        header += [f"{what.capitalize()} {counted}: median [Q1-Q3]", "min-max"]
    return _markdown(header, rows)


# --- the paper's labels --------------------------------------------------------------------------


def worked_out(case: Case) -> Circuit:
    """The interpbench labels with the defects of the published lists, but for the choice of heads.

    The edge into `logits` is lost when the program needs one layer only. The test cases were
    published first: there every writer of a head feeds q, k and v, and selector widths are missing.
    """
    names = set(case.labels("interpbench").edges)
    if case.paper_split == "test":
        widths = {
            f"a{layer}.h{number}"
            for layer, heads in enumerate(case.layout.heads)
            for number, head in enumerate(heads)
            if isinstance(head, SelectorWidth)
        }
        names = {name for name in names if not widths.intersection(_components(name))}
        spread = {f"{name[:-2]}{slot}>" for name in names if name[-1] == ">" for slot in "qkv"}
        names |= spread
    if case.layout.n_layers == 1:
        names = {name for name in names if not name.endswith("->logits")}
    return Circuit.from_names(case.graph, names)


def _components(edge: str) -> list[str]:
    return edge.partition("<")[0].split("->")


# --- Markdown ------------------------------------------------------------------------------------


def _markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    numbers = [all(isinstance(row[i], int) for row in rows) for i in range(len(header))]
    rule = ["---:" if right else "---" for right in numbers]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def tables() -> dict[str, str]:
    """Every table under its title."""
    return {
        "Families": family_table(),
        "Split": split_table(),
        "Discarded cases": discarded_table(),
        "Where the paper's split differs": difference_table(),
        "Random programs": random_table(),
        "Component graphs": graph_table(),
        "Circuits, complete labels": circuit_table(),
        "Circuits, interpbench labels": circuit_table("interpbench"),
        "InterpBench under the paper's split: component graphs": graph_table(PAPER_SUBSETS),
        "InterpBench under the paper's split and labels: circuits": circuit_table(
            "paper", PAPER_SUBSETS
        ),
    }


def main(arguments: Sequence[str]) -> None:
    """Print all tables."""
    parser("lab.generators tables", __doc__).parse_args(arguments)
    sys.stdout.write("\n\n".join(f"## {title}\n\n{text}" for title, text in tables().items()))
    sys.stdout.write("\n")
