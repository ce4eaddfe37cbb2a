"""Ctrl-C: held back until a step is done, kept, said how to go on, and gone on with to the same
end. Signals are real ones, sent to this very process at a moment of the test's choosing."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphcircuits.cases.orders import Order
from graphcircuits.commands.progress import deferred, terminable
from graphcircuits.io.store import load_artifact
from graphcircuits.methods import refine
from graphcircuits.training import members
from tests.shell import Command


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """As in a shell: whoever runs the tests in the background has Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


# Holding back


def test_the_first_interrupt_waits_for_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    steps = []

    def work() -> None:
        with deferred() as interruption:
            for step in range(5):
                if step == 2:
                    press()
                    assert interruption.asked
                steps.append(step)
                interruption.check()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [0, 1, 2]
    said = "interrupted: this step is finished first; once more ends it at once.\n"
    assert capsys.readouterr().err == said


def test_the_second_interrupt_does_not_wait() -> None:
    reached = []

    def work() -> None:
        with deferred() as interruption:
            interruption.check()
            press()
            reached.append(1)
            press()
            reached.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == [1]


def test_without_steps_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(KeyboardInterrupt), deferred() as interruption:
        press()
    assert not interruption.asked


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred() as interruption:
        interruption.check()
        press()
    assert not interruption.asked
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_hold_nothing_back() -> None:
    found = []

    def work() -> None:
        with deferred() as interruption, terminable():
            interruption.check()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_a_request_to_end_is_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), terminable():
        press(signal.SIGTERM)
    with terminable(), deferred() as interruption:
        interruption.check()
        press(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    # Somebody else's handler stays.
    signal.signal(signal.SIGTERM, own := lambda *_: None)
    with terminable():
        assert signal.getsignal(signal.SIGTERM) is own
    signal.signal(signal.SIGTERM, before)


# Commands


def pressing(function: Callable[..., Any], *calls: int, number: int = signal.SIGINT) -> Any:
    """The function, with Ctrl-C in these of its calls, before anything else happens there."""
    count = 0

    def called(*args: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count in calls:
            press(number)
        return function(*args, **named)

    return called


SETTINGS = """
steps = 7
every = 3
views = 1
pairs = 4
batch = 0
average = 0.9
keep = "best"
[predictor]
width = 8
layers = 1
"""


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_training_keeps_the_very_step_and_ends_as_if_unbroken(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted thrice: between validations, in the second seed, and by a request to end."""
    (tmp_path / "small.toml").write_text(SETTINGS)
    given = ["train", "--cases", "ib-7,ib-2", "--config", "small.toml", "--validation-fold", "4"]
    given += ["--seeds", "2", "--out", "mine.safetensors"]
    assert command(*given).code == 0
    whole = Path("mine.safetensors").rename("whole.safetensors")
    step = members._OnExamples.backward
    for call, number, kept in (
        (2, signal.SIGINT, {0: 2}),
        (7, signal.SIGINT, {0: 7, 1: 2}),
        (3, signal.SIGTERM, {0: 7, 1: 5}),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(members._OnExamples, "backward", pressing(step, call, number=number))
            stopped = command(*given)
        assert (stopped.code, stopped.out) == (130, "")
        assert stopped.err.splitlines() == [
            "interrupted: this step is finished first; once more ends it at once.",
            "interrupted: the same command goes on from mine.checkpoints.",
        ]
        found = {
            seed: load_artifact(path, "predictor-checkpoint").meta["step"]
            for seed in range(2)
            if (path := Path(f"mine.checkpoints/seed{seed}.safetensors")).exists()
        }
        assert found == kept
    assert command(*given).code == 0
    assert Path("mine.safetensors").read_bytes() == whole.read_bytes()
    assert not Path("mine.checkpoints").exists()


def test_build_says_how_to_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def building(orders: list[Order], out: Path, *_: Any, progress: Any, **__: Any) -> Any:
        out.mkdir()
        (out / f"{orders[0].id}.safetensors").write_text("")
        yield SimpleNamespace(
            id=orders[0].id, passed=True, report={"passed": True, "accuracy": 1.0, "steps": 5}
        )
        progress(5, 0, 1)
        press()
        progress(10, 0, 1)

    monkeypatch.setattr("graphcircuits.cases.build.build", building)
    ended = command("build", "ib-3", "ib-4")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[1:] == [
        "interrupted: this step is finished first; once more ends it at once.",
        "interrupted: 1 of 2 subjects are in subjects; the same command trains the others anew.",
    ]


@pytest.mark.usefixtures("unchecked")
def test_refining_ends_with_what_it_reached(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["localize", "ib-3", "--method", "random", "--pairs", "4", "--refine-steps", "6"]
    monkeypatch.setattr(refine, "advance", pressing(refine.advance, 3))
    stopped = command(*given, "--json")
    assert stopped.code == 130
    assert "refined in 3 steps and then stopped" in stopped.out
    said = "interrupted: the scores are as far as they were refined."
    assert stopped.err.splitlines()[-1] == said


@pytest.mark.usefixtures("unchecked")
def test_a_method_that_is_interrupted_gives_nothing(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in its last step, after which nobody asks."""
    given = ["localize", "ib-3", "--method", "edge-pruning", "--pairs", "4", "--option", "steps=3"]
    for calls in ((2,), (3,)):
        with monkeypatch.context() as patched:
            patched.setattr(torch.optim.Adam, "step", pressing(torch.optim.Adam.step, *calls))
            stopped = command(*given)
        assert (stopped.code, stopped.out) == (130, "")
