"""What held-out folds say: kinds and draws of sources, means, labels, and the files with it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits.compare.selection import select_cases
from graphcircuits.methods.shipped import SHIPPED
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.model import Predictor
from graphcircuits.training import crossfit
from graphcircuits.training.crossfit import (
    Judged,
    calibrations,
    chosen,
    correct,
    held_out,
    kind_of_source,
    measured,
)
from graphcircuits.training.sources import Source, shipped_sources
from tests.predictor.cases import small
from tests.predictor.graphs import seeded

pytestmark = pytest.mark.usefixtures("unchecked")


def source(
    id: str, fleet: str = "natural", task: str = "", folds: tuple[int, ...] = (0,)
) -> Source:
    return Source(id, "corpus", "", id, task or id, (id,), folds, fleet)


def judged(kind: str, gcl: float, other: float, fold: int = 0) -> Judged:
    logits = torch.randn(40, generator=seeded(int(1000 * gcl))).numpy()
    return Judged(kind, fold, logits, logits > 0.5, {"cmd": {"gcl": gcl, "eap-ig": other}})


def test_kinds_are_those_of_the_subjects() -> None:
    assert kind_of_source(source("rnd-1")) == "natural"
    assert kind_of_source(source("mt-1", "planted", "mt-1@ib-3")) == "planted-multitask"
    assert kind_of_source(source("gpt@quotes", "language", "quotes")) == "language"


def test_what_is_held_out_goes_by_the_first_fold() -> None:
    sources = [source("a", folds=(1,)), source("b", folds=(1, 2)), source("c", folds=(2, 1))]
    assert [x.id for x in held_out(sources, 1)] == ["a", "b"]


def test_at_most_so_many_of_each_kind_are_drawn() -> None:
    sources = [source(f"n-{n}") for n in range(9)] + [source("l", "language")]
    found = list(chosen(sources, 4, seed=0))
    assert len(found) == 5
    assert len({x.id for x in found}) == 5
    assert found == list(chosen(sources, 4, seed=0))
    assert found != list(chosen(sources, 4, seed=1))


def test_means_are_by_kind_and_leave_out_what_was_seen_too_seldom() -> None:
    natural = [judged("natural", x, 0.5) for x in (0.1, 0.2, 0.3)]
    found = measured([*natural, judged("odd", 0.0, 1.0)])
    assert set(found) == {"natural"}
    assert found["natural"]["cmd"] == pytest.approx({"gcl": 0.2, "eap-ig": 0.5})
    assert found["natural"]["subjects"] == {"count": 3.0}


def test_scores_become_probabilities_by_kind() -> None:
    cases = [judged("natural", x, 0.5) for x in (0.1, 0.2, 0.3, 0.4)]
    found = calibrations([*cases, judged("odd", 0.0, 1.0)])
    assert set(found) == {"natural"}
    said = found["natural"](torch.from_numpy(cases[0].logits)).numpy()
    assert said[cases[0].labels].min() > said[~cases[0].labels].max()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Six small predictors whose corrections are random."""
    config = small()
    for number, name in enumerate(SHIPPED):
        members = []
        for seed in range(2):
            member = Predictor(config, generator=seeded(seed)).eval()
            with torch.no_grad():
                member.readout.weight.normal_(generator=seeded(10 * number + seed))
            members.append(member)
        save_ensemble(tmp_path / f"{name}.safetensors", Ensemble(tuple(members), {}))
    return tmp_path


def test_labelled_cases_are_corrected_and_others_are_tried(files: Path) -> None:
    (labelled,) = shipped_sources(["ib-7"])
    ensembles = {name: load_ensemble(files / f"{name}.safetensors") for name in SHIPPED}
    found = correct(labelled, 0, ensembles)
    assert (found.helped, found.stake) == (True, crossfit.KNOWN_STAKE)
    assert found.disagreements.keys() == set(SHIPPED)
    tried = correct(replace(labelled, fleet="natural"), 0, ensembles)
    assert 0 < tried.stake <= 1
    assert tried.stake != found.stake


@pytest.mark.slow
def test_all_files_get_what_the_other_folds_say(files: Path) -> None:
    ids = select_cases("pool")[0][:12]
    labelled = shipped_sources(ids)
    natural = [replace(x, id=f"{x.id}.natural", fleet="natural") for x in labelled]
    figures = crossfit.complete(files, [*labelled, *natural], most=3)
    assert {"planted", "natural"} <= figures.keys()
    assert set(figures["planted"]) == {"cmd", "auroc", "subjects"}
    default, fold = (load_ensemble(files / f"{name}.safetensors") for name in ("default", "fold-0"))
    assert default.measured == figures
    for ensemble in (default, fold):
        assert ensemble.trust is not None
        assert ensemble.known is not None
        assert {"planted", "natural"} <= ensemble.calibration.keys()
    # The file of a fold is blind to that fold.
    assert default.known is not None
    assert fold.known is not None
    assert len(fold.known.strangeness) < len(default.known.strangeness)
