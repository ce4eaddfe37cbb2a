"""The answers ahead of training are the interpreter's, with the variables of another input."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from graphcircuits.cases import Case, case_ids, load_case
from graphcircuits.cases.prepare import case_exchange
from graphcircuits.circuit import Circuit
from graphcircuits.fleets import exchange as module
from graphcircuits.fleets.exchange import Exchange, edges_in, exchange, written_variables
from graphcircuits.graph import ComponentGraph
from graphcircuits.rasp import Aggregate, SOp, Value, evaluate, is_numerical, tokens
from graphcircuits.rasp.expression import walk
from graphcircuits.rasp.layout import lay_out
from graphcircuits.rasp.tabulate import tabulate

pytestmark = pytest.mark.usefixtures("unchecked")

CASES = (
    "ib-2",
    "ib-3",
    "ib-4",
    "ib-13",
    "ib-18",
    "ib-19",
    "ib-21",
    "ib-36",
    "tb-sort-unique",
    "tb-count-less-freq",
    "new-distance-to-previous-same",
    "new-forward-fill",
    "new-induction-next-token",
)
MIXTURES = ("tb-sort-unique", "new-distance-to-previous-same", "new-forward-fill")


def variables_of(case: Case, component: str) -> Sequence[SOp]:
    """What a component computes, by its place in the layout."""
    if component.startswith("m"):
        return case.layout.functions[int(component[1:])]
    layer, head = (int(number) for number in component[1:].split(".h"))
    return [case.layout.heads[layer][head]]


def interpreted(
    case: Case, xs: list[Value], given: Mapping[SOp, list[Any]], choice: random.Random
) -> tuple[list[Any], list[bool]]:
    """The program variable by variable; an aggregate over different values gives any value.

    The second list says where the last aggregate is over different values.
    """
    values: dict[SOp, list[Any]] = dict(given)
    mixed = [False] * len(xs)
    for sop in walk(case.program):
        if not isinstance(sop, SOp) or sop in values:
            continue
        if not isinstance(sop, Aggregate) or is_numerical(sop):
            values[sop] = evaluate(sop, xs, causal=case.causal, overrides=values)
            continue
        rows = evaluate(sop.selector, xs, causal=case.causal, overrides=values)
        held = [set(itertools.compress(values[sop.values], row)) for row in rows]
        mixed = [len(found) > 1 for found in held]
        values[sop] = [
            choice.choice(case.tables.variables[sop].values)
            if len(found) > 1
            else next(iter(found), sop.default)
            for found in held
        ]
    return values[case.program], mixed


def inputs_of(case: Case, drawn: Exchange) -> list[list[Value]]:
    assert not drawn.tokens[:, 0].any()
    return [[case.tables.vocab[token - 2] for token in row] for row in drawn.tokens[:, 1:].tolist()]


def as_targets(case: Case, answers: Sequence[Any]) -> list[float]:
    """A None counts as the first class, or as zero."""
    if case.outputs is None:
        return [0.0 if answer is None else answer for answer in answers]
    return [0 if answer is None else case.outputs.index(answer) for answer in answers]


def disagreements(case: Case, inputs: int, pairs: int) -> int:
    """Scored positions where the interpreter has another answer, or none that is certain."""
    drawn = case_exchange(case, inputs, pairs, seed=11)
    xs, choice = inputs_of(case, drawn), random.Random(case.id)
    wrong = 0
    for row, component in enumerate(drawn.components):
        for pair in range(pairs):
            base, source = xs[drawn.base[row, pair]], xs[drawn.source[row, pair]]
            given = {
                sop: evaluate(sop, source, causal=case.causal)
                for sop in variables_of(case, component)
            }
            for _ in range(3):
                expected = as_targets(case, interpreted(case, base, given, choice)[0])
                got = drawn.swapped[row, pair].tolist()
                unlike = ~np.isclose(got, expected, rtol=1e-6, atol=1e-6)
                wrong += int((unlike & drawn.scored[row, pair].numpy()).sum())
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("id", CASES)
def test_interchanges_are_the_interpreter_with_overrides(id: str) -> None:
    assert disagreements(load_case(id), inputs=12, pairs=4) == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ib", "tb", "new"])
def test_interchanges_of_every_case(family: str) -> None:
    with_answers = [id for id in case_ids(family) if id not in CONSTANT]
    wrong = {id: disagreements(load_case(id), inputs=24, pairs=4) for id in with_answers}
    assert [id for id, count in wrong.items() if count] == []


CONSTANT = ("tb-index-parity", "tb-position", "tb-set-to-index", "tb-length")


STILL = {"ib-18": ["a0.h1"]}


@pytest.mark.parametrize("id", ["ib-3", "ib-13", "ib-18"])
def test_an_interchange_that_is_not_made_would_be_seen(id: str) -> None:
    """The oracle above can fail: without the other input's variables the answers differ."""
    case = load_case(id)
    drawn = case_exchange(case, 32, 32, seed=11)
    kept = drawn.targets[drawn.base]
    changed = (kept != drawn.swapped).any(-1).any(-1)
    # A length is the same in all inputs.
    assert [drawn.components[row] for row in (~changed).nonzero()] == STILL.get(id, [])


