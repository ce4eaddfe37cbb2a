"""Random programs as cases: seeds keep their meaning, and no place in the split leaks."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphcircuits import rasp
from graphcircuits.cases import Case, case_ids, load_case, random_programs, split_records
from graphcircuits.cases.prepare import ConstantOutputError, case_exchange
from graphcircuits.cases.random_programs import (
    GUESSABLE,
    PROBES,
    Facts,
    assignment_of,
    facts_of,
    probed,
    random_facts,
    random_ids,
)
from graphcircuits.rasp.sample import layers_drawn
from lab.generators.random_programs import FILE, N_SEEDS, as_json
from lab.generators.split import corpus, match, traits_of
from tests.cases.reference import reference
from tests.rasp.describe import describe
from tests.tiers import some

# Drawing programs makes millions of small calls.
pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = (6, 13, 19, 24, 40, 48)
"""Seeds whose programs are small, and quickly drawn."""


def drawn(seed: int) -> Case:
    """The program of a seed, drawn without regard to the index."""
    return random_programs.draw(seed)


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_programs, "_index", lambda: [])
    monkeypatch.setattr(random_programs, "random_facts", lambda seed: facts_of(drawn(seed)))


# Seeds


@pytest.mark.parametrize("seed", some(range(50), QUICK))
def test_a_seed_keeps_its_meaning(seed: int):
    record = reference("random_programs.json")[seed]
    case = load_case(f"rnd-{seed}")
    text = "\n".join(describe(case.program))
    assert (list(case.vocab), case.max_seq_len, case.causal) == (
        record["vocab"],
        record["max_seq_len"],
        record["causal"],
    )
    assert hashlib.sha256(text.encode()).hexdigest() == record["sha256"], text
    assert (case.split, case.group) == (record["split"], record["group"])
    assert case.fold == record.get("fold")
    assert (case.id, case.name, case.family) == (f"rnd-{seed}", f"rnd-{seed}", "rnd")


@pytest.mark.slow
def test_another_process_draws_the_same():
    """Sets and dictionaries of text are ordered otherwise there."""
    script = (
        "from tests.cases.test_random_programs import drawn, text_of\n"
        "print(*[text_of(drawn(seed)) for seed in (1, 8, 30)], sep='\\n', end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "\n".join(text_of(drawn(seed)) for seed in (1, 8, 30))
    assert done.stdout.count("Facts(") == 3


def text_of(case: Case) -> str:
    return "\n".join([*describe(case.program), repr(facts_of(case))])


def test_a_case_is_drawn_once():
    assert load_case("rnd-6") is load_case("rnd-6")


def test_the_layers_are_known_before_the_program_is_drawn():
    for seed in QUICK:
        assert layers_drawn(random_programs._generator(seed)) == drawn(seed).layout.n_layers


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_case("rnd-x"), "unknown case 'rnd-x'; random programs are rnd-0, rnd-1, "),
        (lambda: load_case("rnd-017"), r"unknown case 'rnd-017'; .* \.\.\. rnd-4294967295\."),
        (lambda: load_case("rnd--1"), "unknown case 'rnd--1'; random programs are"),
        (lambda: load_case("rnd-4294967296"), "unknown case 'rnd-4294967296'; random programs"),
        (lambda: load_case("rnd-²"), "unknown case 'rnd-²'; random programs are"),
        (lambda: case_ids(family="rnd"), r"too many to list; graphcircuits\.random_ids\(split, n"),
        (lambda: random_programs.random_case(-1), "must be 0 to 4294967295, got -1"),
    ],
)
def test_what_is_no_seed_is_refused(call: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        call()


# Facts


@pytest.mark.parametrize("seed", some(range(0, N_SEEDS, 128), (640, 1664, 2432)))
def test_the_index_is_what_drawing_gives(seed: int):
    """Made by `python -m lab.generators random-programs`."""
    assert random_facts(seed) == facts_of(drawn(seed))


def test_the_index_has_all_its_seeds():
    rows = json.loads(FILE.read_text("utf-8"))
    assert len(rows) == N_SEEDS
    assert FILE.read_text("utf-8") == as_json(Facts(*row) for row in rows)
    assert [random_facts(seed).n_layers for seed in range(256)] == [
        max(2, layers_drawn(random_programs._generator(seed))) for seed in range(256)
    ]


@pytest.mark.parametrize("seed", some((6, 24, 48, 299, 4, 14), (6, 24, 48)))
def test_answers_are_those_of_the_interpreter(seed: int):
    case = load_case(f"rnd-{seed}")
    places = {token: str(place) for place, token in enumerate(case.vocab)}

    def text(value: Any) -> str:
        if value is not None and not case.categorical:
            return f"{value:.9g}"
        return places[value] if isinstance(value, str) else repr(value)

    answers = probed(case)
    assert len(answers) == PROBES
    # The inputs are drawn anew in the way that the docstring gives.
    choice = random_programs.random.Random(0)
    for row in answers:
        codes = [int(choice.random() * len(case.vocab)) for _ in range(case.max_seq_len - 1)]
        assert row == [text(value) for value in case.evaluate([case.vocab[i] for i in codes])]


def moved(vocab: tuple[rasp.Value, ...], by: int, **options: Any) -> Case:
    """The token some places back."""
    back = rasp.Select(rasp.indices, rasp.indices, lambda k, q: k == q - by)
    return Case(
        id="moved", program=rasp.Aggregate(back, rasp.tokens), vocab=vocab, max_seq_len=6, **options
    )


def test_names_of_tokens_make_no_other_program():
    letters, numbers = facts_of(moved(("a", "b", "c"), 1)), facts_of(moved((0, 1, 2), 1))
    assert letters == numbers
    others = [
        moved(("a", "b", "c"), 2),
        moved(("a", "b"), 1),
        moved(("a", "b", "c"), 1, causal=True),
    ]
    identities = {facts_of(other).program for other in others}
    assert len(identities | {letters.program}) == 4
    assert {facts_of(other).structure for other in others} == {letters.structure}


def test_what_can_be_guessed():
    def case(function: Callable[[Any], Any]) -> Case:
        return Case(id="own", program=rasp.Map(function, rasp.tokens), vocab=(0, 1), max_seq_len=4)

    assert facts_of(case(lambda x: 7)).guessable == 1
    assert facts_of(case(lambda x: x)).guessable < 0.6
    # One token in sixteen is answered otherwise.
    rare = Case(
        id="rare",
        program=rasp.Map(lambda x: x == 3, rasp.tokens),
        vocab=tuple(range(16)),
        max_seq_len=4,
    )
    assert facts_of(rare).guessable == pytest.approx(15 / 16, abs=0.02)


# Places


def test_a_structure_of_a_listed_case_has_the_assignment_of_its_group():
    records = split_records()
    for id, record in records.items():
        place = assignment_of(record["structure"], constant=False)
        assert place["group"] == record["group"], id
        if record["split"] == "pool":
            assert place == {"split": "pool", "group": record["group"], "fold": record["fold"]}
        elif record["check" if "check" in record else "split"] != "constant":
            assert place["split"] == "discarded"
            assert place["check"] == "structure"
            assert records[place["to"]]["structure"] == record["structure"]
            assert records[place["to"]]["group"] == record["group"]
    assert assignment_of(records["ib-3"]["structure"], constant=False)["to"] == "ib-3"


def test_other_structures_are_dealt_by_their_number():
    eighth, other = f"{80:016x}", f"{83:016x}"
    assert assignment_of(eighth, constant=False) == {"split": "test", "group": "rnd:000000000000"}
    assert assignment_of(other, constant=False) == {
        "split": "pool",
        "group": "rnd:000000000000",
        "fold": 80 // 8 % 5,
    }
    constant = {"split": "discarded", "group": "rnd:000000000000", "check": "constant"}
    assert assignment_of(eighth, constant=True) == assignment_of(other, constant=True) == constant


def test_one_structure_in_eight_is_held_out_and_folds_are_alike():
    structures = {random_facts(seed).structure for seed in range(N_SEEDS)}
    own = [place for x in structures if "to" not in (place := assignment_of(x, constant=False))]
    own = [place for place in own if place["group"].startswith("rnd:")]
    counts = Counter(place.get("fold", "test") for place in own)
    assert counts["test"] / len(own) == pytest.approx(1 / 8, abs=0.02)
    for fold in range(5):
        assert counts[fold] / len(own) == pytest.approx(7 / 40, abs=0.02)


def test_a_program_with_a_constant_output_is_refused():
    case = load_case("rnd-62")
    assert (case.split, case.fold) == ("discarded", None)
    assert random_facts(62).assignment["check"] == "constant"
    with pytest.raises(ConstantOutputError, match="case 'rnd-62': the output is the same for eve"):
        case_exchange(case, 64, 8, 0)
    assert "rnd-62" not in random_ids("discarded", 3, start=60)


@pytest.mark.slow
def test_no_random_program_leaks():
    """200 programs, by the split's own checks, against every listed case and among each other."""
    seeds = [s for s in range(600) if layers_drawn(random_programs._generator(s)) <= 4][:195]
    seeds += [s for s in range(100) if layers_drawn(random_programs._generator(s)) > 4][:5]
    random = {f"rnd-{seed}": drawn(seed) for seed in seeds}
    assert len(random) == 200
    listed = corpus()
    traits = traits_of([*listed, *random.values()])
    places = {id: random_facts(int(id[4:])).assignment for id in random}
    records = split_records()
    found = Counter[str]()
    for id, place in places.items():
        matches = [case.id for case in listed if match(traits[id], traits[case.id])]
        groups = {records[other]["group"] for other in matches}
        assert groups == (set() if place["group"].startswith("rnd:") else {place["group"]}), id
        if place.get("check") == "constant":
            continue
        splits = {records[other]["split"] for other in matches}
        if "test" in splits:
            assert place["split"] == "discarded", id
            assert place["to"] in matches
        elif "pool" in splits:
            folds = {records[other].get("fold") for other in matches} - {None}
            assert (place["split"], {place["fold"]}) == ("pool", folds)
        found[place["split"]] += bool(matches)
    # The check can fail: there are such programs.
    assert min(found["discarded"], found["pool"]) > 8
    for one, other in itertools.combinations(random, 2):
        related = match(traits[one], traits[other]) is not None
        assert related == (places[one]["group"] == places[other]["group"]) or (
            # Listed groups also hold what is only written alike.
            not related and not places[one]["group"].startswith("rnd:")
        ), (one, other)


