"""The networks that look, by one command: what is made of what, and what is not made again."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.io.files import read_json
from graphcircuits.io.store import load_artifact
from graphcircuits.methods.shipped import FOLDER, SHIPPED
from graphcircuits.predictor.ensemble import KIND as PREDICTOR
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble
from graphcircuits.predictor.looker import Looker
from graphcircuits.training.facts import FEWEST
from graphcircuits.training.sources import Source, language_sources, split
from lab.factory import lookers
from lab.factory.lookers import KIND, WORK, geometric_means, kinds_won, main, ratio_words
from lab.factory.mining import MiningConfig, mine_models, models_in
from lab.factory.predictors import describe
from lab.looking import lessons
from lab.looking.cases import LookTraining
from lab.looking.judge import LOOKING, PLAIN, RIVAL
from tests.lab.factory.test_mining import NAMES, TEXT, write_models
from tests.lab.factory.test_predictors import parsed
from tests.predictor.graphs import seeded

pytestmark = pytest.mark.usefixtures("unchecked")

METHODS = (LOOKING, PLAIN, RIVAL)
CLOSE: dict[str, Any] = {"rtol": 2e-3, "atol": 2e-3}
FEW = ("--refine", "2", "--steps", "3")


def row(kind: str, *edges: float, id: str = "") -> dict[str, Any]:
    """What was judged of a task: edges by looking, without, and by EAP-IG along paths."""
    return {"id": id, "kind": kind, "edges": dict(zip(METHODS, edges, strict=True))}


# Figures


def test_means_are_geometric_and_of_kinds_with_enough_rows() -> None:
    rows = [row("natural", 2.0, 10.0, 4.0), row("natural", 8.0, 10.0, 9.0)] * (FEWEST // 2)
    few = [row("language", 1.0, 2.0, 3.0)] * (FEWEST - 1)
    found = geometric_means([*rows, *few])
    assert found.keys() == {"natural"}
    assert found["natural"] == pytest.approx({LOOKING: 4, PLAIN: 10, RIVAL: 6})
    assert geometric_means([*few, *few[:1]])["language"] == pytest.approx(few[0]["edges"])
    assert geometric_means([]) == {}


def test_looking_wins_where_it_needs_fewer_than_both() -> None:
    edges = {
        "language": row("", 9.0, 10.0, 11.0)["edges"],
        "natural": row("", 9.0, 8.0, 11.0)["edges"],
        "planted": row("", 9.0, 10.0, 8.0)["edges"],
        "public": row("", 9.0, 9.0, 10.0)["edges"],
    }
    assert kinds_won(edges) == ("language",)
    assert kinds_won({}) == ()


def test_ratios_have_an_interval() -> None:
    rows = [row("language", 1.0, 0.0, 2.0), row("language", 8.0, 0.0, 4.0)]
    same = [row("natural", 3.0, 0.0, 4.0)] * 3
    # Half and twice as many: one on average, and both logarithms are as far from that.
    error = 1.96 * math.log(2)
    low, high = math.exp(-error), math.exp(error)
    assert ratio_words([*same, *rows], "language") == (
        f"1.00 [{low:.2f}, {high:.2f}] of eap-ig+paths, 1 of 2 above 1.2"
    )
    assert ratio_words([*same, *rows], "natural") == (
        "0.75 [0.75, 0.75] of eap-ig+paths, 0 of 3 above 1.2"
    )


# The command


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of two models that learned nothing, of two folds."""
    root = tmp_path_factory.mktemp("made")
    config = MiningConfig(windows=1500, change=0.0005, pairs=36, most=7, length=10)
    models = models_in([write_models(root / "lm", *NAMES)], [])
    for kinds in dict(mine_models(root / "mined", models, TEXT, config)).values():
        assert len(kinds) == 7
    return root / "mined"


def make(
    monkeypatch: pytest.MonkeyPatch, mined: Path, folder: Path, *more: str
) -> tuple[list[Source], list[str]]:
    """The sources that were learned from, and the words of the command that was run."""
    words = ["lookers", str(folder), "--language", str(mined), *FEW, *more]
    path = Path(lookers.__file__).with_name("__main__.py")
    monkeypatch.setattr("sys.argv", [str(path), *words])
    main(words[1:])
    return language_sources(mined), words


