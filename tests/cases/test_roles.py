"""Roles of small programs, worked out by hand; claims that are right, half right and wrong."""

from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch

import graphcircuits as gc
from graphcircuits.cases.claims import RoleScores, _shared
from graphcircuits.cases.roles import KINDS
from graphcircuits.fleets.exchange import written_variables
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    Map,
    Select,
    Selector,
    SelectorWidth,
    SequenceMap,
    SOp,
    evaluate,
    indices,
    numerical,
    tokens,
)
from graphcircuits.rasp.layout import WIDTH_SUFFIX
from tests.tiers import some

Claim = Callable[[list[Any]], list[Any]]
EARLIER = Select(indices, indices, Comparison.LT)
SAME = Select(tokens, tokens, Comparison.EQ)
BEFORE = Aggregate(Select(indices, indices, lambda k, q: k == q - 1), tokens).named("before")


def case_of(program: SOp, causal: bool = False) -> gc.Case:
    return gc.Case(id="mine", program=program, vocab=(0, 1, 2), max_seq_len=6, causal=causal)


def roles(program: SOp, causal: bool = False) -> list[tuple[str, str, str]]:
    return [(r.component, r.kind, r.text) for r in case_of(program, causal).roles.values()]


def head(selector: Selector, causal: bool = False) -> tuple[str, str]:
    """Of the only head that reads the tokens by a selector."""
    found = case_of(Aggregate(selector, tokens).named("x"), causal).roles.values()
    (role,) = [role for role in found if role.variables == ("x_1",)]
    return role.kind, role.text.removeprefix("reads the token at ").removesuffix(" (`x_1`)")


def by_index(predicate: Callable[[int, int], bool]) -> Selector:
    return Select(indices, indices, predicate)


@pytest.mark.parametrize(
    ("selector", "kind", "where"),
    [
        (by_index(lambda k, q: k == q - 1), "previous-token", "the position before"),
        (
            by_index(lambda k, q: k == max(q - 1, 0)),
            "previous-token",
            "the position before or else the nearest",
        ),
        (
            Select(indices, Map(lambda i: i - 1, indices), Comparison.EQ),
            "previous-token",
            "the position before",
        ),
        (by_index(lambda k, q: k == q - 3), "relative-position", "the position 3 before"),
        (by_index(lambda k, q: k == q + 1), "relative-position", "the position after"),
        (by_index(lambda k, q: k == q), "relative-position", "this position"),
        (by_index(lambda k, q: k == 2), "fixed-position", "position 2"),
        (Select(indices, Full(0), Comparison.EQ), "fixed-position", "position 0"),
        (by_index(lambda k, q: k in (0, 3)), "by-position", "position 0 or 3"),
        (
            by_index(lambda k, q: k == 4 - q),
            "by-position",
            "the position that its own names "
            "(0 gives 4, 1 gives 3, 2 gives 2, 3 gives 1, ...)",
        ),
        (EARLIER, "by-position", "the earlier positions"),
        (by_index(lambda k, q: k >= q), "by-position", "the positions from here on"),
        (
            by_index(lambda k, q: (k + q) % 2 == 0),
            "by-position",
            "the positions that its own names",
        ),
        (by_index(lambda k, q: True), "uniform", "all positions"),
        (SAME, "same-token", "the positions with the same token"),
        (SAME & EARLIER, "same-token", "the earlier positions with the same token"),
        (
            Select(tokens, tokens, lambda k, q: k < q),
            "by-token",
            "the positions with the token less than the token here",
        ),
        (Select(tokens, tokens, lambda k, q: k == 1), "by-token", "the positions with the token 1"),
        (
            Select(tokens, tokens, lambda k, q: q != 1),
            "by-token",
            "the positions if the token here is 0 or 2",
        ),
        (
            Select(tokens, tokens, lambda k, q: k == (q + 1) % 3),
            "by-token",
            "the positions with the token that fits the token here "
            "(0 gives 1, 1 gives 2, 2 gives 0)",
        ),
        (Select(tokens, tokens, lambda k, q: k != q), "by-token", "the positions with the token "
         "other than the token here"),
        (
            Select(indices, tokens, Comparison.EQ),
            "pointer",
            "the position that the token here names",
        ),
        (Select(BEFORE, tokens, Comparison.EQ), "induction", "the positions with `before_3` "
         "equal to the token here"),
        (Select(tokens, BEFORE, Comparison.EQ), "lookup", "the positions with the token "
         "equal to `before_3` here"),
        (~Select(BEFORE, tokens, Comparison.LT), "lookup", "the positions with `before_3` "
         "at least the token here"),
        (Select(BEFORE, tokens, Comparison.EQ) & EARLIER, "induction", "the positions with "
         "`before_5` equal to the token here that are also the earlier positions"),
    ],
)  # fmt: skip
def test_heads_by_what_they_select(selector: Selector, kind: str, where: str) -> None:
    assert head(selector) == (kind, where)
    assert kind in KINDS