# Choosing seeds


def test_ids_are_the_first_of_their_split_and_no_program_twice():
    ids = random_ids("pool", 300)
    facts = [random_facts(int(id[4:])) for id in ids]
    assert ids == random_ids("pool", 400)[:300]
    assert {fact.assignment["split"] for fact in facts} == {"pool"}
    assert len({fact.program for fact in facts}) == 300
    assert max(fact.guessable for fact in facts) <= GUESSABLE
    last = int(ids[-1][4:])
    left_out = set(range(last)) - {int(id[4:]) for id in ids}
    seen = {fact.program for fact in facts}
    for seed in left_out:
        fact = random_facts(seed)
        repeats = fact.program in seen
        assert fact.assignment["split"] != "pool" or fact.guessable > GUESSABLE or repeats, seed
    assert random_ids("pool", 0) == []


def test_ids_can_be_narrowed():
    test = random_ids("test", 40)
    assert not set(test) & set(random_ids("pool", 400))
    folds = [random_ids(f"fold-{fold}", 30) for fold in range(5)]
    assert len({id for fold in folds for id in fold}) == 150
    shallow = random_ids("pool", 50, layers=2, categorical=True, causal=False)
    facts = [random_facts(int(id[4:])) for id in shallow]
    assert {(f.n_layers, f.categorical, f.causal) for f in facts} == {(2, True, False)}
    later = random_ids("pool", 5, start=1000)
    assert min(int(id[4:]) for id in later) >= 1000
    assert random_ids("pool", 5, start=int(later[0][4:])) == later


def test_seeds_beyond_the_index_are_drawn(no_index: None):
    ids = random_ids("pool", 3, start=5, layers=2)
    assert ids == ["rnd-5", "rnd-6", "rnd-7"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("paper", 3), {}, "unknown split 'paper' of random programs; choose from test, pool, dis"),
        (("test", -1), {}, "n must be at least 0, got -1"),
        (("test", 1), {"start": 2**32}, "start must be a seed from 0 to 4294967295, got 42949672"),
        (("test", 1), {"layers": 1}, "layers must be 2 to 8, since subjects have at least 2, got"),
        (("x", -1), {"layers": 9}, "unknown split 'x' .*; n must be .*; layers must be"),
        (
            ("test", 3),
            {"start": 2**32 - 1, "layers": 2},
            "only 0 of 3 such random programs are in 'test' among",
        ),
    ],
)
def test_wrong_wishes_are_refused(arguments: Any, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        random_ids(*arguments, **options)
