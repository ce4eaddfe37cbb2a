"""All methods alike: one protocol, one way to refuse, better than chance."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits
from graphcircuits.cases import load_case
from graphcircuits.methods import FLOORS, METHODS, NAMED_ONLY, choose_method, localize, options_of
from graphcircuits.methods.exact import exact
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.stored import stored_prompts
from tests.methods.tasks import make_pairs, planted, ranks_right
from tests.subjects import make_subject
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("uninformed")
"""Small random subjects are not like those that the shipped predictors know."""

NAMES = (
    "acdc",
    "eap",
    "eap-gp",
    "eap-ig",
    "edge-pruning",
    "exact",
    "gcl",
    "ig-own",
    "mattr",
    "nap",
    "pgexplainer",
    "random",
    "relp",
    "sp-edge",
    "sp-node",
    "ugs",
)
"""Those that run with what ships; `gcl-paper` has tests of its own, with predictors of its own."""
EVERY = pytest.mark.parametrize("name", NAMES)
QUICK = pytest.mark.parametrize("name", some(NAMES, ("eap", "gcl", "relp")))
GATES = {"edge-pruning", "mattr", "pgexplainer", "sp-edge", "sp-node", "ugs"}
"""Methods that train: here they are among the slow ones."""
FLAT = {"eap", "gcl", "nap", "relp"}
"""Methods to which the clean run's distance to itself says nothing: it is flat there."""


def test_the_table() -> None:
    assert tuple(name for name in METHODS if name not in NAMED_ONLY) == NAMES
    assert set(METHODS) - set(NAMES) == NAMED_ONLY & METHODS.keys() == {"gcl-paper"}
    assert graphcircuits.METHODS is METHODS
    described = (Path(graphcircuits.__file__).parents[1] / "docs" / "methods.md").read_text()
    assert [name for name in (*METHODS, *FLOORS) if f"`{name}`" not in described] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", some(NAMES, set(NAMES) - GATES))
def test_every_method_beats_chance_on_a_planted_circuit(name: str) -> None:
    subject, circuit = planted(make_subject())
    pairs = make_pairs(subject, "cross-entropy" if name in FLAT else "kl", batch=8)
    options = {"steps": 60, "samples": 1} if name in GATES else {}
    scores = METHODS[name](subject, pairs, **options)
    assert scores.shape == (subject.graph.n_edges,)
    share = ranks_right(scores.double(), circuit)
    assert 0.2 < share < 0.8 if name == "random" else share > 0.85


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize("dtype", some([torch.float16, torch.bfloat16], [torch.float16]))
def test_every_method_ranks_alike_in_half_precision(name: str, dtype: torch.dtype) -> None:
    subject = make_subject(n_heads=2).to(dtype)
    pairs = make_pairs(subject, "cross-entropy", batch=8)
    options: dict[str, Any] = {"steps": 10} if "steps" in options_of(METHODS[name]) else {}
    half, single = (
        localize(each, pairs, name, **options).scores for each in (subject, subject.to(torch.float))
    )
    assert half.dtype == torch.float32
    ranks = torch.stack([half, single]).argsort().argsort().double()
    assert torch.corrcoef(ranks)[0, 1] > 0.95


@QUICK
def test_every_method_takes_weights_that_ask_for_gradients(name: str) -> None:
    frozen = make_subject(n_heads=2)
    pairs = make_pairs(frozen, "cross-entropy")
    options: dict[str, Any] = {"steps": 2} if "steps" in options_of(METHODS[name]) else {}
    weights = {key: weight.clone().requires_grad_() for key, weight in frozen.weights.items()}
    trained = replace(frozen, weights=weights)
    scores = [localize(each, pairs, name, **options).scores for each in (frozen, trained)]
    assert not scores[1].requires_grad
    assert torch.equal(*scores)
    # Nothing is left behind on the weights either.
    assert all(weight.grad is None for weight in weights.values())


