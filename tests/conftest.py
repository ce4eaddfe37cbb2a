"""One Hypothesis profile for every test (no deadlines, the same examples each time in CI), an order
that keeps a file together, cheap collections of garbage, matrix products that run on every machine,
no lines of progress and no names of tests in what commands write, a fixture that switches argument
checks off, one that takes from shipped predictors what they know, and one that runs the command."""

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import jaxtyping
import pytest
from hypothesis import settings

from tests.shell import Command, runs

if TYPE_CHECKING:
    from graphcircuits.predictor.ensemble import Ensemble

# Some virtual machines announce AMX and forbid it: PyTorch then dies of an illegal instruction in
# the first bfloat16 product. Everything below AMX is allowed; set the variable to try the rest.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

CLUSTER = Path(__file__).parent / "jobs" / "test_on_ray.py"


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests are left out, a fifth of the usual 100 examples."""
    fast = "not slow" in config.option.markexpr
    settings.register_profile(
        "graphcircuits",
        deadline=None,
        derandomize="CI" in os.environ,
        max_examples=20 if fast else 100,
    )
    settings.load_profile("graphcircuits")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that starts a Ray cluster comes first: a worker of pytest-xdist that has nothing
    left takes the last tests of another, so one worker runs the first file, with one cluster."""
    items.sort(key=lambda item: item.path != CLUSTER)


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Spares collections of garbage, and `measure` asks for many, what lives on: all the tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def alike() -> Iterator[None]:
    """Commands write no lines of progress, however slow the machine, and files record a command
    line that names no test, whichever were selected: tests read what is written."""
    from graphcircuits.commands import progress

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(progress, "FIRST", 1e6)
        patched.setattr("sys.argv", ["pytest"])
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations as users run them, not checked: for wrong arguments and for long loops."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def uninformed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped predictors without what they know of their training: nothing is familiar or
    strange, logits are no probabilities, and nothing was measured."""
    from graphcircuits.methods import shipped

    found = shipped.shipped

    @cache
    def bare(name: str) -> "Ensemble":
        whole = found(name)
        origin = {key: value for key, value in whole.origin.items() if key != "measured"}
        return replace(whole, known=None, calibration={}, origin=origin, trust=None)

    monkeypatch.setattr(shipped, "shipped", bare)


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs the entry point as a shell would, in a folder of its own."""
    from graphcircuits import cli

    monkeypatch.chdir(tmp_path)

    return runs("graphcircuits", cli.main, capsys, monkeypatch)


@pytest.fixture
def small_gpt2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named like the model on the hub, so that the words of the docs load it."""
    import torch
    import transformers

    from tests.text import byte_level, wrapped

    tokenizer = wrapped(byte_level())
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
