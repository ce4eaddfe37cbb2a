"""`certify` from end to end: the planted circuit, wrong ones, no time, no prompts, and again."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

import graphcircuits as gc
from graphcircuits.cases import load_case
from graphcircuits.certificates import certify as module
from graphcircuits.certificates.certificate import NAMES, Certificate, EdgeChances
from graphcircuits.certificates.certify import certify
from graphcircuits.certificates.probability import edge_chances
from graphcircuits.certificates.rivals import find_rivals
from graphcircuits.certificates.searching import Searches
from graphcircuits.circuit import Circuit
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import hold_back, prompt_hashes, unseen
from graphcircuits.task.pairs import Pairs
from tests.certificates.judges import PLANTED, tiny

pytestmark = pytest.mark.usefixtures("short", "unchecked")
Given = tuple[Transformer, Pairs, Pairs, Result]
ONE_RIVAL = partial(find_rivals, steps=1, attempts=[(0.5, 1.0)])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search for rivals, and no network that is asked of every edge."""

    def unknown(
        subject: Transformer, circuit: Circuit, found: Searches, *, pairs: Pairs
    ) -> EdgeChances:
        return EdgeChances(came_back=found.came_back, probability=None, meaning="not asked")

    monkeypatch.setattr(module, "find_rivals", partial(find_rivals, attempts=[]))
    monkeypatch.setattr(module, "edge_chances", unknown)


@pytest.fixture(scope="module")
def given() -> Given:
    case = load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(16)
    fresh = unseen(case.pairs(16, seed=1000), pairs)
    assert fresh is not None
    return subject, pairs, fresh, gc.localize(subject, pairs, "eap")


@pytest.fixture(scope="module")
def whole(given: Given) -> Certificate:
    subject, pairs, fresh, result = given
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "find_rivals", ONE_RIVAL)
        jaxtyping.config.update("jaxtyping_disable", True)
        found = certify(subject, pairs, result, fresh=fresh, searches=4)
        jaxtyping.config.update("jaxtyping_disable", False)
    return found


def as_asked(certificate: Certificate) -> dict[str, Any]:
    """Its record without the times."""
    record = certificate.record()
    return {
        **record,
        "seconds": 0,
        "lines": {name: {**line, "seconds": 0} for name, line in record["lines"].items()},
    }


# Right and wrong circuits


def test_a_planted_circuit_passes(given: Given, whole: Certificate) -> None:
    subject, _, fresh, result = given
    assert whole.passed
    assert whole.verdict == "passed"
    assert (*whole.lines,) == NAMES
    assert whole.missing == {}
    assert whole.circuit == result.circuit()
    assert {*PLANTED} <= {*whole.circuit}
    (kept,) = gc.faithfulness(subject, fresh, [whole.circuit])
    assert whole.lines["sufficient"].value == pytest.approx(kept)
    assert (whole.n_pairs, whole.n_fresh, whole.search) == (16, len(fresh), "eap")
    assert (whole.subject, whole.task) == ("ib-3", load_case("ib-3").task)
    assert whole.core is not None
    assert {*PLANTED} <= {*whole.core}
    assert whole.edges is not None
    assert whole.edges.probability is not None
    likely = whole.most_likely()
    assert {row["edge"] for row in likely[:3]} == {*PLANTED}
    assert whole.lines["stable"].details["searches"] == 4


def test_times_add_up(whole: Certificate) -> None:
    parts = [line.seconds for line in whole.lines.values()]
    assert all(part >= 0 for part in parts)
    assert 0 < sum(parts) <= whole.seconds + 0.01


def test_rivals_are_those_that_keep_as_much(whole: Certificate) -> None:
    told = whole.lines["unique"].details["rivals"]
    assert len(whole.rivals) == sum(one["equal"] for one in told)
    assert [len(rival) for rival in whole.rivals] == [one["edges"] for one in told if one["equal"]]


@pytest.mark.parametrize("lost", PLANTED)
def test_an_edge_that_is_needed_exchanged_for_another(given: Given, lost: str) -> None:
    subject, pairs, fresh, result = given
    wrong = [name for name in result.circuit() if name != lost] + ["input->logits"]
    circuit = Circuit.from_names(subject.graph, wrong)
    found = certify(subject, pairs, circuit, fresh=fresh, search=result, searches=1)
    assert not found.passed
    assert not found.lines["sufficient"].passed
    assert not found.lines["minimal"].passed
    assert "input->logits" in found.lines["minimal"].details["idle"]
    assert found.verdict.startswith("fails: sufficient, ")


