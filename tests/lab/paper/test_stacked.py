"""Training side by side: what each run would learn alone, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.training.config import TrainConfig
from lab.paper.side_by_side import stacked_logits
from lab.paper.stack_data import StackCase, buckets
from lab.paper.stacked import StackedRun, can_share, read_by, read_units, train_side_by_side
from lab.paper.stacked_layers import stacked
from tests.predictor.graphs import seeded

TRAIN = ("ib-40", "ib-53", "ib-15", "ib-129")


def make_config(**options: Any) -> TrainConfig:
    sizes = {"width": 8, "layers": 1, "heads": 2, "d_align": 4, "align_heads": 2, "dropout": 0.0}
    choices = {"prior": False, "paths": False, "share": 1.0, "aggregation": "sum"}
    own = PredictorConfig(**sizes | choices | {"context_pairs": 2} | options)  # pyright: ignore[reportArgumentType]
    return TrainConfig(
        predictor=own, steps=2, every=1, batch=4, pairs=3, step_pairs=2, views=2, lr=1e-2
    )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "options",
    [
        {"aligner": "tabpfn"},
        {"aligner": "tabpfn", "align_layers": 2, "learner": "factorized"},
        {"learner": "dagformer", "transformation": "incidence"},
    ],
)
def test_runs_learn_what_they_would_alone(options: dict[str, Any]) -> None:
    config = make_config(**options)
    runs = [
        StackedRun(config=config, seed=0, train=TRAIN, validate=("ib-56",), test=("ib-3",)),
        StackedRun(
            config=config, seed=1, train=TRAIN[:3], validate=("ib-129", "ib-56"), test=("ib-3",)
        ),
    ]
    runs[1] = replace(runs[1], config=replace(config, lr=1e-3))
    units = (*TRAIN, "ib-56")
    together = train_side_by_side(runs, units=units)
    for run, found in zip(runs, together, strict=True):
        alone = train_side_by_side([run], units=units)[0]
        assert found.history.keys() == {1, 2}
        assert found.history[2].keys() == set(run.validate)
        assert found.scores.keys() == set(run.test)
        for name, value in alone.weights.items():
            torch.testing.assert_close(found.weights[name], value, rtol=1e-3, atol=1e-4)
    first = Predictor(config.predictor, generator=torch.Generator().manual_seed(0)).state_dict()
    assert not torch.equal(first["readout.weight"], together[0].weights["readout.weight"])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_what_is_tested_does_not_change_what_is_drawn() -> None:
    config = make_config(learner="dirgnn")
    run = StackedRun(config=config, seed=0, train=TRAIN)
    tested = replace(run, test=("ib-3", "ib-4"))
    one, other = (train_side_by_side([x], tests=("ib-3", "ib-4"))[0].weights for x in (run, tested))
    assert all(torch.equal(one[name], value) for name, value in other.items())


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_scores_are_those_of_the_weights() -> None:
    """What is told of a test case follows from the weights that are handed back."""
    config = make_config(aligner="tabpfn")
    run = StackedRun(config=config, seed=3, train=TRAIN, test=("ib-3",))
    trained = train_side_by_side([run])[0]
    predictor = Predictor(config.predictor)
    predictor.load_state_dict(trained.weights)
    units = read_units(read_by(config), tuple(sorted((*TRAIN, "ib-3"))))
    bucket = next(x for x in buckets(units, config.predictor, "cpu") if "ib-3" in x.ids)
    case = torch.tensor([[bucket.ids.index("ib-3")]])
    drawn = bucket.draw(seeded(0), len(bucket.ids), config.predictor.identifiers)
    identifiers = {name: x[case] for name, x in drawn.items()}
    content = bucket.take(case, torch.arange(2)[None], identifiers)
    with torch.no_grad():
        logits = stacked_logits(stacked([predictor.eval()]), bucket.structure, content)
    truth = load_case("ib-3").circuit
    for level, told in trained.scores["ib-3"].items():
        assert auroc(logits[0, 0], truth, level) == told


@pytest.mark.usefixtures("unchecked")
def test_buckets_fill_up_what_is_narrower() -> None:
    config = make_config(aligner="tabpfn")
    units = read_units(read_by(config), ("ib-40", "ib-53", "ib-15", "ib-7"))
    made = buckets(units, config.predictor, "cpu")
    assert sorted(id for bucket in made for id in bucket.ids) == ["ib-15", "ib-40", "ib-53", "ib-7"]
    by_id = {id: StackCase.of(examples, config.predictor) for id, examples in units.items()}
    for bucket in made:
        widths = [by_id[id].width for id in bucket.ids]
        assert max(widths) <= 1.5 * min(widths)
        for place, id in enumerate(bucket.ids):
            for name, values in by_id[id].values.items():
                pairs, positions, width = values.shape[1:]
                own = bucket.values[name][place]
                assert torch.equal(own[:, :pairs, :positions, :width], values)
                assert not own[..., width:].any()
                assert int(bucket.known[name][place].sum()) == width


def test_what_cannot_stand_side_by_side() -> None:
    config = make_config(aligner="tabpfn")
    run = StackedRun(config=config, seed=0, train=("ib-7",))
    assert can_share(config, replace(config, lr=1.0, weight_decay=0.5))
    assert not can_share(config, replace(config, steps=7))
    refused = {
        "no run was given": [],
        "may differ in lr and weight_decay only": [
            run,
            replace(run, config=make_config(aligner="tabpfn", width=16)),
        ],
        "trains on what it is scored on: ib-7": [replace(run, validate=("ib-7",))],
        "has nothing to train on": [replace(run, train=())],
        "end with the weights of the last step": [
            replace(run, config=replace(config, average=0.5))
        ],
        "learn from labels alone": [replace(run, config=TrainConfig())],
    }
    for words, runs in refused.items():
        with pytest.raises(ValueError, match=words):
            train_side_by_side(runs)
    with pytest.raises(ValueError, match="precision must be one of float32, bfloat16, got 'half'"):
        train_side_by_side([run], precision="half")