LIMITED = [name for name in NAMES if "memory_limit" in options_of(METHODS[name])]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", some(LIMITED, ("eap", "exact", "sp-edge")))
def test_memory_limits_bound_the_prompts_that_run_at_once(name: str) -> None:
    at_once: list[int] = []

    class Watched(Transformer):
        def embed(self, tokens: Tensor) -> Tensor:
            at_once.append(len(tokens))
            return super().embed(tokens)

    plain = make_subject(n_heads=2)
    subject = Watched(plain.config, plain.weights)
    trained = "prompts" in options_of(METHODS[name])
    options: dict[str, Any] = {"steps": 2, "prompts": 3} if trained else {}
    for loss_name in ("cross-entropy", "kl"):
        if name in FLAT and loss_name == "kl":
            continue
        pairs = make_pairs(subject, loss_name, batch=8)
        whole = localize(subject, pairs, name, **options).scores
        assert max(at_once) == 8
        at_once.clear()
        parts = localize(subject, pairs, name, memory_limit=1, **options).scores
        assert max(at_once) == (3 if trained else 1)
        at_once.clear()
        torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)


@EVERY
def test_every_method_refuses_identical_prompts(name: str) -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    same = replace(pairs, corrupted=pairs.clean.clone())
    with pytest.raises(ValueError, match="identical, so all scores would be zero"):
        METHODS[name](subject, same)


@EVERY
def test_every_method_refuses_a_constant_or_broken_loss(name: str) -> None:
    subject = make_subject()

    def constant(logits: Tensor, pairs: Pairs) -> Tensor:
        return 0 * logits.sum((1, 2)) + 0.25

    def broken(logits: Tensor, pairs: Pairs) -> Tensor:
        losses = logits.sum((1, 2))
        return torch.cat([losses[:1], losses[1:] * torch.nan])

    with pytest.raises(ValueError, match=r"loss is constant.*\(0\.25 on average\)"):
        METHODS[name](subject, make_pairs(subject, constant))
    with pytest.raises(ValueError, match="finite, but on clean prompts 1, 2 it is nan"):
        METHODS[name](subject, make_pairs(subject, broken))


def test_targets_come_from_the_clean_run() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "kl")
    given = pairs.with_targets_from(subject.logits(pairs.clean))
    found = exact(subject, pairs)
    assert torch.equal(found, exact(subject, given))


def test_denoising_differs_from_noising() -> None:
    subject, circuit = planted(make_subject())
    pairs = make_pairs(subject, "kl")
    noising = exact(subject, pairs)
    denoising = exact(subject, pairs, direction="denoising")
    assert not torch.allclose(noising, denoising)
    assert ranks_right(denoising, circuit) > 0.9
    with pytest.raises(ValueError, match="direction must be one of noising, denoising, got 'up'"):
        exact(subject, pairs, direction="up")


def test_localize_fills_in_the_result() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    result = localize(subject, pairs, "eap-ig", seed=3, steps=2)
    assert (result.method, result.seed, result.d_model) == ("eap-ig", 3, 8)
    assert {**result.options, "paths": False} == options_of(METHODS["eap-ig"]) | {"steps": 2}
    assert result.graph == subject.graph
    assert result.seconds is not None
    assert result.seconds > 0
    assert torch.equal(result.scores, METHODS["eap-ig"](subject, pairs, steps=2))


def test_localize_keeps_prompts() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    whole = localize(subject, pairs, "eap-ig")
    assert whole.prompts == stored_prompts(subject, pairs)
    assert whole.prompts is not None
    few = localize(subject, pairs, "eap-ig", keep_prompts=1).prompts
    assert few is not None
    assert (len(whole.prompts), len(few)) == (min(4, len(pairs)), 1)
    bare = localize(subject, pairs, "eap-ig", keep_prompts=0)
    assert bare.prompts is None
    assert bare.options == whole.options
    assert torch.equal(bare.scores, whole.scores)
    with pytest.raises(ValueError, match="keep_prompts must be at least 0, got -1"):
        localize(subject, pairs, "eap-ig", keep_prompts=-1)


def test_localize_hands_on_seed_and_progress() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)
    scores = [localize(subject, pairs, "random", seed=seed).scores for seed in (0, 0, 1)]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    seen: list[tuple[int, int]] = []
    localize(subject, pairs, "sp-node", steps=2, progress=lambda *step: seen.append(step))
    assert seen == [(1, 2), (2, 2)]
    # Methods that take one pass have nothing to report.
    localize(subject, pairs, "eap-ig", progress=lambda *step: seen.append(step))
    assert len(seen) == 2
    # One of many runs tells of them, also where memory for few of them is given at a time.
    runs = subject.graph.n_edges * len(pairs)
    for limit in (None, 1):
        seen.clear()
        localize(
            subject, pairs, "exact", memory_limit=limit, progress=lambda *run: seen.append(run)
        )
        assert seen == sorted(seen)
        assert (seen[-1], {total for _, total in seen}) == ((runs, runs), {runs})


