"""Scaling and ablations: what is trained, what is stored, and how it is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.predictor.model import Predictor
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.validation import means, validate
from lab.examples import read_examples
from lab.studies import scaling as module
from lab.studies.inputs import INPUTS
from lab.studies.scaling import COUNTS, main, references, scaling, settings
from lab.studies.scaling_data import ScalingData, read_again, some_of
from lab.studies.scaling_page import Record, interval, plot, table
from tests.predictor.cases import training
from tests.training.examples import PRIOR, make_judged

pytestmark = pytest.mark.usefixtures("unchecked")

BASE = training(PRIOR, faithfulness_weight=1.0, steps=1, masks=2, keep="best")


@pytest.mark.slow
def test_a_setting_that_reads_otherwise_is_read_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEARCHES", {})
    config = replace(BASE, pairs=3, judged=4, views=1)
    examples = read_examples(["ib-7", "ib-2"], config)
    data = ScalingData(
        {"planted": examples[:1]}, {"planted": examples[:1]}, {"planted": examples[1:]}
    )
    found: list[TrainConfig] = []

    def again(data: ScalingData, config: TrainConfig, **_: Any) -> ScalingData:
        found.append(config)
        return read_again(data, config)

    monkeypatch.setattr(module, "read_again", again)
    names = ("all of it", "no prior", "gradient at the clean run")
    chosen = [x for x in settings("ablations", ["planted"], config) if x.name in names]
    records = list(scaling(chosen, data, tmp_path, seeds=(0, 1)))
    assert found == [chosen[2].config]
    assert [x.examples for x in records] == [0] + [1] * 6


def make_data() -> ScalingData:
    examples = make_judged()
    learned = {"natural": examples[:2], "planted": examples[2:]}
    held_out = {"natural": examples[:1], "planted": examples[1:2]}
    return ScalingData(learned, {"natural": examples[2:]}, held_out)


def test_settings_of_the_grids() -> None:
    kinds = ["language", "natural", "planted"]
    sizes = settings("sizes", kinds, BASE)
    assert [(x.name, x.count) for x in sizes] == [
        (name, count) for name in ("natural", "natural + planted + language") for count in COUNTS
    ]
    assert [x.name for x in settings("kinds", kinds, BASE)] == [
        "natural",
        "planted",
        "natural + planted",
        "natural + planted + language",
    ]
    chosen = settings("ablations", kinds, BASE)
    assert (chosen[0].name, chosen[0].config, chosen[0].without) == ("all of it", BASE, None)
    assert all(x.config != BASE or x.without for x in chosen[1:])
    assert len(chosen) == 7 + len(INPUTS)
    ablations = {x.name: x.config for x in chosen}
    assert ablations["no labels"] == replace(BASE, label_weight=0.0)
    assert ablations["no faithfulness"].by_labels_alone
    clean = ablations["gradient at the clean run"].predictor
    assert (clean.share, clean.prior) == (1, False)


def test_ablations_of_the_recipe_change_what_it_has() -> None:
    base = module.BASE
    assert (base.predictor.share, base.predictor.prior) == (0.75, True)
    chosen = settings("ablations", ["natural"], base)
    found = {x.name: x.config for x in chosen}
    assert all(f"without {name}" in found for name in INPUTS)
    assert len({(x.config, x.without) for x in chosen}) == len(chosen)


def test_more_subjects_contain_fewer() -> None:
    items = list(range(100))
    few, many = (some_of(items, count, seed=3) for count in (10, 40))
    assert set(few) < set(many)
    assert many == sorted(many)
    assert few != some_of(items, 10, seed=4)
    assert some_of(items, None, seed=3) == items


def test_settings_that_read_otherwise_share_the_subjects() -> None:
    config = training(PRIOR, pairs=3, judged=4, views=1, faithfulness_weight=1.0)
    one, two = read_examples(["ib-7", "ib-2"], config)
    data = ScalingData({"planted": [one]}, {"planted": []}, {"planted": [two]})
    other = replace(config, predictor=replace(PRIOR, share=1.0, prior=False))
    again = read_again(data, other)
    expected = read_examples(["ib-7", "ib-2"], other)
    read_anew = [*again.learned["planted"], *again.held_out["planted"]]
    for before, after, wanted in zip((one, two), read_anew, expected, strict=True):
        assert isinstance(after.reading.content, Tensor)
        assert isinstance(wanted.reading.content, Tensor)
        assert torch.equal(after.reading.content, wanted.reading.content)
        assert after.item is before.item
        assert after.circuit is before.circuit
    assert again.content == data.content


@pytest.mark.slow
def test_trainings_are_stored_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEARCHES", {})
    data = make_data()
    names = ("all of it", "no message passing", "no prior", "no faithfulness")
    chosen = [x for x in settings("ablations", list(data.learned), BASE) if x.name in names]
    records = list(scaling(chosen, data, tmp_path, seeds=(0, 1)))
    assert [(x.name, x.seed) for x in records] == [
        ("untrained", None),
        *((name, seed) for seed in (0, 1) for name in names),
    ]
    start = means(validate(Predictor(PRIOR), data.held_out["natural"]))
    assert records[0].figures["natural"] == pytest.approx(start)
    assert records[1].examples == 4
    assert len({x.figures["natural"]["cmd"] for x in records}) > 1
    assert len(list(tmp_path.iterdir())) == len(records)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(module, "train_predictor", refuse)
    assert list(scaling(chosen, data, tmp_path, seeds=(0, 1))) == records
    other = [replace(chosen[0], config=replace(BASE, lr=0.5))]
    with pytest.raises(AssertionError, match="trained again"):
        list(scaling(other, data, tmp_path, seeds=(0,)))


def test_searches_see_what_predictors_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, int]] = []

    def figures(examples: list[Any], method: str, _: object, *, pairs: int) -> dict[str, Any]:
        found.append((method, pairs))
        return {example.case: {"cmd": 0.25} for example in examples}

    monkeypatch.setattr(module, "search_figures", figures)
    records = list(references(make_data(), BASE, tmp_path, "cpu"))
    assert [x.name for x in records] == ["untrained", "eap", "eap-ig, 5 steps"]
    assert found == [("eap", 64)] * 2 + [("eap-ig", 64)] * 2
    assert records[1].figures == {"natural": {"cmd": 0.25}, "planted": {"cmd": 0.25}}


def record(name: str, seed: int | None, cmd: float, count: int | None = None) -> Record:
    grid = "references" if seed is None else "ablations" if count is None else "sizes"
    figures = {"natural": {"cmd": cmd}}
    return Record(grid=grid, name=name, count=count, seed=seed, examples=5, step=1, figures=figures)


def test_intervals_are_students() -> None:
    found = interval([1.0, 2.0, 4.0])
    # Deviation 1.5275 over the root of 3, times 4.303.
    assert (found.mean, found.half) == pytest.approx((7 / 3, 3.7949), rel=1e-4)
    assert interval([3.0]).half is None
    many = interval([0.0, 1.0] * 50)
    assert many.half == pytest.approx(1.96 * 0.50252 / 10, rel=1e-4)


def test_the_table_has_a_row_per_setting() -> None:
    records = [record("eap", None, 0.3), record("all", 0, 0.1), record("all", 1, 0.2)]
    planted = {"natural": {"cmd": 0.5}, "planted": {"cmd": 0.01, "qkv": 0.9, "head": 1.0}}
    records.append(replace(records[0], name="other", figures=planted))
    lines = table(records).splitlines()
    assert lines[0].endswith("| Seeds | CMD, natural | CMD, planted | AUROC, planted |")
    assert lines[2] == "| references | eap | 5 | 1 | 0.3000 |  |  |"
    assert lines[3] == "| ablations | all | 5 | 2 | 0.1500 ± 0.6353 |  |  |"
    assert lines[4] == "| references | other | 5 | 1 | 0.5000 | 0.0100 | 0.9000 |"


@pytest.mark.slow
def test_table_and_plot_of_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SEARCHES", {})
    out, page, picture = tmp_path / "runs", tmp_path / "table.md", tmp_path / "plot.png"
    data = make_data()
    chosen = [replace(x, count=2) for x in settings("sizes", ["natural"], BASE)[:1]]
    chosen += settings("kinds", list(data.learned), BASE)[:2]
    list(scaling(chosen, data, out, seeds=(0, 1)))
    given = ["--out", out, "--stored", "--table", page, "--plot", picture]
    main([str(word) for word in given])
    assert page.read_text() == capsys.readouterr().out
    assert page.read_text().count("\n") == 2 + 1 + 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"a plot is written as \.svg, \.png, \.pdf, got"):
        plot(tmp_path / "plot.bmp", [])
    for words, text in (
        (["--stored"], "holds no trainings"),
        ([], "give folders of subjects by --natural, --planted"),
        (["--natural", "x", "--grid", "size"], "--grid must be of sizes, kinds, ablations"),
    ):
        with pytest.raises(SystemExit, match=text):
            main(["--out", str(tmp_path / "no"), *words])
