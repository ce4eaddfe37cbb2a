"""Finished jobs in a folder: who may work on what, drivers that are no more, and full disks."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from graphcircuits.io.disk import HOST
from graphcircuits.io.files import write_json
from graphcircuits.jobs import store as module
from graphcircuits.jobs.runner import InProcess
from graphcircuits.jobs.store import JobStore, run_missing


def work(folder: Path, bundle: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Squares, of which 13 has none."""
    for id, number in bundle.items():
        if number == 13:
            raise MemoryError("too large")
        write_json(JobStore(folder).path(id), number**2)
        yield id, number**2


def lost(bundle: Mapping[str, int], given: int, what: str) -> tuple[list[tuple[str, int]], None]:
    return [(id, -1) for id in list(bundle)[given:]], None


def claim_of(store: JobStore, id: str) -> Path:
    return store.folder / ".claims" / f"{id}.json"


def forge(store: JobStore, id: str, *, host: str, pid: int, since: str | None, age: float) -> None:
    """A claim of somebody else, whose heart beat last so many seconds ago."""
    path = claim_of(store, id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"nonce": "old", "host": host, "pid": pid, "since": since}))
    os.utime(path, (time.time() - age, time.time() - age))


def ended() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_job_is_claimed_once_and_again_when_it_is_released(tmp_path: Path) -> None:
    store, other = JobStore(tmp_path), JobStore(tmp_path)
    with store.claim("a") or pytest.fail("nobody has it"):
        assert other.claim("a") is None
        assert other.claimed("a")
        assert not other.claimed("b")
        with other.claim("b") or pytest.fail("nobody has it"):
            pass
    assert not other.claimed("a")
    assert other.claim("a") is not None


@pytest.mark.parametrize(
    ("host", "living", "since", "age", "free"),
    [
        (HOST, True, "ours", 1000.0, False),  # its heart need not beat where it can be seen
        (HOST, True, "another", 0.0, True),  # the number is used again
        (HOST, False, None, 0.0, True),
        ("elsewhere", False, None, 0.0, False),
        ("elsewhere", True, None, 61.0, True),
    ],
)
def test_claims_hold_as_long_as_their_drivers_live(
    tmp_path: Path, host: str, living: bool, since: str | None, age: float, free: bool
) -> None:
    store = JobStore(tmp_path, patience=60.0)
    pid = os.getpid() if living else ended()
    began = module._since(pid) if since == "ours" else since
    forge(store, "a", host=host, pid=pid, since=began, age=age)
    assert store.claimed("a") is not free
    claim = store.claim("a")
    assert (claim is not None) is free
    found = json.loads(claim_of(store, "a").read_text())
    assert (found["nonce"] != "old") is free
    if claim is not None:
        claim.release()
    # No marker stays behind.
    assert len(list((tmp_path / ".claims").iterdir())) == (not free)


def test_an_abandoned_claim_is_taken_over_by_one_alone(tmp_path: Path) -> None:
    store = JobStore(tmp_path, patience=60.0)
    forge(store, "a", host="elsewhere", pid=1, since=None, age=100.0)
    marker = claim_of(store, "a").with_suffix(".old.over")
    marker.write_text(json.dumps(module._about("somebody")))
    assert store.claim("a") is None, "somebody is about to take it"
    marker.write_text(json.dumps({**module._about("somebody"), "pid": ended()}))
    assert store.claim("a") is None
    assert store.claim("a") is not None, "who was about to take it is no more"


def test_who_was_slow_finds_another_claim(tmp_path: Path) -> None:
    store = JobStore(tmp_path, patience=60.0)
    forge(store, "a", host="elsewhere", pid=1, since=None, age=100.0)
    seen = module._read(claim_of(store, "a"))
    quick = store.claim("a")
    assert quick is not None
    assert not store._take_over(claim_of(store, "a"), seen, "slow")
    # And a driver that was held for dead does not take away the claim of its heir.
    module.Claim(store, "a", claim_of(store, "a"), "old").release()
    assert store.claimed("a")


def test_a_heart_beats(tmp_path: Path) -> None:
    store = JobStore(tmp_path, patience=0.06)
    claim = store.claim("a")
    assert claim is not None
    path = claim_of(store, "a")
    os.utime(path, (0, 0))
    end = time.monotonic() + 5
    while path.stat().st_mtime == 0 and time.monotonic() < end:
        time.sleep(0.005)
    assert path.stat().st_mtime > 0
    claim.release()


def test_a_full_disk_leaves_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(held: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = JobStore(tmp_path)
    monkeypatch.setattr(module.os, "write", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.json'"):
        store.claim("a")
    assert not claim_of(store, "a").exists()


def test_ids_are_names_of_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'\.\./a' cannot name a job: expected letters, digits"):
        JobStore(tmp_path).path("../a")
    assert JobStore(tmp_path, ".safetensors").path("a.b-3").name == "a.b-3.safetensors"


def test_what_is_missing_is_made_and_nothing_else(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    write_json(store.path("b"), 0)
    bundles = [{"a": 1, "b": 2}, {"c": 3, "x": 13, "d": 4}]
    found = list(run_missing(store, InProcess(), partial(work, tmp_path), bundles, lost=lost))
    assert found == [("a", 1), ("c", 9), ("x", -1), ("d", -1)]
    assert store.done("abcxd") == {"a", "b", "c"}
    assert json.loads(store.path("b").read_text()) == 0
    assert list((tmp_path / ".claims").iterdir()) == []


def test_what_another_driver_leaves_undone_is_done(tmp_path: Path) -> None:
    store, other = JobStore(tmp_path), JobStore(tmp_path)
    theirs = {id: other.claim(id) for id in "ab"}
    bundles = [{"a": 1}, {"b": 2}, {"c": 3}]
    found = run_missing(store, InProcess(), partial(work, tmp_path), bundles, poll=0.01)
    assert next(found) == ("c", 9)
    for id, claim in theirs.items():
        assert claim is not None
        if id == "a":
            write_json(store.path(id), 100)
        claim.release()
    assert list(found) == [("b", 4)]
    assert json.loads(store.path("a").read_text()) == 100


def test_whoever_stops_lets_go_of_what_was_claimed(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    with pytest.raises(MemoryError):
        list(run_missing(store, InProcess(), partial(work, tmp_path), [{"x": 13}]))
    assert not store.claimed("x")


def test_claims_that_the_dead_left_on_finished_jobs_are_removed(tmp_path: Path) -> None:
    """Workers may outlive their driver, and finish what it claimed."""
    store = JobStore(tmp_path)
    for id in ("finished", "undone"):
        forge(store, id, host=HOST, pid=ended(), since=None, age=0.0)
    store.path("finished").write_text("{}")
    held = store.claim("held")
    assert held is not None
    store.path("held").write_text("{}")
    JobStore(tmp_path).tidy(["finished", "undone", "held", "never"])
    assert not claim_of(store, "finished").exists()
    assert claim_of(store, "undone").exists()
    assert claim_of(store, "held").exists(), "its driver lives"
    held.release()
