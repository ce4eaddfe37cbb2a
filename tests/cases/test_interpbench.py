"""The 84 cases against the reference: inputs, outputs, the shape of every program, the circuits."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from graphcircuits import rasp
from graphcircuits.cases import Case, case_ids, load_case
from graphcircuits.cases.random_programs import circuit_of
from graphcircuits.cases.relations import groups_of
from graphcircuits.rasp import Comparison, RASPExpr, Value
from tests.cases.reference import reference, reference_cases
from tests.tiers import some

ALL = case_ids(split="paper")
# The reference has NEQ as a custom predicate, because the public program writes it as a function.
NAMED_PREDICATES: dict[object, str] = {
    predicate: predicate.name for predicate in Comparison if predicate is not Comparison.NEQ
}


def numbered(program: RASPExpr) -> dict[RASPExpr, str]:
    """Labels as in the reference: name and number in breadth-first order; inputs have no number."""
    labels: dict[RASPExpr, str] = {rasp.tokens: "tokens", rasp.indices: "indices"}
    queue = [program]
    while queue:
        node = queue.pop(0)
        if node not in labels:
            labels[node] = f"{node.name}_{len(labels) - 1}"
            queue.extend(node.children)
    return labels


def values_of(node: RASPExpr, case: Case) -> list[Value]:
    """Every value the expression may take, inferred forward from vocabulary and length."""
    match node:
        case rasp.Map():
            images = [_image(node.f, x) for x in values_of(node.inner, case)]
        case rasp.SequenceMap():
            seconds = values_of(node.snd, case)
            images = [_image(node.f, x, y) for x in values_of(node.fst, case) for y in seconds]
        case rasp.Aggregate():
            images = values_of(node.values, case)
        case rasp.SelectorWidth():
            images = list(range(case.max_seq_len))
        case _ if node is rasp.tokens:
            images = list(case.vocab)
        case _ if node is rasp.indices:
            images = list(range(case.max_seq_len - 1))
        case _:
            raise AssertionError(f"no value rule for {node!r}")
    return list(dict.fromkeys(x for x in images if x is not None))


def _image(f: Callable[..., Value], *args: Value) -> Value:
    try:
        return f(*args)
    except ArithmeticError:
        return None


def steps(case: Case) -> Iterator[str]:
    """The program in the words of the reference."""
    labels = numbered(case.program)
    for node, label in labels.items():
        reads = [labels[child] for child in node.children]
        match node:
            case rasp.Select():
                predicate = NAMED_PREDICATES.get(node.predicate, "custom")
                text = f"select keys={reads[0]}, queries={reads[1]}, predicate {predicate}"
            case rasp.SelectorWidth():
                text = f"selector width of {reads[0]} ({len(values_of(node, case))} values)"
            case rasp.LinearSequenceMap():
                text = f"{node.fst_fac:g}*{reads[0]} + {node.snd_fac:g}*{reads[1]} "
                text += f"({node.encoding.value})"
            case rasp.SequenceMap():
                text = f"elementwise combination of {reads[0]} and {reads[1]} "
                text += f"({node.encoding.value}, {len(values_of(node, case))} values)"
            case rasp.Map():
                text = f"elementwise map of {reads[0]} "
                text += f"({node.encoding.value}, {len(values_of(node, case))} values)"
            case rasp.Aggregate():
                text = f"aggregate (mean) of {reads[1]} under {reads[0]}, "
                text += f"default {node.default} ({node.encoding.value})"
            case _:
                assert node is rasp.tokens or node is rasp.indices
                continue
        yield f"{label}: {text}"


def test_there_are_exactly_the_reference_cases_in_number_order():
    assert list(reference_cases()) == ALL
    renamed = {"ib-13": "trend-before-fix"}
    names = {id: renamed.get(id, known["name"]) for id, known in reference_cases().items()}
    assert {id: load_case(id).name for id in ALL} == names


@pytest.mark.parametrize("split", ["test", "pool", "discarded"])
def test_the_paper_split_is_the_papers(split: str):
    assert case_ids(split=f"paper-{split}") == reference("interpbench_split.json")[split]


@pytest.mark.parametrize("id", some(ALL))
def test_inputs_and_sizes_are_the_reference_ones(id: str):
    case, expected = load_case(id), reference_cases()[id]
    assert case.vocab == tuple(expected["vocab"])
    assert case.max_seq_len == expected["max_seq_len"]
    assert case.min_seq_len == expected["min_seq_len"]
    assert case.causal == expected["causal"]
    assert case.categorical == (expected["output"] == "categorical")
    assert (case.sampler == "uniform") == expected["uniform"]
    dims = expected["subject_dims"]
    assert vars(case.subject_dims) == {name: dims[name] for name in vars(case.subject_dims)}
    assert dims["n_ctx"] == case.max_seq_len
    assert dims["d_vocab"] == 2 + len(case.vocab)
    assert case.graph.n_nodes == expected["graph_nodes"]
    assert case.graph.n_edges == expected["graph_edges"]


@pytest.mark.slow
@pytest.mark.parametrize("id", some(ALL))
def test_the_interpreter_gives_every_reference_output(id: str):
    case = load_case(id)
    for example in reference_cases()[id]["examples"]:
        got, expected = case.evaluate(example["input"]), example["output"]
        assert len(got) == len(expected)
        for x, y in zip(got, expected, strict=True):
            assert x == (pytest.approx(y, rel=1e-5, abs=1e-5) if isinstance(y, float) else y)


@pytest.mark.parametrize("id", some(ALL))
def test_the_program_has_the_reference_steps(id: str):
    assert sorted(steps(load_case(id))) == sorted(reference_cases()[id]["steps"])


@pytest.mark.parametrize("id", some(ALL))
def test_the_output_classes_are_the_reference_ones(id: str):
    case, expected = load_case(id), reference_cases()[id]["output_classes"]
    if expected is None:
        assert not case.categorical
    else:
        assert sorted(values_of(case.program, case)) == pytest.approx(expected)


@pytest.mark.parametrize("id", some(ALL))
def test_the_circuits_are_the_reference_ones(id: str):
    case, expected = load_case(id), reference_cases()[id]
    dims, circuit = expected["compiled_dims"], expected["circuit"]
    assert (case.layout.n_layers, case.layout.n_heads) == (dims["n_layers"], dims["n_heads"])
    assert case.circuit.graph == case.graph
    if circuit is None:
        return
    official = set(circuit["interpbench"])
    assert case.labels("interpbench").edges == official
    assert case.circuit.edges == official | set(circuit["skip_reads"])


@pytest.mark.parametrize("id", some(ALL))
def test_paper_labels_are_the_published_lists(id: str):
    case, circuit = load_case(id), reference_cases()[id]["circuit"]
    if circuit is None:
        assert case.published is None
        assert case.labels("paper").edges == set(case.worked_out or ())
        return
    assert case.worked_out is None
    published = case.labels("paper")
    assert published.edges == set(circuit["paper"])
    if counts := circuit["paper_counts"]:
        assert {"edges": len(published), "nodes": sum(map(len, published.nodes))} == counts


def test_the_cases_without_a_reference_circuit_have_the_circuits_worked_out_by_hand():
    assert load_case("ib-45").circuit.edges == {
        "input->a0.h0<q>",
        "input->a0.h0<k>",
        "a0.h0->m0",
        "m0->m1",
        "input->m1",
        "m1->m2",
        "input->m2",
        "m2->logits",
    }
    dropped = {
        id: load_case(id).circuit - load_case(id).labels("interpbench")
        for id in ("ib-97", "ib-113")
    }
    # In ib-97 the maximum's head already gets the tokens as its values. In ib-113 the previous
    # token's head gets the tokens that m1 compares, and m3 gets the centered index for m4.
    assert dropped["ib-97"].edges == {"input->m2"}
    assert dropped["ib-113"].edges == {"input->m1", "m2->m4"}


def test_ib_8_and_ib_24_compute_one_function_by_different_circuits():
    """One is held out and the other in the pool: no check relates them, and docs/benchmark.md says
    so. Every input of up to three tokens, by each program over both vocabularies."""
    held_out, pool = load_case("ib-8"), load_case("ib-24")
    assert (held_out.split, pool.split) == ("test", "pool")
    for vocab in (held_out.vocab[:4], pool.vocab):
        for length in range(1, 4):
            for xs in itertools.product(vocab, repeat=length):
                assert held_out.evaluate(xs) == pool.evaluate(xs) == list(xs)
    assert held_out.circuit.edges == {"input->m0", "m0->logits"}
    assert pool.circuit.edges == {*(f"input->a0.h0<{x}>" for x in "qkv"), "a0.h0->logits"}
    assert held_out.group != pool.group


def test_the_mended_trend_is_held_out_beside_the_papers_cases():
    before, fixed = load_case("ib-13"), load_case("ib-13-fixed")
    digits = [1, 2, 2, 0]
    assert fixed.evaluate(digits) == ["increasing", "constant", "decreasing", None]
    assert before.evaluate(digits) != fixed.evaluate(digits)
    assert "before its fix of 2024-09-09" in before.task
    assert (before.split, before.paper_split) == ("test", "test")
    assert (fixed.split, fixed.paper_split, fixed.fold) == ("held-out", None, None)
    assert case_ids(split="held-out") == ["ib-13-fixed"]
    # It has the circuit of a test case, so no random program of its structure is in the pool.
    assert groups_of("ib-13-fixed") == groups_of("ib-19")
    assert circuit_of(fixed.layout) == circuit_of(load_case("ib-19").layout)
