"""Facts about the weights: scores, what BOS holds, who writes where, how many hidden units."""

import math

import numpy as np
import pytest
import torch

from graphcircuits.cases import case_ids, load_case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    LinearSequenceMap,
    Map,
    Select,
    Selector,
    SelectorAnd,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    indices,
    numerical,
    tokens,
)
from graphcircuits.rasp.compile import CompiledModel, compile_program
from graphcircuits.rasp.weights import BOS, INVERSE_TEMPERATURE, ONE
from tests.tiers import some

ALL = Select(tokens, tokens, Comparison.TRUE)
SAME = Select(tokens, tokens, Comparison.EQ)
BEFORE = Select(indices, indices, Comparison.LT)
PREVIOUS = Select(indices, indices, lambda key, query: key == query - 1)


def compiled(program: SOp, vocab: str = "abc", max_seq_len: int = 5) -> CompiledModel:
    return compile_program(program, vocab=vocab, max_seq_len=max_seq_len)


def stream(model: CompiledModel, xs: list[Value]) -> np.ndarray:
    """The residual stream after the last layer, BOS first: one row per position."""
    codec = model.transformer.codec
    assert codec is not None
    return model._probe.logits(codec.encode(xs)[None])[0].numpy()


def scores(model: CompiledModel, xs: list[Value], layer: int) -> np.ndarray:
    """Attention scores of a head that reads the embedding, one row per query, BOS first."""
    weights, codec = model.transformer.weights, model.transformer.codec
    assert codec is not None
    ids = codec.encode(xs)
    embedded = weights["W_E"][ids] + weights["W_pos"][: len(ids)]
    q, k = (embedded @ weights[name][layer, 0] for name in ("W_Q", "W_K"))
    return (q @ k.T / math.sqrt(q.shape[-1])).numpy()


# --- the architecture ----------------------------------------------------------------------------


@pytest.mark.parametrize("id", some(case_ids("ib")))
def test_compiled_models_are_plain_relu_transformers_in_double_precision(id: str) -> None:
    transformer = load_case(id).compiled.transformer
    config = transformer.config
    assert config.activation == "relu"
    assert config.norm == "none"
    assert config.positions == "learned"
    assert not config.parallel
    assert config.causal == load_case(id).causal
    assert config.n_ctx == load_case(id).max_seq_len
    assert all(weight.dtype == torch.float64 for weight in transformer.weights.values())
    for name in ("b_Q", "b_K", "b_V", "b_O", "b_out", "b_U"):
        assert not transformer.weights[name].any()


def test_tokens_and_positions_are_one_hot_and_bos_has_no_position() -> None:
    model = compiled(SequenceMap(lambda x, i: (x, i), tokens, indices))
    place = model.stream.slices
    W_E, W_pos = (model.transformer.weights[name].numpy() for name in ("W_E", "W_pos"))
    assert (W_E[:, ONE] == 1).all()
    assert W_E[0, BOS] == 1
    assert np.array_equal(W_E[2:, place[tokens]], np.eye(3))
    assert (W_E[:, ONE + 1 :].sum(axis=1) == 1).all()
    assert not W_pos[0].any()
    assert np.array_equal(W_pos[1:, place[indices]], np.eye(4))
    assert W_pos.sum() == 4


# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "conditions"), [(SAME, 1), (BEFORE, 1), (SelectorAnd(SAME, BEFORE), 2)]
)
@pytest.mark.parametrize("width", [True, False])
def test_scores_count_met_conditions_times_the_inverse_temperature(
    selector: Selector, conditions: int, width: bool
) -> None:
    xs = list("abab")
    program = SelectorWidth(selector) if width else Aggregate(selector, Full("x"))
    model = compiled(program)
    # The constant that is moved takes a layer of its own.
    got = scores(model, xs, layer=0 if width else 1) / INVERSE_TEMPERATURE
    selected = np.array(selector(xs))
    assert INVERSE_TEMPERATURE == 100
    assert np.allclose(got[1:, 1:][selected], conditions)
    assert (got[1:, 1:][~selected] < conditions - 0.9).all()
    assert np.allclose(got[:, 0], conditions - (0 if width else 0.5))
    assert np.allclose(got[0, 1:], 0)