@pytest.mark.parametrize(
    ("selector", "kind", "where"),
    [
        (by_index(lambda k, q: k <= q), "uniform", "all positions up to here"),
        (by_index(lambda k, q: k >= q), "relative-position", "this position"),
        (by_index(lambda k, q: k < q), "by-position", "the earlier positions"),
        (by_index(lambda k, q: k == 1), "fixed-position", "position 1"),
        (SAME, "same-token", "the positions up to here with the same token"),
    ],
)
def test_of_a_causal_head_what_it_can_see(selector: Selector, kind: str, where: str) -> None:
    assert head(selector, causal=True) == (kind, where)


def test_names_play_no_part() -> None:
    named = BEFORE.named("frequency")
    assert [role[:2] for role in roles(named)] == [("a0.h0", "previous-token")]


def test_a_count_is_a_head_and_a_function() -> None:
    """Earlier positions with the same token, by way of pairs of token and index."""
    at = SequenceMap(lambda x, i: (x, i), tokens, indices).named("place")
    same = Select(at, at, lambda k, q: k[0] == q[0] and k[1] < q[1])
    flag = Map(lambda n: n > 0, SelectorWidth(same).named("count"))
    listed = "0 gives False, 1 gives True, 2 gives True, 3 gives True, ..."
    assert roles(flag.named("repeated")) == [
        ("m0", "map", "computes `place_4` from the token and the position"),
        ("a1.h0", "count", "counts the earlier positions with the same token (`count_2`)"),
        ("m1", "count", "turns what a1.h0 gathered into the count `count_2`"),
        ("m2", "map", f"computes `repeated_1` from `count_2` ({listed})"),
    ]


def test_sorting_by_rank() -> None:
    assert [role.text for role in gc.load_case("tb-sorting").roles.values()] == [
        "computes `place_5` from the token and the position",
        "counts the positions with `place_5` less than `place_5` here (`smaller_3`)",
        "turns what a1.h0 gathered into the count `smaller_3`",
        "reads the token at the positions with `smaller_3` equal to the position here "
        "(`sorting_1`)",
    ]


def test_an_mlp_tells_of_all_its_functions_and_a_mean_is_no_copy() -> None:
    flag = numerical(Map(lambda x: int(x == 1), tokens)).named("flag")
    zero = Map(lambda i: 0, indices).named("zero")
    mean = Aggregate(Select(tokens, zero, lambda k, q: k >= q), flag, 0).named("mean")
    assert roles(numerical(mean)) == [
        ("m0", "map", "computes `flag_3` from the token (0 gives 0, 1 gives 1, 2 gives 0); "
         "computes `zero_4`, which is 0 everywhere"),
        ("a1.h0", "uniform", "averages `flag_3` over all positions (`mean_1`)"),
    ]  # fmt: skip


def check(case: gc.Case) -> None:
    found = case.roles
    assert list(found) == [one.name for one in case.layout.components]
    for one in case.layout.components:
        role = found[one.name]
        assert (role.component, role.variables) == (one.name, one.writes)
        assert ", ".join(role.variables) == case.variables[one.name]
        assert role.kind in KINDS
        assert (role.kind in ("map", "count")) or one.is_head
        assert str(role) == role.text == role.text.strip() != ""
        assert all(label.removesuffix(WIDTH_SUFFIX) in role.text for label in one.writes)