def test_a_padded_circuit(given: Given) -> None:
    subject, pairs, fresh, result = given
    useless = [f"input->a0.h{head}<{kind}>" for head in (2, 3) for kind in "qk"]
    useless += ["a0.h2->logits", "a0.h3->logits"]
    padded = Circuit.from_names(subject.graph, [*result.circuit(), *useless])
    found = certify(subject, pairs, padded, fresh=fresh, search=result, searches=1)
    assert found.lines["sufficient"].passed
    line = found.lines["minimal"]
    assert not line.passed
    assert {*line.details["idle"]} == {*useless}
    assert found.lines["stable"].details["never_came_back"] == len(useless)
    assert not found.passed


def test_a_circuit_of_other_edges_fails_nearly_everything(given: Given) -> None:
    subject, pairs, fresh, result = given
    others = Circuit.from_names(subject.graph, ["input->a0.h3<q>", "a0.h3->logits"])
    found = certify(subject, pairs, others, fresh=fresh, search=result, searches=1)
    failed = {name for name, line in found.lines.items() if not line.passed}
    assert {"sufficient", "necessary", "stable", "not by chance"} <= failed
    assert found.lines["stable"].value == 0


def test_three_fresh_prompts_are_not_enough(given: Given) -> None:
    subject, pairs, fresh, result = given
    found = certify(subject, pairs, result, fresh=fresh[:3], searches=1)
    line = found.lines["sufficient"]
    assert line.value > 0.9
    assert (line.interval, line.passed, found.passed) == (None, False, False)


