"""Rivals: what counts as one, and a subject that has two ways to do the same."""

import math
from types import SimpleNamespace

import pytest
import torch

from graphcircuits.certificates import rivals
from graphcircuits.certificates.judging import Clock, Judge, OutOfTime
from graphcircuits.certificates.rivals import Rival, find_rivals, unique
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.certificates.judges import backed_up, judging, of_edges, tiny

pytestmark = pytest.mark.usefixtures("unchecked")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_ways() -> tuple[Transformer, Pairs, Circuit, Circuit]:
    """m0 and m1 both write all of the output: either will do."""
    subject, _ = backed_up()
    weights = {name: weight.clone() for name, weight in subject.weights.items()}
    weights["W_in"][1, 1] = 0  # m1 does not look at what m0 wrote
    weights["W_U"] *= 0.5
    twice = Transformer(subject.config, weights)
    clean = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 3]])
    pairs = Pairs(
        clean=clean,
        corrupted=clean.roll(1, 0),
        scored=torch.ones(clean.shape, dtype=torch.bool),
        loss_name="l1",
    )
    one, other = (
        Circuit.from_names(twice.graph, [f"input->{name}", f"{name}->logits"])
        for name in ("m0", "m1")
    )
    return twice, pairs, one, other


def test_another_way_is_found() -> None:
    subject, pairs, circuit, other = two_ways()
    judge = judging(subject, pairs)
    kept = judge.kept(circuit)
    assert judge.kept(other) == pytest.approx(kept)
    start = Result(graph=subject.graph, scores=circuit.mask + 0.5 * other.mask.float())
    found = find_rivals(
        subject,
        pairs,
        start,
        judge,
        circuit,
        0.9 * kept,
        generator=generator(),
        steps=2,
        attempts=[(1.0, 1.0), (1.0, 0.5)],
    )
    assert [one.circuit for one in found] == [other, other]
    for one in found:
        assert (one.shared, one.equal) == (0.0, True)
        assert one.kept == pytest.approx(kept)
    line = unique(circuit, found, 0.5)
    assert (line.passed, line.value) == (False, 0.0)
    told = f"one of 2 edges keeps {kept:.2f} and shares 0%"
    assert line.sentence == f"2 of 2 that were searched for keep as much; {told}"
    assert line.details["rivals"][0]["edges"] == 2


def made(monkeypatch: pytest.MonkeyPatch, proposed: Circuit) -> list[dict[str, torch.Tensor]]:
    """Refining that changes nothing, and this circuit proposed; what refining is given."""
    given: list[dict[str, torch.Tensor]] = []

    def refinement(
        subject: object, pairs: object, scores: torch.Tensor, *, avoid: torch.Tensor, **_: object
    ) -> SimpleNamespace:
        given.append({"scores": scores, "avoid": avoid})
        return SimpleNamespace(scores=scores)

    monkeypatch.setattr(rivals, "refinement", refinement)
    monkeypatch.setattr(rivals, "propose", lambda *_, **__: SimpleNamespace(circuit=proposed))
    return given


def test_the_circuit_is_put_last_and_pushed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, pairs, judge = tiny()
    n = subject.graph.n_edges
    circuit = of_edges(subject.graph, [2, 5, 7, 8, 9])
    scores = torch.arange(n).float()
    given = made(monkeypatch, circuit)
    start = Result(graph=subject.graph, scores=scores)
    find_rivals(subject, pairs, start, judge, circuit, 0.9, generator=generator())
    assert len(given) == len(rivals.ATTEMPTS)
    for (share, push), one in zip(rivals.ATTEMPTS, given, strict=True):
        # The weaker edges of the circuit: all below every other, which keep their scores.
        weaker = [2, 5, 7, 8, 9][: math.ceil(5 * share)]
        others = [edge for edge in range(n) if edge not in weaker]
        assert float(one["scores"][weaker].max()) < float(scores.min())
        assert one["scores"][others].tolist() == scores[others].tolist()
        assert one["avoid"].tolist() == pytest.approx((push * circuit.mask).tolist())
    monkeypatch.setattr(rivals, "LARGE", n)
    given.clear()
    find_rivals(subject, pairs, start, judge, circuit, 0.9, generator=generator())
    assert len(given) == rivals.ON_LARGE


@pytest.mark.parametrize(
    ("edges", "shared", "less", "equal"),
    [
        ([0, 1, 2, 3], 1.0, 0.0, True),
        ([0, 1, 8, 9], 0.5, 0.04, True),
        ([0, 1, 8, 9], 0.5, 0.06, False),  # keeps less
        ([0, 1, 6, 7, 8, 9], 0.5, 0.0, True),
        ([0, 1, 5, 6, 7, 8, 9], 0.5, 0.0, False),  # is larger
        ([0, 9], 0.5, 0.0, True),
        ([], 0.0, 0.0, True),
    ],
)
def test_what_is_a_rival(
    monkeypatch: pytest.MonkeyPatch, edges: list[int], shared: float, less: float, equal: bool
) -> None:
    subject, pairs, _ = tiny()
    circuit, other = (of_edges(subject.graph, some) for some in ([0, 1, 2, 3], edges))
    made(monkeypatch, other)

    class Told(Judge):
        def kept(self, circuit: Circuit) -> float:
            return 0.9 - less if circuit == other else 0.9

    judge = Told(CircuitRuns(subject, pairs), Clock())
    start = Result(graph=subject.graph, scores=torch.rand(subject.graph.n_edges))
    found = find_rivals(
        subject, pairs, start, judge, circuit, 0.9, generator=generator(), attempts=[(1.0, 1.0)]
    )
    if other == circuit:
        assert found[0].kept == pytest.approx(0.9 - less)
    (one,) = found
    assert (one.circuit, one.equal) == (other, equal)
    assert one.shared == pytest.approx(shared)


def test_only_rivals_that_keep_as_much_count() -> None:
    graph = tiny()[0].graph
    circuit, other = of_edges(graph, [0, 1]), of_edges(graph, [1, 2, 3])
    weak = Rival(other, 0.1, 0.2, equal=False)
    line = unique(circuit, [weak, weak], 0.5)
    assert (line.passed, line.value) == (True, 1.0)
    assert line.sentence == "no rival among 2 that were searched for"
    several = [weak, Rival(other, 0.7, 0.9, equal=True), Rival(circuit, 0.6, 0.95, equal=True)]
    line = unique(circuit, several, 0.5)
    assert (line.passed, line.value) == (True, 0.6)
    assert line.sentence.startswith("2 of 3 that were searched for keep as much; one of 2 edges ")
    assert not unique(circuit, several, 0.65).passed
    assert [one["equal"] for one in line.details["rivals"]] == [False, True, True]


def test_time_can_be_over() -> None:
    subject, pairs, judge = tiny()
    circuit = of_edges(subject.graph, [0, 1])
    start = Result(graph=subject.graph, scores=torch.rand(subject.graph.n_edges))
    late = Judge(judge.runs, Clock(1e-9))
    with pytest.raises(OutOfTime):
        find_rivals(subject, pairs, start, late, circuit, 0.9, generator=generator())
