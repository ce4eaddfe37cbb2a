"""What held-out folds say: kinds and draws of sources, corrections, and the files with it."""

from pathlib import Path

import pytest
import torch

from graphcircuits.cases.orders import Order
from graphcircuits.compare.selection import select_cases
from graphcircuits.methods.shipped import SHIPPED
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.model import Predictor
from graphcircuits.training import facts
from graphcircuits.training.sources import Source, shipped_sources
from lab.factory import crossfit
from lab.factory.crossfit import correct, draw, held_out
from tests.predictor.cases import small
from tests.predictor.graphs import seeded
from tests.training.examples import natural_of

pytestmark = pytest.mark.usefixtures("unchecked")


def source(
    name: str, fleet: str = "natural", task: str = "", folds: tuple[int, ...] = (0,)
) -> Source:
    return Source(Order(name, fleet), "here", task or name, (name,), folds)


def test_kinds_are_those_of_the_subjects() -> None:
    assert source("rnd-1").kind == "natural"
    assert source("mt-1", "planted", "mt-1@ib-3").kind == "planted-multitask"
    assert Source(None, "gpt", "quotes", ("task:quotes",), (0, 0)).kind == "language"


def test_what_is_held_out_goes_by_the_first_fold() -> None:
    sources = [source("a", folds=(1,)), source("b", folds=(1, 2)), source("c", folds=(2, 1))]
    assert [x.task for x in held_out(sources, 1)] == ["a", "b"]


def test_at_most_so_many_of_each_kind_are_drawn() -> None:
    sources = [source(f"n-{n}") for n in range(9)] + [source("l", "public")]
    found = list(draw(sources, 4, seed=0))
    assert len(found) == 5
    assert len({x.id for x in found}) == 5
    assert found == list(draw(sources, 4, seed=0))
    assert found != list(draw(sources, 4, seed=1))


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


def test_labelled_cases_are_corrected_and_others_are_tried(files: Path, tmp_path: Path) -> None:
    (labelled,) = shipped_sources(["ib-7"])
    ensembles = {name: load_ensemble(files / f"{name}.safetensors") for name in SHIPPED}
    found = correct(labelled, 0, ensembles)
    assert (found.helped, found.stake) == (True, crossfit.KNOWN_STAKE)
    assert found.disagreements.keys() == set(SHIPPED)
    tried = correct(natural_of(labelled, tmp_path), 0, ensembles)
    assert 0 < tried.stake <= 1
    assert tried.stake != found.stake


@pytest.mark.slow
def test_all_files_get_what_the_other_folds_say(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "FEWEST", 3)
    ids = select_cases("pool")[0][:12]
    labelled = shipped_sources(ids)
    natural = [natural_of(x, tmp_path) for x in labelled]
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
