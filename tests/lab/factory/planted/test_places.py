"""Where calls are planted: wherever the program allows, and nowhere else."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.cases.calls import CALLS, Call
from graphcircuits.cases.language import planted_layout
from graphcircuits.cases.multitask import can_share
from graphcircuits.graph import ComponentGraph
from graphcircuits.rasp.layout import Component
from lab.factory.planted.places import depth, place

pytestmark = pytest.mark.usefixtures("unchecked")

GRAPHS = {
    "one after the other": ComponentGraph(8, 4),
    "side by side": ComponentGraph(9, 4, parallel=True),
    "in groups": ComponentGraph(8, 8, n_kv_heads=4),
    "in groups, side by side": ComponentGraph(9, 6, n_kv_heads=2, parallel=True),
}
SEEDS = st.integers(0, 2**32)


def layer_of(name: str) -> int:
    return int(name[1:].partition(".")[0])


def check(call: Call, names: dict[str, str], graph: ComponentGraph, first: int) -> None:
    """Everything stands where it can be read and can read, each in a place of its own."""
    components = planted_layout(call).components
    assert list(names) == [one.name for one in components]
    assert len(set(names.values())) == len(names)
    assert set(names.values()) <= set(graph.writer_names)
    writer = {label: one for one in components for label in one.writes}
    heads = []
    for one in components:
        here = names[one.name]
        assert (here[0], layer_of(here) >= first) == (one.name[0], True)
        if one.is_head:
            size = graph.n_heads // graph.n_groups
            heads.append((layer_of(here), int(here.partition(".h")[2]) // size))
        for label in {x for slot in one.reads.values() for x in slot} - {"tokens"}:
            there, earlier = names[writer[label].name], layer_of(here) - 1
            same = writer[label].is_head and not one.is_head and not graph.parallel
            assert layer_of(there) <= earlier + same
    assert len(set(heads)) == len(heads)


@pytest.mark.parametrize("graph", GRAPHS)
@given(seed=SEEDS)
def test_a_call_alone_may_stand_in_any_layer(graph: str, seed: int) -> None:
    rng, one = random.Random(seed), GRAPHS[graph]
    call = rng.choice([*CALLS.values()])
    names = place([call], one, True, rng)
    assert list(names) == [call.name]
    check(call, names[call.name], one, 0)


@pytest.mark.parametrize("graph", GRAPHS)
@given(seed=SEEDS, shared=st.booleans())
def test_calls_together_leave_layer_0_free(graph: str, seed: int, shared: bool) -> None:
    rng, one = random.Random(seed), GRAPHS[graph]
    fitting = [call for call in CALLS.values() if depth(call, one) < one.n_layers]
    calls = rng.sample(fitting, 3)
    places = place(calls, one, shared, rng)
    parts: dict[str, list[Component]] = {}
    for call in calls:
        check(call, places[call.name], one, 1)
        for part in planted_layout(call).components:
            parts.setdefault(places[call.name][part.name], []).append(part)
    for name, several in parts.items():
        if ".h" in name and not shared:
            assert len(several) == 1
        elif ".h" in name:
            assert all(can_share(a, b) for i, a in enumerate(several) for b in several[:i])


def test_all_layers_and_heads_come_up() -> None:
    graph = ComponentGraph(3, 2)
    found = {
        place([CALLS["first"]], graph, True, random.Random(seed))["first"]["a0.h0"]
        for seed in range(200)
    }
    assert found == {f"a{layer}.h{head}" for layer in range(3) for head in range(2)}
    together = [
        place([CALLS["first"], CALLS["last"]], graph, True, random.Random(seed))
        for seed in range(200)
    ]
    assert {places["first"]["a0.h0"] for places in together} == {"a1.h0", "a1.h1", "a2.h0", "a2.h1"}
    same = [places["first"] == places["last"] for places in together]
    assert any(same)
    assert not all(same)
    own = [
        place([CALLS["first"], CALLS["last"]], graph, False, random.Random(seed))
        for seed in range(50)
    ]
    assert not any(places["first"] == places["last"] for places in own)


def test_one_seed_gives_one_place() -> None:
    calls = [CALLS[name] for name in ("sort", "follow", "add")]
    first, again, other = (
        place(calls, GRAPHS["in groups"], True, random.Random(seed)) for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("name", "serial", "parallel"),
    [("first", 1, 1), ("shift", 1, 2), ("count", 1, 2), ("flip", 2, 2), ("hop", 2, 3),
     ("sort", 2, 3), ("follow", 2, 2), ("carry", 2, 3), ("far", 3, 5)],
)  # fmt: skip
def test_depths_by_hand(name: str, serial: int, parallel: int) -> None:
    assert depth(CALLS[name], ComponentGraph(8, 4)) == serial
    assert depth(CALLS[name], ComponentGraph(8, 4, parallel=True)) == parallel


@pytest.mark.parametrize("name", ["add", "far", "balance", "copy"])
def test_a_call_fits_into_its_depth_and_no_less(name: str) -> None:
    call, graph = CALLS[name], ComponentGraph(8, 4)
    for parallel in (False, True):
        deep = depth(call, ComponentGraph(8, 4, parallel=parallel))
        graph = ComponentGraph(deep, 4, parallel=parallel)
        check(call, place([call], graph, True, random.Random(0))[name], graph, 0)
    if deep > 1:
        with pytest.raises(ValueError, match=f"no place for the call '{name}' in "):
            place([call], ComponentGraph(deep - 1, 4, parallel=True), True, random.Random(0))


def test_calls_without_a_place_are_refused() -> None:
    two = [CALLS["first"], CALLS["last"]]
    with pytest.raises(ValueError, match="call 'last' in 2 layers of 1 heads; make the model lar"):
        place(two, ComponentGraph(2, 1), False, random.Random(0))
    with pytest.raises(ValueError, match="no place for the call 'add' in "):
        place([CALLS["add"]], ComponentGraph(1, 4, n_kv_heads=1), True, random.Random(0))
    # Layer 0 is taken by neither of two.
    with pytest.raises(ValueError, match="no place for the call 'first' in "):
        place(two, ComponentGraph(1, 4), True, random.Random(0))
