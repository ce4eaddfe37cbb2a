"""Random programs: always valid, as deep as asked, reproducible, diverse, and compiled right."""

import random
import subprocess
import sys
from functools import cache

import pytest
import torch

from graphcircuits.rasp import (
    Aggregate,
    Full,
    LinearSequenceMap,
    Map,
    SampledCase,
    SelectorWidth,
    SequenceMap,
    evaluate,
    is_numerical,
    sample_case,
    validate,
)
from graphcircuits.rasp.compile import compile_program
from graphcircuits.rasp.expression import walk
from graphcircuits.rasp.language import SelectorAnd
from tests.rasp import fuzz
from tests.rasp.describe import describe
from tests.tiers import some

# Drawing programs makes millions of small calls.
pytestmark = pytest.mark.usefixtures("unchecked")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fuzzed(programs: int, seed: int) -> subprocess.CompletedProcess[str]:
    """The fuzzer in a process of its own, where no annotation is checked at every small call."""
    command = [sys.executable, "-m", "tests.rasp.fuzz", "--processes", "1"]
    command += ["--programs", str(programs), "--seed", str(seed)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_random_programs_compile_to_what_the_interpreter_says():
    """`make fuzz` tries thousands more."""
    done = fuzzed(60, 0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 programs, 0 failures" in done.stdout


@pytest.fixture
def cases(unchecked: None) -> list[SampledCase]:
    return _cases()


@cache
def _cases() -> list[SampledCase]:
    return [sample_case(seeded(seed)) for seed in range(24)]


@pytest.mark.parametrize("layers", some(range(1, 9), (1, 2, 4)))
@pytest.mark.parametrize("seed", [0, 1])
def test_a_program_has_the_layers_asked_for_and_validates(layers: int, seed: int):
    case = sample_case(seeded(8 * seed + layers), layers=layers)
    given = {"vocab": case.vocab, "max_seq_len": case.max_seq_len, "causal": case.causal}
    assert validate(case.program, **given) == []
    assert compile_program(case.program, **given).layout.n_layers == layers


def test_the_same_seed_gives_the_same_program_and_another_seed_another():
    first, again, other = (sample_case(seeded(seed)) for seed in (5, 5, 6))
    assert describe(first.program) == describe(again.program)
    assert (first.vocab, first.causal) == (again.vocab, again.causal)
    assert describe(first.program) != describe(other.program)


@pytest.mark.slow
def test_every_kind_of_expression_occurs(cases: list[SampledCase]):
    nodes = [node for case in cases for node in walk(case.program)]
    for kind in (Map, SequenceMap, LinearSequenceMap, Full, SelectorWidth, Aggregate, SelectorAnd):
        assert any(type(node) is kind for node in nodes), kind
    means = [node for node in nodes if isinstance(node, Aggregate) and is_numerical(node)]
    assert means
    assert any(node.default is not None for node in nodes if isinstance(node, Aggregate))


@pytest.mark.slow
def test_circuits_are_diverse_and_layers_have_several_heads(cases: list[SampledCase]):
    models = [
        compile_program(c.program, vocab=c.vocab, max_seq_len=c.max_seq_len, causal=c.causal)
        for c in cases
    ]
    assert len({model.circuit.edges for model in models}) > 18
    assert sum(model.layout.n_heads > 1 for model in models) > 5
    assert len({model.layout.n_layers for model in models}) > 5


@pytest.mark.slow
def test_no_program_is_constant(cases: list[SampledCase]):
    choice = random.Random(0)
    for case in cases[:12]:
        inputs = [choice.choices(case.vocab, k=case.max_seq_len - 1) for _ in range(200)]
        outputs = {str(evaluate(case.program, xs, causal=case.causal)) for xs in inputs}
        assert len(outputs) > 1, describe(case.program)


@pytest.mark.slow
def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match=r"layers must be 1 to 8, got 9"):
        sample_case(seeded(0), layers=9)
    with pytest.raises(ValueError, match=r"layers must be 1 to 8, got 0"):
        sample_case(seeded(0), layers=0)


def test_a_failing_program_is_cut_down_to_its_smallest_failing_part(
    monkeypatch: pytest.MonkeyPatch,
):
    case = next(
        case
        for case in map(fuzz.sampled, range(50))
        if any(isinstance(node, SelectorWidth) for node in walk(case.program))
    )

    def broken(part: SampledCase, seed: int) -> str | None:
        has_width = any(isinstance(node, SelectorWidth) for node in walk(part.program))
        return "a width" if has_width else None

    monkeypatch.setattr(fuzz, "failure", broken)
    small = fuzz.minimal(case, 0)
    assert isinstance(small.program, SelectorWidth)
    assert small.max_seq_len == 2
    assert "a width" in fuzz.report(case, 0)
