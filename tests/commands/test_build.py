"""`graphcircuits build`: what it refuses before it starts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphcircuits.cases.build import BuildConfig
from graphcircuits.cases.case import Case
from graphcircuits.cases.orders import Order
from graphcircuits.fleets.recipes import recipe
from tests.shell import Command, refused


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--device", "foo"], "--device must be cpu, cuda or cuda:NUMBER, got 'foo'."),
        (["--device", "cuda"], "--device cuda was asked for, but PyTorch finds no GPU here."),
        (
            ["--steps", "0", "--rows", "1"],
            "--steps must be at least 1, got 0; --rows must be at",
        ),
        (["--lr", "0"], "--lr must be above 0, got 0"),
        (["--lr", "nan"], "--lr must be a finite number, got nan."),
        (["--strict-weight", "-1"], "--strict-weight must be at least 0, got -1"),
        (["--edge-weight", "inf"], "--edge-weight must be a finite number, got inf."),
        (["--seed", "-1"], "--seed must be in 0..4294967295, got -1."),
        (["--widen", "0"], "--widen must be above 0, got 0"),
        (["--widen", "1e9"], "--widen must be in 0..64.0, got 1000000000.0."),
        (["--minutes", "-1"], "--minutes must be at least 0, got -1"),
        (["--processes", "0"], "--processes must be in 1..1024, got 0."),
        (["--out", "file"], "file is not a folder."),
        (["--family", "ib"], "give cases or --family, not both."),
        (["--program", "a.py"], "give cases, --family or --program, not several of them."),
        (["--vocab", "a"], "--vocab, --max-seq-len and --causal go with --program."),
        (["IB-4"], "unknown case 'IB-4'; did you mean ib-4 ("),
        (["--fleet", "wild"], "--fleet must be one of planted, public, natural, got 'wild'."),
        (
            ["--architecture", "gpt2,bert"],
            "--architecture must be one of plain, relu, rotary, gpt2, neox, llama, llama-gqa, rms, "
            "got 'bert'.",
        ),
        (["--architecture", "rms, rms"], "--architecture names rms twice."),
        (
            ["--fleet", "natural", "--strict-weight", "1", "--edge-weight", "1"],
            "--strict-weight goes with --fleet planted or public; --edge-weight goes with --fleet "
            "planted.",
        ),
        (["--fleet", "public", "--edge-weight", "1"], "--edge-weight goes with --fleet planted."),
        (["mt-0@ib-8"], "mt-0@ib-8 is one task of the model mt-0; build mt-0."),
    ],
)
def test_refusals(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    text: str,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "file").write_text("")
    refused(command("build", "ib-3", *given), text)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_program_needs_its_vocabulary(command: Command) -> None:
    refused(
        command("build", "--program", "a.py"), "your own program needs --vocab and --max-seq-len"
    )
    refused(command("build", "--family", "plm"), "--family must be one of ib, tb, new, got 'plm'")
    made = "python -m lab.factory planted DIR --models plm-3"
    for id in ("plm-3", "plm-3@sort"):
        refused(command("build", id), f"plm-3 is a planted language model; such models are made in "
                f"a clone of the repository: {made}")  # fmt: skip


@pytest.mark.parametrize("passed", [True, False])
def test_a_program_of_your_own_is_built(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    (tmp_path / "prog.py").write_text(
        "from graphcircuits import rasp\ndoubled = rasp.Map(lambda x: 2 * x, rasp.tokens)\n"
    )
    report = {"accuracy": 1.0, "worst_interchange": 0.9, "worst_strict": 0.8, "steps": 7}

    def build(
        orders: list[Order], out: Path, config: BuildConfig, *, cases: list[Case], **_: Any
    ) -> Iterator[SimpleNamespace]:
        assert orders == [Order("doubled")]
        assert config.siit == recipe("planted")
        (case,) = cases
        assert (case.id, case.vocab, case.max_seq_len, case.causal) == ("doubled", (0, 1), 4, True)
        assert case.evaluate([0, 1]) == [0, 2]
        if passed:
            out.mkdir(exist_ok=True)
            (out / "doubled.safetensors").write_text("")
        said = {"passed": passed, **report}
        yield SimpleNamespace(id=f"{case.id}\x1b[31m", passed=passed, report=said)

    monkeypatch.setattr("graphcircuits.cases.build.build", build)
    own = ["--program", "prog.py", "--vocab", "0,1", "--max-seq-len", "4", "--causal"]
    ended = command("build", *own)
    assert ended.code == (0 if passed else 1)
    assert ended.out == f"{int(passed)} of 1 subjects in subjects\n"
    assert ("not passed: doubled" in ended.err) == (not passed)
    assert "\x1b[31m" not in ended.err
    assert "interchange 0.9000  strict 0.8000  7 steps" in ended.err
    assert f"{'passed' if passed else 'FAILED'}  accuracy 1.0000" in ended.err
    if passed:
        again = command("build", *own)
        assert (again.code, again.out) == (0, "1 of 1 subjects in subjects\n")
        assert "subjects holds 1 of these subjects, such as doubled: they stay as they" in again.err


def test_every_case_is_built_in_every_architecture_by_the_recipe(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was typed replaces what the recipe says, and nothing else."""
    seen: list[Any] = []

    def build(orders: list[Order], out: Path, config: BuildConfig, **_: Any) -> Iterator[Any]:
        seen.extend([[order.id for order in orders], config])
        out.mkdir()
        for order in orders:
            (out / f"{order.id}.safetensors").write_text("")
            report = {"passed": True, "accuracy": 1.0, "loss": 0.5, "steps": 7}
            yield SimpleNamespace(id=order.id, passed=True, report=report)

    monkeypatch.setattr("graphcircuits.cases.build.build", build)
    words = ["--fleet", "natural", "--architecture", "gpt2, llama", "--seed", "2", "--steps", "9"]
    ended = command("build", "ib-3", "rnd-3", *words)
    assert (ended.code, ended.out) == (0, "4 of 4 subjects in subjects\n")
    ids, config = seen
    assert ids == [f"{case}.natural.{a}.2" for case in ("ib-3", "rnd-3") for a in ("gpt2", "llama")]
    assert config.siit == replace(recipe("natural"), steps=9)
    assert "rnd-3.natural.llama.2        passed  accuracy 1.0000  loss 0.5000  7 steps" in ended.err
