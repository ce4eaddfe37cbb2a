"""Groups of inputs: every column has one, and what is left out is zero."""

import pytest
import torch
from torch import Tensor

from lab.studies.inputs import INPUTS, input_groups, without
from tests.training.test_batches import PRIOR, make_judged


@pytest.mark.slow
def test_groups_of_inputs_can_be_left_out() -> None:
    names = input_groups(PRIOR.share)
    assert set(names) == set(INPUTS)
    assert set(input_groups(1.0)) == set(INPUTS) - {"own"}
    examples = make_judged(count=1)[:1]
    (blind,) = without(examples, "norms", PRIOR)
    content, seen = blind.reading.content, examples[0].reading.content
    assert isinstance(content, Tensor)
    assert isinstance(seen, Tensor)
    hidden = torch.tensor([name == "norms" for name in names])
    assert not content[:, hidden].any()
    assert torch.equal(content[:, ~hidden], seen[:, ~hidden])
    assert without(examples, None, PRIOR) == examples
