"""Layers, heads and circuits against a literal reading of the rules and against the reference."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.cases import case_ids, load_case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    LinearSequenceMap,
    Map,
    RASPExpr,
    Select,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    numerical,
    tokens,
)
from graphcircuits.rasp.layout import (
    WIDTH_SUFFIX,
    Layout,
    complete_edges,
    interpbench_edges,
    lay_out,
    layers_of,
)
from graphcircuits.rasp.tabulate import Tables, tabulate
from tests.cases.reference import reference_cases
from tests.rasp.programs import EXAMPLES
from tests.rasp.wild import wild
from tests.tiers import some

# --- the rules once more, slowly -----------------------------------------------------------------


def parts(node: RASPExpr) -> list[RASPExpr]:
    """Children in the order of the rules; a constant is a map of `indices`."""
    match node:
        case Map():
            return [node.inner]
        case SequenceMap():
            return [node.fst, node.snd]
        case Select():
            return [node.keys, node.queries]
        case SelectorAnd() | SelectorOr():
            return [node.fst, node.snd]
        case SelectorNot():
            return [node.inner]
        case Aggregate():
            return [node.selector, node.values]
        case SelectorWidth():
            return [node.selector]
        case Full():
            return [indices]
    return []


def breadth_first(program: RASPExpr) -> list[RASPExpr]:
    listed = [program]
    for node in listed:
        if not isinstance(node, Full):
            listed += [part for part in parts(node) if all(part is not other for other in listed)]
    # A level may name a node twice.
    return list(dict.fromkeys(node for node in listed if node not in {tokens, indices}))


def depth_of(node: RASPExpr, known: dict[RASPExpr, int]) -> int:
    """Sequences on the longest path from `tokens` and `indices`; selectors do not count."""
    if node not in known:
        below = max((depth_of(part, known) for part in parts(node)), default=0)
        known[node] = below + (isinstance(node, SOp) and node is not tokens and node is not indices)
    return known[node]


def layers_by_the_rules(program: SOp) -> dict[SOp, int]:
    known: dict[RASPExpr, int] = {}
    depth = {
        node: depth_of(node, known) for node in breadth_first(program) if isinstance(node, SOp)
    }
    here = 1
    while here < max(depth.values(), default=0):
        heads = [node for node, d in depth.items() if d == here]
        above = [node for node, d in depth.items() if d == here + 1]
        only_heads = all(isinstance(node, Aggregate) for node in heads)
        if only_heads and not any(isinstance(n, Aggregate | SelectorWidth) for n in above):
            depth = {node: d - (d > here) for node, d in depth.items()}
        here += 1
    return {node: d - 1 for node, d in depth.items()}


def components_by_the_rules(program: SOp) -> Iterator[tuple[str, dict[str, set[SOp]], list[SOp]]]:
    """Name, what every input reads, and what is written, in running order.

    What a width's head writes for its MLP is not listed: the MLP reads that head anyway.
    """
    layers = layers_by_the_rules(program)
    for layer in range(max(layers.values(), default=-1) + 1):
        here = [node for node, at in layers.items() if at == layer]
        heads = [node for node in here if isinstance(node, Aggregate | SelectorWidth)]
        for number, head in enumerate(heads):
            reads: dict[str, set[SOp]] = {"q": set(), "k": set(), "v": set()}
            selectors: list[RASPExpr] = [head.selector]
            while selectors:
                selector = selectors.pop()
                if isinstance(selector, Select):
                    reads["k"].add(selector.keys)
                    reads["q"].add(selector.queries)
                else:
                    selectors += parts(selector)
            if isinstance(head, Aggregate):
                reads["v"].add(head.values)
            yield f"a{layer}.h{number}", reads, [head]
        functions = [node for node in here if not isinstance(node, Aggregate)]
        if functions:
            inputs = {
                part
                for node in functions
                for part in ([node] if isinstance(node, SelectorWidth) else parts(node))
                if isinstance(part, SOp)
            }
            yield f"m{layer}", {"": inputs}, functions


def circuits_by_the_rules(program: SOp) -> tuple[set[str], set[str]]:
    """The edges of rule 1, and those with every read."""
    kept: set[str] = set()
    every: set[str] = set()
    writer: dict[SOp, str] = {tokens: "tokens", indices: "indices"}
    width_head: dict[SOp, str] = {}
    directly: dict[str, set[str]] = {"tokens": set(), "indices": set()}

    def connect(reader: str, sources: set[str]) -> set[str]:
        """Add the edges of one input; give the sources that rule 1 keeps."""
        dropped = {u for u in sources for w in sources - {u} if u in directly[w]}
        for source in sources:
            edge = f"{'input' if source in ('tokens', 'indices') else source}->{reader}"
            every.add(edge)
            if source not in dropped:
                kept.add(edge)
        return sources - dropped

    for name, reads, written in components_by_the_rules(program):
        directly[name] = set()
        for slot, variables in reads.items():
            sources = {
                width_head[variable] if variable in set(written) else writer[variable]
                for variable in variables
            }
            remaining = connect(name + (f"<{slot}>" if slot else ""), sources)
            if slot in ("v", ""):
                directly[name] |= remaining
        for variable in written:
            if isinstance(variable, SelectorWidth) and name.startswith("a"):
                width_head[variable] = name
            else:
                writer[variable] = name
    connect("logits", {writer[program]})
    return kept, every


def check_against_the_rules(tables: Tables) -> Layout:
    layout, program = lay_out(tables), tables.program
    layers = layers_by_the_rules(program)
    assert layers_of(program) == layers
    assert layout.n_layers == max(layers.values(), default=0) + 1
    label = tables.labels
    expected = list(components_by_the_rules(program))
    assert [part.name for part in layout.components] == [name for name, _, _ in expected]
    for part, (name, reads, written) in zip(layout.components, expected, strict=True):
        width = part.is_head and isinstance(written[0], SelectorWidth)
        assert part.name == name
        assert part.writes == tuple(label[sop] + WIDTH_SUFFIX * width for sop in written)
        if part.is_head:
            got = {slot: set(labels) for slot, labels in part.reads.items()}
            assert got == {slot: {label[sop] for sop in sops} for slot, sops in reads.items()}
        else:
            assert set(part.reads["in"]) == {
                label[sop] + WIDTH_SUFFIX * (sop in set(written)) for sop in reads[""]
            }
    kept, every = circuits_by_the_rules(program)
    assert interpbench_edges(layout) == kept
    assert complete_edges(layout) == every
    return layout


@pytest.mark.parametrize("id", some(case_ids("ib")))
def test_every_case_follows_the_rules(id: str) -> None:
    check_against_the_rules(load_case(id).tables)


@pytest.mark.parametrize("name", some(EXAMPLES))
def test_programs_in_tracrs_style_follow_the_rules(name: str) -> None:
    example = EXAMPLES[name]
    tables = tabulate(example.build(), vocab=example.vocab, max_seq_len=example.max_seq_len)
    assert not tables.problems
    check_against_the_rules(tables)


@pytest.mark.usefixtures("unchecked")
@given(st.integers(0, 2**32).map(random.Random))
def test_wild_programs_follow_the_rules(choice: random.Random) -> None:
    case = wild(choice, max_steps=16)
    tables = tabulate(case.program, vocab=case.vocab, max_seq_len=case.max_seq_len)
    if not tables.problems:
        check_against_the_rules(tables)


# --- the reference -------------------------------------------------------------------------------


@pytest.mark.parametrize("id", some(case_ids(split="paper")))
def test_layers_heads_components_and_circuits_of_the_reference(id: str) -> None:
    known = reference_cases()[id]
    layout = load_case(id).layout
    assert layout.n_layers == known["compiled_dims"]["n_layers"]
    assert layout.n_heads == known["compiled_dims"]["n_heads"]
    if not known["components"]:
        return
    assert interpbench_edges(layout) == set(known["circuit"]["interpbench"])
    skipped = complete_edges(layout) - interpbench_edges(layout)
    assert skipped == set(known["circuit"]["skip_reads"])
    for part, theirs in zip(layout.components, known["components"], strict=True):
        assert part.name == theirs["component"]
        if part.is_head:
            assert set(part.writes) == set(theirs["writes"])
            for slot in "qkv":
                assert set(part.reads[slot]) == set(theirs[f"{slot}_reads"])
        else:
            # The reference has the MLP of a width erase what its head wrote; ours leaves it.
            written = {label for label in theirs["writes"] if not label.endswith(WIDTH_SUFFIX)}
            assert set(part.writes) == written
            assert set(part.reads["in"]) == set(theirs["reads"])


def test_the_reference_has_all_cases_and_ten_without_components() -> None:
    known = reference_cases()
    assert set(known) == set(case_ids(split="paper"))
    assert sum(not case["components"] for case in known.values()) == 10


# --- by hand -------------------------------------------------------------------------------------

SAME = Select(tokens, tokens, Comparison.EQ)
PREVIOUS = Select(indices, indices, lambda key, query: key == query - 1)


def laid_out(program: SOp) -> Layout:
    tables = tabulate(program, vocab="ab", max_seq_len=5)
    assert not tables.problems
    return check_against_the_rules(tables)


def test_a_head_and_the_map_of_what_it_moved_share_a_layer() -> None:
    shifted = Aggregate(PREVIOUS, tokens)
    layout = laid_out(shifted + "!")
    assert layout.n_layers == 1
    assert interpbench_edges(layout) == {
        *("input->a0.h0<q>", "input->a0.h0<k>", "input->a0.h0<v>"),
        *("a0.h0->m0", "m0->logits"),
    }


def test_a_map_before_a_head_has_a_layer_of_its_own() -> None:
    assert laid_out(Aggregate(PREVIOUS, tokens + "!")).n_layers == 2


def test_a_depth_with_heads_and_maps_shares_with_nothing() -> None:
    shifted = Aggregate(PREVIOUS, tokens)
    both = SequenceMap(lambda x, y: x + y, shifted, tokens + "!")
    assert laid_out(both).n_layers == 2


def test_only_one_depth_of_maps_joins_a_depth_of_heads() -> None:
    shifted = Aggregate(PREVIOUS, tokens)
    mapped = Map(lambda n: 2 * n, Map(len, shifted, simplify=False), simplify=False)
    assert laid_out(Map(str, mapped, simplify=False)).n_layers == 3


def test_a_width_is_a_head_without_values_and_an_mlp_function() -> None:
    layout = laid_out(SelectorWidth(SAME))
    head, mlp = layout.components
    assert head.reads == {"q": ("tokens",), "k": ("tokens",), "v": ()}
    assert head.writes == mlp.reads["in"] == ("selector_width_1_selector_width_attn_output",)
    assert mlp.writes == ("selector_width_1",)
    assert interpbench_edges(layout) == {
        *("input->a0.h0<q>", "input->a0.h0<k>", "a0.h0->m0", "m0->logits"),
    }


def test_heads_of_a_layer_are_numbered_breadth_first() -> None:
    first, second = Aggregate(PREVIOUS, tokens), SelectorWidth(SAME)
    for fst, snd in ((first, second), (second, first)):
        layout = laid_out(SequenceMap(lambda x, y: (x, y), fst, snd))
        assert layout.heads[0] == (fst, snd)


def test_a_read_that_another_source_passes_on_is_dropped_by_the_official_rule_alone() -> None:
    changed = tokens + "!"
    layout = laid_out(SequenceMap(lambda x, y: x + y, changed, tokens))
    assert "input->m1" not in interpbench_edges(layout)
    assert complete_edges(layout) - interpbench_edges(layout) == {"input->m1"}


def test_a_read_that_was_dropped_before_is_passed_on_by_nobody() -> None:
    changed = tokens + "!"
    both = SequenceMap(lambda x, y: x + y, changed, tokens)
    layout = laid_out(SequenceMap(lambda x, y: x + y, both, tokens))
    assert interpbench_edges(layout) == {
        *("input->m0", "m0->m1", "m1->m2", "input->m2", "m2->logits"),
    }


def test_a_read_passed_on_through_queries_alone_is_kept() -> None:
    moved = Aggregate(Select(indices, tokens, lambda key, query: key == 0), indices)
    layout = laid_out(SequenceMap(lambda x, y: (x, y), moved, tokens))
    assert {"a0.h0->m0", "input->m0"} <= interpbench_edges(layout)


@pytest.mark.parametrize("program", [tokens, indices])
def test_a_program_that_computes_nothing_has_one_empty_layer(program: SOp) -> None:
    layout = laid_out(program)
    assert (layout.n_layers, layout.n_heads, layout.components) == (1, 1, ())
    assert interpbench_edges(layout) == complete_edges(layout) == {"input->logits"}


def test_a_constant_is_a_map_of_the_position() -> None:
    assert interpbench_edges(laid_out(Full("x"))) == {"input->m0", "m0->logits"}


def test_what_the_result_does_not_use_vanishes() -> None:
    inner = (tokens + "!").named("inner")
    layout = laid_out(Map(lambda x: x + "?", inner))
    assert [part.writes for part in layout.components] == [("map_1",)]


def test_a_linear_combination_is_an_mlp_function() -> None:
    marks = numerical(tokens == "a")
    layout = laid_out(numerical(LinearSequenceMap(marks, marks, 1, 2)))
    assert [part.name for part in layout.components] == ["m0", "m1"]
