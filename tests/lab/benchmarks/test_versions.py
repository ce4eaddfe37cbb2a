"""The lower bounds that are tried are those of pyproject.toml, derived and not typed."""

import tomllib
from typing import Any

import pytest

from lab import ROOT
from lab.benchmarks.versions import lower_bounds, pins, user_extras

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def project(*dependencies: str, **extras: list[str]) -> dict[str, Any]:
    return {"dependencies": list(dependencies), "optional-dependencies": extras}


def test_bounds_are_read_from_what_is_demanded() -> None:
    given = project(
        "numpy>=1.26", "Torch_Geometric >= 2", x=["numpy>=1.26,<3"], dev=["graphcircuits[x]", "y"]
    )
    assert lower_bounds(given) == {"numpy": "1.26", "torch-geometric": "2"}
    assert user_extras(given) == ["x"]
    assert pins("lowest", given, ROOT) == "numpy==1.26\ntorch-geometric==2\n"
    assert pins("pinned", given, ROOT) == (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert pins("newest", given, ROOT) == ""


@pytest.mark.parametrize(
    "given",
    [project("numpy"), project("numpy<3"), project("numpy>=1", x=["numpy>=2"])],
)
def test_a_bound_that_is_missing_or_disputed_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"numpy.* must have one lower bound, the same everywhere"):
        lower_bounds(given)


def test_everything_that_users_install_has_a_bound_and_is_pinned_at_or_above_it() -> None:
    from packaging.version import Version

    bounds = lower_bounds(PROJECT)
    assert {"numpy", "torch", "transformers", "matplotlib", "ray"} <= bounds.keys()
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for name, bound in bounds.items():
        assert Version(pinned[name]) >= Version(bound)
