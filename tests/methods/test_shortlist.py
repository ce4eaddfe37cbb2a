"""Testing some edges only, and saying beforehand what all of them would take."""

import warnings
from typing import Any

import pytest
import torch

from graphcircuits.engine.masked import masked_logits
from graphcircuits.methods import METHODS, LongRun, localize, shortlist
from graphcircuits.methods.acdc import acdc
from graphcircuits.methods.eap import eap_ig
from graphcircuits.methods.exact import exact
from graphcircuits.methods.prepare import prepare
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject
from tests.tiers import some


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("memory_limit", [2**30, 1])
def test_exact_on_the_best_edges(memory_limit: int) -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject)
    whole, cheap = exact(subject, pairs), eap_ig(subject, pairs)
    scores = exact(subject, pairs, top=30, memory_limit=memory_limit)
    order = cheap.argsort(descending=True)
    torch.testing.assert_close(scores[order[:30]], whole[order[:30]])
    assert (scores[order[:30]] >= 0).all()
    rest = scores[order[30:]]
    assert (rest < 0).all()
    assert (rest.diff() < 0).all()


@pytest.mark.usefixtures("unchecked")
def test_as_many_as_there_are_is_all() -> None:
    subject = make_subject(n_heads=2)
    pairs = make_pairs(subject)
    for method in (exact, acdc):
        torch.testing.assert_close(method(subject, pairs, top=10**9), method(subject, pairs))


def test_named_edges() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    names = ["input->logits", "a0.h1->m1", "input->logits"]
    scores = exact(subject, pairs, edges=names)
    tested = subject.graph.edge_indices(names).unique()
    torch.testing.assert_close(scores[tested], exact(subject, pairs)[tested])
    assert int((scores < 0).sum()) == subject.graph.n_edges - 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("architecture", "memory_limit"),
    some([("plain", 2**30), ("one-key", 2**30), ("parallel", 1)], [("plain", 2**30)]),
)
def test_acdc_visits_the_given_edges_alone(architecture: str, memory_limit: int) -> None:
    """Against a search that runs all of the subject at every visit."""
    subject = make_subject(architecture)
    pairs = prepare(subject, make_pairs(subject, "kl"))
    chosen = eap_ig(subject, pairs).argsort(descending=True)[5:30].sort().values
    corrupted, threshold = subject.run(pairs.corrupted).writers, 0.05
    mask = torch.ones(subject.graph.n_edges, dtype=torch.float64)
    loss = pairs.loss(subject.logits(pairs.clean)).mean()
    for edge in chosen.flip(0).tolist():
        without = mask.index_fill(0, torch.tensor(edge), 0.0)
        after = pairs.loss(masked_logits(subject, pairs.clean, without, corrupted)).mean()
        if after - loss <= threshold:
            mask, loss = without, after
    seen: list[tuple[int, int]] = []
    scores = acdc(
        subject,
        pairs,
        thresholds=[threshold],
        edges=subject.graph.names_of(chosen),
        memory_limit=memory_limit,
        progress=lambda *step: seen.append(step),
    )
    kept = mask[chosen] > 0
    assert 0 < int(kept.sum()) < 25
    torch.testing.assert_close(scores[chosen], threshold * kept.double())
    assert int((scores < 0).sum()) == subject.graph.n_edges - 25
    assert seen[-1] == (25, 25)


@pytest.mark.slow
def test_the_result_says_what_was_tested() -> None:
    subject = make_subject(n_heads=2)
    pairs = make_pairs(subject)
    text = "only {} were tested; the others rank below them, in eap-ig's order"
    result = localize(subject, pairs, "exact", top=5)
    assert result.notes == (text.format("the 5 best edges by eap-ig"),)
    result = localize(subject, pairs, "acdc", edges=["input->m0"], thresholds=[0.1])
    assert result.notes == (text.format("the 1 edges that were named"),)
    assert localize(subject, pairs, "exact").notes == ()


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"top": 0}, "top must be above 0, got 0"),
        ({"edges": []}, "edges to test must be one or more names, got none"),
        ({"edges": ["input->m9"]}, "unknown edge 'input->m9'; no reader 'm9'"),
        ({"top": 3, "edges": ["input->m0"]}, r"\(top\) or which \(edges\), not both"),
    ]
    for options, message in wrong:
        for method in (exact, acdc):
            with pytest.raises(ValueError, match=message):
                method(subject, pairs, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "runs"), [("exact", "one run for each"), ("acdc", "at least one run for each")]
)
def test_a_long_run_is_announced(name: str, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = make_subject(n_heads=2)
    pairs = make_pairs(subject, batch=12)
    edges = subject.graph.n_edges
    monkeypatch.setattr(shortlist, "WORK", 0.0)
    monkeypatch.setattr(shortlist, "_seconds", lambda call: 3600.0 * max(1, len(call())))
    with pytest.warns(LongRun, match=f"{name} on {edges} edges and 12 pairs takes {runs}, about "):
        localize(subject, pairs, name)
    with pytest.warns(LongRun, match=r"on 4 edges .* option top tests the best edges only"):
        localize(subject, pairs, name, top=4)
    monkeypatch.setattr(shortlist, "LONG", 1e12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        localize(subject, pairs, name)


def test_seconds_per_edge_are_those_of_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """One edge takes so much more as five take longer than one, on all pairs."""
    subject = make_subject(n_heads=2)
    pairs = make_pairs(subject, batch=16)
    monkeypatch.setattr(shortlist, "WORK", 0.0)
    monkeypatch.setattr(shortlist, "_seconds", lambda call: 7.0 + 0.9 * len(call()))
    (warning,) = METHODS["exact"].forecast(subject, pairs, {"top": 40, "edges": None})
    # 40 edges, each 0.9 s on 8 of 16 pairs.
    assert ", about 72 seconds here;" in str(warning)


def test_words_for_durations() -> None:
    spoken = {61.0: "61 seconds", 600.0: "10 minutes", 9e3: "2.5 hours", 1e6: "12 days"}
    assert {seconds: shortlist._words(seconds) for seconds in spoken} == spoken


def test_small_graphs_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> float:
        raise AssertionError("it was measured")

    monkeypatch.setattr(shortlist, "_seconds", measured)
    subject = make_subject(n_heads=2)
    localize(subject, make_pairs(subject), "exact")
