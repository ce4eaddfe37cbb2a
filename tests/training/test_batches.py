"""Groups of examples: what a step draws, parts that add up, and training on faithfulness."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.evaluation.auroc import auroc
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.predictor.paths import along_paths
from graphcircuits.training.batches import Grouped, grouped, scores_of
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, load_targets, save_targets, with_targets
from graphcircuits.training.members import origin_of, train_predictor
from graphcircuits.training.validation import means, quality, validate
from tests.predictor.cases import make_examples, make_task, training
from tests.predictor.graphs import seeded
from tests.training.examples import PRIOR, make_judged

pytestmark = pytest.mark.usefixtures("unchecked")


def config(**options: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "faithfulness_weight": 1.0,
        "masks": 2,
        "rows": 2,
        "batch": 3,
        "lr": 1e-3,
        "steps": 4,
    }
    return training(PRIOR, **(given | options))


def jolted(own: PredictorConfig) -> Predictor:
    """One whose correction is not zero."""
    predictor = Predictor(own, generator=seeded(3))
    with torch.no_grad():
        for parameter in predictor.readout.parameters():
            parameter.normal_(generator=seeded(4))
    return predictor.eval()


# The prior


def test_an_untrained_predictor_is_its_prior() -> None:
    reading = make_judged(count=1)[0].reading
    assert reading.prior is not None
    assert (reading.prior.max(), reading.prior.min() >= -11.6) == (0, True)
    assert torch.equal(Predictor(PRIOR)(reading, generator=seeded(0)), reading.prior)
    subject, pairs = make_task(seed=0)
    ensemble = Ensemble((Predictor(PRIOR),), {})
    scores = ensemble.predict_case(subject.to(torch.float32), pairs, generator=seeded(0)).logits
    torch.testing.assert_close(scores, along_paths(reading.prior, subject.graph))
    with pytest.raises(ValueError, match="corrects a prior, and the reading has none"):
        Predictor(PRIOR)(replace(reading, prior=None), generator=seeded(0))
    wrong: list[dict[str, Any]] = [{"share": 1.0}, {"aligner": "tabpfn"}]
    for options in wrong:
        with pytest.raises(ValueError, match="prior needs a share below 1 and the invariant al"):
            PredictorConfig(**options)


def test_a_prior_is_scaled_and_corrected() -> None:
    reading = make_judged(count=1)[0].reading
    predictor = jolted(PRIOR)
    plain = jolted(replace(PRIOR, prior=False))
    plain.load_state_dict({n: x for n, x in predictor.state_dict().items() if n != "log_scale"})
    correction = plain(reading, generator=seeded(0))
    assert predictor.log_scale is not None
    assert reading.prior is not None
    with torch.no_grad():
        predictor.log_scale.fill_(0.5)
    expected = torch.tensor(0.5).exp() * reading.prior + correction
    torch.testing.assert_close(predictor(reading, generator=seeded(0)), expected)


# Groups


@pytest.mark.slow
def test_stacked_readings_have_the_scores_of_each_alone() -> None:
    examples = make_judged()
    groups = grouped(examples, PRIOR, "cpu")
    assert [len(group) for group in groups] == [3, 1]
    predictor = jolted(PRIOR)
    expected = [predictor(x.reading, generator=seeded(0)) for x in examples]
    for index in ([0, 1, 2], [2, 0]):
        found = scores_of(predictor, groups[0].readings(index), seeded(0))
        torch.testing.assert_close(found, torch.stack([expected[place] for place in index]))
    # Readings that cannot be stacked pass one by one.
    complete = replace(PRIOR, connectivity="complete")
    apart = grouped(make_judged(complete), complete, "cpu")[0]
    assert apart.reading is None
    assert scores_of(jolted(complete), apart.readings([0, 2]), seeded(0)).shape[0] == 2


def test_views_of_a_subject_share_its_place_in_the_stack() -> None:
    examples = make_judged(count=2)
    twice = [examples[0], replace(examples[0], circuit=None), examples[1]]
    group = grouped(twice, PRIOR, "cpu")[0]
    assert group.stack is not None
    assert (len(group), len(group.stack), group.rows) == (3, 2, (0, 0, 1))
    some = group.stack_of([1, 2])
    assert some is not None
    assert len(some) == 2
    assert not group.weights[1].any()


def test_steps_draw_groups_by_size() -> None:
    groups = grouped(make_judged(count=5), PRIOR, "cpu")
    drawn = Grouped(groups, config(batch=2))
    seen = [drawn._drawn(0, step) for step in range(60)]
    assert seen == [drawn._drawn(0, step) for step in range(60)]
    first = [step[0][0] for step in seen]
    assert 2 < first.count(1) < 25
    assert {tuple(map(len, index)) for step in seen for _, *index in step} == {(1,), (2,)}
    assert all(sum(len(index) for _, index in step) == 2 for step in seen)
    whole = Grouped(groups, config(batch=0))._drawn(0, 0)
    assert sorted((place, len(index)) for place, index in whole) == [(0, 5), (1, 1)]
    assert sum(part.share for part in drawn.at(0, 0)) == pytest.approx(1)


def test_parts_that_fit_in_memory_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels, penalty and distilled scores of a step, whole and one example at a time."""
    examples = make_judged()
    targets = {x.case: torch.rand(len(x.reading.structure.edge_nodes)) for x in examples}
    examples = with_targets(examples, targets)
    own = config(faithfulness_weight=0.0, distill_weight=0.0, penalty=0.1, batch=0)
    predictor = jolted(PRIOR)
    given = {"generator": seeded(0), "noise": seeded(0)}
    found = []
    for limit in (99, 1):
        parts = Grouped(grouped(examples, PRIOR, "cpu"), own)
        monkeypatch.setattr(parts, "_limits", [limit, limit], raising=False)
        found.append([part.loss(predictor, own, **given) for part in parts.at(0, 0)])
    assert [len(losses) for losses in found] == [2, 4]
    torch.testing.assert_close(sum(found[0]), sum(found[1]))


