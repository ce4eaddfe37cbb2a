"""One Hypothesis profile for every test (no deadlines, the same examples each time in CI), and a
fixture that switches argument checks off."""

import os
from collections.abc import Iterator

import jaxtyping
import pytest
from hypothesis import settings

# Some virtual machines announce AMX and cannot run it: there, bfloat16 products end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX10_1_512")

settings.register_profile("graphcircuits", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("graphcircuits")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations as users run them, not checked: for wrong arguments and for long loops."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
