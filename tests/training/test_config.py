"""Settings by the names that users give them."""

from pathlib import Path

import pytest

from graphcircuits.training.config import TrainConfig, settings_of, shipped_recipe


def test_the_shipped_recipe_has_a_name(tmp_path: Path) -> None:
    """Whatever file has that name; what is given beside it counts."""
    assert settings_of() == TrainConfig()
    assert settings_of("shipped") == shipped_recipe()
    found = settings_of("shipped", steps=7, objective={"labels": 2.0})
    assert (found.steps, found.label_weight, found.faithfulness_weight) == (7, 2.0, 0.0)
    assert found.predictor == shipped_recipe().predictor
    assert settings_of(found, steps=8).label_weight == 2.0
    path = tmp_path / "shipped"
    path.write_text("steps = 3")
    assert settings_of(path).steps == 3
    with pytest.raises(ValueError, match="objectives are labels, faithfulness, distill, each with"):
        settings_of(objective={"truth": 1.0})