@pytest.mark.parametrize("family", ["ib", "tb", "new"])
def test_every_listed_case_has_a_role_for_each_component(family: str) -> None:
    for id in gc.case_ids(family):
        check(gc.load_case(id))


@pytest.mark.parametrize("seed", some(range(0, 60, 3)))
def test_so_have_random_programs(seed: int) -> None:
    check(gc.load_case(f"rnd-{seed}"))


def test_a_task_says_the_same_of_components_elsewhere() -> None:
    task, alone = gc.load_case("mt-7@ib-13"), gc.load_case("ib-13")
    check(task)
    assert list(task.roles) == ["a1.h0", "a1.h1", "m1", "m2"]
    assert [role.text for role in task.roles.values()] == [
        role.text for role in alone.roles.values()
    ]
    histogram = gc.MultiCase(id="m", cases=(gc.load_case("ib-7"), gc.load_case("ib-13"))).tasks[0]
    assert histogram.roles["m1"].text == "turns what a1.h0 gathered into the count `hist_1`"


def test_large_tables_are_compared_by_value() -> None:
    """Tokens and positions of key and query are too many for one table over them."""
    at = SequenceMap(lambda x, i: (x + i) % 7, tokens, indices).named("at")
    both = Aggregate(Select(at, at, Comparison.EQ), at).named("x")
    case = gc.Case(id="mine", program=both, vocab=tuple(range(60)), max_seq_len=41)
    role = case.roles["a1.h0"]
    assert role.kind == "by-token"
    assert role.text == "reads `at_3` at the positions with `at_3` equal to `at_3` here (`x_1`)"


@pytest.mark.slow
def test_a_deep_program_needs_no_recursion() -> None:
    program = tokens
    for _ in range(1500):
        program = SequenceMap(lambda x, y: max(x, y), program, tokens)
    check(case_of(Aggregate(Select(program, tokens, Comparison.EQ), tokens)))


# --- claims --------------------------------------------------------------------------------------


def true_claims(case: gc.Case) -> dict[str, Claim]:
    """The program's variables, by the interpreter."""

    def claim(sops: list[SOp]) -> Claim:
        return lambda xs: [*zip(*(evaluate(s, xs, causal=case.causal) for s in sops), strict=True)]

    variables = written_variables(case.tables, case.layout)
    return {name: claim(sops) for name, sops in variables.items()}


@pytest.mark.parametrize(
    "id", ["ib-3", "ib-13", "ib-113", "tb-sorting", "tb-divide-by", "rnd-1", "mt-7@ib-13"]
)
def test_the_variables_themselves_score_1(id: str) -> None:
    case = gc.load_case(id)
    scores = gc.score_roles(case, true_claims(case), n=32)
    assert scores.by_component == dict.fromkeys(case.variables, pytest.approx(1.0, abs=1e-12))
    assert scores.mean == pytest.approx(1.0)
    assert scores.wrong == ()


def test_a_claim_is_an_expression_under_the_mask_of_the_case() -> None:
    for causal in (False, True):
        case = case_of(SelectorWidth(SAME), causal)
        scores = gc.score_roles(case, dict.fromkeys(case.variables, SelectorWidth(SAME)))
        assert scores.by_component == {"a0.h0": 1.0, "m0": 1.0}


def test_renaming_and_rounding_do_not_matter() -> None:
    case = case_of(BEFORE)
    renamed = {0: 0.1 + 0.2, 1: "one", 2: (2,), None: None}
    claims = {"a0.h0": lambda xs: [renamed[x] for x in (None, *xs[:-1])]}
    assert gc.score_roles(case, claims).by_component == {"a0.h0": 1.0}
    case = case_of(Map(lambda x: x + 0.3, tokens))
    noisy = {"m0": lambda xs: torch.tensor(xs, dtype=torch.float64) / 3 * 3 + 1e-13}
    assert gc.score_roles(case, noisy).by_component == {"m0": 1.0}


