"""Choosing by cross-validation: scores by hand and by a slow twin, ties, what is not finished."""

import random
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from graphcircuits.cases.relations import POOLS, pool_cases
from graphcircuits.io.config import load_config
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.training.config import TrainConfig
from lab.paper.selection import History, Selection, score, select, to_toml
from tests.predictor.cases import training

# Two groups in fold 0, one in fold 1.
GROUPS = {"a": "a", "b": "a", "c": "c", "d": "d", "e": "d"}


def test_folds_weigh_by_their_groups() -> None:
    histories = {
        0: {
            10: {"a": 0.5, "b": 1.0, "c": 0.75},
            20: {"a": 1.0, "b": 1.0, "c": 1.0},
            30: {"a": 0.0, "b": 0.0, "c": 0.0},
        },
        1: {10: {"d": 0.5, "e": 0.75}, 20: {"d": 0.0, "e": 0.25}},
    }
    # Means of 3/4 and 5/8, then of 1 and 1/8, at two to one; step 30 is not in every fold.
    assert score(histories, GROUPS) == {10: Fraction(17, 24), 20: Fraction(17, 24)}
    assert score({1: histories[1]}, GROUPS) == {10: Fraction(5, 8), 20: Fraction(1, 8)}


@pytest.mark.parametrize("pool", POOLS)
def test_real_folds_have_the_weights_of_their_pool(pool: str) -> None:
    """A fold at one, all others at nothing, shows its share of the groups."""
    cases = pool_cases(pool)
    groups = {case.id: case.group for case in cases}
    for fold in range(5):
        histories = {
            other: {5: {case.id: float(other == fold) for case in cases if case.fold == other}}
            for other in range(5)
        }
        own = {case.group for case in cases if case.fold == fold}
        # No group is in two folds.
        assert score(histories, groups)[5] == Fraction(len(own), len(set(groups.values())))


def brute_force(
    histories: Mapping[str, Mapping[int, History]], groups: Mapping[str, str], folds: list[int]
) -> tuple[str, int, Fraction, int] | None:
    """Every setting and step, one number at a time."""
    candidates = []
    eligible = 0
    for place, (name, own) in enumerate(histories.items()):
        if any(fold not in own for fold in folds):
            continue
        eligible += 1
        for step in range(100):
            total, weight = Fraction(0), 0
            for fold in folds:
                if step not in own[fold]:
                    break
                values = own[fold][step]
                n_groups = len({groups[case] for case in values})
                total += n_groups * sum(map(Fraction, values.values())) / len(values)
                weight += n_groups
            else:
                candidates.append((-total / weight, step, place, name))
    if not candidates:
        return None
    best = min(candidates)
    return best[3], best[1], -best[0], eligible


def test_the_choice_is_that_of_a_slow_twin() -> None:
    """Scores of few values tie often; folds miss steps, and settings folds."""
    rng = random.Random(0)
    ties, nothing = 0, 0
    for _ in range(300):
        folds = list(range(rng.choice([1, 2, 3])))
        cases = {fold: [f"{fold}-{n}" for n in range(rng.randint(1, 4))] for fold in folds}
        groups = {case: f"{case[0]}-{rng.randint(0, 2)}" for own in cases.values() for case in own}
        histories = {
            f"setting-{n}": {
                fold: {
                    step: {case: rng.randint(0, 2) / 2 for case in cases[fold]}
                    for step in (5, 10, 15)
                    if rng.random() < 0.8
                }
                for fold in folds
                if rng.random() < 0.9
            }
            for n in range(rng.randint(1, 4))
        }
        # A training that has finished has measured something.
        for own in histories.values():
            for fold in [fold for fold, history in own.items() if not history]:
                del own[fold]
        scores = {
            name: score(own, groups) if set(own) == set(folds) else None
            for name, own in histories.items()
        }
        expected = brute_force(histories, groups, folds)
        found = select(scores)
        if expected is None:
            nothing += 1
            assert found is None
            continue
        assert found is not None
        assert (found.setting, found.step, found.eligible) == (
            expected[0],
            expected[1],
            expected[3],
        )
        assert found.score == float(expected[2])
        assert found.settings == len(histories)
        values = [value for own in scores.values() if own for value in own.values()]
        ties += values.count(expected[2]) > 1
    assert ties > 50
    assert nothing > 10


def test_the_earlier_step_wins_among_equals_then_the_earlier_setting() -> None:
    high, low = Fraction(9, 10), Fraction(7, 10)
    scores = {
        "one": {25: low, 50: high},
        "two": {25: high, 50: low},
        "three": {25: high, 75: high},
        "four": None,
    }
    assert select(scores) == Selection(setting="two", step=25, score=0.9, eligible=3, settings=4)
    assert select({"four": None}) is None


def test_equal_means_are_equal_in_any_order_of_the_cases() -> None:
    """As floats, 0.1 + 0.2 + 0.3 depends on the order; `sum` hides it from Python 3.12 on."""
    values = [0.1, 0.2, 0.3]
    assert (values[0] + values[1]) + values[2] != (values[2] + values[1]) + values[0]
    groups = dict.fromkeys("abc", "a")
    one = score({0: {5: dict(zip("abc", values, strict=True))}}, groups)
    other = score({0: {5: dict(zip("abc", reversed(values), strict=True))}}, groups)
    assert one == other


def test_a_choice_is_a_file_that_can_be_trained_from(tmp_path: Path) -> None:
    own = PredictorConfig(learner="factorized", width=64, dropout=0.25, connectivity="none")
    configs = [TrainConfig(), training(own, lr=1e-5, stop=3, batch=2, labels="complete")]
    for config in configs:
        assert load_config(TrainConfig, tomllib.loads(to_toml(config))) == config
    path = tmp_path / "choice.toml"
    path.write_text(to_toml(configs[1]))
    assert load_config(TrainConfig, path) == configs[1]
    assert 'learner = "factorized"' in path.read_text()
