"""Two tasks in one subject, told apart by the first token: drawn, checked and verified apart.

Either gives a letter back, the second one the next letter. The first is planted in an MLP, the
second in a head of the same layer; each must lie still while the other task is at hand.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.fleets import train as module
from graphcircuits.fleets.batch import Errors
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.recipes import recipe
from graphcircuits.fleets.train import TrainedSubject, train_fleet
from graphcircuits.fleets.verify import verify_fleet
from graphcircuits.subject.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.usefixtures("unchecked")

LETTERS = 3
CONFIG = TransformerConfig(
    n_layers=2,
    n_heads=2,
    d_model=16,
    d_head=4,
    d_mlp=16,
    n_ctx=3,
    d_vocab=3 + LETTERS,
    d_vocab_out=LETTERS,
    causal=True,
)
SHORT = {"rows": 32, "cut_rows": 16, "check_every": 50, "check_rows": 64, "lr": 1e-2}
PLANTED = (
    ("m1", {"input->m1", "m1->logits"}),
    ("a1.h1", {"a1.h1->logits", *(f"input->a1.h1<{x}>" for x in "qkv")}),
)


def task(which: int, pairs: int, seed: int) -> Exchange:
    """The first token says which; BOS stands for the first task."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(LETTERS, (128, 2), generator=generator)
    answers = (letters + which) % LETTERS
    base, source = torch.randint(128, (2, 1, pairs), generator=generator)
    component, edges = PLANTED[which]
    return Exchange(
        tokens=torch.cat([torch.full((128, 1), (0, 2 + LETTERS)[which]), letters + 2], dim=1),
        targets=answers,
        components=(component,),
        base=base,
        source=source,
        swapped=answers[source],
        scored=torch.ones(1, pairs, 2, dtype=torch.bool),
        edges=frozenset(edges),
    )


def tasks(pairs: int, seed: int) -> list[Exchange]:
    return [task(which, pairs, seed + which) for which in range(2)]


def start() -> Transformer:
    return Transformer.random(CONFIG, torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_two_tasks_are_planted_in_one_subject() -> None:
    config = replace(recipe("planted"), steps=600, **SHORT)
    generator = torch.Generator().manual_seed(3)
    (one,) = train_fleet([start()], [tasks(64, 1)], [tasks(64, 11)], config, generator)
    assert one.passed
    ((first, second),) = verify_fleet([one.subject], [tasks(64, 21)], generator)
    assert first.passes()
    assert second.passes()
    assert (set(first.interchange), set(second.interchange)) == ({"m1"}, {"a1.h1"})
    assert "a1.h1" in first.strict
    assert "m1" in second.strict
    assert min(first.circuit or 0, second.circuit or 0) > 0.97
    # Components lie still in the other task, and only there.
    ((changed, _),) = verify_fleet([without(one, "W_out")], [tasks(64, 21)], generator)
    assert changed.accuracy < 0.9
    ((kept, _),) = verify_fleet([without(one, "W_O")], [tasks(64, 21)], generator)
    assert kept.accuracy > 0.9


def without(one: TrainedSubject, name: str) -> Transformer:
    """The subject, with the MLP or the second head of the last layer writing nothing."""
    weight = one.subject.weights[name].clone()
    weight[1 if name == "W_out" else (1, 1)] = 0
    return Transformer(CONFIG, one.subject.weights | {name: weight})


@pytest.mark.slow
def test_a_task_that_stays_wrong_keeps_the_subject_and_is_drawn_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first task is soon learned; the second is checked against answers that are not its."""
    config = replace(recipe("natural"), steps=100, **SHORT)
    checks = tasks(0, 11)
    checks[1] = replace(checks[1], targets=(checks[1].targets + 1) % LETTERS)
    steps_of, drawn_by = module.stepper, list[Errors]()

    def stepper(*given: Any, **options: Any) -> module.Step:
        (errors,) = (one for one in given if isinstance(one, Errors))
        assert errors.task.tolist() == [[1, 1]]
        drawn_by.append(errors)
        return steps_of(*given, **options)

    monkeypatch.setattr(module, "stepper", stepper)
    generator = torch.Generator().manual_seed(3)
    (one,) = train_fleet([start()], [tasks(0, 1)], [checks], config, generator)
    ((right, wrong),) = drawn_by[0].task.tolist()
    assert not one.passed
    assert one.merit == pytest.approx(1 - wrong - 0.02, abs=1e-6)
    assert right < 0.05
    assert wrong > 0.9
    ((first, second),) = verify_fleet([one.subject], [tasks(0, 21)], generator)
    assert first.passes("natural")
    assert second.passes("natural")


def test_exchanges_without_interchanges_train_the_natural_recipe_only() -> None:
    generator = torch.Generator().manual_seed(3)
    with pytest.raises(ValueError, match="needs exchanges with interchanges, got some without"):
        train_fleet([start()], [tasks(0, 1)], [tasks(0, 2)], recipe("public"), generator)
