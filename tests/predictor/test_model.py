"""The predictor: symmetries of its scores, its prior, cases side by side, and what it refuses."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.predictor import invariant
from graphcircuits.predictor.measure.features import Features
from graphcircuits.predictor.measure.scaling import FLOOR
from graphcircuits.predictor.model import (
    LEARNERS,
    Predictor,
    PredictorConfig,
    Reading,
    join,
    read_case,
)
from graphcircuits.predictor.paper import dirgnn
from graphcircuits.predictor.paper.transform import CONNECTIVITIES, TRANSFORMATIONS, Transformation
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.predictor.cases import (
    AT_THE_CLEAN_RUN,
    make_reading,
    make_task,
    old_edges,
    reordered,
    rotated,
    small,
    with_positions,
)
from tests.predictor.graphs import seeded
from tests.predictor.measure.test_features import rebased
from tests.tiers import some

JOINABLE = [
    {"learner": learner, "transformation": transformation}
    for learner in LEARNERS
    for transformation in TRANSFORMATIONS
]
# Attention along a complete DAG takes one case at a time.
SIDE_BY_SIDE = [
    (options, connectivity)
    for options in JOINABLE
    for connectivity in CONNECTIVITIES
    if connectivity != "complete" or options["learner"] == "dirgnn"
]


def predictor_of(config: PredictorConfig, seed: int = 0) -> Predictor:
    """In float64, with branches at full strength, so that neighbours matter, and with a readout, so
    that nodes matter where there is a prior."""
    predictor = Predictor(config, generator=seeded(seed)).double().eval()
    with torch.no_grad():
        for name, parameter in predictor.named_parameters():
            if name.endswith(".scale"):
                parameter.fill_(1.0)
            if name == "readout.weight" and config.prior:
                parameter.normal_(generator=seeded(seed))
    return predictor


@torch.no_grad()
def score(config: PredictorConfig, subject: Transformer, pairs: Pairs) -> Tensor:
    reading = read_case(config, subject, pairs, generator=seeded(0))
    return predictor_of(config)(reading, generator=seeded(1))


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)
    assert one.std() > 1e-3


# Symmetries


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options", [{}, {"transformation": "incidence"}, AT_THE_CLEAN_RUN])
def test_scores_see_no_change_of_basis(options: dict[str, Any]) -> None:
    config = small(**options)
    subject, pairs = make_task("relu")
    scores = score(config, subject, pairs)
    assert_close(score(config, rebased(subject, stream=False)[0], pairs), scores)
    assert_close(score(config, rotated(subject), pairs), scores)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("connectivity", ["observed", "none"])
@pytest.mark.parametrize("options", some(JOINABLE, JOINABLE[::2]))
def test_renumbered_heads_permute_the_scores(options: dict[str, Any], connectivity: str) -> None:
    config = small(connectivity=connectivity, **options)
    for architecture, order in (("plain", [2, 0, 3, 1]), ("grouped-keys", [3, 2, 0, 1])):
        subject, pairs = make_task(architecture)
        scores = score(config, subject, pairs)
        old = old_edges(subject.graph, 1, order)
        assert not torch.allclose(scores[old], scores)
        assert_close(score(config, reordered(subject, 1, order), pairs), scores[old])


@pytest.mark.usefixtures("unchecked")
def test_the_order_of_prompts_does_not_matter() -> None:
    subject, pairs = make_task("llama")
    scores = score(small(), subject, pairs)
    assert_close(score(small(), subject, pairs[[2, 0, 1]]), scores)


@pytest.mark.usefixtures("unchecked")
def test_the_order_of_positions_does_not_matter() -> None:
    """To a subject that cannot tell positions apart."""
    subject, pairs = make_task("no-positions", causal=False)
    moved = with_positions(pairs, torch.tensor([3, 1, 4, 0, 2]))
    assert_close(score(small(), subject, moved), score(small(), subject, pairs))


# The paper's aligner


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("learner", LEARNERS)
def test_single_features_in_any_order(learner: str, transformation: Transformation) -> None:
    config = small(aligner="tabpfn", learner=learner, transformation=transformation, width=6)
    subject, pairs = make_task("one-layer")
    scores = score(config, subject, pairs)
    assert scores.shape == (subject.graph.n_edges,)
    assert_close(score(config, subject, pairs[[2, 0, 1]]), scores)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_features_are_of_whole_pairs() -> None:
    config = small(aligner="tabpfn", context_pairs=2)
    reading = make_reading(config, "one-layer")
    assert isinstance(reading.content, Features)
    # All scored positions of two of the three pairs.
    scored = make_task("one-layer")[1].scored.sum(1)
    assert reading.content.pair.unique().tolist() == [0, 1]
    assert len(reading.content) in {int(scored.sum() - own) for own in scored}
    predictor = predictor_of(config)
    one, same, other = (predictor(reading, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    # Other identifiers of coordinates are another reading of the same features.
    assert not torch.allclose(one, other)


def test_connectivity_decides_what_an_edge_sees() -> None:
    for connectivity, alone in (("none", True), ("observed", False), ("complete", False)):
        config = small(connectivity=connectivity)
        reading, predictor = make_reading(config), predictor_of(config)
        assert isinstance(reading.content, Tensor)
        nodes = reading.content.clone()
        # a0.h1->m0, which the edges out of m0 follow.
        nodes[make_task()[0].graph.edge_index("a0.h1->m0")] += 1
        changed = replace(reading, content=nodes)
        scores = [predictor(x, generator=seeded(0)) for x in (reading, changed)]
        moved = int(((scores[0] - scores[1]).abs() > 1e-9).sum())
        assert (moved == 1) == alone


# The prior


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("share", [0.75, 0.3])
def test_the_prior_is_the_effect_of_masks_between(share: float) -> None:
    """A logarithm of shares of the largest."""
    subject, pairs = make_task("llama")
    reading = read_case(small(share=share), subject, pairs, generator=seeded(0))
    found = invariant.measure(subject, pairs, share=share)
    effect = found.statistics[invariant.BETWEEN_STATISTICS.index("own_by_pair")]
    assert reading.prior is not None
    torch.testing.assert_close(reading.prior, (effect / effect.max()).clamp_min(FLOOR).log())
    assert reading.prior.max() == 0
    bare = read_case(small(share=share, prior=False), subject, pairs, generator=seeded(0))
    assert bare.prior is None


def test_an_untrained_predictor_is_its_prior() -> None:
    reading = make_reading(small(), "one-layer")
    predictor = Predictor(small()).double().eval()
    assert reading.prior is not None
    assert torch.equal(predictor(reading, generator=seeded(0)), reading.prior)
    assert predictor.log_scale is not None
    with torch.no_grad():
        predictor.log_scale.fill_(0.5)
    expected = math.exp(0.5) * reading.prior
    torch.testing.assert_close(predictor(reading, generator=seeded(0)), expected)


def test_the_network_corrects_the_prior() -> None:
    """What it adds is the same whatever the prior."""
    reading, predictor = make_reading(small(), "one-layer"), predictor_of(small())
    assert reading.prior is not None
    moved = replace(reading, prior=reading.prior + 1)
    one, other = (predictor(x, generator=seeded(0)) for x in (reading, moved))
    torch.testing.assert_close(other, one + 1)
    assert (one - reading.prior).std() > 1e-2


def test_a_reading_without_a_prior_is_refused_where_one_is_corrected() -> None:
    bare = make_reading(small(prior=False), "one-layer")
    with pytest.raises(ValueError, match="corrects a prior, and the reading has none"):
        predictor_of(small())(bare, generator=seeded(0))
    # Who needs none does not mind one.
    reading, predictor = make_reading(small(), "one-layer"), predictor_of(small(prior=False))
    found = [predictor(x, generator=seeded(0)) for x in (bare, reading)]
    assert torch.equal(found[0], found[1])


# Cases side by side


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "connectivity"), some(SIDE_BY_SIDE, SIDE_BY_SIDE[::3]))
def test_joined_cases_score_as_each_alone(options: dict[str, Any], connectivity: str) -> None:
    config = small(connectivity=connectivity, **options)
    names = ("plain", "one-layer", "grouped-keys")
    readings = [make_reading(config, name, seed) for seed, name in enumerate(names)]
    predictor = predictor_of(config)
    alone = [predictor(reading, generator=seeded(0)) for reading in readings]
    together = predictor(join(readings), generator=seeded(0))
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-10)


def test_the_readout_of_a_large_graph_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """To rounding as at once, and as where gradients are wanted."""
    reading = make_reading(small())
    model = Predictor(small(), generator=seeded(1)).double().eval()
    model.readout.weight.data.normal_(generator=seeded(2))
    expected = model(reading, generator=seeded(0)).detach()
    monkeypatch.setattr(dirgnn, "AT_ONCE", 7)
    pieces: list[int] = []
    model.readout.register_forward_hook(lambda _, x, __: pieces.append(len(x[0])))
    with torch.no_grad():
        found = model(reading, generator=seeded(0))
    assert (len(pieces), max(pieces), sum(pieces)) == (-(-len(expected) // 7), 7, len(expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_what_follows_from_sizes_is_made_once() -> None:
    """Sums over neighbours need tables, which a reading of the next case of one shape has."""
    one, other = (make_reading(small(), seed=seed) for seed in (0, 1))
    assert one.structure is other.structure


def test_one_case_joined_is_itself() -> None:
    reading = make_reading(small())
    joined = join([reading])
    for name in (each.name for each in fields(reading.structure)):
        values, found = getattr(reading.structure, name), getattr(joined.structure, name)
        assert torch.equal(found, values) if isinstance(values, Tensor) else found == values
    assert isinstance(reading.content, Tensor)
    assert isinstance(joined.content, Tensor)
    assert torch.equal(joined.content, reading.content)
    assert reading.prior is not None
    assert joined.prior is not None
    assert torch.equal(joined.prior, reading.prior)
    assert reading.graph == make_task()[0].graph
    assert joined.graph is None


@pytest.mark.usefixtures("unchecked")
def test_cases_of_one_graph_may_be_stacked() -> None:
    readings = [make_reading(small(), "one-layer", seed) for seed in range(3)]
    predictor = predictor_of(small())
    alone = [predictor(reading, generator=seeded(0)) for reading in readings]
    found = predictor(stacked(readings), generator=seeded(0))
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-10, atol=1e-10)


def stacked(readings: list[Reading]) -> Reading:
    """Tables and priors along a leading axis."""
    tables = [x.content for x in readings if isinstance(x.content, Tensor)]
    priors = [x.prior for x in readings if x.prior is not None]
    return replace(readings[0], content=torch.stack(tables), prior=torch.stack(priors))


def test_what_cannot_stand_side_by_side_is_refused() -> None:
    config = small(connectivity="complete", learner="factorized")
    complete = make_reading(config)
    with pytest.raises(ValueError, match="complete DAG takes one case at a time, got 2"):
        predictor_of(config)(join([complete, complete]), generator=seeded(0))
    single = make_reading(small(aligner="tabpfn", context_pairs=1), "one-layer")
    with pytest.raises(ValueError, match="only invariants can be joined; pass cases with features"):
        join([make_reading(small()), single])


# The network


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "options",
    [
        *JOINABLE,
        {"aligner": "tabpfn", "context_pairs": 2},
        AT_THE_CLEAN_RUN,
    ],
)
def test_every_parameter_gets_a_gradient(options: dict[str, Any]) -> None:
    config = small(**options)
    predictor = predictor_of(config)
    scores = predictor(make_reading(config), generator=seeded(0))
    weights = torch.randn(len(scores), generator=seeded(2), dtype=torch.float64)
    (scores @ weights).backward()
    # A shift of all keys leaves a softmax as it is, and so nearly does it random features.
    useless = [
        name for name, p in predictor.named_parameters() if p.grad is None or not p.grad.any()
    ]
    assert not [name for name in useless if not name.endswith("keys.bias")]


def test_weights_come_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    config = small(learner="factorized")
    one, same, other = (
        Predictor(config, generator=seeded(seed)).state_dict() for seed in (1, 1, 2)
    )
    Predictor(config)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["align.project.weight"], other["align.project.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("aligner", ["invariant", "tabpfn"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_subjects_of_any_precision_are_scored(aligner: str, dtype: torch.dtype) -> None:
    """The predictor stays in single precision."""
    config = small(aligner=aligner)
    subject, pairs = make_task("one-layer")
    predictor = predictor_of(config).float()
    found = {}
    for kind in (dtype, torch.float32):
        reading = read_case(config, subject.to(kind), pairs, generator=seeded(0))
        found[kind] = predictor(reading, generator=seeded(0))
        assert found[kind].dtype == torch.float32
    near = 1e-4 if dtype == torch.float64 else 0.5
    torch.testing.assert_close(found[dtype], found[torch.float32], rtol=near, atol=near)


def test_readings_move_whole() -> None:
    for config in (small(), small(aligner="tabpfn", context_pairs=1)):
        reading = make_reading(config, "one-layer")
        moved = reading.to("meta")
        assert moved.structure.edge_nodes.device.type == "meta"
        content = moved.content
        tensor = content if isinstance(content, Tensor) else content.scale
        assert tensor.device.type == "meta"
        assert (moved.prior is None) == (reading.prior is None)
        assert moved.prior is None or moved.prior.device.type == "meta"
        assert moved.graph is reading.graph


# What is refused


@pytest.mark.usefixtures("unchecked")
def test_all_problems_of_a_configuration_are_listed() -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        PredictorConfig(
            aligner="rows",  # pyright: ignore[reportArgumentType]
            learner="gnn",  # pyright: ignore[reportArgumentType]
            transformation="dual",  # pyright: ignore[reportArgumentType]
            connectivity="some",  # pyright: ignore[reportArgumentType]
            aggregation="max",  # pyright: ignore[reportArgumentType]
            width=0,
            layers=0,
            context_pairs=0,
            d_align=0,
            dropout=1.0,
            share=0.0,
        )
    text = str(caught.value)
    for part in (
        "aligner must be one of invariant, tabpfn, got 'rows'",
        "learner must be one of dirgnn, dagformer, factorized, got 'gnn'",
        "transformation must be one of line, incidence, got 'dual'",
        "connectivity must be one of observed, none, complete, got 'some'",
        "aggregation must be one of sum, mean, got 'max'",
        "width must be at least 1, got 0",
        "layers must be at least 1, got 0",
        "context_pairs must be at least 1, got 0",
        "d_align must be at least 1, got 0",
        "dropout must be in [0, 1), got 1.0",
        "share must be above 0 and at most 1, got 0.0",
        "prior needs a share below 1 and the invariant aligner",
    ):
        assert part in text


def test_a_prior_needs_a_run_between() -> None:
    for options in ({"share": 1.0}, {"aligner": "tabpfn"}):
        with pytest.raises(ValueError, match="prior needs a share below 1 and the invariant"):
            small(prior=True, **options)
        assert not small(prior=False, **options).prior
    assert PredictorConfig().prior
    with pytest.raises(ValueError, match=r"share must be above 0 and at most 1, got 1\.5"):
        small(share=1.5, prior=False)


def test_attention_needs_heads_that_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width must be a multiple of heads=3, got 8"):
        small(learner="dagformer", heads=3)
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        small(learner="dagformer", heads=0)
    assert small(heads=3).heads == 3


def test_a_reading_of_another_aligner_is_refused() -> None:
    pooled, single = small(), small(aligner="tabpfn", context_pairs=1)
    with pytest.raises(ValueError, match="tabpfn aligner needs features, got invariants"):
        predictor_of(single)(make_reading(pooled, "one-layer"), generator=seeded(0))
    with pytest.raises(ValueError, match="invariant aligner needs invariants, got features"):
        predictor_of(pooled)(make_reading(single, "one-layer"), generator=seeded(0))
