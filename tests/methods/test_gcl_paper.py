"""The paper's own system as a method: its predictors by name, and which case gets which."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.methods import METHODS, localize, shipped
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.model import Predictor, read_case
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.train import train
from tests.methods.tasks import make_pairs
from tests.predictor.cases import small
from tests.predictor.graphs import seeded
from tests.subjects import make_subject

GCL, GCL_PAPER = METHODS["gcl"], METHODS["gcl-paper"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

CONFIG = TrainConfig(
    predictor=small(aligner="tabpfn", aggregation="sum", paths=False),
    steps=1,
    pairs=2,
    views=1,
    batch=1,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `data/predictors`, with predictors of the paper's system: one that learned from
    ib-7, under names of predictors that may have, and one that learned from ib-53."""
    folder = tmp_path_factory.mktemp("predictors") / "paper"
    folder.mkdir()
    for case, names in {"ib-7": ("default", "fold-4"), "ib-53": ("fold-0",)}.items():
        ensemble = train([case], config=CONFIG).predictor
        for name in names:
            save_ensemble(folder / f"{name}.safetensors", ensemble)
    return folder.parent


@pytest.fixture
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(shipped, "FOLDER", trained)
    shipped.shipped.cache_clear()
    yield trained
    shipped.shipped.cache_clear()


def test_scores_are_the_plain_logits(folder: Path) -> None:
    case = load_case("ib-7")
    subject, pairs = case.subject(), case.pairs(2)
    result = localize(subject, pairs, "gcl-paper", seed=3)
    assert result.options == {"predictor": "paper/fold-0"}
    assert result.probabilities is None
    assert result.notes == ("predictor paper/fold-0, which was trained without this case (ib-7)",)
    ensemble = load_ensemble(folder / "paper" / "fold-0.safetensors")
    generator = seeded(3)
    reading = read_case(ensemble.config, subject, pairs, generator=generator)
    with torch.no_grad():
        logits = [member.eval()(reading, generator=generator) for member in ensemble.members]
    torch.testing.assert_close(result.scores, torch.stack(logits).mean(0))
    assert result.scores.std() > 0
    # Who gives no seed has the seed 0, and other contexts than with another one.
    assert torch.equal(
        GCL_PAPER(subject, pairs), localize(subject, pairs, "gcl-paper", seed=0).scores
    )


def test_a_case_is_kept_from_predictors_that_saw_it(folder: Path) -> None:
    case = load_case("ib-7")
    subject, pairs = case.subject(), case.pairs(2)
    for name in ("default", "paper/default", str(folder / "paper" / "default.safetensors")):
        with pytest.raises(ValueError, match=r"was trained on ib-7 itself.* use 'paper/fold-0'"):
            localize(subject, pairs, "gcl-paper", predictor=name)
    related = load_case("ib-14")
    with pytest.raises(ValueError, match="trained on ib-7, which is related to it"):
        GCL_PAPER(related.subject(), related.pairs(2), predictor="default")
    # A test case and a stranger take the one that learned from all of the pool.
    held_out = load_case("ib-3")
    found = localize(held_out.subject(), held_out.pairs(2), "gcl-paper")
    assert found.options == {"predictor": "paper/default"}
    assert localize(held_out.subject(), held_out.pairs(2), "gcl-paper", predictor="fold-0").options
    stranger = make_subject().to(torch.float32)
    found = localize(stranger, make_pairs(stranger, "cross-entropy"), "gcl-paper")
    assert found.options == {"predictor": "paper/default"}


def test_what_it_cannot_take_is_refused(folder: Path, tmp_path: Path) -> None:
    case = load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(2)
    with pytest.raises(FileNotFoundError, match="installation has no predictor 'paper/fold-1'; n"):
        GCL_PAPER(subject, pairs, predictor="fold-1")
    with pytest.raises(ValueError, match="there is no predictor 'paper/fold-9'"):
        GCL_PAPER(subject, pairs, predictor="paper/fold-9")
    path = tmp_path / "ours.safetensors"
    save_ensemble(path, Ensemble((Predictor(small()),), {}))
    with pytest.raises(ValueError, match=r"aligner tabpfn, the paper's, and .* has invariant"):
        GCL_PAPER(subject, pairs, predictor=str(path))
    flat = replace(pairs, targets=None)
    with pytest.raises(ValueError, match="reads the gradient of the loss at the clean run"):
        GCL_PAPER(subject, flat)
    # Under its whole name gcl takes it as well, as any predictor in a file.
    assert torch.equal(GCL(subject, pairs, predictor="paper/default"), GCL_PAPER(subject, pairs))


def test_what_no_training_had_is_said(folder: Path) -> None:
    subject = make_subject("llama").to(torch.float32)
    with pytest.warns(UserWarning, match="beyond what the predictor was trained on: norm rms"):
        localize(subject, make_pairs(subject, "cross-entropy"), "gcl-paper")
