"""The shipped predictors of the paper's own system: what each learned from, and how."""

from pathlib import Path

import pytest
import torch

from lab.paper import predictors as module
from lab.paper.predictors import paper_predictors
from tests.lab.paper.sweeps import Trainer, run_with, sweep_in


@pytest.mark.slow
def test_each_fold_has_a_predictor_that_has_not_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(), sweep))
    again = Trainer()
    monkeypatch.setattr(module, "train_side_by_side", again)
    made = dict(paper_predictors(sweep))
    pool = {case.id: case.fold for case in sweep.plan.pool}
    first = sweep.refitted("dirgnn-line-observed")[0]
    assert list(made) == ["default", "fold-0", "fold-1"]
    assert set(made["default"].origin["cases"]) == set(pool)
    weights = sweep.store.weights(first)
    for name, value in made["default"].members[0].state_dict().items():
        assert torch.equal(value, weights[name])
    for fold in (0, 1):
        origin = made[f"fold-{fold}"].origin
        assert set(origin["cases"]) == {id for id, own in pool.items() if own != fold}
        assert origin["steps"] == [first.run.config.last]
    # All folds side by side, as the refit was trained.
    (runs,) = again.calls
    assert [run.config for run in runs] == [first.run.config] * 2
    assert not any(run.test or run.validate for run in runs)


@pytest.mark.slow
def test_a_sweep_without_a_refit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no refit of dirgnn-line-observed; train it first"):
        list(paper_predictors(sweep_in(tmp_path)))