@EVERY
def test_options_are_json_values(name: str) -> None:
    options = options_of(METHODS[name])
    assert options.keys().isdisjoint({"generator", "progress"})
    assert json.loads(json.dumps(options)).keys() == options.keys()


def test_unknown_names_are_refused() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match=r"unknown method 'eapig'; did you mean 'eap-ig'\? \(acdc"):
        localize(subject, pairs, "eapig")
    message = r"unknown option of eap-ig 'step'; did you mean 'steps'\? \(memory_limit, over, paths"
    with pytest.raises(ValueError, match=message):
        localize(subject, pairs, "eap-ig", step=3)
    with pytest.raises(ValueError, match=r"unknown option of random 'steps'; \(paths\)"):
        localize(subject, pairs, "random", steps=3)


# Without a method


def test_what_the_predictor_was_not_measured_on_gets_eap_ig() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy")
    result = localize(subject, pairs, steps=2)
    assert (result.method, result.options["steps"]) == ("eap-ig", 2)
    (note,) = result.notes
    assert note == (
        "no method was named: eap-ig, because gcl has not been measured on natural subjects"
    )
    assert torch.equal(result.scores, localize(subject, pairs, "eap-ig", steps=2).scores)
    # Prompts of a case do not make a subject a planted one.
    assert choose_method(subject, replace(pairs, case="ib-3")).name == "eap-ig"
    message = "unknown option of eap-ig 'samples'.*; no method was named: eap-ig, because"
    with pytest.raises(ValueError, match=message):
        localize(subject, pairs, samples=3)
    # Whoever gives a predictor wants its scores.
    with pytest.raises(ValueError, match=r"there is no predictor 'mine\.safetensors'"):
        localize(subject, pairs, predictor="mine.safetensors")


# Wrong arguments


@pytest.mark.usefixtures("unchecked")
def test_wrong_types_are_refused_with_what_to_do() -> None:
    subject = make_subject()
    pairs, case = make_pairs(subject), load_case("ib-3")
    wrong: list[tuple[Any, Any, Any, str]] = [
        (pairs, subject, "eap", r"subject comes first: call localize\(subject, pairs\)"),
        ("ib-3", pairs, "eap", r"a Transformer, got str: load_case\(id\)\.subject\(\) is that of"),
        (Path("a"), pairs, "eap", r"got \w*Path: .*load_model\(source\) that of a file"),
        (case, pairs, "eap", r"must be a Transformer, got Case: give case\.subject\(\)"),
        (case.compiled, pairs, "eap", r"got CompiledModel: give its \.transformer"),
        (
            torch.nn.Linear(1, 1),
            pairs,
            "eap",
            r"got Linear: .* graphcircuits\.load_model",
        ),
        (subject, "pairs.csv", "eap", r"pairs must be Pairs, got str: read .* Pairs\.load\(path\)"),
        (subject, case, "eap", r"pairs must be Pairs, got Case: give case\.pairs\(64\)"),
        (subject, [[1, 2]], "eap", r"pairs must be Pairs, got list: draw those of a case with"),
        (None, None, "eap", "subject must be a Transformer, got NoneType: .*; pairs must be Pairs"),
    ]
    for given, prompts, method, message in wrong:
        with pytest.raises(TypeError, match=message):
            localize(given, prompts, method)


@pytest.mark.parametrize(
    ("name", "what"), [("eap", "prompts"), ("nap", "prompts"), ("sp-edge", "masks")]
)
def test_out_of_memory_says_what_would_fit(
    name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.autograd, "grad", fail)
    monkeypatch.setattr(torch.Tensor, "backward", fail)
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy", batch=8)
    with pytest.raises(MemoryError, match=rf"on cpu with \d+ {what} at once; \d+ should fit"):
        localize(subject, pairs, name)
