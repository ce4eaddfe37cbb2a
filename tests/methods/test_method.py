"""Any function of a subject and pairs is a method; the table says what is known of its own."""

from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from graphcircuits import METHODS, localize
from graphcircuits.methods import find_method, options_of
from graphcircuits.methods.exact import exact
from graphcircuits.methods.method import FunctionMethod, Options, name_of
from graphcircuits.methods.prepare import Progress
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject


def by_place(
    subject: Transformer,
    pairs: Pairs,
    *,
    slope: float = 1.0,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> Tensor:
    """The later the better, under a little noise."""
    if progress is not None:
        progress(1, 1)
    places = torch.arange(subject.graph.n_edges, dtype=torch.float64)
    return slope * places + torch.rand(len(places), generator=generator, dtype=torch.float64)


def test_a_function_is_a_method() -> None:
    subject, heard = make_subject(), []
    pairs = make_pairs(subject)
    result = localize(
        subject, pairs, by_place, slope=2.0, seed=3, progress=lambda *step: heard.append(step)
    )
    wanted = by_place(subject, pairs, slope=2.0, generator=torch.Generator().manual_seed(3))
    assert torch.equal(result.scores, wanted)
    assert (result.method, result.options, result.notes) == ("by_place", {"slope": 2.0}, ())
    assert heard == [(1, 1)]


def test_a_partial_is_a_method_and_its_keywords_are_defaults() -> None:
    subject = make_subject()
    steep = partial(by_place, slope=-5.0)
    assert (name_of(steep), options_of(steep)) == (
        "by_place",
        {"slope": -5.0, "paths": False},
    )
    assert localize(subject, make_pairs(subject), steep).options == {"slope": -5.0}
    assert localize(subject, make_pairs(subject), partial(steep, slope=1.5)).options["slope"] == 1.5


@pytest.mark.slow
def test_a_method_of_the_table_keeps_its_name_however_it_is_given() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    named = localize(subject, pairs, "exact")
    for given in (exact, METHODS["exact"]):
        found = localize(subject, pairs, given)
        assert found.method == "exact"
        assert torch.equal(found.scores, named.scores)


def test_what_a_function_says_of_itself_is_used() -> None:
    """Filled options reach it, remarks become notes, and warnings are both."""
    subject = make_subject()

    def constant(subject: Transformer, pairs: Pairs, *, value: float | None = None) -> Tensor:
        assert value is not None
        return torch.full((subject.graph.n_edges,), value)

    class Counting(FunctionMethod):
        def fill(self, subject: Transformer, pairs: Pairs, options: Options) -> Options:
            return {**options, "value": float(len(pairs))}

        def remarks(
            self, subject: Transformer, pairs: Pairs, options: Options
        ) -> list[str | Warning]:
            return ["plain", UserWarning("grave")]

    entry = Counting(run=constant)
    pairs = make_pairs(subject)
    with pytest.warns(UserWarning, match="^grave$"):
        result = localize(subject, pairs, entry)
    assert result.notes == ("plain", "grave")
    assert result.options == {"value": float(len(pairs))}
    assert (result.scores == len(pairs)).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda subject, pairs: [0.5], r"<lambda> must return a tensor .* 53 edges, got a list\."),
        (
            lambda subject, pairs: torch.zeros(3),
            r"for each of \d+ edges, got a Tensor of shape \(3",
        ),
        (3, "method must be a name of METHODS or a function, got 3"),
    ],
)
def test_what_is_no_method_is_refused(method: Any, message: str) -> None:
    subject = make_subject()
    message = message.replace("53", str(subject.graph.n_edges))
    with pytest.raises(TypeError, match=message):
        localize(subject, make_pairs(subject), method)


def test_options_need_defaults_and_must_be_known() -> None:
    subject = make_subject()

    def needy(subject: Transformer, pairs: Pairs, *, size: int) -> Tensor:
        raise AssertionError

    with pytest.raises(TypeError, match=r"options need defaults; needy has none for: \['size'\]\."):
        localize(subject, make_pairs(subject), needy)
    with pytest.raises(ValueError, match=r"option of by_place 'slop'; did you mean 'slope'\?"):
        localize(subject, make_pairs(subject), by_place, slop=1)


@pytest.mark.parametrize("given", ["eap-ig", "gcl", by_place])
@pytest.mark.usefixtures("unchecked", "uninformed")
def test_every_method_can_count_along_paths(given: Any) -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy")
    plain = localize(subject, pairs, given)
    counted = localize(subject, pairs, given, paths=True)
    torch.testing.assert_close(counted.scores, along_paths(plain.scores, subject.graph))
    assert counted.options == {**plain.options, "paths": True}
    assert counted.probabilities is None
    assert not localize(subject, pairs, given, paths=False).options.get("paths")
    if isinstance(given, str):
        short = localize(subject, pairs, f"{given}+paths")
        assert torch.equal(short.scores, counted.scores)
        assert (short.method, short.options) == (f"{given}+paths", counted.options)
        by_hand = find_method(f"{given}+paths")(subject, pairs)
        torch.testing.assert_close(by_hand, counted.scores)
        off = localize(subject, pairs, f"{given}+paths", paths=False)
        assert torch.equal(off.scores, plain.scores)


def test_an_option_paths_of_ones_own_stays_ones_own() -> None:
    def own(subject: Transformer, pairs: Pairs, *, paths: int = 2) -> Tensor:
        return torch.arange(subject.graph.n_edges) * float(paths)

    subject = make_subject()
    result = localize(subject, make_pairs(subject), own, paths=3)
    assert result.options == {"paths": 3}
    assert result.scores[1] == 3


def test_the_table() -> None:
    assert [name for name, entry in METHODS.items() if entry.threshold is not None] == ["gcl"]
    assert all(entry.annotations.keys() >= options_of(entry).keys() for entry in METHODS.values())
    assert find_method("eap").run.__module__ == "graphcircuits.methods.eap"
    with pytest.raises(ValueError, match=r"unknown method 'EAP-IG'; did you mean 'eap-ig'\?"):
        find_method("EAP-IG")
    assert name_of(cast(Any, type("Scorer", (), {"__call__": by_place})())) == "Scorer"
