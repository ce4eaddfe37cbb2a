"""Subjects of unlike sizes in one padded stack; what cannot be in one is refused."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from graphcircuits.fleets.fleet import form, stack, unstack
from tests.fleets.fleets import FLEETS, SOME_FLEETS, fleet_of, padding_is_zero, unlike_subjects
from tests.subjects import make_config


@pytest.mark.parametrize("architecture", SOME_FLEETS)
def test_stack_pads_with_zeros_and_unstack_undoes_it(architecture: str) -> None:
    subjects = unlike_subjects(architecture)
    fleet = fleet_of(subjects)
    weights = stack(fleet, subjects)
    assert padding_is_zero(subjects, weights)
    for s, subject in enumerate(subjects):
        back = unstack(fleet, weights, s)
        assert back.keys() == subject.weights.keys()
        assert all(torch.equal(back[name], w) for name, w in subject.weights.items())
    weights["W_E"].add_(1)
    assert not padding_is_zero(subjects, weights)


@pytest.mark.parametrize("architecture", ["plain", "neox"])
def test_a_fleet_moves_as_a_whole(architecture: str) -> None:
    moved = fleet_of(unlike_subjects(architecture)).to(torch.device("meta"))
    tensors = [x for f in fields(moved) if isinstance(x := getattr(moved, f.name), Tensor)]
    assert len(tensors) == (6 if architecture == "neox" else 4)
    assert all(x.is_meta for x in tensors)


def test_members_must_have_one_depth() -> None:
    with pytest.raises(ValueError, match=r"one number of layers and heads, got \[\(1, 4\), \(2, 4"):
        form([make_config(), make_config(n_layers=1)])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"norm": "layer"}, "one architecture, got norm 'none' and 'layer'; form a fleet of each"),
        ({"positions": "rotary"}, "got positions 'learned' and 'rotary'; form a"),
        ({"n_kv_heads": 2}, "got n_kv_heads 4 and 2;"),
        ({"activation": "relu", "biases": False}, "'gelu' and 'relu'; biases True and False;"),
        ({"parallel": True, "gated_mlp": True}, "gated_mlp False and True; parallel False and"),
    ],
)
def test_unlike_architectures_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        form([make_config(), make_config(**options), make_config()])
    assert form([make_config(**options)] * 2).config.n_ctx == 6


@pytest.mark.parametrize(
    ("architecture", "other", "problem"),
    [
        ("rotary", {"d_head": 6}, "got rotary_dim 4 and 6; form"),
        ("rotary", {"rotary_base": 50.0}, r"got rotary_base 100\.0 and 50\.0; form"),
        ("rms", {"norm_eps": 1e-5}, r"got norm_eps 0\.01 and 1e-05; form"),
    ],
)
def test_unlike_norms_and_rotations_are_refused(
    architecture: str, other: dict[str, object], problem: str
) -> None:
    options = FLEETS[architecture]
    with pytest.raises(ValueError, match=problem):
        form([make_config(**options), make_config(**(options | other))])


def test_what_makes_no_difference_may_differ() -> None:
    fleet = form([make_config(), make_config(n_kv_heads=4, norm_eps=1.0, rotary_base=2.0)])
    assert (fleet.turns, fleet.centre) == (None, None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"windows": (2, None)}, r"cannot train this architecture: windows must be None, got \(2"),
        ({"score_cap": 5.0}, r"score_cap must be None, got 5\.0"),
        ({"qk_norm": "head", "logit_scale": 2.0}, "'none', got 'head'; logit_scale must be 1.0"),
        ({"norm": "rms", "norm_places": "both"}, "norm_places must be 'before', got 'both'"),
        ({"tied_unembedding": True, "d_vocab_out": 5}, "tied_unembedding must be False, got True"),
    ],
)
def test_what_fleets_do_not_compute_is_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        form([make_config(**options)])
