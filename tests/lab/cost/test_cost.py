"""Counts of passes, evaluations, work and span, against formulas, other counters and known runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from graphcircuits.engine.masked import masked_logits
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods import METHODS, Progress, localize, prepare
from graphcircuits.methods.acdc import acdc_circuit
from graphcircuits.predictor.ensemble import Ensemble, save_ensemble
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from graphcircuits.task.pairs import Pairs
from lab.cost.cost import INDEPENDENT, Counts, Ledger, _Counting, cost, count
from tests.methods.tasks import make_pairs
from tests.subjects import SOME, make_subject
from tests.tiers import some

# Annotations are checked when methods are tested; here they would take most of the time.
FAST = ("eap-ig", "exact", "gcl", "sp-edge")
"""One method of each kind, for the fast tests."""
pytestmark = pytest.mark.usefixtures("unchecked")

QUICK: dict[str, dict[str, Any]] = {
    "acdc": {"thresholds": [0.01, 0.1]},
    "eap-gp": {"steps": 3},
    "eap-ig": {"steps": 4},
    "edge-pruning": {"steps": 3, "prompts": 2},
    "ig-own": {"steps": 4, "sizes": 3},
    "mattr": {"steps": 3, "prompts": 2, "samples": 2},
    "pgexplainer": {"steps": 3, "prompts": 2, "samples": 5, "width": 8},
    "sp-edge": {"steps": 3, "prompts": 2},
    "sp-node": {"steps": 3, "prompts": 2},
    "ugs": {"steps": 3, "prompts": 2, "samples": 2},
}
"""Options that keep the tests fast."""


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of small untrained predictors, by the name of their method."""
    folder = tmp_path_factory.mktemp("predictor")
    options = {"gcl": {}, "gcl-paper": {"aligner": "tabpfn", "prior": False, "paths": False}}
    for name, own in options.items():
        members = tuple(Predictor(PredictorConfig(width=8, layers=2, **own)) for _ in range(2))
        save_ensemble(folder / f"{name}.safetensors", Ensemble(members, {}))
    return folder


def quick(method: str, predictor: Path) -> dict[str, Any]:
    path = predictor / f"{method}.safetensors"
    return {"predictor": str(path)} if path.exists() else QUICK.get(method, {})


def make_small(**options: Any) -> Transformer:
    """Two heads per layer: few edges."""
    return make_subject(n_heads=2, **options)


