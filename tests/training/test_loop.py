"""The optimizer of every training: torch's for one predictor, and for each of several at once."""

import torch
from torch import Tensor

from graphcircuits.training.loop import AdamW
from tests.predictor.graphs import seeded

SHAPES = ((3, 4), (4,), ())
RATES, DECAY, SHARES = (1e-2, 1e-3), (0.1, 0.0), (0.5, 1.0, 0.25)


def draw(seed: int, scale: float = 1.0) -> list[Tensor]:
    generator = seeded(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


def by_torch(run: int) -> list[Tensor]:
    """Three steps of torch's AdamW, the first with a gradient that is clipped."""
    parameters = [torch.nn.Parameter(x) for x in draw(run)]
    optimizer = torch.optim.AdamW(parameters, weight_decay=DECAY[run])
    for step, share in enumerate(SHARES):
        optimizer.param_groups[0]["lr"] = RATES[run] * share
        for p, grad in zip(parameters, draw(10 * run + step, 0.1 * 30 ** (step == 0)), strict=True):
            p.grad = grad
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return [p.detach() for p in parameters]


def ours(runs: tuple[int, ...], *, stacked: bool) -> list[Tensor]:
    """The same steps, of runs with a leading axis or of one without."""

    def joined(of: list[list[Tensor]]) -> list[Tensor]:
        return [torch.stack(x) if stacked else x[0] for x in zip(*of, strict=True)]

    def numbers(values: tuple[float, ...]) -> Tensor:
        return torch.tensor([values[run] for run in runs]).view((len(runs),) if stacked else ())

    parameters = joined([draw(run) for run in runs])
    optimizer = AdamW(parameters, numbers(RATES), numbers(DECAY))
    for step, share in enumerate(SHARES):
        if step == 2:
            # As from a checkpoint.
            again = AdamW(parameters, optimizer.rates, optimizer.decay)
            again.load(optimizer.tensors())
            optimizer = again
        grads = joined([draw(10 * run + step, 0.1 * 30 ** (step == 0)) for run in runs])
        for p, grad in zip(parameters, grads, strict=True):
            p.grad = grad
        optimizer.step(share)
    return parameters


def test_one_predictor_is_updated_as_torch_does() -> None:
    for run in (0, 1):
        for x, y in zip(ours((run,), stacked=False), by_torch(run), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_predictors_side_by_side_have_rates_and_norms_of_their_own() -> None:
    together = ours((0, 1), stacked=True)
    for run in (0, 1):
        for x, y in zip(together, by_torch(run), strict=True):
            torch.testing.assert_close(x[run], y, rtol=1e-5, atol=1e-6)


def test_what_is_not_used_does_not_decay() -> None:
    used, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = AdamW([used, other], torch.tensor(0.1), torch.tensor(0.5))
    used.grad = torch.ones(2)
    optimizer.step(1.0)
    assert torch.equal(other.detach(), torch.ones(2))
    assert not torch.equal(used.detach(), torch.ones(2))
