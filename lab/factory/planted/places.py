"""Which component of a model has the part of which one of a program's own: drawn at random.

A component stands in a layer where it can read what it reads, and where those that read it still
fit behind it. Models of several calls leave layer 0 free, where the name of the call can be read.
Heads of one program never share keys and values; those of two programs may be one head if `shared`
is true and `cases.multitask.can_share` allows it.
"""

import random
from collections.abc import Sequence

from graphcircuits.cases.calls import Call
from graphcircuits.cases.language import planted_layout
from graphcircuits.cases.multitask import can_share
from graphcircuits.graph import ComponentGraph
from graphcircuits.rasp.layout import Component

TRIES = 1000


def place(
    calls: Sequence[Call], graph: ComponentGraph, shared: bool, rng: random.Random
) -> dict[str, dict[str, str]]:
    """For each call, which component of the model has the part of which of its program's own."""
    taken: dict[str, list[Component]] = {}
    places = {}
    for call in calls:
        components = planted_layout(call).components
        for _ in range(TRIES):
            names = _drawn(components, graph, 0 if len(calls) == 1 else 1, taken, shared, rng)
            if names is not None:
                break
        else:
            raise ValueError(
                f"no place for the call {call.name!r} in {graph.n_layers} layers of "
                f"{graph.n_heads} heads; make the model larger, or give it fewer calls."
            )
        for component in components:
            taken.setdefault(names[component.name], []).append(component)
        places[call.name] = names
    return places


def depth(call: Call, graph: ComponentGraph) -> int:
    """Layers that the program needs in such a model."""
    components = planted_layout(call).components
    return 1 + max(_lowest(components, graph, 0).values())


def _lowest(components: Sequence[Component], graph: ComponentGraph, first: int) -> dict[str, int]:
    """The first layer that each component can stand in."""
    layers: dict[str, int] = {}
    for one in components:
        least = [layers[other.name] + _gap(other, one, graph) for other in _read(one, components)]
        layers[one.name] = max([first, *least])
    return layers


def _highest(components: Sequence[Component], graph: ComponentGraph) -> dict[str, int]:
    """The last layer that leaves room for those that read it."""
    layers: dict[str, int] = {}
    for one in reversed(components):
        readers = [x for x in components if one in _read(x, components)]
        most = [layers[reader.name] - _gap(one, reader, graph) for reader in readers]
        layers[one.name] = min([graph.n_layers - 1, *most])
    return layers


def _gap(writer: Component, reader: Component, graph: ComponentGraph) -> int:
    """How many layers later a reader stands at least."""
    return int(graph.parallel or not writer.is_head or reader.is_head)


def _read(one: Component, components: Sequence[Component]) -> list[Component]:
    labels = {label for slot in one.reads.values() for label in slot}
    return [other for other in components if labels & set(other.writes)]


def _drawn(
    components: Sequence[Component],
    graph: ComponentGraph,
    first: int,
    taken: dict[str, list[Component]],
    shared: bool,
    rng: random.Random,
) -> dict[str, str] | None:
    """A random place for each component, or None where the draw came to no good."""
    names: dict[str, str] = {}
    layers: dict[str, int] = {}
    highest = _highest(components, graph)
    for one in components:
        least = [layers[x.name] + _gap(x, one, graph) for x in _read(one, components)]
        lowest = max([first, *least])
        if lowest > highest[one.name]:
            return None
        layer = layers[one.name] = rng.randint(lowest, highest[one.name])
        free = [f"m{layer}"]
        if one.is_head:
            size = graph.n_heads // graph.n_groups
            groups = {
                (name.partition(".")[0], int(name.partition(".h")[2]) // size)
                for name in names.values()
                if ".h" in name
            }
            free = [
                f"a{layer}.h{head}"
                for head in range(graph.n_heads)
                if (f"a{layer}", head // size) not in groups
                and all(shared and can_share(one, x) for x in taken.get(f"a{layer}.h{head}", ()))
            ]
        free = [name for name in free if name not in names.values()]
        if not free:
            return None
        names[one.name] = rng.choice(free)
    return names