def counted(subject: Transformer, pairs: Pairs, method: str, **options: Any) -> Counts:
    def call(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        # Runs that wait for nothing are no steps.
        heard = None if method in INDEPENDENT else step
        localize(subject, pairs, method, progress=heard, keep_prompts=0, **options)

    return count(call, subject, pairs)


# Passes and evaluations


def expected(
    method: str, graph: ComponentGraph, n_pairs: int, options: dict[str, Any]
) -> tuple[float, float, float, int]:
    """Forward passes, backward passes, evaluations, steps: the formulas of docs/costs.md, for a
    loss that the clean run's own output replaces where gates are trained."""
    steps = options.get("steps", 0)
    share = min(options.get("prompts", n_pairs), n_pairs) / n_pairs
    masked = steps * options.get("samples", 2) * share
    return {
        "eap": (2, 1, 0, 0),
        "eap-gp": (2 + 2 * steps, 2 * steps, 0, 0),
        "eap-ig": (2 + steps, steps, 0, 0),
        "edge-pruning": (4, masked, masked, steps),
        "exact": (4, 0, graph.n_edges, 0),
        "gcl": (2, 1, 1, 0),
        "gcl-paper": (2, 1, 0, 0),
        "ig-own": (7 + steps, steps + 3, 3, 0),
        "mattr": (4, masked, masked, steps),
        "nap": (2, 1, 0, 0),
        "pgexplainer": (5, masked, masked, steps),
        "random": (2, 0, 0, 0),
        "relp": (2, 1, 0, 0),
        "sp-edge": (4, masked, masked, steps),
        "sp-node": (4, masked, masked, steps),
        "ugs": (4, masked, masked, steps),
    }[method]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", some(METHODS, FAST))
def test_passes_follow_the_formulas_and_flops_torchs_counter(method: str, predictor: Path) -> None:
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy", batch=4)
    options = quick(method, predictor)
    found = counted(subject, pairs, method, **options)
    with FlopCounterMode(display=False) as counter:
        localize(subject, pairs, method, keep_prompts=0, **options)
    assert found.subject_flops + found.own_flops == counter.get_total_flops()
    if method != "acdc":  # whose passes follow what it finds
        numbers = (found.forwards, found.backwards, found.evaluations, found.steps)
        assert numbers == pytest.approx(expected(method, subject.graph, 4, options))


def test_a_path_over_activations_runs_from_every_group_of_writers() -> None:
    subject = make_small(n_layers=3)
    pairs = make_pairs(subject, "cross-entropy")
    found = counted(subject, pairs, "eap-ig", over="activations", steps=4)
    assert found.forwards == pytest.approx(2 + 4)
    assert found.evaluations == pytest.approx(4 * 2 * 3)
    assert found.backwards == pytest.approx(4 * (2 * 3 + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "examined"), [(0.0, "edges"), (1e9, "writers")])
def test_acdc_reports_the_edges_that_its_run_examined(threshold: float, examined: str) -> None:
    """All edges survive 0 and each is examined. None survives 1e9: with the edges into `logits`
    gone, no other can matter."""
    subject = make_small()

    def call(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        acdc_circuit(subject, pairs, threshold=threshold, progress=step)

    found = count(call, subject, make_pairs(subject, batch=4))
    graph = subject.graph
    assert found.evaluations == (graph.n_edges if examined == "edges" else graph.n_writers)
    assert found.steps == graph.n_edges
    assert (found.forwards, found.backwards) == (5, 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "gcl", "pgexplainer", "sp-edge"])
def test_passes_against_wrapped_functions(
    method: str, predictor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers by other means: wrappers around everything that runs a subject."""
    plain, masked = [], []

    def wrapped(found: list[int], function: Callable[..., Any], rows: Callable[..., int]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found.append(rows(*args))
            return function(*args, **kwargs)

        return call

    whole = wrapped(plain, Transformer.logits, lambda _, prompts, *rest: len(prompts))
    monkeypatch.setattr(Transformer, "logits", whole)
    trace = Transformer.trace

    def traced(subject: Transformer, embedded: Tensor, *rest: Any) -> Trace:
        # A run between two others is a masked one; nobody watches its rules.
        (plain if isinstance(subject.rules, _Counting) else masked).append(len(embedded))
        return trace(subject, embedded, *rest)

    monkeypatch.setattr(Transformer, "trace", traced)
    in_masks = wrapped(
        masked, masked_logits, lambda _, tokens, masks, *rest: len(tokens) * len(masks)
    )
    monkeypatch.setattr(prepare, "masked_logits", in_masks)
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy", batch=4)
    found = counted(subject, pairs, method, **quick(method, predictor))
    # One more plain pass is made to know the unit of work.
    assert found.forwards == (sum(plain) - len(pairs)) / len(pairs)
    assert found.backwards == sum(masked) / len(pairs)
    if method != "exact":
        assert found.evaluations == sum(masked) / len(pairs)


def test_eap_passes_against_the_traces_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    trace = Transformer.trace

    def wrapped(subject: Transformer, embedded: Tensor, columns: slice) -> Trace:
        rows.append(len(embedded))
        return trace(subject, embedded, columns)

    monkeypatch.setattr(Transformer, "trace", wrapped)
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy", batch=4)
    assert counted(subject, pairs, "eap-ig", steps=3).forwards == sum(rows) / 4


@pytest.mark.slow
def test_chunks_change_memory_and_not_counts() -> None:
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy", batch=4)
    whole = counted(subject, pairs, "eap-ig", steps=3)
    parts = counted(subject, pairs, "eap-ig", steps=3, memory_limit=1)
    assert (parts.forwards, parts.backwards) == (whole.forwards, whole.backwards)
    assert parts.subject_flops >= whole.subject_flops


def test_counting_leaves_scores_as_they_are() -> None:
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy", batch=4)
    seen = []

    def call(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        seen.append(localize(subject, pairs, "sp-edge", progress=step, **QUICK["sp-edge"]))

    count(call, subject, pairs)
    plain = localize(subject, pairs, "sp-edge", **QUICK["sp-edge"])
    torch.testing.assert_close(seen[0].scores, plain.scores)


# Work


def forward_flops(config: TransformerConfig, batch: int, pos: int) -> int:
    """Two for each multiplication of a plain pass, from the sizes alone."""
    readers = config.n_heads + 2 * config.n_groups
    maps = config.d_model * config.d_head * (readers + config.n_heads)
    maps += config.d_model * config.d_mlp * (3 if config.gated_mlp else 2)
    if config.norms_after:
        # What components write, once more: the scale of the norm is known before they write by it.
        maps += config.d_model * (config.n_heads * config.d_head + config.d_mlp)
    attention = 2 * config.n_heads * pos * config.d_head
    layers = config.n_layers * (maps + attention)
    return 2 * batch * pos * (layers + config.d_model * config.d_vocab_out)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SOME)
def test_a_pass_is_the_targets_work_alone(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")

    def forward(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        subject.logits(pairs.clean)

    def both(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        subject.run(pairs.clean, lambda logits: pairs.loss(logits).sum())

    one, two = (count(call, subject, pairs) for call in (forward, both))
    config = subject.config
    size = forward_flops(config, *pairs.clean.shape)
    assert (one.subject_flops, one.own_flops, one.forward_flops) == (size, 0, size)
    assert (one.work_in_passes, one.span_in_passes) == (1.0, 1.0)
    # Maps by weights cost as much backward as forward, the products of attention twice as much.
    pos = pairs.clean.shape[1]
    attention = 4 * pairs.clean.numel() * config.n_layers * config.n_heads * pos * config.d_head
    assert (two.subject_flops, two.own_flops) == (2 * size + attention, 0)
    # q, k, v; scores; their sum; W_O; then the MLP, unless it runs beside them.
    by_layer = 4 if config.parallel else 6
    if config.norms_after:
        by_layer += 1 if config.parallel else 2
    assert one.span == one.forward_span == by_layer * config.n_layers + 1
    assert (one.forwards, one.backwards, two.forwards, two.backwards) == (1, 0, 1, 1)


def test_a_masked_run_is_a_pass_and_the_mixing_of_its_edges() -> None:
    subject = make_small(d_head=16)  # a multiple of 16 is not widened
    graph, d_model = subject.graph, subject.config.d_model

    def call(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        corrupted = torch.ones(*pairs.clean.shape, graph.n_writers, d_model).double()
        masked_logits(subject, pairs.clean, torch.ones(7, graph.n_edges).double(), corrupted)

    pairs = make_pairs(subject)
    found = count(call, subject, pairs)
    assert found.subject_flops == 7 * found.forward_flops
    streams = (2 * graph.n_layers + 1) * graph.n_writers
    assert found.own_flops == 2 * pairs.clean.numel() * d_model * (7 * graph.n_edges + streams)


def test_eap_itself_only_contracts() -> None:
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy")
    found = counted(subject, pairs, "eap")
    contraction = 2 * pairs.clean.numel() * subject.config.d_model * subject.graph.n_edges
    assert found.own_flops == contraction
    # Two passes forward, one backward, and each writer and reader taken to the stream once.
    assert 3 * found.forward_flops < found.subject_flops < 5 * found.forward_flops


@pytest.mark.slow
def test_an_explainer_of_its_own_is_not_the_targets_work() -> None:
    """A wider MLP in PGExplainer adds to its own work alone."""
    subject = make_small()
    pairs = make_pairs(subject)
    options = QUICK["pgexplainer"] | {"samples": 2}
    narrow, wide = (
        counted(subject, pairs, "pgexplainer", **options | {"width": width}) for width in (8, 64)
    )
    assert narrow.subject_flops == wide.subject_flops
    assert wide.own_flops > 2 * narrow.own_flops


# Span


def test_span_is_the_longest_chain() -> None:
    x, W = torch.ones(3, 3), torch.ones(3, 3)
    with Ledger(weights=[W], data=[x]) as ledger:
        for _ in range(5):
            torch.mm(x, W)
        assert ledger.span == 1
        y = x
        for _ in range(4):
            y = (y @ W).relu().T.contiguous()
        assert ledger.span == 4
        ledger.wait()
        torch.mm(x, W)
        assert ledger.span == 5
    assert (ledger.subject_flops, ledger.own_flops) == (10 * 54, 0)


def test_span_goes_through_what_is_written_in_place() -> None:
    x, W, total = torch.ones(3, 3), torch.ones(3, 3), torch.zeros(2, 3, 3)
    with Ledger(weights=[W], data=[x]) as ledger:
        total[0] += x @ W
        torch.mm(total[0] @ W, W, out=total[1])
        torch.mm(total[1], W)
    assert ledger.span == 4


def test_products_of_weights_or_of_data_are_not_the_targets() -> None:
    x, W = torch.ones(3, 3), torch.ones(3, 3)
    with Ledger(weights=[W], data=[x]) as ledger:
        torch.mm(W, W)
        torch.mm(x, x)
        torch.mm(torch.zeros(3, 3), W)
        torch.mm(x, torch.ones(3, 3))
    assert (ledger.subject_flops, ledger.own_flops) == (0, 4 * 54)


def test_a_softmax_elsewhere_makes_no_attention_of_a_product() -> None:
    x, y, W = torch.ones(3, 3), torch.ones(3, 3), torch.ones(3, 3)
    with Ledger(weights=[W], data=[x, y]) as ledger:
        pattern = (x @ y).softmax(-1)
        torch.mm(pattern, y)
    assert ledger.own_flops == 2 * 54
    with Ledger(weights=[W], data=[x, y]) as ledger:
        pattern = ((x @ W) @ (y @ W)).softmax(-1)
        torch.mm(pattern, y)
    assert (ledger.subject_flops, ledger.own_flops) == (4 * 54, 0)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_updates_of_gates_wait_for_each_other(steps: int) -> None:
    """Without any report of progress: each update needs the gates that the one before made."""
    subject = make_small()

    def call(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        localize(subject, pairs, "sp-edge", steps=steps, prompts=2)

    found = count(call, subject, make_pairs(subject, batch=4))
    assert found.steps == 0
    assert found.span > steps * 2 * found.forward_span


@pytest.mark.slow
def test_span_of_gradients_and_of_a_search() -> None:
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy")
    by_name = {
        name: counted(subject, pairs, name, **QUICK.get(name, {}))
        for name in ("eap", "eap-ig", "exact", "acdc")
    }
    unit = by_name["eap"].forward_span
    # Forward, backward, contraction.
    assert by_name["eap"].span == 2 * unit + 1
    # The points of a path do not wait for each other.
    more = counted(subject, pairs, "eap-ig", steps=9)
    assert more.span == by_name["eap-ig"].span <= 3 * unit
    # Nor do interventions on single edges; those of a search do.
    assert by_name["exact"].span < 2 * unit
    assert by_name["acdc"].span > by_name["acdc"].steps


# Together


def test_cost_counts_and_measures() -> None:
    subject = make_small()
    pairs = make_pairs(subject, "cross-entropy")
    heard = []
    found = cost(
        subject, pairs, "sp-edge", steps=2, progress=lambda done, total: heard.append((done, total))
    )
    assert (found.method, found.edges, found.options["steps"]) == (
        "sp-edge",
        subject.graph.n_edges,
        2,
    )
    assert found.counts.steps == 2
    # The run that shows attention is no part of a method.
    assert found.counts == counted(subject, pairs, "sp-edge", steps=2)
    assert heard == [(1, 2), (2, 2)] * 2
    assert found.seconds > 0


def test_cost_refuses_what_localize_refuses() -> None:
    subject = make_small()
    with pytest.raises(ValueError, match="unknown method 'eap-gi'; did you mean 'eap-ig'"):
        cost(subject, make_pairs(subject), "eap-gi")
