"""Runs of a bench: resuming, failing, and judging on prompts that methods have not seen."""

import errno
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from graphcircuits import methods
from graphcircuits.cases import load_case
from graphcircuits.cases.multitask import multi_records
from graphcircuits.certificates.certificate import Certificate
from graphcircuits.compare import runs
from graphcircuits.compare.report import Report
from graphcircuits.compare.runs import FRESH, BenchRun, Failure, run
from graphcircuits.compare.selection import BenchConfig, usual_methods
from graphcircuits.evaluation.evaluate import faithfulness_curve, log_sizes
from graphcircuits.evaluation.proposal import Proposal
from graphcircuits.jobs.processes import Processes
from graphcircuits.methods import find_method
from graphcircuits.predictor.paths import along_paths
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import prompt_hashes
from graphcircuits.task.pairs import Pairs
from tests.compare.certificates import flat_certificate
from tests.compare.folders import save_subject

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
    monkeypatch.setattr(runs, "faithfulness_curve", flat_curve)
    return noted


def flat_curve(subject: Transformer, pairs: Pairs, scores: Tensor, *, by: str) -> FaithfulnessCurve:
    """A curve that costs nothing; the true ones are in tests of their own."""
    counts = tuple(log_sizes(len(scores)))
    flat = tuple(0.5 for _ in counts)
    return FaithfulnessCurve(
        n_edges=len(scores),
        sizes=counts,
        pruned_sizes=counts,
        faithfulness=flat,
        n_pairs=len(pairs),
        by=by,
    )


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
    return Report.of(config, run(config, out), command="graphcircuits bench")


# Running


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"seeds": (2,)}, {"n_pairs": 3}, {"options": {"fast": {"tilt": 1}}}]
)
def test_what_a_run_depends_on(calls: Calls, tmp_path: Path, changes: dict[str, Any]) -> None:
    finished(config(), tmp_path)
    finished(config(**changes), tmp_path)
    assert len(calls) == 4
    assert len(set(calls)) == 4


def test_paths_are_an_option_and_a_row_of_their_own(calls: Calls, tmp_path: Path) -> None:
    given = {"cases": ("ib-3",), "methods": ("fast", "fast+paths")}
    (plain, along), failures = finished(config(**given), tmp_path)
    assert failures == []
    torch.testing.assert_close(along.scores, along_paths(plain.scores, plain.graph))
    assert along.method == "fast+paths"
    again, _ = finished(config(**given), tmp_path)
    assert all(one.reused for one in again)
    as_option = config(cases=("ib-3",), options={"fast": {"paths": True}})
    (optional,), _ = finished(as_option, tmp_path)
    assert torch.equal(optional.scores, along.scores)


def test_a_method_that_takes_long_can_run_with_one_seed(calls: Calls, tmp_path: Path) -> None:
    given = config(cases=("ib-3",), methods=("fast", "random"), seeds=(3, 4, 5), once=("random",))
    found, _ = finished(given, tmp_path)
    assert [(one.seed, one.method) for one in found] == [
        (3, "fast"),
        (3, "random"),
        (4, "fast"),
        (5, "fast"),
    ]
    assert given.n_runs == 4
    with pytest.raises(ValueError, match="once names methods that do not run: eap"):
        config(once=("eap",))


def test_what_ranks_by_labels_takes_those_of_the_bench() -> None:
    given = config(methods=("edge-frequency", "eap"), labels="interpbench")
    assert given.options_of("edge-frequency") == {"labels": "interpbench"}
    assert given.options_of("eap") == {}
    own = replace(given, options={"edge-frequency": {"labels": "paper"}})
    assert own.options_of("edge-frequency") == {"labels": "paper"}


def test_what_runs_where_no_method_is_named() -> None:
    usual = usual_methods()
    assert {"gcl", "random", "edge-frequency", "gcl-blind"} <= set(usual)
    assert not [name for name in usual if "paper" in name]
    assert usual_methods("natural") == (*usual, "eap-ig+paths")


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
    monkeypatch.setattr("graphcircuits.cases.case.Case.subject", lambda case, *_: moved)
    finished(config(cases=("ib-3",)), tmp_path)
    assert len(calls) == 3


