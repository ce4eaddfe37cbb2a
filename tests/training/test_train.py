"""Training: its loss by the formula, the same weights again, and stopping and going on."""

import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits as gc
from graphcircuits.cases import load_case
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.io.store import StoreError, load_artifact, save_artifact
from graphcircuits.predictor.block import Dropout
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, seen_of
from graphcircuits.predictor.invariant import InvariantAligner
from graphcircuits.predictor.model import Predictor, read_case
from graphcircuits.training import data, facts, members, sources
from graphcircuits.training import train as training_module
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example
from graphcircuits.training.loop import CHECKPOINT
from graphcircuits.training.members import TrainedPredictor, train_predictor
from graphcircuits.training.objectives import label_weights, labels_loss
from graphcircuits.training.train import train
from graphcircuits.training.validation import validate
from lab.examples import read_examples
from tests.predictor.cases import make_examples, small, training
from tests.predictor.graphs import seeded, states

pytestmark = pytest.mark.usefixtures("unchecked")
"""Every training runs a network many times."""


def same_weights(one: TrainedPredictor, other: TrainedPredictor) -> bool:
    found = other.predictor.state_dict()
    return all(
        torch.equal(value, found[name]) for name, value in one.predictor.state_dict().items()
    )


def fresh(examples: list[Example], config: TrainConfig, seed: int = 0) -> Predictor:
    """The predictor that a training starts from."""
    predictor = Predictor(config.predictor, generator=seeded(seed))
    tables = [x.reading.content for x in examples if isinstance(x.reading.content, Tensor)]
    if isinstance(predictor.align, InvariantAligner):
        predictor.align.standardize_by(torch.cat(tables))
    return predictor


def labels_of(example: Example) -> Circuit:
    assert example.circuit is not None
    return example.circuit


# The loss


def by_loop(logits: Tensor, labels: Tensor) -> float:
    """The paper's formula, an edge at a time."""
    inside = sum(labels.tolist())
    weight = max(1.0, (len(labels) - inside) / max(inside, 1))
    total = 0.0
    for logit, label in zip(logits.tolist(), labels.tolist(), strict=True):
        chance = 1 / (1 + math.exp(-logit))
        total += weight * math.log(chance) if label else math.log(1 - chance)
    return -total / len(labels)


def circuit_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The paper's loss of one case: circuit edges weigh more where they are the fewer."""
    return labels_loss(logits, labels, label_weights(labels))


@pytest.mark.parametrize("inside", [0, 1, 3, 10, 17, 20])
def test_the_loss_is_the_formula(inside: int) -> None:
    """With few circuit edges, with more than half, with none and with all."""
    logits = 3 * states(20)
    labels = torch.randperm(20, generator=seeded(1)) < inside
    assert circuit_loss(logits, labels).item() == pytest.approx(by_loop(logits, labels), rel=1e-6)


def test_large_logits_have_a_loss() -> None:
    logits = torch.tensor([1e4, -1e4, 1e4])
    loss = circuit_loss(logits, torch.tensor([False, True, True]))
    # Two to one, so that circuit edges weigh as they are; both wrong ones cost 1e4.
    assert loss.item() == pytest.approx(2e4 / 3)


RATES = (1 / 3, 2 / 3, 1, 1, 3 / 4, 1 / 4)
"""Six steps, half of them warm-up: up in a line, down as a cosine."""


@pytest.mark.slow
@pytest.mark.parametrize("connectivity", ["observed", "complete"])
def test_training_is_the_plain_loop(connectivity: str) -> None:
    """Whether cases stand side by side in one graph or pass one after the other."""
    config = training(small(connectivity=connectivity), warmup=0.5, every=1)
    examples = make_examples(config.predictor)
    predictor = fresh(examples, config)
    optimizer = torch.optim.AdamW(predictor.parameters(), weight_decay=config.weight_decay)
    losses = []
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = config.lr * rate
        optimizer.zero_grad()
        own = [
            circuit_loss(predictor(x.reading, generator=seeded(0)), labels_of(x).mask)
            for x in examples
        ]
        loss = torch.stack(own).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    trained = train_predictor(examples, config)
    assert [record["loss"] for record in trained.history.values()] == pytest.approx(
        losses, rel=1e-3
    )
    for name, value in trained.predictor.state_dict().items():
        torch.testing.assert_close(value, predictor.state_dict()[name], rtol=1e-2, atol=1e-3)


