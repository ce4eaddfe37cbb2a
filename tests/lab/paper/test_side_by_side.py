"""Predictors side by side: each is what it is alone, whatever stands beside it and behind it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.predictor.measure.features import Features
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.predictor.paper.align import TabpfnAligner
from graphcircuits.predictor.paper.pool import DeepSets
from graphcircuits.predictor.paper.transform import (
    TRANSFORMATIONS,
    Neighbourhoods,
    neighbourhoods,
    sum_over_predecessors,
    sum_over_successors,
)
from lab.paper.side_by_side import StackedTables, StackedVectors, pooled, stacked_logits
from lab.paper.stacked import of_run
from lab.paper.stacked_layers import normalized_by_matrices, stacked
from lab.paper.vectors import WIDTHS, vector_lists
from tests.predictor.cases import AT_THE_CLEAN_RUN, make_reading, small
from tests.predictor.graphs import seeded
from tests.subjects import make_subject
from tests.tiers import some

CONFIGURATIONS = [
    {"learner": "dirgnn"},
    {"learner": "dagformer", "transformation": "incidence"},
    {"learner": "factorized", "connectivity": "complete"},
    {"learner": "factorized", "transformation": "incidence", "connectivity": "none"},
    {"learner": "factorized"},
]


def make_predictors(config: PredictorConfig, n: int = 3) -> list[Predictor]:
    return [Predictor(config, generator=seeded(seed)).double().eval() for seed in range(n)]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options", CONFIGURATIONS[:2])
def test_vectors_of_several_runs(options: dict[str, Any]) -> None:
    """Identifiers of their own, two cases of other weights, and filling behind the coordinates; of
    edges as nodes and with them. Learners, which see no vectors, are compared below."""
    config = small(aligner="tabpfn", **AT_THE_CLEAN_RUN, **options)
    members = make_predictors(config)
    readings = [make_reading(config, "plain", seed=seed) for seed in (0, 1)]
    alone, drawn, content = [], [], []
    for run, member in enumerate(members):
        assert isinstance(member.align, TabpfnAligner)
        for case, reading in enumerate(readings):
            assert isinstance(reading.content, Features)
            identifiers = member.align.draw(reading.content, seeded(10 * run + case))
            drawn.append(identifiers)
            alone.append(member(reading, generator=seeded(10 * run + case)))
    expected = torch.stack(alone).unflatten(0, (3, 2))
    for reading in readings:
        assert isinstance(reading.content, Features)
        content.append(
            (
                reading.content,
                *vector_lists(reading.content, config.transformation, standardize=True),
            )
        )
    n_pairs = len(content[0][0].pair.unique())
    layout = content[0][1]
    values, known, identifiers = {}, {}, {}
    for width in WIDTHS:
        own = torch.stack([lists[width] for _, _, lists in content])
        filled = torch.nn.functional.pad(own, (0, 3), value=7.0)
        values[width] = filled.unflatten(2, (n_pairs, -1)).expand(3, *filled.shape[:2], -1, -1, -1)
        marks = torch.arange(filled.shape[-1]) < own.shape[-1]
        known[width] = marks.expand(3, 2, -1)
        tables = [
            torch.cat([x[name].reshape(-1, *x[name].shape[-2:]) for name in WIDTHS[width]])
            for x in drawn
        ]
        table = torch.nn.functional.pad(torch.stack(tables), (0, 0, 0, 3), value=-2.0)
        identifiers[width] = table.unflatten(0, (3, 2))
    scored = torch.ones(3, 2, *values["stream"].shape[3:5], dtype=torch.bool)
    given = StackedVectors(layout, values, known, identifiers, scored)
    found = stacked_logits(stacked(members), readings[0].structure, given)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options", some(CONFIGURATIONS))
def test_tables_of_several_runs(options: dict[str, Any]) -> None:
    config = small(**AT_THE_CLEAN_RUN, **options)
    members = make_predictors(config)
    for seed, member in enumerate(members):
        for name, values in member.state_dict().items():
            if name in ("align.mean", "align.deviation"):
                values.copy_(0.5 + torch.rand(values.shape, generator=seeded(seed)))
    readings = [make_reading(config, "plain", seed=seed) for seed in (0, 1)]
    tables = [x.content for x in readings if isinstance(x.content, Tensor)]
    given = StackedTables(torch.stack(tables).expand(3, -1, -1, -1))
    found = stacked_logits(stacked(members), readings[0].structure, given)
    alone = [member(reading, generator=seeded(0)) for member in members for reading in readings]
    torch.testing.assert_close(found, torch.stack(alone).unflatten(0, (3, 2)))


def test_a_run_of_a_stack_is_the_network_it_was() -> None:
    members = make_predictors(small(aligner="tabpfn", **AT_THE_CLEAN_RUN, learner="factorized"))
    joined = stacked(members)
    for run, member in enumerate(members):
        own = of_run(joined, run)
        assert own.keys() == member.state_dict().keys()
        assert all(torch.equal(own[name], value) for name, value in member.state_dict().items())
    assert {name for name, _ in joined.named_parameters()} == {
        name for name, _ in members[0].named_parameters()
    }


def test_norms_by_matrices_are_norms() -> None:
    x = 3 + torch.randn(2, 5, 7, generator=seeded(0), dtype=torch.float64)
    expected = torch.nn.functional.layer_norm(x, (7,), eps=1e-5)
    torch.testing.assert_close(normalized_by_matrices(x, 1e-5), expected)


def test_pooling_a_grid_is_pooling_its_contexts() -> None:
    pool = DeepSets(6, generator=seeded(0)).double()
    h = torch.randn(2, 3, 4, 5, 6, generator=seeded(1), dtype=torch.float64)
    scored = torch.tensor(
        [[[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]]]
    ).bool()
    found = pooled(pool, h, scored)
    for case in range(2):
        pair = scored[case].nonzero()[:, 0]
        torch.testing.assert_close(found[case], pool(h[case][scored[case]], pair))


@pytest.mark.parametrize("connectivity", ["observed", "none"])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_sums_by_matrices_are_those_by_scattering(
    transformation: Any, connectivity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = neighbourhoods(make_subject("llama").graph, transformation, connectivity)
    h = torch.randn(2, n.n_nodes, 3, generator=seeded(0), dtype=torch.float64)
    scattered = [sum_over_predecessors(h, n), sum_over_successors(h, n)]

    def always(_: Neighbourhoods, h: Tensor) -> bool:
        return True

    monkeypatch.setattr(Neighbourhoods, "sums_by_matrices", always)
    by_matrices = [sum_over_predecessors(h, n), sum_over_successors(h, n)]
    torch.testing.assert_close(by_matrices, scattered)
