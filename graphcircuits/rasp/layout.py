"""Where a program's variables sit in a transformer, and the circuit that follows.

1. Depth of a variable: the longest path from `tokens` and `indices`, counting sequences only.
2. From the lowest depth up, a depth of heads alone and a following depth of MLP functions alone
   share a layer; every other depth has its own. A selector width is a head and an MLP function.
3. Heads of a layer are numbered in breadth-first order of the variables they compute.
4. The reads and writes of all components give the circuits: `complete` has every read,
   `interpbench` drops a writer that another writer of the same reader passes on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from graphcircuits.rasp.expression import walk
from graphcircuits.rasp.language import Aggregate, Full, SelectorWidth, SOp, indices, tokens
from graphcircuits.rasp.selectors import selector_leaves
from graphcircuits.rasp.tabulate import Tables, sequence_inputs

WIDTH_SUFFIX = "_selector_width_attn_output"
"""What the head of a selector width writes, 1 / (width + 1), for the MLP of its layer to decode."""
_EMBEDDINGS = {"tokens": "input", "indices": "input"}


@dataclass(frozen=True, kw_only=True)
class Component:
    """A head or MLP of the compiled model: the variables that it reads and writes."""

    name: str
    layer: int
    reads: Mapping[str, tuple[str, ...]]
    """Labels by input: `q`, `k` and `v` of a head, `in` of an MLP."""
    writes: tuple[str, ...]

    @property
    def is_head(self) -> bool:
        return "q" in self.reads


@dataclass(frozen=True, eq=False)
class Layout:
    """Layers and heads of a compiled program."""

    n_layers: int
    n_heads: int
    heads: tuple[tuple[SOp, ...], ...]
    """By layer, the aggregates and selector widths in head order."""
    functions: tuple[tuple[SOp, ...], ...]
    """By layer, what its MLP computes, in breadth-first order."""
    components: tuple[Component, ...]
    """In the order they run."""
    result: str
    """Label of the variable that the unembedding reads."""


def lay_out(tables: Tables) -> Layout:
    """Allot every variable of a program to a layer, and to a head or the MLP there."""
    layer_of = layers_of(tables.program)
    n_layers = max(layer_of.values(), default=0) + 1
    layers: list[list[SOp]] = [[] for _ in range(n_layers)]
    for sop in tables.order:
        if isinstance(sop, SOp):
            layers[layer_of[sop]].append(sop)
    heads, functions = (
        tuple(tuple(filter(belongs, sops)) for sops in layers)
        for belongs in (_is_head, _is_function)
    )
    return Layout(
        n_layers=n_layers,
        n_heads=max(1, *map(len, heads)),
        heads=heads,
        functions=functions,
        components=tuple(_components(tables, heads, functions)),
        result=tables.labels[tables.program],
    )


def moved(layout: Layout, names: Mapping[str, str]) -> Layout:
    """The layout with its components elsewhere: new names by old ones, each layer as a whole."""
    components = tuple(
        replace(one, name=(name := names[one.name]), layer=int(name.partition(".")[0][1:]))
        for one in layout.components
    )
    up = components[0].layer - layout.components[0].layer if components else 0
    return replace(
        layout,
        n_layers=layout.n_layers + up,
        n_heads=max([1, *(1 + int(c.name.partition(".h")[2]) for c in components if c.is_head)]),
        heads=(*[()] * up, *layout.heads),
        functions=(*[()] * up, *layout.functions),
        components=components,
    )


def inputs_of(sop: SOp) -> list[SOp]:
    """What a variable is computed from. A constant is taken to be a map of `indices`."""
    return [indices] if isinstance(sop, Full) else sequence_inputs(sop)


def _is_head(sop: SOp) -> bool:
    return isinstance(sop, Aggregate | SelectorWidth)


def _is_function(sop: SOp) -> bool:
    return not isinstance(sop, Aggregate)


def layers_of(program: SOp) -> dict[SOp, int]:
    """The layer of every variable that a head or MLP computes."""
    depth: dict[SOp, int] = {tokens: 0, indices: 0}
    for sop in walk(program):
        if isinstance(sop, SOp) and sop not in depth:
            depth[sop] = 1 + max(depth[source] for source in inputs_of(sop))
    computed = {sop: d for sop, d in depth.items() if d}
    at: dict[int, list[SOp]] = {d: [] for d in sorted(computed.values())}
    for sop, d in computed.items():
        at[d].append(sop)
    layer, layer_at, heads_alone = -1, {}, False
    for d, sops in at.items():
        shares = heads_alone and not any(map(_is_head, sops))
        layer = layer if shares else layer + 1
        layer_at[d] = layer
        heads_alone = not shares and not any(map(_is_function, sops))
    return {sop: layer_at[d] for sop, d in computed.items()}


def _components(
    tables: Tables, heads: tuple[tuple[SOp, ...], ...], functions: tuple[tuple[SOp, ...], ...]
) -> Iterable[Component]:
    label = tables.labels
    for layer, (attending, computing) in enumerate(zip(heads, functions, strict=True)):
        for number, sop in enumerate(attending):
            assert isinstance(sop, Aggregate | SelectorWidth)
            leaves = selector_leaves(sop.selector)
            is_width = isinstance(sop, SelectorWidth)
            yield Component(
                name=f"a{layer}.h{number}",
                layer=layer,
                reads={
                    "q": _distinct(label[leaf.queries] for leaf in leaves),
                    "k": _distinct(label[leaf.keys] for leaf in leaves),
                    "v": () if is_width else (label[sop.values],),
                },
                writes=(label[sop] + (WIDTH_SUFFIX if is_width else ""),),
            )
        if computing:
            reads = [
                [label[sop] + WIDTH_SUFFIX]
                if isinstance(sop, SelectorWidth)
                else [label[source] for source in inputs_of(sop)]
                for sop in computing
            ]
            yield Component(
                name=f"m{layer}",
                layer=layer,
                reads={"in": _distinct(name for names in reads for name in names)},
                writes=tuple(label[sop] for sop in computing),
            )


def _distinct(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels))


# --- circuits ------------------------------------------------------------------------------------


def complete_edges(layout: Layout) -> frozenset[str]:
    """Every read that the program makes, as edges of the component graph."""
    return _edges(layout, _writers(layout))


def interpbench_edges(layout: Layout) -> frozenset[str]:
    """The reads that the public benchmark labels: what another writer passes on is dropped."""
    return _edges(layout, interpbench_writers(layout))


def interpbench_writers(layout: Layout) -> dict[tuple[str, str], frozenset[str]]:
    """The components behind those reads, by reader and input, `tokens` and `indices` apart.

    A writer goes when another writer of the same reader itself gets it directly, in its value input
    or MLP input after that input's own dropping.
    """
    direct: dict[tuple[str, str], frozenset[str]] = {}
    passed_on: dict[str, frozenset[str]] = {}
    for (name, slot), writers in _writers(layout).items():
        direct[name, slot] = frozenset(
            writer
            for writer in writers
            if not any(writer in passed_on.get(other, ()) for other in writers - {writer})
        )
        if slot in ("v", "in"):
            passed_on[name] = direct[name, slot]
    return direct


def _writers(layout: Layout) -> dict[tuple[str, str], frozenset[str]]:
    """Who writes what each input reads, inputs in running order; embeddings by variable name."""
    writer = {label: one.name for one in layout.components for label in one.writes}
    writer |= {embedded: embedded for embedded in _EMBEDDINGS}
    readers = [
        ((component.name, slot), labels)
        for component in layout.components
        for slot, labels in component.reads.items()
    ]
    readers.append((("logits", "in"), (layout.result,)))
    return {reader: frozenset(writer[label] for label in labels) for reader, labels in readers}


def _edges(layout: Layout, writers: Mapping[tuple[str, str], frozenset[str]]) -> frozenset[str]:
    return frozenset(
        f"{_EMBEDDINGS.get(writer, writer)}->{name}" + ("" if slot == "in" else f"<{slot}>")
        for (name, slot), names in writers.items()
        for writer in names
    )