# Training


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="dirgnn"),
        pytest.param(
            {"learner": "dagformer", "transformation": "incidence"},
            id="dagformer",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"learner": "factorized"},
            id="factorized",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_loss_falls(options: dict[str, Any]) -> None:
    config = training(small(**options), steps=25, every=25)
    examples = make_examples(config.predictor)
    first = train_predictor(examples, replace(config, steps=1)).history[1]["loss"]
    trained = train_predictor(examples, config, validation=examples)
    assert trained.history[25]["loss"] < 0.6 * first
    found = trained.history[25]["cases"]
    assert sum(case["qkv"] for case in found.values()) / 3 > 0.9
    assert not trained.predictor.training


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_paper_s_aligner_learns() -> None:
    """It starts slowly: features stand out little from what is common to all vectors."""
    sizes = {"d_align": 16, "width": 32, "paths": False}
    config = training(small(aligner="tabpfn", prior=False, **sizes), steps=100, every=100, lr=3e-3)
    examples = make_examples(config.predictor)[1:2]
    first = train_predictor(examples, replace(config, steps=1)).history[1]["loss"]
    trained = train_predictor(examples, config, validation=examples)
    assert trained.history[100]["loss"] < 0.6 * first
    assert trained.history[100]["cases"]["case-1"]["qkv"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 2])
def test_a_seed_decides_everything_and_nothing_else_is_touched(batch: int) -> None:
    config = training(small(dropout=0.3, learner="factorized"), batch=batch, steps=3)
    examples = make_examples(config.predictor)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = train_predictor(examples, config, seed=1, validation=examples)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert same_weights(train_predictor(examples, config, seed=1), one)
    assert not same_weights(train_predictor(examples, config, seed=2), one)


