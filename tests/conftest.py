"""One Hypothesis profile for every test (no deadlines, the same examples each time in CI), a
fixture that switches argument checks off, and matrix products that run on every machine."""

import os
from collections.abc import Iterator

import jaxtyping
import pytest
from hypothesis import settings

# Some virtual machines announce AMX and forbid it: PyTorch then dies of an illegal instruction in
# the first bfloat16 product. Everything below AMX is allowed; set the variable to try the rest.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

settings.register_profile("graphcircuits", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("graphcircuits")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations as users run them, not checked: for wrong arguments and for long loops."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
