"""What all runners share: jobs here, what they take, what is sent, and the words of a command."""

import errno
import pickle
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from graphcircuits.jobs import on_ray, processes
from graphcircuits.jobs.command import driver_command, lasting, spelled_out
from graphcircuits.jobs.on_ray import OnRay
from graphcircuits.jobs.processes import Processes
from graphcircuits.jobs.runner import (
    InProcess,
    Message,
    Pending,
    Resources,
    Runner,
    messages_of,
    out_of_memory,
    runner_of,
    sendable,
)


def work(text: str) -> Iterator[str]:
    for letter in text:
        if letter == "m":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nand more")
        if letter == "?":
            raise ValueError("what was asked?")
        yield letter


def lost(text: str, given: int, what: str) -> tuple[list[str], str | None]:
    return [what], text[given + 1 :] or None


def test_jobs_are_worked_on_here_when_they_are_asked_for() -> None:
    taken = []

    def jobs() -> Iterator[str]:
        for job in ("ab", "amb", "c"):
            taken.append(job)
            yield job

    found = InProcess().run(work, jobs(), lost=lost)
    assert next(found) == "a"
    assert taken == ["ab"]
    memory = "it ran out of memory (CUDA out of memory. Tried to allocate 2 GiB)"
    assert list(found) == ["b", "a", memory, "b", "c"]
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        list(InProcess().run(work, ["m"]))
    with pytest.raises(ValueError, match="what was asked"):
        list(InProcess().run(work, ["?"], lost=lost))


def sent(job: str, known: int = 0) -> list[Message]:
    return [pickle.loads(message) for message in messages_of(work, job, known)]


def test_a_worker_keeps_to_itself_what_is_known() -> None:
    kinds = [(message.kind, message.value) for message in sent("abc", 2)]
    assert kinds == [("result", "c"), ("done", None)]
    assert [message.kind for message in sent("m")] == ["memory"]
    (message,) = sent("?")
    assert (type(message.value), str(message.value)) == (ValueError, "what was asked?")


def test_a_job_is_begun_anew_as_often_as_allowed() -> None:
    pending = Pending(["abc", "d"], lost, 1)
    first = pending.take()
    assert first is not None
    assert list(pending.receive(first, Message("result", "a"))) == ["a"]
    assert pending.retry(first, "gone") == ()
    again = pending.take()
    assert again is not None
    assert again is first
    assert again.known == 1
    assert pending.retry(again, "gone") == ["gone"]
    rest = pending.take()
    assert rest is not None
    assert (rest.job, rest.known, rest.retried) == ("c", 0, 0)
    assert (last := pending.take()) is not None
    assert last.job == "d"
    assert pending.take() is None


class _Odd(Exception):
    """Cannot be made from its text alone."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class _OddRefusal(_Odd, ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(errno.ENOSPC, "No space", "a"), OSError, "[Errno 28] No space: 'a'"),
        (_OddRefusal(1, 2), ValueError, "1 and 2"),
        (_Odd(1, 2), RuntimeError, "_Odd: 1 and 2"),
    ],
)
def test_errors_are_sent_or_their_words(error: Exception, kind: type, text: str) -> None:
    found = pickle.loads(pickle.dumps(sendable(error)))
    assert (type(found), str(found)) == (kind, text)


def test_what_counts_as_lack_of_memory() -> None:
    assert out_of_memory(MemoryError()) == "it ran out of memory (MemoryError)"
    assert out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory")) is not None
    assert out_of_memory(ValueError("out of memory")) is None
    assert out_of_memory(OSError(errno.ENOSPC, "No space left on device")) is None


def test_runners_are_chosen_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runner_of() == InProcess()
    assert runner_of(3) == Processes(3)
    assert runner_of(ray="") == OnRay(None)
    assert runner_of(ray="auto") == OnRay("auto")
    assert isinstance(runner_of(ray="head:6379"), Runner)
    with pytest.raises(ValueError, match="by processes or on Ray, not by both; give one"):
        runner_of(2, "")
    with pytest.raises(ValueError, match="there must be at least 1 process, got 0"):
        runner_of(0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"jobs on Ray need ray: pip install 'graphcircuits\[ray"):
        list(OnRay().run(work, ["a"]))


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("head", "the address must be auto or HOST:PORT of a Ray cluster, got 'head'"),
        ("head:0", "must be auto or HOST:PORT of a Ray cluster, got 'head:0'"),
        ("ray://head:10001", "the address ray://head:10001 is for Ray's client"),
    ],
)
def test_addresses_are_checked_at_once(address: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OnRay(address)


def test_where_nobody_answers_ray_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        on_ray, "_ray", lambda settings: SimpleNamespace(is_initialized=lambda: False)
    )
    text = r"no Ray cluster answers at 127.0.0.1:1 \(Connection refused\); start one with: ray"
    with pytest.raises(ConnectionError, match=text):
        list(OnRay("127.0.0.1:1").run(work, ["a"]))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConnectionError, match="no Ray cluster answers at auto"):
        list(OnRay("auto").run(work, ["a"]))


def test_resources_are_checked() -> None:
    with pytest.raises(
        ValueError,
        match=r"cpus of a job must be above 0, got 0.0; gpus of a job must be at least 0",
    ):
        Resources(cpus=0.0, gpus=-1.0)
    with pytest.raises(ValueError, match=r"gpus of a job must be a whole number beyond 1, got 1.5"):
        Resources(gpus=1.5)
    assert [Resources(cpus=x).threads for x in (0.5, 1.0, 2.5)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("n", "gpus", "named", "expected"),
    [
        (3, 0.0, None, [None, None, None]),
        (8, 1.0, None, ["0", "1", "2"]),
        (2, 1.0, "5,6,7", ["5", "6"]),
        (8, 2.0, None, ["0,1"]),
        (8, 0.5, None, ["0", "1", "2", "0", "1", "2"]),
    ],
)
def test_processes_share_out_the_cards(
    monkeypatch: pytest.MonkeyPatch,
    n: int,
    gpus: float,
    named: str | None,
    expected: list[str | None],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert processes._cards(n, gpus) == expected


def test_where_there_is_no_card_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="a job wants 1 GPUs, and PyTorch finds 0 here"):
        list(Processes(2).run(work, ["a"], resources=Resources(gpus=1.0)))


@pytest.mark.parametrize(
    ("words", "kept", "spelled"),
    [
        ("build ib-3 --ray --seed 5", "build ib-3 --seed 5", "build ib-3 --ray= --seed 5"),
        ("build --ray ib-3", "build ib-3", "build --ray= ib-3"),
        ("build --ray auto ib-3", "build ib-3", "build --ray=auto ib-3"),
        ("bench --ray=h:1 --json", "bench", "bench --ray=h:1 --json"),
        ("bench --ray h:1", "bench", "bench --ray=h:1"),
        ("bench --json --ray", "bench", "bench --json --ray="),
        (
            "build ib-3 --minutes 5 --seed 5 --processes=2",
            "build ib-3 --seed 5",
            "build ib-3 --minutes 5 --seed 5 --processes=2",
        ),
    ],
)
def test_only_words_that_shape_what_is_made_are_recorded(
    monkeypatch: pytest.MonkeyPatch, words: str, kept: str, spelled: str
) -> None:
    assert " ".join(spelled_out(words.split())) == spelled
    assert " ".join(lasting(words.split())) == kept
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/graphcircuits", *words.split()])
    assert driver_command() == f"graphcircuits {kept}"
