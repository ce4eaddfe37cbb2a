"""Frozen dataclasses from TOML files and mappings; unknown keys and wrong types are refused.

`load_config` takes a path or a mapping. `build_config` takes what a file held at some place and
accepts a mapping alone: text found in a file is never opened as a path.
"""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from graphcircuits.io.files import printable, read_toml, short

Config = TypeVar("Config")


def load_config(cls: type[Config], source: str | Path | Mapping[str, Any]) -> Config:
    """Build a dataclass from a TOML file or a mapping; all problems are reported at once."""
    if isinstance(source, Mapping):
        return build_config(cls, source)
    return build_config(cls, read_toml(source), label=str(source))


def build_config(cls: type[Config], values: object, *, label: str | None = None) -> Config:
    """Build a dataclass from a mapping, which errors call `label`, by default after the class."""
    label = label or cls.__name__
    if not isinstance(values, Mapping):
        raise ValueError(f"{label} must be a mapping of settings, got {short(values)}.")
    problems: list[str] = []
    config = _build(cls, values, "", problems)
    if problems:
        raise ValueError(printable(f"{label}: {'; '.join(problems)}."))
    return config


def _build(cls: type, values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    known = {field.name: field for field in fields(cls) if field.init}
    start = len(problems)
    unknown = [str(name) for name in values if name not in known]
    for name in unknown[:5]:
        # Names from a file may be of any length, and matching takes its square.
        near = get_close_matches(name[:50], known, n=3)
        hint = (
            f"did you mean {', '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}"
        )
        problems.append(f"unknown key '{prefix}{name}' ({hint})")
    if len(unknown) > 5:
        problems.append(f"and {len(unknown) - 5} more unknown keys")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            problems.append(f"missing key '{prefix}{name}'")
    hints = get_type_hints(cls)
    given = {
        name: _convert(hints[name], values[name], prefix + name, problems)
        for name in known
        if name in values
    }
    if len(problems) == start:
        try:
            return cls(**given)
        except ValueError as error:
            problems.append(f"{prefix.rstrip('.')}: {error}".removeprefix(": ").rstrip("."))
    return None


def _convert(hint: Any, value: Any, name: str, problems: list[str]) -> Any:
    """The value as the hinted type; a mismatch becomes a problem."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return _build(hint, value, f"{name}.", problems)
    if origin in (Union, types.UnionType):
        for option in args:
            attempt: list[str] = []
            converted = _convert(option, value, name, attempt)
            if not attempt:
                return converted
    elif origin is Literal and value in args:
        return value
    elif origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        items = args[:1] * len(value) if args[1:] == (...,) else args
        if len(items) == len(value):
            pairs = enumerate(zip(items, value, strict=True))
            return tuple(_convert(h, v, f"{name}[{i}]", problems) for i, (h, v) in pairs)
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 2**1000:  # beyond, float() overflows
            return float(value)
    elif hint is Any:
        return value
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif hint is int and isinstance(value, bool):
        pass  # True is an int to Python, and a mistake to us
    elif isinstance(value, float) and not math.isfinite(value):
        pass  # nothing can be computed with it
    elif isinstance(base := origin or hint, type) and isinstance(value, base):
        return value
    words = getattr(hint, "__name__", str(hint)) if origin is None else str(hint)
    problems.append(f"'{name}' must be {words}, got {short(value)}")
    return None
