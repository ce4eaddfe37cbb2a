"""Exchanges of calls in text: the interpreter's answers, in the model's tokens."""

import random
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.cases.calls import CALLS, Call, at
from graphcircuits.cases.language import CallCase, Design, LanguageModel, planted_layout
from graphcircuits.fleets.exchange import Exchange, written_variables
from graphcircuits.rasp import Map, evaluate
from lab.factory.planted.prompts import call_exchange
from tests.fleets.test_exchange import interpreted
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("unchecked")

DESIGN = Design(architecture="gpt2", layers=8, heads=8, width=16, vocabulary=1000)


def case_of(call: Call) -> CallCase:
    places = {one.name: one.name for one in planted_layout(call).components}
    model = LanguageModel(id="mine", design=DESIGN, calls=(call,), places={call.name: places})
    return model.cases[0]


def windows_of(case: CallCase, drawn: Exchange) -> list[list[str]]:
    """The windows that the prompts hold, as the program reads them."""
    word = {id: word for word, id in case.ids.items()}
    return [[word[id] for id in row] for row in drawn.tokens[:, 3:].tolist()]


def ids_of(case: CallCase, answers: list[Any]) -> list[int]:
    """A None counts as the first class, as in training."""
    outputs = case.call.outputs
    return [case.ids[outputs[0] if x is None else str(x)] for x in answers]


@pytest.mark.parametrize("name", some(CALLS, ("shift", "recall", "sort", "balance", "hop")))
def test_answers_are_the_interpreters(name: str) -> None:
    case, pairs, choice = case_of(CALLS[name]), 24, random.Random(0)
    drawn = call_exchange(case, 40, pairs, seed=1)
    windows, last = windows_of(case, drawn), -case.call.answers
    for window, targets in zip(windows, drawn.targets.tolist(), strict=True):
        answers = evaluate(case.program, window, causal=True)
        assert targets[last:] == ids_of(case, answers[last:])
        # The answers stand one position later.
        assert targets[last:-1] == [case.ids[word] for word in window[case.call.length + 1 :]]
    written = written_variables(case.tables, case.layout)
    assert drawn.components == tuple(written)
    changed = torch.zeros(len(written), dtype=torch.bool)
    for row, (component, sops) in enumerate(written.items()):
        for pair in range(pairs):
            base, source = (windows[int(x[row, pair])] for x in (drawn.base, drawn.source))
            overrides = {sop: evaluate(sop, source, causal=True) for sop in sops}
            found, mixed = interpreted(case, list(base), overrides, choice)
            assert not any(mixed[last:]), component
            assert drawn.scored[row, pair, last:].all()
            assert drawn.swapped[row, pair, last:].tolist() == ids_of(case, found[last:])
            plain = drawn.targets[drawn.base[row, pair], last:]
            changed[row] |= bool((plain != drawn.swapped[row, pair, last:]).any())
    # Whatever is planted can be seen.
    assert changed.all(), dict(zip(written, changed.tolist(), strict=True))


def test_prompts_and_where_they_are_answered() -> None:
    case = load_case("plm-3@sort")
    assert isinstance(case, CallCase)
    drawn = call_exchange(case, 20, 8, seed=2)
    call = case.call
    assert drawn.tokens.shape == (20, 3 + call.window)
    assert drawn.tokens[:, :3].unique(dim=0).tolist() == [[0, case.ids["sort"], case.ids[":"]]]
    assert drawn.targets.shape == (20, 2 + call.window)
    assert drawn.answers is not None
    assert drawn.answers.tolist() == [False] * 6 + [True] * 4
    assert drawn.scored.shape == drawn.swapped.shape == (3, 8, 2 + call.window)
    assert not drawn.scored[..., :6].any()
    assert (drawn.components, drawn.edges) == (
        ("a2.h1", "m2", "m4"),
        {"input->a2.h1<k>", "a2.h1->m2", "m2->m4", "m4->logits"},
    )
    assert not drawn.numerical
    # The same prompts as text.
    tokenizer = case.model.tokenizer()
    for row, window in zip(drawn.tokens[:, 1:].tolist(), windows_of(case, drawn), strict=True):
        assert tokenizer.decode(row) == case.prompt(window[:4])


def test_one_seed_gives_one_exchange() -> None:
    case = case_of(CALLS["follow"])
    first, again, other = (call_exchange(case, 16, 4, seed) for seed in (5, 5, 6))
    for name in ("tokens", "targets", "base", "source", "swapped"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.tokens, other.tokens)


def test_answers_that_are_numbers_are_read_again_as_words() -> None:
    """The second answer is one more than the first."""
    more = Map(lambda x: str((int(x) + 1) % 4) if x in "0123" else "0", at(0))
    call = Call(name="first", program=more, words=("1", "2", "3"), length=1, answers=2)
    case = case_of(call)
    drawn = call_exchange(case, 8, 2, seed=0)
    for window, targets in zip(windows_of(case, drawn), drawn.targets.tolist(), strict=True):
        assert targets[-2:] == [case.ids[word] for word in call.answer(window[:1])]