@pytest.mark.parametrize("id", CASES)
def test_clean_answers_are_the_interpreters(id: str) -> None:
    case = load_case(id)
    drawn = case_exchange(case, 8, 2, seed=4)
    expected = [as_targets(case, case.evaluate(xs)) for xs in inputs_of(case, drawn)]
    np.testing.assert_allclose(drawn.targets, expected, rtol=1e-6)
    assert drawn.numerical == (case.outputs is None)
    assert drawn.edges == case.labels("complete").edges


@pytest.mark.parametrize("id", MIXTURES)
def test_unscored_positions_are_where_values_mix(id: str) -> None:
    """Scored or not exactly as a direct reading says, for mixtures in the last aggregate."""
    case = load_case(id)
    drawn = case_exchange(case, 64, 24, seed=2)
    xs, choice = inputs_of(case, drawn), random.Random(0)
    order = {sop: place for place, sop in enumerate(case.tables.variables)}
    last = max(place for sop, place in order.items() if isinstance(sop, Aggregate))
    some = False
    for row, component in enumerate(drawn.components):
        sops = variables_of(case, component)
        if min(order[sop] for sop in sops) >= last:
            assert drawn.scored[row].all()
            continue
        for pair in range(24):
            base, source = xs[drawn.base[row, pair]], xs[drawn.source[row, pair]]
            given = {sop: evaluate(sop, source, causal=case.causal) for sop in sops}
            _, mixed = interpreted(case, base, given, choice)
            assert (~drawn.scored[row, pair]).tolist() == mixed
            some = some or any(mixed)
    assert some


def test_several_variables_of_an_mlp_come_together() -> None:
    case = load_case("ib-4")
    written = written_variables(case.tables, case.layout)
    assert [len(sops) for name, sops in written.items() if name == "m0"] == [2]
    for component, sops in written.items():
        assert list(sops) == list(variables_of(case, component))


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = load_case("ib-18")
    whole = case_exchange(case, 40, 24, seed=1)
    monkeypatch.setattr(module, "BATCH", 7)
    components = case_exchange(case, 40, 24, seed=1)
    for name in ("tokens", "targets", "base", "source", "swapped", "scored"):
        assert torch.equal(getattr(whole, name), getattr(components, name))


def test_without_interchanges_it_is_the_task_alone() -> None:
    case = load_case("ib-18")
    whole, alone = (case_exchange(case, 40, pairs, seed=1) for pairs in (8, 0))
    assert torch.equal(alone.tokens, whole.tokens)
    assert torch.equal(alone.targets, whole.targets)
    assert (alone.components, alone.edges) == (whole.components, whole.edges)
    assert alone.base.shape == alone.source.shape == (len(whole.components), 0)
    assert alone.swapped.shape == alone.scored.shape == (*alone.base.shape, whole.targets.shape[1])


def test_a_program_without_components() -> None:
    """The token itself: nothing to interchange, and the answers are the inputs."""
    tables = tabulate(tokens, vocab=("a", "b"), max_seq_len=4)
    codes = np.array([[0, 1, 1], [1, 0, 1]])
    drawn = exchange(tables, lay_out(tables), codes, 5, torch.Generator())
    assert drawn.components == ()
    assert drawn.targets.tolist() == codes.tolist()
    assert drawn.swapped.shape == drawn.scored.shape == (0, 5, 3)
    assert drawn.edges == {"input->logits"}


def test_edges_are_named_after_the_group_of_heads() -> None:
    edges = {"input->a0.h3<k>", "m0->a1.h1<v>", "m0->a1.h1<q>", "a0.h3->m0", "m1->logits"}
    grouped = ComponentGraph(2, 4, n_kv_heads=2)
    expected = {"input->a0.g1<k>", "m0->a1.g0<v>", "m0->a1.h1<q>", "a0.h3->m0", "m1->logits"}
    assert edges_in(grouped, edges) == expected
    assert Circuit.from_names(grouped, edges_in(grouped, edges)).edges == expected
    assert edges_in(ComponentGraph(2, 4), edges) == edges
