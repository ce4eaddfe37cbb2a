"""Attention patterns of a plain run: they are what the heads of that run mixed values by."""

import pytest
import torch

from graphcircuits.subject.components import rms_scale
from tests.subjects import SOME, make_subject, make_tokens


@pytest.mark.parametrize("architecture", SOME)
def test_patterns_reproduce_what_heads_write(architecture: str) -> None:
    subject = make_subject(architecture)
    config, tokens = subject.config, make_tokens(subject)
    run = subject.run(tokens)
    layers = list(subject.patterns(tokens))
    assert len(layers) == config.n_layers
    for layer, pattern in enumerate(layers):
        assert pattern.shape == (3, config.n_heads, 5, 5)
        values = run.states.v[layer].transpose(1, 2).repeat_interleave(config.heads_per_group, 1)
        z = (pattern @ values).transpose(1, 2)
        if config.norms_after:
            written = z.flatten(-2) @ subject.weights["W_O"][layer].flatten(0, 1)
            z = z * rms_scale(written, config.norm_eps)[..., None]
        torch.testing.assert_close(z, run.states.z[layer])
        torch.testing.assert_close(pattern.sum(-1), torch.ones(3, config.n_heads, 5).double())
        if config.causal:
            assert not pattern.triu(1).any()
        else:
            assert (pattern.triu(1)[..., :-1, -1] > 0).all()
        if (window := config.window(layer)) is not None:
            assert not pattern.tril(-window).any()


def test_a_plain_run_of_one_prompt_is_that_of_many() -> None:
    subject = make_subject("llama")
    tokens = make_tokens(subject)
    for one, many in zip(subject.patterns(tokens[1:2]), subject.patterns(tokens), strict=True):
        torch.testing.assert_close(one[0], many[1])
