"""`graphcircuits build`: what it refuses before it starts."""

from pathlib import Path

import pytest

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
