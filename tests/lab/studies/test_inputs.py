"""Groups of inputs: every column has one, and a predictor does not see what was left out."""

from dataclasses import replace

import pytest
import torch

from graphcircuits.predictor.model import InvariantTables
from graphcircuits.training.members import train_predictor
from lab.studies.inputs import INPUTS, input_groups, without
from tests.predictor.graphs import seeded
from tests.training.test_batches import PRIOR, config, make_judged


@pytest.mark.slow
def test_groups_of_inputs_can_be_left_out() -> None:
    names = input_groups(share=PRIOR.share, both_ends=True)
    assert set(names) == set(INPUTS)
    assert set(input_groups(share=1, both_ends=False)) == set(INPUTS) - {"own", "far-effects"}
    examples = make_judged(count=1)[:1]
    (blind,) = without(examples, "norms", PRIOR)
    content, seen = blind.reading.content, examples[0].reading.content
    assert isinstance(content, InvariantTables)
    assert isinstance(seen, InvariantTables)
    names = input_groups(share=PRIOR.share, both_ends=PRIOR.both_ends)
    hidden = torch.tensor([name == "norms" for name in names])
    assert not content.nodes[:, hidden].any()
    assert torch.equal(content.nodes[:, ~hidden], seen.nodes[:, ~hidden])
    assert without(examples, None, PRIOR) == examples
    # Nothing is learned of columns that are zero, so that they stay without effect.
    predictor = train_predictor([blind], config(steps=1)).predictor
    expected = predictor(blind.reading, generator=seeded(0))
    changed = replace(blind.reading, content=replace(content, nodes=seen.nodes.clone()))
    changed.content.nodes[:, hidden] = 0.0
    assert torch.equal(predictor(changed, generator=seeded(0)), expected)
