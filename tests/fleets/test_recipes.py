"""What the fleets are trained for, and settings that are refused."""

import pytest

from graphcircuits.fleets.recipes import FLEETS, SiitConfig, recipe


def test_fleets_differ_in_what_they_are_trained_for() -> None:
    assert recipe("planted") == SiitConfig()
    made = {fleet: recipe(fleet) for fleet in FLEETS}
    assert [(one.patches, one.cuts) for one in made.values()] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert (made["natural"].steps, made["natural"].enough_accuracy) == (3000, 0.995)
    assert all(one.behaviour_weight == 1 for one in made.values())


def test_a_name_that_is_not_a_fleets_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown fleet 'wild'; there are planted, public, natur"):
        recipe("wild")


@pytest.mark.parametrize("name", ["steps", "cut_rows", "check_every", "check_rows"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        SiitConfig(**{name: 0})
    with pytest.raises(ValueError, match="rows must be at least 2, got 1"):
        SiitConfig(rows=1)


def test_shares_must_be_shares() -> None:
    with pytest.raises(ValueError, match=r"dropout must be at least 0 and below 1, got 1\.0"):
        SiitConfig(dropout=1.0)
    with pytest.raises(ValueError, match=r"weight_decay must not be negative, got -0\.1"):
        SiitConfig(weight_decay=-0.1)
