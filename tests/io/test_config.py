"""Configurations: from TOML and mappings, with every problem named, and from nothing else."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from graphcircuits.io.config import build_config, load_config
from graphcircuits.io.files import StoreError


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    rate: float = 0.1
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate must be above 0, got {self.rate}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    layers: int
    inner: Inner = field(default_factory=Inner)
    sizes: tuple[int, ...] = ()
    span: tuple[float, float] = (0, 1)
    name: str | None = None
    folder: Path | None = None
    flag: bool = False
    more: dict[str, Any] = field(default_factory=dict)


def test_config_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "outer.toml"
    path.write_text(
        'layers = 3\nsizes = [1, 2]\nspan = [0, 2]\nname = "x"\nflag = true\nfolder = "runs"\n'
        '[inner]\nrate = 1\nkind = "b"\n[more]\nfree = 1\n'
    )
    config = load_config(Outer, path)
    assert config == Outer(
        layers=3,
        inner=Inner(rate=1.0, kind="b"),
        sizes=(1, 2),
        span=(0.0, 2.0),
        name="x",
        folder=Path("runs"),
        flag=True,
        more={"free": 1},
    )
    assert isinstance(config.inner.rate, float)
    assert load_config(Outer, {"layers": 1}) == Outer(layers=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer": 1}, r"unknown key 'layer' \(did you mean 'layers'\?\); missing key 'layers'"),
        ({"layers": 1, "zzz": 1}, r"unknown key 'zzz' \(known: layers, inner, sizes, span"),
        ({"layers": "3"}, "'layers' must be int, got '3'"),
        ({"layers": True}, "'layers' must be int, got True"),
        ({"layers": 1, "flag": 1}, "'flag' must be bool, got 1"),
        ({"layers": 1, "name": 2}, r"'name' must be str \| None, got 2"),
        ({"layers": 1, "sizes": [1, "x"]}, r"'sizes\[1\]' must be int, got 'x'"),
        ({"layers": 1, "span": [1]}, r"'span' must be tuple\[float, float\], got \[1\]"),
        ({"layers": 1, "inner": 3}, "'inner' must be Inner, got 3"),
        ({"layers": 1, "inner": {"kind": "c"}}, r"'inner.kind' must be .*'a', 'b'.*, got 'c'"),
        ({"layers": 1, "inner": {"rat": 1}}, r"unknown key 'inner.rat' \(did you mean 'rate'"),
        ({"layers": 1, "inner": {"rate": 0}}, r"^Outer: inner: rate must be above 0, got 0.0\.$"),
        ({"layers": "3", "flag": 1}, "'layers' must be int, got '3'; 'flag' must be bool, got 1"),
    ],
)
def test_config_problems_are_all_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(Outer, values)


def test_config_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "outer.toml"
    path.write_text("layers = ")
    with pytest.raises(StoreError, match=r"outer\.toml is not TOML: Invalid value"):
        load_config(Outer, path)


@pytest.mark.parametrize("values", ["/dev/zero", "outer.toml", None, 3, [1], Path("outer.toml")])
def test_only_a_mapping_is_built(values: Any) -> None:
    with pytest.raises(ValueError, match="Outer must be a mapping of settings, got "):
        build_config(Outer, values)


def test_many_unknown_keys_are_counted() -> None:
    with pytest.raises(ValueError, match=r"unknown key '4' \(.*; and 995 more unknown keys"):
        build_config(Outer, {"layers": 1} | {str(number): 0 for number in range(1000)})


def test_names_and_values_are_escaped() -> None:
    with pytest.raises(ValueError, match="unknown key") as caught:
        build_config(Outer, {"layers": "\x1b[2J", "\x1b[3J": 1})
    assert r"unknown key '\x1b[3J'" in str(caught.value)
    assert r"'layers' must be int, got '\x1b[2J'" in str(caught.value)


def test_numbers_too_large_for_a_float() -> None:
    with pytest.raises(ValueError, match=r"'span\[1\]' must be float, got 1000"):
        build_config(Outer, {"layers": 1, "span": [0, 10**400]})