def test_memory_is_asked_for_what_a_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    group = grouped(make_judged(), PRIOR, "cpu")[0]
    assert group.at_once(2, 2, grad=True) == 3
    monkeypatch.setattr("graphcircuits.training.batches.bytes_for", lambda *_: 1)
    assert group.at_once(2, 2, grad=True) == 1


# Training


@pytest.mark.slow
def test_a_training_on_faithfulness_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    """With the average of weights, and the best of them."""
    examples = make_judged()
    own = config(average=0.5, keep="best", every=1, lr=0.05)
    path = tmp_path / "checkpoint.safetensors"
    given: dict[str, Any] = {"validation": examples[1:]}
    whole = train_predictor(examples, own, **given)

    class Enough(Exception):
        pass

    def stop(done: int, _: int) -> None:
        if done == 3:
            raise Enough

    with pytest.raises(Enough):
        train_predictor(examples, own, **given, checkpoint=path, progress=stop)
    again = train_predictor(examples, own, **given, checkpoint=path)
    assert again.history == whole.history
    assert again.step == whole.step
    for name, value in again.predictor.state_dict().items():
        assert torch.equal(value, whole.predictor.state_dict()[name])
    best = max(whole.history, key=lambda step: quality(whole.history[step]["cases"]) or 0)
    assert whole.step == best
    assert validate(whole.predictor, examples[1:]) == whole.history[best]["cases"]


@pytest.mark.gpu
def test_a_gpu_trains_and_validates() -> None:
    examples = make_judged()
    own = config(every=1, keep="best", average=0.5)
    here, there = (
        train_predictor(examples, own, validation=examples, device=x) for x in ("cpu", "cuda")
    )
    assert there.predictor.readout.weight.is_cuda
    first, other = (x.history[1]["cases"] for x in (here, there))
    assert means(other)["cmd"] == pytest.approx(means(first)["cmd"], rel=0.05)