def test_a_circuit_that_every_search_finds(given: Given) -> None:
    subject, pairs, fresh, result = given
    heard: list[int] = []

    def same(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        heard.append(seed)
        return result

    found = certify(subject, pairs, result, fresh=fresh, search=same, searches=3, seed=5)
    assert found.lines["stable"].value == 1
    assert found.core == result.circuit()
    assert (found.search, heard, found.seed) == ("same", [6, 7, 8], 5)


# Limits


def test_what_is_asked_can_be_changed(given: Given, whole: Certificate) -> None:
    """Each bound set to what cannot be met; with those of the package every line passes."""
    subject, pairs, fresh, result = given
    found = certify(
        subject,
        pairs,
        result,
        fresh=fresh,
        searches=1,
        sufficient_from=1.1,
        necessary_up_to=-2.0,
        minimal_from=1.2,
        stable_from=1.3,
        chance_up_to=-3.0,
        unique_from=1.4,
        complete_up_to=-4.0,
    )
    asked = {name: line.asked for name, line in found.lines.items()}
    assert asked == {
        "sufficient": "interval from 1.1 up",
        "necessary": "at most -2",
        "minimal": "at least 1.2",
        "stable": "at least 1.3, and 95% of its edges seen again",
        "not by chance": "at most -3",
        "unique": "at least 1.4",
        "complete": "at most -4",
    }
    assert not any(line.passed for line in found.lines.values())
    assert all(line.passed for line in whole.lines.values())


def test_edges_have_to_be_seen_again(given: Given) -> None:
    subject, pairs, fresh, result = given
    found = certify(subject, pairs, result, fresh=fresh, searches=1, seen_again_from=1.01)
    assert not found.lines["stable"].passed


# Time


def test_without_time_everything_is_missing(given: Given) -> None:
    subject, pairs, fresh, result = given
    heard: list[tuple[int, int]] = []
    found = certify(
        subject,
        pairs,
        result,
        fresh=fresh,
        seconds=1e-9,
        progress=lambda *step: heard.append(step),
    )
    assert found.missing == dict.fromkeys(NAMES, "the 1e-09 seconds were over")
    assert (found.lines, found.passed, found.edges, found.core) == ({}, False, None, None)
    assert heard == [(number, 7) for number in range(1, 8)]
    assert found.verdict == f"not measured: {', '.join(NAMES)}"


def test_time_that_is_over_on_the_way(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still until the searches, which take a day."""
    subject, pairs, fresh, result = given
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def slow(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        now[0] += 40.0
        return result

    found = certify(subject, pairs, result, fresh=fresh, search=slow, seconds=100.0)
    # Searches have sixty seconds: the second ends after that.
    assert found.lines["stable"].details["problems"] == [
        "time was over after 2 of 8 fresh searches"
    ]
    assert found.lines["stable"].seconds == pytest.approx(80)
    assert found.missing == {}
    late = certify(subject, pairs, result, fresh=fresh, search=slow, seconds=30.0)
    assert (*late.lines,) == ("sufficient", "necessary", "minimal")
    assert (*late.missing,) == ("stable", "not by chance", "unique", "complete")
    assert late.missing["complete"] == "the 30 seconds were over"
    assert not late.passed
    # What was found until then is told.
    assert late.edges is not None


def test_a_search_that_finds_nothing(given: Given) -> None:
    subject, pairs, fresh, result = given

    def lost(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        raise ValueError("nothing was found")

    circuit = result.circuit()
    found = certify(subject, pairs, circuit, fresh=fresh, search=lost, searches=3)
    assert found.missing == {
        "stable": "nothing was found",
        "unique": "rivals are looked for from the scores of a search, and there is none",
    }
    assert (found.edges, found.core, found.rivals) == (None, None, ())
    assert not found.passed
    assert all(line.passed for line in found.lines.values())


# Prompts


def test_without_fresh_prompts_half_judge(given: Given) -> None:
    subject, pairs, _, result = given
    found = certify(subject, pairs, result, searches=1)
    rest, judges = hold_back(pairs, 0.5)
    assert (found.n_pairs, found.n_fresh) == (len(rest), len(judges))
    (kept,) = gc.faithfulness(subject, judges, [result.circuit()])
    assert found.lines["sufficient"].value == pytest.approx(kept)
    told = "no fresh prompts were given: half of the pairs judge, which it may have been found on"
    assert found.notes == (told,)
    with pytest.raises(ValueError, match="needs fresh prompts, give fresh=: cannot hold back"):
        certify(subject, pairs[:1], result)


def test_prompts_that_were_seen_do_not_judge(given: Given) -> None:
    subject, pairs, fresh, result = given
    both = Pairs.concatenate([fresh, pairs[:3]])
    circuit = result.circuit()
    found = certify(subject, pairs, circuit, fresh=both, search="eap", searches=1)
    assert found.n_fresh == len(fresh)
    assert found.notes == (f"3 of {len(both)} fresh prompts were left out: they were seen before",)
    with pytest.raises(ValueError, match=r"all 3 fresh prompts are among the pairs that the circ"):
        certify(subject, pairs, circuit, fresh=pairs[:3])


def test_prompts_that_the_result_knows(given: Given) -> None:
    subject, pairs, _, result = given
    assert result.prompt_hashes
    others = unseen(load_case("ib-3").pairs(8, seed=7), pairs)
    assert others is not None
    found = certify(subject, others, result, fresh=pairs[:4], searches=1)
    assert found.notes == ("4 fresh prompts were used to find the result, as its file says",)


def test_pairs_of_which_the_result_knows_some(given: Given) -> None:
    """Those that it was not found on judge."""
    subject, pairs, fresh, result = given
    every = Pairs.concatenate([fresh, pairs])
    known = {*result.prompt_hashes}
    assert {*prompt_hashes(pairs)} <= known
    new = every[[row for row, name in enumerate(prompt_hashes(every)) if name not in known]]
    found = certify(subject, every, result, searches=1)
    assert (found.n_pairs, found.n_fresh) == (len(every) - len(new), len(new))
    assert found.notes == (f"{len(new)} pairs judge that it was not found on",)
    (kept,) = gc.faithfulness(subject, new, [result.circuit()])
    assert found.lines["sufficient"].value == pytest.approx(kept)


def test_on_large_graphs_few_prompts_and_searches(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, fresh, result = given
    monkeypatch.setattr(module, "LARGE", 110)
    monkeypatch.setattr(module, "FEW_FRESH", 5)
    monkeypatch.setattr(module, "SEARCHES_ON_LARGE", 2)
    monkeypatch.setattr(module, "MOST_ON_LARGE", 2)
    found = certify(subject, pairs, result, fresh=fresh)
    assert found.n_fresh == 5
    assert found.lines["stable"].details["searches"] == 2
    assert len(found.lines["minimal"].details["costs"]) == 2


def test_prompts_that_say_nothing_are_refused(given: Given) -> None:
    """In double precision nothing at all differs, in single precision rounding does."""
    subject, pairs, fresh, result = given
    same = replace(fresh, corrupted=fresh.clean)
    for one in (subject, subject.to(torch.float64)):
        with pytest.raises(ValueError, match="differ"):
            certify(one, pairs, result.circuit(), fresh=same)


# Again


def alike(one: Any, other: Any) -> bool:
    """Whether two records are the same, but for how numbers were rounded."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[x], other[x]) for x in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-3, abs=1e-5)
    return one == other


def test_the_same_seed_gives_the_same(
    given: Given, whole: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, fresh, result = given
    monkeypatch.setattr(module, "edge_chances", edge_chances)
    monkeypatch.setattr(module, "find_rivals", ONE_RIVAL)
    again = certify(subject, pairs, result, fresh=fresh, searches=4)
    first, second = as_asked(whole), as_asked(again)
    assert first.keys() == second.keys()
    for name in first:
        assert alike(first[name], second[name]), name
    monkeypatch.setattr(module, "find_rivals", partial(find_rivals, attempts=[]))
    other = certify(subject, pairs, result, fresh=fresh, searches=4, seed=1)
    random = "not by chance"
    assert not alike(as_asked(other)["lines"][random], first["lines"][random])


def test_a_certificate_is_read_again(whole: Certificate, tmp_path: Path) -> None:
    whole.save(tmp_path / "c.json")
    read = Certificate.load(tmp_path / "c.json")
    assert read.record() == whole.record()
    assert read.table() == whole.table()
    for suffix in (".md", ".html"):
        whole.save(tmp_path / f"c{suffix}")
        assert (tmp_path / f"c{suffix}").stat().st_size > 500


# Refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"searches": 0}, "searches must be a whole number above 0, got 0"),
        ({"searches": True}, "searches must be a whole number above 0, got True"),
        ({"searches": 1.5}, "searches must be a whole number above 0, got 1.5"),
        ({"seconds": 0}, "seconds must be above 0, got 0"),
        ({"seconds": -1.0}, "seconds must be above 0, got -1.0"),
        ({"seconds": float("nan")}, "seconds must be above 0, got nan"),
    ],
)
def test_what_makes_no_sense(given: Given, options: dict[str, Any], says: str) -> None:
    subject, pairs, fresh, result = given
    with pytest.raises(ValueError, match=says):
        certify(subject, pairs, result, fresh=fresh, **options)


def test_circuits_that_cannot_be_certified(given: Given) -> None:
    subject, pairs, fresh, result = given
    with pytest.raises(ValueError, match="the circuit has no edges; give one with at least one"):
        certify(subject, pairs, Circuit.from_names(subject.graph, []), fresh=fresh)
    unknown = replace(result, method="my-own")
    with pytest.raises(ValueError, match="was found by my-own, which is no method of this pack"):
        certify(subject, pairs, unknown, fresh=fresh)
    # With another search it can be.
    assert certify(subject, pairs, unknown, fresh=fresh, search="eap", searches=1).lines
    wrong: Any = certify
    with pytest.raises(TypeError, match="takes subject, pairs, circuit, in this order"):
        wrong(result, subject, pairs)
    elsewhere = Circuit.from_names(gc.ComponentGraph(3, 4), ["input->m2"])
    with pytest.raises(ValueError, match="1 of 1 edges are not in the graph: "):
        certify(subject, pairs, elsewhere, fresh=fresh)


def test_a_random_transformer_has_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows its circuit; every question has an answer all the same."""
    monkeypatch.setattr(module, "edge_chances", edge_chances)
    subject, pairs, _ = tiny(8)

    def find(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        return gc.localize(subject, pairs, "eap-ig", seed=seed)

    way: Callable[[Transformer, Pairs, int], Result] = find
    result = find(subject, pairs, 0)
    found = certify(subject, pairs[:4], result, fresh=pairs[4:], search=way, searches=2)
    assert {*found.lines, *found.missing} == {*NAMES}
    assert found.edges is not None
    assert found.edges.probability is not None
    assert found.edges.meaning.startswith("of coming back in one more search")
