"""One Hypothesis profile for every test (no deadlines, the same examples each time in CI), cheap
collections of garbage, and a fixture that switches argument checks off."""

import gc
import os
from collections.abc import Iterator

import jaxtyping
import pytest
from hypothesis import settings

# Some virtual machines announce AMX and cannot run it: there, bfloat16 products end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX10_1_512")


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


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Spares collections of garbage, and `measure` asks for many, what lives on: all the tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations as users run them, not checked: for wrong arguments and for long loops."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