def test_half_of_what_is_carried() -> None:
    """Of a pair of independent bits one is one bit of two; the pair tells all of one bit, but is
    twice as much."""
    first, second = (Map(lambda x, b=b: (x >> b) & 1, tokens).named(f"b{b}") for b in (0, 1))
    pair = SequenceMap(lambda x, y: (x, y), first, second)
    case = gc.Case(id="bits", program=pair, vocab=(0, 1, 2, 3), max_seq_len=41)
    scores = gc.score_roles(case, {"m0": first, "m1": tokens}, n=400)
    assert scores.by_component == {"m0": pytest.approx(0.5, abs=0.01), "m1": 1.0}
    one = gc.Case(id="bit", program=first, vocab=(0, 1, 2, 3), max_seq_len=41)
    scores = gc.score_roles(one, {"m0": tokens}, n=400)
    assert scores.by_component == {"m0": pytest.approx(0.5, abs=0.01)}


def test_by_hand() -> None:
    """Of three positions one is put apart, by the claim another one than by what is carried."""
    h = log(3) - 2 / 3 * log(2)  # entropy of 2 and 1 of 3, for both
    shared = 2 * h - log(3)
    assert _shared([0, 0, 1], ["x", "y", "y"]) == pytest.approx(shared / h)
    assert _shared([0, 0], [1, 1]) == 1.0
    assert _shared([0, 1], [1, 1]) == 0.0


def test_what_is_not_claimed_and_what_is_wrong() -> None:
    case = gc.load_case("ib-13")
    scores = gc.score_roles(case, {"a0.h0": BEFORE, "a1.h3": tokens})
    assert scores == RoleScores({"a0.h0": 1.0, "a0.h1": 0.0, "m0": 0.0, "m1": 0.0}, ("a1.h3",))
    assert scores.mean == 0.25


@pytest.mark.slow
def test_a_shuffled_claim_scores_little() -> None:
    """What another input would give, in another order."""
    case = gc.load_case("ib-13")
    generator = torch.Generator().manual_seed(1)

    def shuffled(claim: Claim) -> Claim:
        def values(xs: list[Any]) -> list[Any]:
            (other,) = case.sample(1, generator)
            given = claim(other)
            return [given[i] for i in torch.randperm(len(xs), generator=generator)]

        return values

    claims = {name: shuffled(claim) for name, claim in true_claims(case).items()}
    assert max(gc.score_roles(case, claims, n=128).by_component.values()) < 0.04


def test_draws_are_by_seed() -> None:
    case, few = gc.load_case("ib-13"), {"m1": tokens}
    first, again, other = (gc.score_roles(case, few, n=4, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_a_constant_and_many_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(Map(lambda x: 5, tokens))
    monkeypatch.setattr("graphcircuits.cases.claims.BATCH", 7)
    assert gc.score_roles(case, {"m0": lambda xs: ["c"] * len(xs)}, n=20).mean == 1.0
    case = case_of(BEFORE)
    assert gc.score_roles(case, {"a0.h0": BEFORE}, n=20).mean == 1.0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("claims", "n", "text"),
    [
        ({"a9.h0": tokens}, 1, "there is no component 'a9.h0'"),
        ({"input": tokens}, 1, "case 'ib-13', of 2 layers x 4 heads: there is no component 'input"),
        ({"m0": 3}, 1, "the claim for 'm0' must be a sequence expression of graphcircuits.rasp or"),
        ({"m0": SAME}, 1, "a function of a list of tokens, got <Select"),
        ({"m0": tokens}, 0, "n must be at least 1 input, got 0"),
        ({"m0": lambda xs: xs[1:]}, 2, "the claim for 'm0' gives 8 values for 9 tokens."),
    ],
)
def test_refusals(claims: dict[str, Any], n: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gc.score_roles(gc.load_case("ib-13"), claims, n=n)


def test_a_program_that_computes_nothing_has_nothing_to_score() -> None:
    with pytest.raises(ValueError, match=r"case 'mine', of .*: its circuit has no component."):
        gc.score_roles(case_of(tokens), {})
    assert case_of(tokens).roles == {}