def test_cases_do_not_share_their_luck(calls: Calls, tmp_path: Path) -> None:
    (one, other), _ = finished(config(), tmp_path)
    assert one.scores.shape == other.scores.shape
    assert not torch.equal(one.scores, other.scores)


def test_an_interrupted_bench_keeps_what_is_finished(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = runs.save_artifact

    def interrupted(*args: Any, **named: Any) -> str:
        if len(calls) == 2:
            raise KeyboardInterrupt
        return save(*args, **named)

    monkeypatch.setattr(runs, "save_artifact", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finished(config(), tmp_path)
    assert len(list(tmp_path.rglob("*.json"))) == 1
    monkeypatch.setattr(runs, "save_artifact", save)
    found, _ = finished(config(), tmp_path)
    assert [one.reused for one in found] == [True, False]


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    found = runs.load_artifact(path, runs.KIND)
    runs.save_artifact(
        path, kind=runs.KIND, config=found.config, seed=found.seed, meta={**found.meta, **change}
    )
    (one,), failures = finished(config(cases=("ib-3",)), tmp_path)
    assert (one.reused, failures, len(calls)) == (False, [], 2)


def test_a_method_of_a_new_revision_is_run_again(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(config(methods=("fast", "random")), tmp_path)
    revised = replace(find_method("fast"), revision=2)
    monkeypatch.setitem(cast(dict[str, Any], methods.METHODS), "fast", revised)
    found, _ = finished(config(methods=("fast", "random")), tmp_path)
    assert [(one.method, one.reused) for one in found] == [
        ("fast", False),
        ("random", True),
        ("fast", False),
        ("random", True),
    ]


def test_a_fresh_bench_runs_everything_and_keeps_it(calls: Calls, tmp_path: Path) -> None:
    finished(config(), tmp_path)
    (path, _) = sorted(tmp_path.rglob("*.json"))
    before = path.stat().st_mtime_ns
    found = [one for one in run(config(), tmp_path, fresh=True) if isinstance(one, BenchRun)]
    assert [one.reused for one in found] == [False, False]
    assert len(calls) == 4
    assert path.stat().st_mtime_ns > before
    again, _ = finished(config(), tmp_path)
    assert all(one.reused for one in again)


def test_a_full_disk_ends_the_bench_and_names_the_file(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = runs.save_artifact

    def full(path: Path, **named: Any) -> str:
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(path, **named)

    monkeypatch.setattr(runs, "save_artifact", full)
    found = []
    with pytest.raises(runs.StoreUnusable) as caught:
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
    with pytest.raises(runs.StoreUnusable, match=r"cannot be written \(Is a directory\)"):
        finished(config(cases=("ib-3",)), tmp_path)

    def forbidden(path: Path, kind: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(runs, "load_artifact", forbidden)
    with pytest.raises(runs.StoreUnusable, match=r"cannot be read \(Permission denied\)"):
        finished(config(cases=("ib-3",)), tmp_path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.usefixtures("uninformed")
def test_a_case_of_the_pool_meets_a_blind_predictor(tmp_path: Path) -> None:
    (one,), _ = finished(config(cases=("ib-7",), methods=("gcl",)), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    assert runs.load_artifact(path, runs.KIND).config["options"] == {"predictor": "fold-0"}
    case = load_case("ib-7")
    direct = methods.localize(case.subject(), case.pairs(2), "gcl")
    torch.testing.assert_close(one.scores.float(), direct.scores)
    asked = config(cases=("ib-7",), methods=("gcl",), options={"gcl": {"predictor": "default"}})
    found, (failure,) = finished(asked, tmp_path)
    assert found == []
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
    assert texts[0].startswith("ib-3, broken, seed 0: RuntimeError: out of luck (test_runs.py, li")
    assert "ib-3, empty, seed 0: ValueError: scores must be finite" in texts[1]
    assert [row.method for row in made.rows()] == ["fast"]
    assert "- failed: ib-8, broken, seed 0: RuntimeError" in made.markdown()


def test_a_failing_case_costs_only_itself(calls: Calls, tmp_path: Path) -> None:
    # One has no subject, the other no labels of the paper.
    asked = config(cases=("tb-length", "tb-first-element", "ib-3"), labels="paper", seeds=(0, 1))
    found, failures = finished(asked, tmp_path)
    assert [one.case for one in found] == ["ib-3", "ib-3"]
    assert [failure.case for failure in failures] == ["tb-length", "tb-first-element"]
    assert "build it with: graphcircuits build tb-length" in str(failures[0])
    assert "'tb-first-element' is none of the paper's" in str(failures[1])


# Judging


def test_results_are_judged_on_prompts_that_the_method_has_not_seen(tmp_path: Path) -> None:
    """And the curve is kept with them, to the last bit."""
    asked = config(cases=("ib-3",), methods=("random",), seeds=(1,))
    (one,), _ = finished(asked, tmp_path)
    case = load_case("ib-3")
    seen, unseen = (case.pairs(2, seed=seed) for seed in (1, 1 + FRESH))
    assert not torch.equal(seen.clean, unseen.clean)
    given = (case.subject(), unseen, one.scores)
    assert one.curve == faithfulness_curve(*given)
    assert len(one.curve.sizes) > len(log_sizes(110))  # more around the crossings
    (again,), _ = finished(asked, tmp_path)
    assert (again.reused, again.curve) == (True, one.curve)
    # By another measure the same scores are judged anew.
    (other,), _ = finished(replace(asked, by="loss"), tmp_path)
    assert (other.reused, other.curve) == (True, faithfulness_curve(*given, by="loss"))
    assert other.curve != one.curve


def test_a_curve_that_cannot_be_used_is_measured_again(calls: Calls, tmp_path: Path) -> None:
    """Without the method: its scores are as good as ever."""
    (first,), _ = finished(config(cases=("ib-3",)), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    found = runs.load_artifact(path, runs.KIND)
    rest = {name: value for name, value in found.meta.items() if name != "curve"}
    curve = found.meta["curve"]
    for change in (
        {},
        {"curve": 3},
        {"curve": {**curve, "judged_by": "other code"}},
        {"curve": {**curve, "faithfulness": [0.5] * 16}},
        {"curve": {**curve, "sizes": None}},
        {"curve": {**curve, "kept": ["1"] * 17}},
        {"curve": {**curve, "kept": curve["kept"][1:]}},
        {"curve": {**curve, "sizes": curve["sizes"][::-1]}},
        {"curve": {name: x if name == "judged_by" else x[1:] for name, x in curve.items()}},
    ):
        given = {"kind": runs.KIND, "config": found.config, "seed": found.seed}
        runs.save_artifact(path, **given, meta=rest | change)
        (again,), _ = finished(config(cases=("ib-3",)), tmp_path)
        assert (again.curve, again.reused, len(calls)) == (first.curve, True, 1)
        assert runs.load_artifact(path, runs.KIND).meta == found.meta


# Certificates

Asked = list[dict[str, Any]]


@pytest.fixture
def asked(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What certificates were asked of, which here cost nothing and fail in one question."""
    given: Asked = []

    def certify(subject: Transformer, pairs: Pairs, result: Result, **named: Any) -> Certificate:
        given.append({"pairs": pairs, "result": result, **named})
        return flat_certificate(result.circuit(), failing="unique", missing="complete")

    monkeypatch.setattr(runs, "certify", certify)
    return given


def test_certificates_are_kept_beside_the_curve(
    calls: Calls, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"cases": ("ib-3",), "n_pairs": 8}
    finished(config(**given), tmp_path)
    (path,) = tmp_path.rglob("*.json")
    before = path.read_bytes()
    assert "certificate" not in runs.load_artifact(path, runs.KIND).meta
    (first,), failures = finished(config(**given, certify=True), tmp_path)
    assert (first.reused, failures, len(asked)) == (False, [], 1)
    assert len(calls) == 2  # once more, since files do not hold all that a run finds
    assert first.certified["circuit_edges"] == len(asked[0]["result"].circuit())
    assert (first.certified["stable"], first.certified["stable passes"]) == (0.5, 1)
    assert (first.certified["unique passes"], first.certified["passes"]) == (0, 0)
    assert "complete" not in first.certified
    assert not {*prompt_hashes(asked[0]["fresh"])} & {*prompt_hashes(asked[0]["pairs"])}
    whole = path.read_bytes()
    (again,), _ = finished(config(**given, certify=True), tmp_path)
    assert (again.reused, again.certified, len(asked)) == (True, first.certified, 1)
    # Who does not ask leaves them as they are.
    (plain,), _ = finished(config(**given), tmp_path)
    assert (plain.certified, plain.reused, path.read_bytes()) == ({}, True, whole)
    assert before != whole
    found = runs.load_artifact(path, runs.KIND)
    about = {"kind": runs.KIND, "config": found.config, "seed": found.seed}
    for damaged in (3, {}, {**found.meta["certificate"], "judged_by": "other code"}):
        runs.save_artifact(path, **about, meta={**found.meta, "certificate": damaged})
        (mended,), _ = finished(config(**given, certify=True), tmp_path)
        assert (mended.certified, mended.curve) == (first.certified, first.curve)
    assert len(asked) == 4
    monkeypatch.setattr(runs, "CERTIFICATE_REVISION", runs.CERTIFICATE_REVISION + 1)
    finished(config(**given, certify=True), tmp_path)
    assert len(asked) == 5


def test_what_has_no_certificate_is_no_failure(asked: Asked, tmp_path: Path) -> None:
    """A floor, and pairs on which no circuit can be proposed; the others are certified."""
    given = config(
        cases=("ib-3",), methods=("edge-frequency", "fast", "edge-frequency+paths"), certify=True
    )
    made = report(given, tmp_path)
    assert (len(made.runs), made.failures) == (3, ())
    assert [*made.certified()] == ["fast"]
    assert made.certified()["fast"]["circuits"] == 1
    reason = "a floor, and no way to find circuits"
    assert made.problems() == [
        f"no certificate: {name}, 1x: {reason}"
        for name in ("edge-frequency", "edge-frequency+paths")
    ]
    assert f"\n- no certificate: edge-frequency, 1x: {reason}\n" in made.markdown()


@pytest.mark.parametrize("where", ["propose", "certify"])
def test_a_method_that_leads_to_no_circuit_is_left_out(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def refused(*args: Any, **named: Any) -> None:
        raise ValueError("it cannot be told")

    monkeypatch.setattr(runs, where, refused)
    for reused in (False, True):
        (one,), failures = finished(config(cases=("ib-3",), certify=True), tmp_path)
        assert (one.certified["left_out"], failures) == ("it cannot be told", [])
        assert one.reused == reused


def test_a_circuit_that_cannot_be_measured_has_no_certificate(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmeasured(subject: Transformer, pairs: Pairs, result: Result, **_: Any) -> Proposal:
        return Proposal(circuit=result.circuit(edges=1), best=1, problems=("all is the same",))

    monkeypatch.setattr(runs, "propose", unmeasured)
    (one,), _ = finished(config(cases=("ib-3",), certify=True), tmp_path)
    assert (one.certified["left_out"], asked) == ("all is the same", [])


def test_methods_of_ones_own_are_searched_again_by_themselves(asked: Asked, tmp_path: Path) -> None:
    def counted(subject: Transformer, pairs: Pairs, *, sign: float = 1.0) -> Tensor:
        return sign * torch.arange(subject.graph.n_edges)

    given = config(
        cases=("ib-3",),
        methods=("counted", "random"),
        functions={"counted": counted},
        options={"counted": {"sign": -1.0}},
        n_pairs=8,
        certify=True,
    )
    (own, _), failures = finished(given, tmp_path)
    assert failures == []
    assert [one["search"] is None for one in asked] == [False, True]
    case = load_case("ib-3")
    found = asked[0]["search"](case.subject(), case.pairs(8, seed=5), 7)
    assert torch.equal(found.scores.double(), own.scores)
    assert found.seed == 7
    assert len(found.circuit())


# Subjects of other fleets and architectures


def test_natural_subjects_need_no_circuit(calls: Calls, tmp_path: Path) -> None:
    """ib-18 has no published labels, which a planted subject would be refused for."""
    save_subject(tmp_path, "ib-18.natural.plain.0")
    asked = config(cases=("ib-18.natural.plain.0",), labels="paper", subjects=str(tmp_path))
    (one,), failures = finished(asked, tmp_path / "out")
    assert (one.case, failures) == ("ib-18.natural.plain.0", [])
    (path,) = (tmp_path / "out").rglob("*.json")
    assert path.name.startswith("ib-18.natural.plain.0-seed0-")


def test_graphs_are_those_of_the_subjects(calls: Calls, tmp_path: Path) -> None:
    """Where keys are shared, the true circuit has edges into groups."""
    id = "ib-3.planted.llama-gqa.0"
    subject = save_subject(tmp_path, id)
    made = report(config(cases=(id,), subjects=str(tmp_path)), tmp_path / "out")
    assert made.failures == ()
    (one,) = made.runs
    assert one.graph == subject.graph
    assert one.graph.n_edges < load_case("ib-3").graph.n_edges
    ((_, record),) = made.scores
    assert 0 <= record["auroc"] <= 1


def test_tasks_of_a_model_that_has_several(calls: Calls, tmp_path: Path) -> None:
    """One file holds the model; its tasks differ in their prompts, and in more."""
    tasks = tuple(f"mt-0@{case}" for case in multi_records()["mt-0"]["cases"])
    save_subject(tmp_path, tasks[0])
    assert [path.name for path in tmp_path.iterdir()] == ["mt-0.safetensors"]
    found, failures = finished(config(cases=tasks, subjects=str(tmp_path)), tmp_path / "out")
    assert failures == []
    assert tuple(one.case for one in found) == tasks
    assert len(set(calls)) == len(tasks)


def kept_in(folder: Path) -> dict[str, tuple[object, ...]]:
    """What a store holds but for time and memory, by file."""
    found = {path.name: runs.load_artifact(path, runs.KIND) for path in folder.rglob("*.json")}
    return {
        name: (one.config, one.seed, one.meta["scores"], one.meta["curve"])
        for name, one in found.items()
    }


@pytest.mark.slow
def test_several_processes_give_what_one_does(tmp_path: Path) -> None:
    """The same store and the same tables, and no process is left behind."""
    save_subject(tmp_path, "ib-3.natural.llama.0")
    save_subject(tmp_path, "ib-8.natural.plain.0")
    cases = ("ib-3.natural.llama.0", "ib-8.natural.plain.0", "ib-9.natural.plain.0")
    asked = config(cases=cases, methods=("random", "eap"), seeds=(0, 1), subjects=str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = Report.of(asked, run(asked, tmp_path / "one"))
    torch.set_num_threads(threads)
    together = Report.of(asked, run(asked, tmp_path / "two", runner=Processes(2)))
    assert active_children() == []
    assert kept_in(tmp_path / "two") == kept_in(tmp_path / "one")
    assert len(kept_in(tmp_path / "one")) == 8
    assert together.failures == alone.failures
    assert [failure.case for failure in alone.failures] == ["ib-9.natural.plain.0"]
    unmeasured = {"seconds": 0.0, "peak_bytes": None}
    for one, other in zip(together.rows(), alone.rows(), strict=True):
        assert replace(one, **unmeasured) == replace(other, **unmeasured)
    assert together.breakdowns() == alone.breakdowns()


def test_what_a_lost_process_costs() -> None:
    job = ("ib-3", 1, ("eap", "exact", "random"))
    (failure,), rest = runs._lost(job, 1, "its process was killed by signal 9")
    assert str(failure) == (
        "ib-3, exact, seed 1: its process was killed by signal 9; where memory was short, fewer "
        "processes need less of it"
    )
    assert rest == ("ib-3", 1, ("random",))
    assert runs._lost(job, 2, "it ended")[1] is None
    assert runs._lost(job, 3, "it ended") == ([], None)


# Configs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("fats",)}, r"unknown method 'fats'; did you mean 'fast'\?"),
        ({"methods": ()}, r"methods must be distinct, at least one, got \[\]"),
        ({"seeds": (1, 1)}, r"seeds must be distinct, at least one, got \[1, 1\]"),
        ({"labels": "x", "level": "y"}, "labels must be one of .*, got 'x'; level must be one of"),
        (
            {"cases": ("ib-3", "ib-3.natural.plain.0")},
            "all cases must be of one fleet, got natural, planted",
        ),
        ({"n_pairs": 0}, "n_pairs must be at least 1, got 0"),
        ({"options": {"eap": {}}}, "options are given for methods that do not run: eap"),
        ({"options": {"fast": {"tlit": 1}}}, "fast has no option tlit; it has: tilt"),
    ],
)
def test_bad_configs(calls: Calls, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)