def test_validation_is_cmd_on_prompts_of_its_own() -> None:
    examples = make_judged()
    predictor = jolted(PRIOR)
    found = validate(predictor, examples)
    assert [sorted(figures) for figures in found.values()] == [["cmd", "head", "qkv"]] * 3 + [
        ["cmd"]
    ]
    for example in examples:
        assert example.item is not None
        scores = Ensemble((predictor,), {}).predict(example.reading, generator=seeded(0)).logits
        expected = faithfulness_curve(*example.item, scores, by="loss", crossings=()).cmd
        assert found[example.case]["cmd"] == pytest.approx(expected, rel=1e-4)
        if example.circuit is not None:
            assert found[example.case]["qkv"] == auroc(scores, example.circuit, "qkv")
    overall = means(found)
    assert overall["cmd"] == pytest.approx(sum(x["cmd"] for x in found.values()) / 4)
    assert quality(found) == -overall["cmd"]
    assert quality({"a": {"qkv": 0.5}}) == 0.5
    assert quality({}) is None


@pytest.mark.slow
def test_validation_scores_go_by_paths_where_the_predictor_s_do() -> None:
    (example, *_) = make_judged(count=1)
    assert example.item is not None
    plain = jolted(replace(PRIOR, paths=False))
    paths = jolted(PRIOR)
    scores = plain(example.reading, generator=seeded(0)).detach()
    for predictor, own in ((plain, scores), (paths, along_paths(scores, example.item[0].graph))):
        expected = faithfulness_curve(*example.item, own, by="loss", crossings=()).cmd
        assert validate(predictor, [example])["case-0"]["cmd"] == pytest.approx(expected, rel=1e-4)
    nowhere = replace(example, reading=replace(example.reading, graph=None))
    assert validate(plain, [nowhere]) == validate(plain, [example])
    with pytest.raises(ValueError, match="case-0 does not say its graph, and scores go by its p"):
        validate(paths, [nowhere])


@pytest.mark.slow
def test_an_average_of_weights_is_kept() -> None:
    examples = make_judged(count=1)
    plain = [train_predictor(examples, config(steps=4, stop=stop)).predictor for stop in (1, 2)]
    found = train_predictor(examples, config(steps=4, stop=2, average=0.999)).predictor
    one, two, mean = (x.readout.weight for x in (*plain, found))
    torch.testing.assert_close(mean, (one + two) / 2)


def test_what_a_predictor_says_of_its_training() -> None:
    found = origin_of(make_judged(count=1))
    assert found == {"cases": ["case-0", "case-1"], "groups": ["case-0", "case-1"], "fleets": {}}


# Scores found before


def test_targets_go_with_their_examples(tmp_path: Path) -> None:
    examples = make_judged(count=1)
    scores = torch.rand(len(examples[0].reading.structure.edge_nodes))
    save_targets(tmp_path / "targets.safetensors", {"case-0": scores})
    known = load_targets(tmp_path / "targets.safetensors")
    found = with_targets(examples, known)
    assert found[0].target is not None
    assert torch.equal(found[0].target, scores)
    assert found[1].target is None
    groups = grouped(found, PRIOR, "cpu")
    assert [group.known.tolist() for group in groups] == [[True], [False]]
    with pytest.raises(ValueError, match=r"targets of case-0 are \(2,\), and it has \d+ edges"):
        with_targets(examples, {"case-0": scores[:2]})
    with pytest.raises(ValueError, match="none of the examples has a target"):
        with_targets(examples, {"other": scores})


# What is refused


def test_what_cannot_be_trained_is_said() -> None:
    examples = make_judged(count=1)
    with pytest.raises(ValueError, match='keep="best" needs held-out examples'):
        train_predictor(examples, config(keep="best"))
    with pytest.raises(ValueError, match="faithfulness needs subjects to run"):
        train_predictor(make_examples(PRIOR), config())
    with pytest.raises(ValueError, match="distill needs examples with targets, and none has one"):
        train_predictor(examples, config(faithfulness_weight=0.0, distill_weight=1.0))
    unlabelled: list[Example] = [replace(x, circuit=None) for x in examples]
    with pytest.raises(ValueError, match="no example has labels; give faithfulness_weight"):
        train_predictor(unlabelled, training(PRIOR))
    with pytest.raises(ValueError, match="one of label_weight, faithfulness_weight, distill_w"):
        training(label_weight=0.0)
    with pytest.raises(ValueError, match=r"average must be in \[0, 1\), got 1; keep must be one"):
        training(average=1, keep="first")