@pytest.mark.slow
def test_until_refined_nothing_is_trained(
    mined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    make(monkeypatch, mined, tmp_path / "out", "--until", "refined")
    assert [x.name for x in (tmp_path / "out").iterdir()] == [WORK]
    assert [x.name for x in (tmp_path / "out" / WORK).iterdir()] == ["refined"]
    files = sorted((tmp_path / "out" / WORK / "refined").iterdir())
    tensors = [load_artifact(path, lessons.REFINED).tensors for path in files]
    ids = {source.id for source in language_sources(mined)}
    assert {id for some in tensors for id in some} == ids
    # All tasks of a model are one job.
    assert [len(some) for some in tensors] == [7, 7]
    assert caplog.text.count("7 cases, log area") == 2


def written(folder: Path) -> dict[str, Ensemble]:
    """The files that were made, by name."""
    return {path.stem: load_ensemble(path) for path in sorted(folder.glob("*.safetensors"))}


def given(name: str) -> Path:
    return Path(str(FOLDER)) / f"{name}.safetensors"


@pytest.mark.slow
def test_files_come_of_one_command(
    mined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    out = tmp_path / "out"
    sources, words = make(monkeypatch, mined, out)
    assert "language: edges for 0.9: " in caplog.text
    assert "gcl looks on: " in caplog.text
    files = written(out)
    # On language models alone, which have no file of their fold.
    assert files.keys() == {"default"}
    for name, ensemble in files.items():
        before = load_ensemble(given(name))
        # The predictor is the one that was there, with a looker.
        for one, other in zip(ensemble.members, before.members, strict=True):
            own = other.state_dict()
            assert all(torch.equal(x, own[key]) for key, x in one.state_dict().items())
        (looker,) = ensemble.lookers
        assert looker.config == LookTraining().looker
        assert looker.readout.weight.abs().max() > 0
        # It says what it is made of.
        recorded = ensemble.origin["looking"]
        said = parsed(recorded["command"], "lab.factory lookers")
        assert said == parsed(" ".join(["python -m lab.factory", *words]), "lab.factory lookers")
        assert recorded["training"]["refined"] == 2
        assert recorded["training"]["train"]["steps"] == 3
        assert recorded["corpora"]["mined"]["sha256"] == describe(mined)["sha256"]
        artifact, shipped = (
            load_artifact(path, PREDICTOR) for path in (out / f"{name}.safetensors", given(name))
        )
        assert (artifact.command, artifact.seed) == (shipped.command, shipped.seed)
        # And how it did: what was measured before stays.
        edges = ensemble.measured["language"]["edges"]
        assert set(METHODS) <= edges.keys()
        assert all(1 <= x <= 23 for x in edges.values())
        for kind, old in before.measured.items():
            now = {x: y for x, y in ensemble.measured[kind].items() if x != "edges"}
            assert now == {x: y for x, y in old.items() if x != "edges"}
    # What lookers learned from shares no model with their fold.
    for name in SHIPPED:
        learned = sources if name == "default" else split(sources, int(name[-1]))[0]
        paths = list((out / WORK).glob(f"{name}-*.safetensors"))
        assert paths
        for path in paths:
            assert sorted(load_artifact(path, KIND).config["sources"]) == sorted(
                x.id for x in learned
            )
    # All tasks were judged once.
    judged = [read_json(x)["rows"] for x in (out / WORK / "judged").iterdir()]
    assert sorted(x["id"] for rows in judged for x in rows) == sorted(x.id for x in sources)


@pytest.mark.slow
def test_what_was_cut_off_goes_on(
    mined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make(monkeypatch, mined, out, "--rounds", "1")
    before = load_artifact(out / "default.safetensors", PREDICTOR)
    work = {path: path.read_bytes() for path in (out / WORK).rglob("*.*")}
    judged = sorted((out / WORK / "judged").iterdir())
    (missing,) = (out / WORK).glob("fold-1-*.safetensors")
    for path in (missing, judged[0], out / "default.safetensors"):
        path.unlink()
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        own = getattr(module, name)

        def call(*given: Any, **options: Any) -> Any:
            calls.append(name)
            return own(*given, **options)

        monkeypatch.setattr(module, name, call)

    counted(lessons, "refined")
    counted(lookers, "train_looker")
    counted(lookers, "judge_job")
    make(monkeypatch, mined, out, "--rounds", "1")
    assert calls == ["train_looker", "judge_job"]
    # The same numbers again, and the rest as it was.
    again = load_artifact(out / "default.safetensors", PREDICTOR)
    assert again.meta == before.meta
    assert all(torch.equal(x, again.tensors[name]) for name, x in before.tensors.items())
    for path, content in work.items():
        assert path.is_file()
        assert path in (missing, judged[0]) or path.read_bytes() == content
    # Lookers of other settings are made anew, from what was refined.
    calls.clear()
    make(monkeypatch, mined, out, "--rounds", "1", "--steps", "4")
    assert "refined" not in calls
    assert calls.count("train_looker") == len(SHIPPED)
    assert load_artifact(missing, KIND).config["training"]["train"]["steps"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "names"), [("language", ["default"]), ("natural", [*SHIPPED])])
def test_files_look_where_looking_won(
    kind: str,
    names: list[str],
    mined: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By figures of models that their lookers had not seen; files of folds are for subjects that
    have some, here by name; two lookers of each."""
    caplog.set_level("INFO")
    asked: list[tuple[Sequence[Source], Sequence[Looker]]] = []

    def judge(shop: Any, job: Sequence[Source], own: Sequence[Looker]) -> Iterator[dict[str, Any]]:
        asked.append((job, own))
        for source in job:
            yield row(kind, 5.0, 10.0, 8.0, id=source.id)

    monkeypatch.setattr(lookers, "judge_job", judge)
    out = tmp_path / "out"
    sources, _ = make(monkeypatch, mined, out, "--seeds", "2", "--rounds", "1")
    assert "gcl needs 0.62 [0.62, 0.62] of eap-ig+paths, 0 of 14 above 1.2" in caplog.text
    assert f"gcl looks on: {kind}" in caplog.text
    files = written(out)
    assert sorted(files) == sorted(names)
    assert {source for job, _ in asked for source in job} == set(sources)
    # Those of two folds saw different models.
    assert not torch.equal(asked[0][1][0].mean, asked[-1][1][0].mean)
    for job, own in asked:
        assert len(own) == 2
        (fold,) = {source.folds[0] for source in job}
        if f"fold-{fold}" in files:
            for one, other in zip(own, files[f"fold-{fold}"].lookers, strict=True):
                # Files may be in half precision.
                torch.testing.assert_close(one.mean, other.mean, **CLOSE)
                torch.testing.assert_close(one.readout.weight, other.readout.weight, **CLOSE)
    for name, ensemble in files.items():
        assert ensemble.looks == (kind,)
        edges = ensemble.measured[kind]["edges"]
        assert edges == pytest.approx({LOOKING: 5, PLAIN: 10, RIVAL: 8})
        one, other = (x.readout.weight for x in ensemble.lookers)
        assert not torch.equal(one, other)
        # Probabilities there were of logits without looking.
        assert ensemble.calibration.keys() == load_ensemble(given(name)).calibration.keys() - {kind}
    subject, ensemble = sources[0].subject(), files["default"]
    pairs = sources[0].pairs(subject, 12, 0)
    usual, plain, once = (
        ensemble.predict_case(subject, pairs, generator=seeded(0), kind=kind, looks=x)
        for x in (None, 0, 1)
    )
    assert torch.equal(usual.logits, once.logits)
    assert not torch.equal(usual.logits, plain.logits)
    assert usual.probabilities is None


def test_what_is_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ValueError, match="holds no language models with a"):
        main([out, "--language", str(tmp_path)])
    with pytest.raises(SystemExit):
        main([out, "--language", str(tmp_path), "--until", "trained"])
    assert not Path(out).exists()