def test_trainings_in_threads_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads have begun a step before any of them draws for it."""
    config = training(small(dropout=0.3), steps=3)
    examples = make_examples(config.predictor)[1:2]
    alone = [train_predictor(examples, config, seed=seed) for seed in range(4)]
    barrier, found, forward = threading.Barrier(4), {}, InvariantAligner.forward

    def together(*args: Any) -> Tensor:
        barrier.wait(60)
        return forward(*args)

    def work(seed: int) -> None:
        found[seed] = train_predictor(examples, config, seed=seed)

    monkeypatch.setattr(InvariantAligner, "forward", together)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same_weights(found[seed], alone[seed]) for seed in range(4))


def test_dropout_is_that_of_torch() -> None:
    """One seed drops the same from the same."""
    h = states(3, 4, 5, 6)
    for rate in (0.0, 0.3, 1.0):
        ours = Dropout(rate)(h, seeded(7))
        with torch.random.fork_rng():
            torch.manual_seed(7)
            assert torch.equal(ours, torch.nn.functional.dropout(h, rate))


def test_dropout_is_drawn_anew_for_every_step_of_training_alone() -> None:
    """Without a prior: an untrained correction of one is zero, whatever is dropped."""
    own = small(dropout=0.5, prior=False)
    config = training(own, steps=3, every=1, lr=1e-9)
    examples = make_examples(config.predictor)
    losses = [record["loss"] for record in train_predictor(examples, config).history.values()]
    spread = max(losses) - min(losses)
    assert spread > 1e-3
    calm = train_predictor(examples, replace(config, predictor=small(prior=False))).history
    assert calm[3]["loss"] == pytest.approx(calm[1]["loss"], abs=1e-5)
    predictor = fresh(examples, config)
    assert validate(predictor, examples) == validate(predictor, examples)


def test_a_batch_is_some_of_the_cases() -> None:
    config = training(steps=8, every=1, batch=1, lr=1e-9)
    examples = make_examples(config.predictor)
    predictor = fresh(examples, config)
    losses = {
        circuit_loss(predictor(x.reading, generator=seeded(0)), labels_of(x).mask).item()
        for x in examples
    }
    seen = [record["loss"] for record in train_predictor(examples, config).history.values()]
    near = [[loss for loss in losses if abs(loss - one) < 1e-4] for one in seen]
    assert all(len(found) == 1 for found in near)
    assert len({found[0] for found in near}) > 1
    # More than there are is all of them.
    whole, more = (train_predictor(examples, training(steps=2, batch=size)) for size in (0, 99))
    assert same_weights(whole, more)


def test_a_stopped_schedule_is_the_start_of_the_whole() -> None:
    config = training(steps=6, every=1)
    examples = make_examples(config.predictor)
    whole = train_predictor(examples, config, validation=examples).history
    part = train_predictor(examples, replace(config, stop=3), validation=examples).history
    assert list(part) == [1, 2, 3]
    assert part == {step: whole[step] for step in part}
    shorter = train_predictor(examples, replace(config, steps=3), validation=examples).history
    assert shorter[3] != part[3]


def test_validation_is_the_area_under_the_curve_with_views_averaged() -> None:
    config = training(steps=2)
    examples = make_examples(config.predictor)
    renamed = replace(examples[2], case=examples[0].case)
    logged: list[tuple[int, Mapping[str, float]]] = []
    steps: list[tuple[int, int]] = []
    trained = train_predictor(
        examples,
        config,
        validation=[*examples[:2], renamed],
        log=lambda step, found: logged.append((step, found)),
        progress=lambda *done: steps.append(done),
    )
    found, kept = trained.history[2]["cases"], Ensemble((trained.predictor,), {})
    assert list(found) == ["case-0", "case-1"]
    for level in ("qkv", "head"):
        one, two, three = (
            auroc(kept.predict(x.reading, generator=seeded(0)).logits, labels_of(x), level)
            for x in examples
        )
        assert found["case-0"][level] == pytest.approx((one + three) / 2)
        assert found["case-1"][level] == pytest.approx(two)
        overall = ((one + three) / 2 + two) / 2
        assert logged[0][1][f"auroc_{level}"] == pytest.approx(overall)
    assert [step for step, _ in logged] == [2]
    assert logged[0][1]["loss"] == trained.history[2]["loss"]
    assert steps == [(1, 2), (2, 2)]


# Checkpoints


class Cut(Exception):
    pass


def cut_at(step: int) -> Any:
    def progress(done: int, _: int) -> None:
        if done == step:
            raise Cut

    return progress


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"batch": 2}, {"predictor": small(dropout=0.2, connectivity="complete")}],
    ids=["whole", "batches", "complete"],
)
def test_a_resumed_training_ends_where_an_unbroken_one_does(
    options: dict[str, Any], tmp_path: Path
) -> None:
    config = training(**({"predictor": small(dropout=0.2)} | options))
    examples = make_examples(config.predictor)
    unbroken = train_predictor(examples, config, seed=3, validation=examples)
    path = tmp_path / "folder" / "checkpoint.safetensors"
    given: dict[str, Any] = {"seed": 3, "validation": examples, "checkpoint": path}
    with pytest.raises(Cut):
        train_predictor(examples, config, **given, progress=cut_at(3))
    assert load_artifact(path, CHECKPOINT).meta["step"] == 2
    steps: list[int] = []
    resumed = train_predictor(
        examples, config, **given, progress=lambda done, _: steps.append(done)
    )
    assert steps == [3, 4, 5, 6]
    assert same_weights(resumed, unbroken)
    assert resumed.history == unbroken.history
    # What is finished is not done again.
    again = train_predictor(examples, config, **given, progress=cut_at(1))
    assert same_weights(again, unbroken)
    assert again.history == unbroken.history


@pytest.mark.parametrize("step", [3, 4])
def test_ctrl_c_leaves_the_checkpoint_of_an_unbroken_training(step: int, tmp_path: Path) -> None:
    """Also where it comes at a step whose figures are to be taken, here every second."""
    config = training(predictor=small())
    examples = make_examples(config.predictor)

    def interrupt(done: int, _: int) -> None:
        if done == step:
            raise KeyboardInterrupt

    whole, broken = tmp_path / "whole.safetensors", tmp_path / "broken.safetensors"
    unbroken = train_predictor(examples, config, validation=examples, checkpoint=whole)
    with pytest.raises(KeyboardInterrupt):
        train_predictor(
            examples, config, validation=examples, checkpoint=broken, progress=interrupt
        )
    assert load_artifact(broken, CHECKPOINT).meta["step"] == step
    resumed = train_predictor(examples, config, validation=examples, checkpoint=broken)
    assert resumed.history == unbroken.history
    assert broken.read_bytes() == whole.read_bytes()


def test_checkpoints_of_other_trainings_are_refused(tmp_path: Path) -> None:
    config = training(steps=1)
    examples = make_examples(config.predictor)
    path = tmp_path / "checkpoint.safetensors"
    train_predictor(examples, config, checkpoint=path)
    renamed = [*examples[:2], replace(examples[0], case=examples[2].case)]
    others = [
        (examples, replace(config, lr=0.5), 0, "settings"),
        (examples, replace(config, predictor=small(width=12)), 0, "settings"),
        (examples, config, 1, "seed"),
        (examples[:2], config, 0, "cases and readings of the cases"),
        (renamed, config, 0, "readings of the cases"),
    ]
    for cases, other, seed, text in others:
        with pytest.raises(StoreError, match=f"another training: its {text} differ; give another"):
            train_predictor(cases, other, seed=seed, checkpoint=path)
    with pytest.raises(StoreError, match="another training: its held-out cases differ"):
        train_predictor(examples, config, validation=examples, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        train_predictor(examples, config, checkpoint=path)


def test_a_checkpoint_that_lies_is_refused(tmp_path: Path) -> None:
    config = training()
    examples = make_examples(config.predictor)
    path = tmp_path / "checkpoint.safetensors"
    train_predictor(examples, config, checkpoint=path)
    found = load_artifact(path, CHECKPOINT)
    for meta in ({}, {**found.meta, "history": 3}, {**found.meta, "history": {"x": {}}}):
        save_artifact(
            path, kind=CHECKPOINT, config=found.config, seed=0, tensors=found.tensors, meta=meta
        )
        with pytest.raises(StoreError, match=r"checkpoint\.safetensors is not a whole checkpoint"):
            train_predictor(examples, config, checkpoint=path)


# What is refused


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    config = training(steps=2)
    example = make_examples(config.predictor)[0]
    assert isinstance(example.reading.content, Tensor)
    content = torch.full_like(example.reading.content, torch.nan)
    broken = replace(example, reading=replace(example.reading, content=content))
    with pytest.raises(ValueError, match="training loss is nan at step 1; lower the learning rate"):
        train_predictor([broken], config)


def test_all_problems_of_a_configuration_are_listed() -> None:
    with pytest.raises(ValueError, match="nothing to train on: no case was given"):
        train_predictor([], training())
    with pytest.raises(ValueError, match="steps must be at least 1") as caught:
        training(steps=0, pairs=0, views=0, every=0, batch=-1, lr=0, warmup=0, weight_decay=-1)
    text = str(caught.value)
    for name in ("pairs", "views", "every"):
        assert f"{name} must be at least 1, got 0" in text
    for part in ("lr must be above 0", "warmup must be above 0", "weight_decay must be at least 0"):
        assert part in text
    assert "batch must be at least 0, got -1" in text
    with pytest.raises(ValueError, match="stop must be at most steps=6, got 7"):
        training(stop=7)
    assert training(stop=4).last == 4
    assert training().last == 6


# Cases of the benchmark

IDS = ("ib-2", "ib-7")


def test_examples_are_the_cases_with_other_prompts() -> None:
    config = training(pairs=3, views=2)
    done: list[tuple[int, int]] = []
    found = read_examples(IDS, config, progress=lambda *step: done.append(step))
    assert [x.case for x in found] == ["ib-2", "ib-2", "ib-7", "ib-7"]
    assert done == [(1, 2), (2, 2)]
    case = load_case("ib-7")
    for view in range(2):
        example = found[2 + view]
        assert example.circuit == case.labels("complete")
        pairs = case.pairs(3, seed=view)
        expected = read_case(config.predictor, case.subject(), pairs, generator=seeded(0))
        assert isinstance(expected.content, Tensor)
        assert isinstance(example.reading.content, Tensor)
        assert torch.equal(example.reading.content, expected.content)
    assert len(read_examples(IDS[:1], config, views=1)) == 1


def test_labels_are_complete_unless_others_are_asked_for() -> None:
    config, case = training(pairs=3, views=1), load_case("tb-check-multiple-of-first")
    (complete,) = read_examples([case.id], config)
    (official,) = read_examples([case.id], replace(config, labels="interpbench"))
    assert complete.circuit == case.labels("complete")
    assert official.circuit == case.labels("interpbench") != complete.circuit


def test_training_has_one_network_a_seed(tmp_path: Path) -> None:
    config = training(pairs=3, views=1, steps=2, stop=1)
    examples = read_examples(IDS, config)
    heard: list[tuple[str, int, int]] = []
    logged: list[tuple[int, int]] = []
    trained = train(
        IDS,
        config=config,
        checkpoints=tmp_path / "checkpoints",
        progress=lambda *step: heard.append(step),
        log=lambda seed, step, _: logged.append((seed, step)),
    )
    assert heard == [("reading", 1, 2), ("reading", 2, 2), ("training", 1, 2), ("training", 2, 2)]
    assert logged == [(0, 1), (1, 1)]
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"seed0.safetensors", "seed1.safetensors"}
    for seed, member in enumerate(trained.predictor.members):
        alone = train_predictor(examples, config, seed=seed)
        assert same_weights(TrainedPredictor(member, {}, 0), alone)
        assert trained.histories[seed] == alone.history
    origin = trained.predictor.origin
    assert origin["cases"] == list(IDS)
    assert origin["groups"] == sorted({str(load_case(id).group) for id in IDS})
    assert origin["seeds"] == [0, 1]
    assert origin["train"]["predictor"]["width"] == config.predictor.width
    assert origin["subjects"] == seen_of([load_case(id).subject() for id in IDS])
    assert (trained.n_cases, trained.held_out, trained.figures) == (2, {}, {})
    trained.save(tmp_path / "mine.safetensors")
    assert load_ensemble(tmp_path / "mine.safetensors").origin["cases"] == list(IDS)


def test_every_decision_of_a_training_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, sources, subjects, stacks, figures and facts, however many seeds there are."""
    calls: Counter[str] = Counter()
    for module, names in {
        training_module: (
            "settings_of",
            "plan_sources",
            "train_members",
            "ensemble_of",
            "validate",
            "with_facts",
        ),
        sources: ("select_cases", "refuse_others", "shipped_sources", "split"),
        members: ("read", "train_data", "_standardize", "run_steps"),
        data.Source: ("subject",),
        facts: ("search_figures", "fit_known_cases", "fit_calibrations", "mean_figures"),
    }.items():
        for name in names:
            count(monkeypatch, module, name, calls)
    config = training(pairs=3, views=1, judged=4, steps=2, faithfulness_weight=1.0, masks=2)
    trained = gc.train(IDS, config=config, without_fold=4, seeds=2)
    assert list(trained.held_out) == ["ib-2"]
    of_seeds = {"_standardize", "run_steps"}
    # Examples to learn from and those that are held out; of each a subject, which is not read again
    # for training, validation or the search that the predictor is compared with.
    of_two = {"read", "subject"}
    assert {name: n for name, n in calls.items() if n != 1} == dict.fromkeys(of_seeds | of_two, 2)
    assert len(calls) == 19


def count(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: Counter[str]) -> None:
    """Count the calls of a function."""
    real = getattr(owner, name)

    def counted(*args: Any, **named: Any) -> Any:
        calls[name] += 1
        return real(*args, **named)

    monkeypatch.setattr(owner, name, counted)
