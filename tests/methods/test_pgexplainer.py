"""PGExplainer: its loss by hand, its fit against an edge-by-edge twin, and what it finds."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import case_ids
from graphcircuits.engine.masked import masked_logits
from graphcircuits.io.store import read_json
from graphcircuits.methods.descriptors import describe, standardized
from graphcircuits.methods.pgexplainer import (
    START,
    Fit,
    corrupted_distance,
    edge_logits,
    engine_distance,
    fit,
    initial_weights,
    penalty,
    pgexplainer,
)
from graphcircuits.methods.prepare import Stop, to_clean_output
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.benchmarks.pgexplainer import naive_distance, naive_logits
from lab.benchmarks.pgexplainer_grid import (
    GRID,
    jobs,
    page_text,
    pool_cases,
    run,
    select,
    selection_score,
    shard_of,
    with_selection,
)
from tests.methods.tasks import make_pairs, output_sum, planted, ranks_right
from tests.subjects import SOME, make_subject

OPTIONS = Fit(
    size=0.5,
    entropy=0.1,
    learning_rate=0.01,
    hot=2.0,
    cold=0.5,
    steps=4,
    prompts=2,
    samples=3,
    width=8,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# The loss


def test_the_penalty_by_hand() -> None:
    # Edges kept with probabilities 1/2 and 1/4.
    logits = torch.tensor([0.0, -math.log(3)], dtype=torch.float64)
    halves = math.log(2)
    quarters = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    expected = 0.5 * 0.375 + 0.1 * (halves + quarters) / 2
    assert penalty(logits, OPTIONS).item() == pytest.approx(expected, rel=1e-12)
    far = penalty(torch.tensor([-1e4, 1e4], dtype=torch.float64), OPTIONS)
    assert far.item() == pytest.approx(0.5 * 0.5)


def test_the_distance_is_0_for_the_clean_run_and_1_for_the_corrupted_one() -> None:
    subject = make_subject()
    pairs = to_clean_output(subject, make_pairs(subject))
    distance = engine_distance(subject, pairs)
    rows, n_edges = torch.arange(len(pairs)), subject.graph.n_edges
    ends = [distance(torch.full((2, n_edges), mask).double(), rows) for mask in (1.0, 0.0)]
    torch.testing.assert_close(torch.stack(ends), torch.tensor([0.0, 1.0]).double())


def test_the_distance_by_hand() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    masks = torch.rand(2, subject.graph.n_edges, generator=seeded(), dtype=torch.float64)
    corrupted = subject.run(pairs.corrupted).writers
    logits = masked_logits(subject, pairs.clean, masks, corrupted).log_softmax(-1)
    clean, other = (subject.logits(x).log_softmax(-1) for x in (pairs.clean, pairs.corrupted))
    kl = (clean.exp() * (clean - logits)).sum(-1).mean()
    whole = (clean.exp() * (clean - other)).sum(-1).mean()
    found = engine_distance(subject, to_clean_output(subject, pairs))
    torch.testing.assert_close(found(masks, torch.arange(len(pairs))), kl / whole)


@pytest.mark.slow
def test_the_clean_output_is_preserved_whatever_the_loss() -> None:
    subject = make_subject()
    kl = make_pairs(subject, "kl")
    wanted = pgexplainer(subject, kl, steps=3)
    for loss_name in ("cross-entropy", output_sum):
        pairs = make_pairs(subject, loss_name)
        assert torch.equal(pgexplainer(subject, pairs, steps=3), wanted)
    # Targets other than the clean run's do not enter.
    given = kl.with_targets_from(subject.logits(kl.corrupted))
    assert torch.equal(pgexplainer(subject, given, steps=3), wanted)


def test_one_number_is_preserved_by_its_difference() -> None:
    subject = make_subject(d_vocab_out=1)
    pairs = to_clean_output(subject, make_pairs(subject, output_sum))
    assert pairs.loss_name == "l1"
    gaps = subject.logits(pairs.clean) - subject.logits(pairs.corrupted)
    torch.testing.assert_close(corrupted_distance(subject, pairs), gaps.abs().mean())


# The MLP


def test_the_temperature_falls_geometrically() -> None:
    options = replace(OPTIONS, hot=4.0, cold=1.0, steps=3)
    assert [options.temperature(step) for step in range(3)] == pytest.approx([4.0, 2.0, 1.0])
    assert replace(options, steps=1).temperature(0) == 4.0


def test_all_edges_start_alike() -> None:
    described = standardized(describe(make_subject()))
    weights = initial_weights(described, 8, seeded())
    logits = edge_logits(weights, described)
    assert torch.equal(logits, torch.full_like(logits, START))
    # Not a dead end: the first step has a gradient.
    logits.sin().sum().backward()
    assert any(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights)


# The fit


@pytest.mark.parametrize("architecture", SOME)
def test_the_naive_run_is_a_masked_run(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject)
    mask = torch.rand(subject.graph.n_edges, generator=seeded(), dtype=torch.float64)
    corrupted = subject.run(pairs.corrupted).writers
    naive = naive_logits(subject, pairs.clean, mask, corrupted)
    torch.testing.assert_close(naive, masked_logits(subject, pairs.clean, mask, corrupted))


def test_an_edge_by_edge_fit_finds_the_same_scores() -> None:
    subject = make_subject("llama", n_layers=1)
    pairs = make_pairs(subject)
    naive = fit(
        standardized(describe(subject)),
        naive_distance(subject, to_clean_output(subject, pairs)),
        len(pairs),
        OPTIONS,
        generator=seeded(5),
    )
    scores = pgexplainer(subject, pairs, generator=seeded(5), **vars(OPTIONS))
    torch.testing.assert_close(scores, naive, rtol=1e-8, atol=1e-8)
    assert scores.std() > 0.01


@pytest.mark.slow
def test_it_finds_a_planted_circuit() -> None:
    subject, circuit = planted(make_subject())
    pairs = make_pairs(subject, batch=8)
    scores = pgexplainer(subject, pairs, steps=100, samples=4)
    assert ranks_right(scores, circuit) > 0.9
    assert 0.2 < ranks_right(torch.rand(len(scores), generator=seeded()), circuit) < 0.8


def test_what_the_descriptions_hide_it_cannot_tell_apart() -> None:
    subject, _ = planted(make_subject())
    scores = pgexplainer(subject, make_pairs(subject), steps=5)
    described = describe(subject)
    edges = [subject.graph.edge_index(f"a0.h{head}->logits") for head in (0, 2)]
    same = described.clone()
    same[edges[1]] = same[edges[0]]
    distance = engine_distance(subject, to_clean_output(subject, make_pairs(subject)))
    twins = fit(standardized(same), distance, 3, OPTIONS)
    assert twins[edges[0]] == twins[edges[1]]
    assert scores[edges[0]] != scores[edges[1]]


@pytest.mark.slow
def test_larger_size_weights_keep_fewer_edges() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)
    kept = [
        pgexplainer(subject, pairs, size=size, steps=60).sigmoid().mean().item()
        for size in (0.0, 0.1, 10.0)
    ]
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.slow
def test_entropy_makes_up_its_mind() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)

    def doubt(scores: Tensor) -> float:
        p = scores.sigmoid()
        return (p * (1 - p)).mean().item()

    found = [
        doubt(pgexplainer(subject, pairs, size=0.1, entropy=entropy, steps=60))
        for entropy in (0.0, 5.0)
    ]
    assert found[1] < found[0]


@pytest.mark.slow
def test_the_generator_decides() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)
    runs = [
        pgexplainer(subject, pairs, steps=3, generator=generator)
        for generator in (seeded(0), seeded(0), seeded(1), None)
    ]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[3])
    assert not torch.equal(runs[0], runs[2])


def test_stopped_early_it_returns_the_scores_so_far() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)

    def stop_at_two(done: int, total: int) -> None:
        assert total == 50
        if done == 2:
            raise Stop

    # The temperature follows the steps in all, so both must be on one temperature to agree.
    stopped, short = (
        pgexplainer(subject, pairs, steps=steps, hot=1.0, cold=1.0, progress=progress)
        for steps, progress in ((50, stop_at_two), (2, None))
    )
    assert torch.equal(stopped, short)
    assert stopped.std() > 0


def test_float32_subjects_have_float32_scores() -> None:
    subject = make_subject(n_layers=1).to(torch.float32)
    scores = pgexplainer(subject, make_pairs(subject), steps=2)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()


# Choosing its options


def test_the_grid_has_18_settings() -> None:
    assert len(set(GRID)) == len(GRID) == 18


def test_shards_divide_the_fits() -> None:
    every = jobs(["ib-7", "ib-2"], 8, 0)
    assert len({job.path(Path("out")) for job in every}) == len(every) == 36
    # The larger graph comes first.
    assert [job.case for job in every] == ["ib-2"] * 18 + ["ib-7"] * 18
    parts = [shard_of(every, f"{part}/5") for part in range(5)]
    assert sorted(map(repr, every)) == sorted(repr(job) for part in parts for job in part)
    for wrong in ("5/5", "1", "a/b", "-1/2"):
        with pytest.raises(ValueError, match=r"shard must be I/N with I from 0 to N - 1"):
            shard_of(every, wrong)


def test_folds_count_by_their_groups() -> None:
    # Fold 0 has two groups in three cases, fold 1 one group.
    rows = [(0, "a", 0.9), (0, "a", 0.6), (0, "b", 0.6), (1, "c", 0.4)]
    records = [{"fold": fold, "group": group, "auroc": value} for fold, group, value in rows]
    assert selection_score(records) == pytest.approx((2 * 0.7 + 1 * 0.4) / 3)


@pytest.mark.slow
def test_the_grid_is_resumable_and_selects(tmp_path: Path) -> None:
    every = [job for job in jobs(["ib-40", "ib-53"], 4, 0, steps=1) if job.setting < 2]
    with pytest.raises(ValueError, match=r"4 of 4 fits are missing .* setting 0 on ib-40"):
        select(every, tmp_path)
    assert list(run(every, tmp_path, minutes=0.0)) == []
    found = list(run(every[:3], tmp_path))
    assert [record["setting"] for record in found] == [0, 1, 0]
    # Of one case every fit is there.
    assert {row["cases"] for row in select(every, tmp_path, partial=True)} == {1}
    # The rest by other processes, and in one of them with the same result.
    assert list(run(every, tmp_path, processes=2, minutes=0.0)) == []
    assert len(list(run(every, tmp_path, processes=2))) == 1
    assert list(run(every, tmp_path)) == []
    (here,) = run(every[3:], tmp_path / "alone")
    there = read_json(every[3].path(tmp_path))
    assert {**here, "seconds": 0} == {**there, "seconds": 0}
    rows = select(every, tmp_path)
    assert {row["setting"] for row in rows} == {0, 1}
    assert rows[0]["score"] >= rows[1]["score"]


def test_the_page_takes_the_selection_between_its_lines() -> None:
    rows = [
        {"setting": n, "score": 0.9 - n / 100, "mean": 0.8, "seconds": 2.0, "cases": 7}
        | {"options": vars(options)}
        for n, options in enumerate(GRID)
    ]
    text = page_text(rows, 108, "the command")
    assert text.startswith(
        "18 settings on 7 of 108 cases of the pool. The default of the method is setting 17, "
        "number 18 by its score."
    )
    assert "| 0 | 0.900 | 0.800 | 2.0 | 0.003 | 0 | 2 | 0.5 | 0.002 |" in text
    assert text.endswith("Made with `the command`.")
    page = (Path(__file__).parents[2] / "docs" / "pgexplainer.md").read_text("utf-8")
    once = with_selection(page, text)
    assert text in once
    assert with_selection(once, "other") == with_selection(page, "other")
    assert once.partition("<!--")[0] == page.partition("<!--")[0]
    with pytest.raises(ValueError, match="the page needs a line <!-- pgexplainer_grid: begin -->"):
        with_selection("nothing", text)


def test_other_steps_are_other_fits() -> None:
    one, other = (jobs(["ib-40"], 4, 0, steps)[0].path(Path("out")) for steps in (1, 2))
    assert one != other


def test_settings_are_chosen_on_the_pool_alone() -> None:
    held_out = case_ids(split="test")[0]
    with pytest.raises(ValueError, match=f"not in it: {held_out}"):
        pool_cases(f"ib-40,{held_out}")


# Refusals


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match=r"cold must be above 0, got 0\.0; steps must be above 0"):
        pgexplainer(subject, pairs, steps=0, cold=0.0)
    with pytest.raises(ValueError, match=r"cannot be negative, got size=-1\.0, entropy=-2\.0\."):
        pgexplainer(subject, pairs, size=-1.0, entropy=-2.0)


def test_outputs_that_corruption_does_not_change_are_refused() -> None:
    subject = make_subject()

    def second_moment(logits: Tensor, pairs: Pairs) -> Tensor:
        return logits.square().sum((1, 2))

    # All logits of a position move together: the user's loss sees that, probabilities do not.
    alike = subject.weights["W_U"][:, :1].expand(-1, 3).clone()
    flat = Transformer(subject.config, subject.weights | {"W_U": alike})
    with pytest.raises(ValueError, match="no edge is needed to preserve them"):
        pgexplainer(flat, make_pairs(flat, second_moment))
