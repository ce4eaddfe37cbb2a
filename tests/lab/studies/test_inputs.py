"""Groups of inputs: every column has one, and what is left out is zero."""

import pytest
import torch

from graphcircuits.predictor.model import InvariantTables
from lab.studies.inputs import INPUTS, input_groups, without
from tests.training.test_batches import PRIOR, make_judged


@pytest.mark.slow
def test_groups_of_inputs_can_be_left_out() -> None:
    names = input_groups(share=PRIOR.share, both_ends=True)
    assert set(names) == set(INPUTS)
    assert set(input_groups(share=1.0, both_ends=False)) == set(INPUTS) - {"own", "far-effects"}
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
