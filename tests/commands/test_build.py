"""`graphcircuits build`: what it refuses before it starts."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphcircuits.corpus.case import Case
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
    refused(command("build", "--family", "IB"), "unknown family 'IB'; choose from ib, tb, new.")


@pytest.mark.parametrize("passed", [True, False])
def test_a_program_of_your_own_is_built(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    (tmp_path / "prog.py").write_text(
        "from graphcircuits import rasp\ndoubled = rasp.Map(lambda x: 2 * x, rasp.tokens)\n"
    )
    report = {"accuracy": 1.0, "worst_interchange": 0.9, "worst_strict": 0.8, "steps": 7}

    def build(cases: list[Case], out: Path, *_: Any, **__: Any) -> Iterator[SimpleNamespace]:
        (case,) = cases
        assert (case.id, case.vocab, case.max_seq_len, case.causal) == ("doubled", (0, 1), 4, True)
        assert case.evaluate([0, 1]) == [0, 2]
        if passed:
            out.mkdir()
            (out / "doubled.safetensors").write_text("")
        said = {"case": "a\x1b[31m", "passed": passed, **report}
        yield SimpleNamespace(id=case.id, report=said)

    monkeypatch.setattr("graphcircuits.corpus.build.build", build)
    own = ["--program", "prog.py", "--vocab", "0,1", "--max-seq-len", "4", "--causal"]
    ended = command("build", *own)
    assert ended.code == (0 if passed else 1)
    assert ended.out == f"{int(passed)} of 1 subjects in subjects\n"
    assert ("not passed: doubled" in ended.err) == (not passed)
    assert "\x1b[31m" not in ended.err
    assert f"{'passed' if passed else 'FAILED'}  accuracy 1.0000" in ended.err
    if passed:
        refused(
            command("build", *own), "subjects already holds 1 of these subjects, finished or in"
        )