def test_a_head_is_as_wide_as_the_smaller_side_of_its_table() -> None:
    for keys, queries in ((tokens, indices), (indices, tokens)):
        select = Select(keys, queries, lambda key, query: True)
        model = compiled(SelectorWidth(select), vocab="ab", max_seq_len=8)
        assert model.transformer.config.d_head == len("ab") + 1


def test_the_head_of_a_width_writes_one_over_width_plus_one() -> None:
    count = SelectorWidth(SAME)
    model = compiled(count)
    held = stream(model, list("abaa"))[:, model.stream.width_index[count]]
    assert held == pytest.approx([1, 1 / 4, 1 / 2, 1 / 4, 1 / 4])


# --- what BOS holds ------------------------------------------------------------------------------


def test_at_bos_an_aggregate_holds_its_default_and_all_else_nothing() -> None:
    moved = Aggregate(PREVIOUS, tokens, default="-")
    bare = Aggregate(PREVIOUS, tokens)
    share = numerical(Aggregate(PREVIOUS, numerical(tokens == "a"), default=-2.5))
    text = SequenceMap(lambda x, y: f"{x}{y}", moved, Map(lambda x: x > 0, share))
    program = SequenceMap(lambda x, y: (x, y), SequenceMap(lambda x, y: x + y, text, bare), Full(1))
    model = compiled(program)
    bos = stream(model, list("ab"))[0]
    place, variables = model.stream.slices, model.tables.variables
    assert bos[place[share]] == pytest.approx([-2.5])
    for sop in variables:
        if sop not in {moved, share}:
            assert bos[place[sop]] == pytest.approx(0), sop
    assert bos[place[moved]] == pytest.approx(np.eye(4)[variables[moved].codes["-"]])


# --- who writes where ----------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["ib-2", "ib-3", "ib-24", "ib-113"])
def test_every_component_writes_its_own_variables_and_nothing_else(id: str) -> None:
    model = load_case(id).compiled
    label, weights = model.tables.labels, model.transformer.weights
    places = {
        label[sop]: range(place.start, place.stop) for sop, place in model.stream.slices.items()
    }
    for sop, place in model.stream.width_index.items():
        places[f"{label[sop]}_selector_width_attn_output"] = range(place, place + 1)
    for part in model.components:
        number = part.name.partition(".h")[2]
        written = (
            weights["W_O"][part.layer, int(number)] if number else weights["W_out"][part.layer]
        )
        directions = set(written.any(dim=0).nonzero().flatten().tolist())
        assert directions <= {i for name in part.writes for i in places[name]}
        assert directions


# --- hidden units --------------------------------------------------------------------------------


def units(program: SOp) -> list[int]:
    """Hidden units in use, layer by layer."""
    W_in = compiled(program).transformer.weights["W_in"]
    return W_in.any(dim=1).sum(dim=1).tolist()


def test_a_map_has_a_unit_an_image_and_a_combination_one_a_pair() -> None:
    assert units(Map(lambda x: x == "a", tokens)) == [2]
    assert units(Map(lambda x: None if x == "a" else "z", tokens)) == [1]
    assert units(SequenceMap(lambda x, i: (x, i), tokens, indices)) == [12]
    assert units(SequenceMap(lambda x, i: None if i else x, tokens, indices)) == [3]
    assert units(SequenceMap(lambda x, y: x + y, tokens, tokens)) == [3]


def test_a_numerical_zero_needs_no_unit() -> None:
    assert units(numerical(tokens == "a")) == [1]


def test_a_linear_combination_has_two_units_an_input() -> None:
    marks = numerical(tokens == "a")
    other = numerical(tokens == "b")
    assert units(numerical(LinearSequenceMap(marks, other, 1, -1))) == [2, 4]


def test_a_function_of_a_number_has_two_units_a_step_and_one_for_the_lowest_image() -> None:
    share = numerical(Aggregate(ALL, numerical(tokens == "a")))
    assert units(share > 0.5) == [1, 3]
    assert units(Map(lambda x: 0.3 < x < 0.7, share)) == [1, 5]
    assert units(Map(lambda x: True, share)) == [1, 1]
