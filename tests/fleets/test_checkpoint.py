"""Snapshots of a training: what a file gives back, and that every one of them leads to one end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.fleets.checkpoint import (
    KIND,
    MOMENTS,
    Snapshot,
    TrainedSubject,
    load_snapshot,
    read_about,
    save_snapshot,
)
from graphcircuits.fleets.train import SiitConfig, train_fleet
from graphcircuits.io.store import StoreError, content_hash, save_artifact
from tests.fleets.test_train import work

pytestmark = pytest.mark.usefixtures("unchecked")

CONFIG = SiitConfig(
    steps=7,
    rows=4,
    check_every=2,
    check_rows=32,
    lr=1e-2,
    enough_accuracy=0.01,
    enough_interchange=0.01,
    enough_strict=0.01,
    enough_circuit=0.01,
    weight_decay=0.1,
    dropout=0.1,
)
"""Subjects pass at once, unless they are checked against answers that there are not."""


def content(snapshot: Snapshot) -> str:
    """Everything in it, orders included."""
    state = [list(getattr(snapshot.state, kind).items()) for kind in MOMENTS]
    best = {
        str(place): [one.merit, one.steps, one.passed, one.subject.weights]
        for place, one in snapshot.best.items()
    }
    rest = [snapshot.step, snapshot.alive, snapshot.state.count, *vars(snapshot.errors).values()]
    return content_hash(state, best, rest, snapshot.generator)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_snapshot_leads_to_the_same_end(tmp_path: Path, device: str) -> None:
    """The second of three subjects passes at the first check, the others never do.

    The first has two tasks.
    """
    subjects, exchanges, checks = work("ib-36", "ib-36", "ib-36")
    checks = [[replace(x, targets=x.targets + 7 * (i != 1))] for i, (x,) in enumerate(checks)]
    exchanges[0] += exchanges[1]
    checks[0] += checks[0]
    kept: list[tuple[str, Path]] = []

    def keep(snapshot: Snapshot, time_is_up: bool) -> None:
        assert not time_is_up
        kept.append((content(snapshot), tmp_path / f"{len(kept)}.safetensors"))
        save_snapshot(kept[-1][1], {"of": "three"}, snapshot)

    def generator() -> torch.Generator:
        return torch.Generator(device).manual_seed(3)

    def ends(trained: list[TrainedSubject]) -> str:
        return content_hash([[x.subject.weights, x.merit, x.steps, x.passed] for x in trained])

    unbroken = train_fleet(subjects, exchanges, checks, CONFIG, generator(), keep=keep)
    assert [x.passed for x in unbroken] == [False, True, False]
    assert len(kept) == 5
    for expected, path in kept:
        assert read_about(path) == {"of": "three"}
        snapshot = load_snapshot(path, subjects, torch.device(device))
        assert content(snapshot) == expected
        again = train_fleet(
            subjects,
            exchanges,
            checks,
            CONFIG,
            # In another state: the snapshot's counts.
            torch.Generator(device).manual_seed(8),
            resume=snapshot,
        )
        assert ends(again) == ends(unbroken)


@pytest.mark.slow
def test_time_that_runs_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    told: list[tuple[int, bool]] = []
    given = (*work("ib-36"), replace(CONFIG, enough_accuracy=2.0))
    for deadline in (2.0, 100.0):
        (one,) = train_fleet(
            *given,
            torch.Generator().manual_seed(3),
            deadline=deadline,
            keep=lambda snapshot, time_is_up: told.append((snapshot.step, time_is_up)),
        )
        assert one.cut_short is (deadline == 2.0)
    assert told[:4] == [(0, False), (2, False), (4, False), (4, True)]
    assert told[4:] == [(step, False) for step in (0, 2, 4, 6, 7)]


@pytest.mark.parametrize("meta", [{}, {"names": 3, "best": [], "step": "x", "alive": None}])
def test_a_checkpoint_that_lies_is_refused(tmp_path: Path, meta: dict[str, Any]) -> None:
    path = tmp_path / "forged.safetensors"
    tensors = {"count": torch.zeros(1)}
    save_artifact(path, kind=KIND, config={}, seed=None, tensors=tensors, meta=meta)
    with pytest.raises(StoreError, match=r"forged\.safetensors is not a whole checkpoint"):
        load_snapshot(path, [], torch.device("cpu"))
