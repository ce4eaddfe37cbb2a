"""The bench: resuming, failing, comparing; its tables against the numbers they are made from."""

import csv
import errno
import io
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from graphcircuits import methods
from graphcircuits.compare import bench
from graphcircuits.compare.bench import BenchConfig, BenchRun, Failure, Report, run, select_cases
from graphcircuits.compare.evaluate import auroc
from graphcircuits.corpus import case_ids, load_case
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

Calls = list[tuple[int, int]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Adds a method `fast` of random scores that notes prompts and tilt of every call."""
    noted: Calls = []

    def fast(
        subject: Transformer,
        pairs: Pairs,
        *,
        generator: torch.Generator,
        tilt: int = 0,
    ) -> Tensor:
        noted.append((int(pairs.clean.sum()), tilt))
        return torch.rand(subject.graph.n_edges, generator=generator) + tilt

    add_method(monkeypatch, "fast", fast)
    return noted


def add_method(monkeypatch: pytest.MonkeyPatch, name: str, method: Callable[..., Tensor]) -> None:
    monkeypatch.setitem(cast(dict[str, Any], methods.METHODS), name, method)


def config(**changes: Any) -> BenchConfig:
    given: dict[str, Any] = {"cases": ("ib-3", "ib-8"), "methods": ("fast",), "n_pairs": 2}
    return BenchConfig(**(given | changes))


def finished(config: BenchConfig, out: Path) -> tuple[list[BenchRun], list[Failure]]:
    found = list(run(config, out))
    return (
        [one for one in found if isinstance(one, BenchRun)],
        [one for one in found if isinstance(one, Failure)],
    )


def report(config: BenchConfig, out: Path) -> Report:
    runs, failures = finished(config, out)
    return Report(
        config=config,
        title="a_title & more",
        runs=tuple(runs),
        failures=tuple(failures),
        command="graphcircuits bench",
    )


# Running


def test_finished_runs_are_not_run_again(calls: Calls, tmp_path: Path) -> None:
    first, _ = finished(config(seeds=(0, 1)), tmp_path)
    assert len(calls) == len(first) == 4
    assert not any(one.reused for one in first)
    again, failures = finished(config(seeds=(0, 1)), tmp_path)
    assert len(calls) == 4
    assert failures == []
    assert all(one.reused for one in again)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.scores, other.scores)
        assert (one.case, one.seed, one.seconds) == (other.case, other.seed, other.seconds)
    # Other labels and another level read the same runs.
    finished(config(seeds=(0, 1), labels="complete", level="qkv"), tmp_path)
    assert len(calls) == 4


@pytest.mark.parametrize(
    "changes", [{"seeds": (2,)}, {"n_pairs": 3}, {"options": {"fast": {"tilt": 1}}}]
)
def test_what_a_run_depends_on(calls: Calls, tmp_path: Path, changes: dict[str, Any]) -> None:
    finished(config(), tmp_path)
    finished(config(**changes), tmp_path)
    assert len(calls) == 4
    assert len(set(calls)) == 4


def test_changed_defaults_and_weights_are_run_again(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(config(cases=("ib-3",)), tmp_path)
    fast = cast(Any, methods.METHODS["fast"])
    monkeypatch.setitem(fast.__kwdefaults__, "tilt", 5)
    finished(config(cases=("ib-3",)), tmp_path)
    assert [tilt for _, tilt in calls] == [0, 5]
    subject = load_case("ib-3").subject()
    moved = Transformer(
        subject.config,
        {name: 2 * weight for name, weight in subject.weights.items()},
        subject.codec,
    )
    monkeypatch.setattr("graphcircuits.corpus.case.Case.subject", lambda case: moved)
    finished(config(cases=("ib-3",)), tmp_path)
    assert len(calls) == 3


def test_cases_do_not_share_their_luck(calls: Calls, tmp_path: Path) -> None:
    (one, other), _ = finished(config(), tmp_path)
    assert one.scores.shape == other.scores.shape
    assert not torch.equal(one.scores, other.scores)


def test_an_interrupted_bench_keeps_what_is_finished(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = bench.save_artifact

    def interrupted(*args: Any, **named: Any) -> str:
        if len(calls) == 2:
            raise KeyboardInterrupt
        return save(*args, **named)

    monkeypatch.setattr(bench, "save_artifact", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finished(config(), tmp_path)
    assert len(list(tmp_path.rglob("*.json"))) == 1
    monkeypatch.setattr(bench, "save_artifact", save)
    runs, _ = finished(config(), tmp_path)
    assert [one.reused for one in runs] == [True, False]


def test_damaged_files_are_made_again(calls: Calls, tmp_path: Path) -> None:
    finished(config(cases=("ib-3",)), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    finished(config(cases=("ib-3",)), tmp_path)
    assert len(calls) == 2
    assert len(path.read_bytes()) > len(whole) // 2


def test_files_that_nest_too_deep_are_made_again(calls: Calls, tmp_path: Path) -> None:
    finished(config(cases=("ib-3",)), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    path.write_text("[" * 100_000)
    (one,), failures = finished(config(cases=("ib-3",)), tmp_path)
    assert (one.reused, failures, len(calls)) == (False, [], 2)
    (one,), _ = finished(config(cases=("ib-3",)), tmp_path)
    assert one.reused


@pytest.mark.parametrize(
    "changes",
    [
        {"cases": ("ib-8",)},
        {"methods": ("random",)},
        {"seeds": (1,)},
        {"options": {"fast": {"tilt": 1}}},
        {"n_pairs": 3},
    ],
)
def test_files_of_other_runs_are_made_again(
    calls: Calls, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Copied over from another run: whole, but not what is asked for."""
    asked = config(cases=("ib-3",))
    (right,), _ = finished(asked, tmp_path / "asked")
    finished(config(**({"cases": ("ib-3",)} | changes)), tmp_path / "other")
    (path,), (other,) = ((tmp_path / name).rglob("*.json") for name in ("asked", "other"))
    path.write_bytes(other.read_bytes())
    (one,), failures = finished(asked, tmp_path / "asked")
    assert (one.reused, failures) == (False, [])
    assert torch.equal(one.scores, right.scores)
    assert finished(asked, tmp_path / "asked")[0][0].reused


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [0.5] * 109},
        {"scores": ["0.5"] * 110},
        {"scores": 3},
        {"seconds": None},
        {"seconds": "1"},
        {"peak_bytes": [1]},
        {"extra": 1},
    ],
)
def test_files_with_another_content_are_made_again(
    calls: Calls, tmp_path: Path, change: dict[str, Any]
) -> None:
    finished(config(cases=("ib-3",)), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    found = bench.load_artifact(path, bench.KIND)
    bench.save_artifact(
        path, kind=bench.KIND, config=found.config, seed=found.seed, meta={**found.meta, **change}
    )
    (one,), failures = finished(config(cases=("ib-3",)), tmp_path)
    assert (one.reused, failures, len(calls)) == (False, [], 2)


def test_a_method_whose_code_has_changed_is_run_again(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(config(methods=("fast", "random")), tmp_path)
    fast = methods.METHODS["fast"]
    hashed = bench.source_hash
    monkeypatch.setattr(
        bench, "source_hash", lambda method: "edited" if method is fast else hashed(method)
    )
    runs, _ = finished(config(methods=("fast", "random")), tmp_path)
    assert [(one.method, one.reused) for one in runs] == [
        ("fast", False),
        ("random", True),
        ("fast", False),
        ("random", True),
    ]


def test_a_fresh_bench_runs_everything_and_keeps_it(calls: Calls, tmp_path: Path) -> None:
    finished(config(), tmp_path)
    (path, _) = sorted(tmp_path.rglob("*.json"))
    before = path.stat().st_mtime_ns
    runs = [one for one in run(config(), tmp_path, fresh=True) if isinstance(one, BenchRun)]
    assert [one.reused for one in runs] == [False, False]
    assert len(calls) == 4
    assert path.stat().st_mtime_ns > before
    again, _ = finished(config(), tmp_path)
    assert all(one.reused for one in again)


def test_a_full_disk_ends_the_bench_and_names_the_file(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = bench.save_artifact

    def full(path: Path, **named: Any) -> str:
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(path, **named)

    monkeypatch.setattr(bench, "save_artifact", full)
    found = []
    with pytest.raises(bench.StoreUnusable) as caught:
        found += run(config(seeds=(0, 1, 2)), tmp_path)
    assert len(calls) == 2
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "runs" / "fast" / "ib-3-seed1-"))
    assert "cannot be written (No space left on device); the bench ends here" in text
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_a_store_that_cannot_be_read_or_written_ends_the_bench(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(config(cases=("ib-3",)), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    path.unlink()
    path.mkdir()
    with pytest.raises(bench.StoreUnusable, match=r"cannot be written \(Is a directory\)"):
        finished(config(cases=("ib-3",)), tmp_path)

    def forbidden(path: Path, kind: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(bench, "load_artifact", forbidden)
    with pytest.raises(bench.StoreUnusable, match=r"cannot be read \(Permission denied\)"):
        finished(config(cases=("ib-3",)), tmp_path)


@pytest.mark.usefixtures("unchecked")
def test_a_case_of_the_pool_meets_a_blind_predictor(tmp_path: Path) -> None:
    (one,), _ = finished(config(cases=("ib-7",), methods=("gcl",)), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    assert bench.load_artifact(path, bench.KIND).config["options"] == {"predictor": "fold-0"}
    case = load_case("ib-7")
    direct = methods.localize(case.subject(), case.pairs(2), "gcl")
    torch.testing.assert_close(one.scores.float(), direct.scores)
    asked = config(cases=("ib-7",), methods=("gcl",), options={"gcl": {"predictor": "default"}})
    runs, (failure,) = finished(asked, tmp_path)
    assert runs == []
    assert "the predictor 'default' was trained on ib-7 itself" in str(failure)


def test_a_failing_method_costs_only_itself(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(subject: Transformer, pairs: Pairs) -> Tensor:
        raise RuntimeError("out of luck")

    def empty(subject: Transformer, pairs: Pairs) -> Tensor:
        return torch.full((subject.graph.n_edges,), torch.nan)

    add_method(monkeypatch, "broken", broken)
    add_method(monkeypatch, "empty", empty)
    made = report(config(methods=("broken", "fast", "empty")), tmp_path)
    assert [one.method for one in made.runs] == ["fast", "fast"]
    texts = [str(failure) for failure in made.failures]
    assert len(texts) == 4
    assert texts[0].startswith("ib-3, broken, seed 0: RuntimeError: out of luck (test_bench.py, l")
    assert "ib-3, empty, seed 0: ValueError: scores must be finite" in texts[1]
    assert [row.method for row in made.rows()] == ["fast"]
    assert "- failed: ib-8, broken, seed 0: RuntimeError" in made.markdown()


def test_a_failing_case_costs_only_itself(calls: Calls, tmp_path: Path) -> None:
    # One has no subject, the other no published labels.
    runs, failures = finished(
        config(cases=("tb-length", "ib-18", "ib-3"), labels="paper"), tmp_path
    )
    assert [one.case for one in runs] == ["ib-3"]
    assert [failure.case for failure in failures] == ["tb-length", "ib-18"]
    assert "build it with: graphcircuits build tb-length" in str(failures[0])
    assert "published edge list is not part of the package" in str(failures[1])


# Choosing


@pytest.mark.usefixtures("unchecked")
def test_selections() -> None:
    assert select_cases("test") == (case_ids(split="test"), [])
    deep, _ = select_cases("deep")
    everything, left_out = select_cases("all")
    assert deep
    for id in deep:
        assert load_case(id).graph.n_layers >= 4
        assert load_case(id).split != "test"
    shallow = set(everything) - set(deep) - set(case_ids(split="test"))
    assert all(load_case(id).graph.n_layers < 4 for id in shallow)
    assert sorted(everything + left_out) == sorted(case_ids())
    assert "tb-length" in left_out
    assert select_cases("ib-3, tb-length") == (["ib-3", "tb-length"], [])
    with pytest.raises(ValueError, match="unknown case 'ib-3333'"):
        select_cases("ib-3,ib-3333")
    with pytest.raises(ValueError, match="cases must be one of test, pool, deep, all, or ids"):
        select_cases(",")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("fats",)}, r"unknown method 'fats'; did you mean 'fast'\?"),
        ({"methods": ()}, r"methods must be distinct, at least one, got \[\]"),
        ({"seeds": (1, 1)}, r"seeds must be distinct, at least one, got \[1, 1\]"),
        ({"labels": "x", "level": "y"}, "labels must be one of .*, got 'x'; level must be one of"),
        ({"n_pairs": 0}, "n_pairs must be at least 1, got 0"),
        ({"options": {"eap": {}}}, "options are given for methods that do not run: eap"),
        ({"options": {"fast": {"tlit": 1}}}, "fast has no option tlit; it has: tilt"),
    ],
)
def test_bad_configs(calls: Calls, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


# Reading


def test_rows_summarize_the_runs(calls: Calls, tmp_path: Path) -> None:
    made = report(config(seeds=(0, 1, 2)), tmp_path)
    (row,) = made.rows()
    expected = [
        mean(auroc(one.scores, load_case(id).circuit) for one in made.runs if one.case == id)
        for id in ("ib-3", "ib-8")
    ]
    assert row.case_means == pytest.approx(expected)
    assert row.summary.quantiles[0] == pytest.approx(min(expected))
    assert row.summary.quantiles[2] == pytest.approx(mean(expected))
    assert row.summary.spread is not None
    assert (row.summary.n_cases, row.summary.n_seeds) == (2, 3)


def test_files(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def perfect(subject: Transformer, pairs: Pairs) -> Tensor:
        return load_case("ib-3").circuit.mask.float()

    add_method(monkeypatch, "perfect", perfect)
    made = report(config(cases=("ib-3",), methods=("fast", "perfect")), tmp_path)
    written = made.write(tmp_path / "new" / "folder")
    assert [row.method for row in made.rows()] == ["perfect", "fast"]
    table = list(csv.DictReader(io.StringIO(written["table.csv"].read_text())))
    assert [line["method"] for line in table] == ["perfect", "fast"]
    assert float(table[0]["median"]) == float(table[0]["precision_at_size"]) == 1.0
    cases = list(csv.DictReader(io.StringIO(written["cases.csv"].read_text())))
    assert [(line["case"], line["method"], line["edges"]) for line in cases] == [
        ("ib-3", "fast", "110"),
        ("ib-3", "perfect", "110"),
    ]
    assert float(cases[0]["auroc"]) == auroc(made.runs[0].scores, load_case("ib-3").circuit)
    markdown = written["table.md"].read_text()
    assert "| perfect | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | " in markdown
    assert "Made with `graphcircuits bench`." in markdown
    assert r"\caption{a\_title \& more}" in written["table.tex"].read_text()


def test_published_figures_only_beside_the_same_cases() -> None:
    test = tuple(case_ids(split="test"))
    for cases, level, shown in (
        (test, "head", True),
        (test[1:], "head", False),
        (test, "qkv", False),
    ):
        given = BenchConfig(cases=cases, methods=("random",), level=level)
        assert bool(Report(config=given, title="", runs=()).published()) == shown
