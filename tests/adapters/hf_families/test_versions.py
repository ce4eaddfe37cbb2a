"""Configurations as versions of `transformers` before 5 write them: the same subjects."""

from types import SimpleNamespace
from typing import Any

import pytest

from graphcircuits.adapters.hf import FAMILIES
from graphcircuits.adapters.hf_families import rotary_in
from graphcircuits.subject.layers import RotaryScaling
from tests.adapters.hf_models import LINEAR, LLAMA3, LOCAL, SIZES, make_config


def old(base: float = 10000.0, **fields: Any) -> Any:
    """A configuration without `rope_parameters`."""
    return SimpleNamespace(max_position_embeddings=16, rope_theta=base, **fields)


def test_rotary_positions_of_separate_fields() -> None:
    plain = {"positions": "rotary", "rotary_dim": 8, "rotary_base": 10000.0, "rotary_scaling": None}
    assert rotary_in(old(), 8) == plain
    assert rotary_in(old(rope_scaling=None), 8) == plain
    assert rotary_in(old(rotary_pct=0.25), 8, partial=True) == plain | {"rotary_dim": 2}
    neox = SimpleNamespace(max_position_embeddings=16, rotary_emb_base=500, rotary_pct=1.0)
    assert rotary_in(neox, 8) == plain | {"rotary_base": 500}
    with pytest.raises(ValueError, match=r"partial_rotary_factor=0\.5"):
        rotary_in(old(partial_rotary_factor=0.5), 8)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, RotaryScaling("linear", 4.0)),
        ({"rope_type": "linear", "factor": 4.0}, RotaryScaling("linear", 4.0)),
        (LLAMA3, RotaryScaling("llama3", 8.0, 1.0, 4.0, 64)),
        (
            {name: x for name, x in LLAMA3.items() if name != "original_max_position_embeddings"},
            RotaryScaling("llama3", 8.0, 1.0, 4.0, 16),
        ),
    ],
)
def test_scaling_of_separate_fields(scaling: dict[str, Any], expected: RotaryScaling) -> None:
    assert rotary_in(old(rope_scaling=scaling), 8)["rotary_scaling"] == expected


def aged(name: str, *gone: str, **fields: Any) -> Any:
    """The configuration of a model, some fields under the names of an earlier version."""
    kept = vars(make_config(name))
    return SimpleNamespace(**{x: kept[x] for x in kept if x not in gone} | fields)


@pytest.mark.parametrize(
    ("name", "earlier"),
    [
        ("qwen2-upper", aged("qwen2-upper", "layer_types", "rope_parameters", rope_theta=10000.0)),
        ("qwen3", aged("qwen3", "layer_types", "rope_parameters", rope_theta=10000.0)),
        ("gemma2", aged("gemma2", "layer_types", "rope_parameters", rope_theta=10000.0)),
        (
            "gemma3",
            aged(
                "gemma3",
                "layer_types",
                "rope_parameters",
                sliding_window_pattern=2,
                rope_theta=LINEAR["rope_theta"],
                rope_local_base_freq=LOCAL["rope_theta"],
                rope_scaling={"rope_type": "linear", "factor": LINEAR["factor"]},
            ),
        ),
    ],
)
def test_earlier_versions_give_the_same_subject(name: str, earlier: Any) -> None:
    today = make_config(name)
    family = FAMILIES[today.model_type]
    assert family.config_in(earlier) == family.config_in(today)


def test_windows_that_are_not_used_are_none() -> None:
    """Qwen 2 writes a window even where it has none."""
    config = aged("qwen2", "layer_types", sliding_window=4, use_sliding_window=False)
    assert FAMILIES["qwen2"].config_in(config)["windows"] is None
    assert config.num_hidden_layers == SIZES["num_hidden_layers"]
