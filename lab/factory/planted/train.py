"""Training language models on text and on calls at once, beside twins that have text alone.

1. A step draws windows of text, the same for all, and prompts of calls. Models and twins make a
   step of Adam by the ordinary loss on the text. Models then make another one, by the losses of
   planting on the prompts (`fleets.train.loss_of`): behaviour, interchange, strict, and the circuit
   alone.
2. The two kinds of step have moments of their own. Added up before Adam, the losses of planting,
   which are larger and noisier, would take most of the step and leave the text behind: perplexity
   was 1.6 to 1.8 times that of the twins (docs/research/planted-language.md).
3. A model and its twin start from the same weights, so what differs in the end is what planting
   costs.
4. Every so often calls and components are checked. Those that did worse are drawn more often, and
   the check is a row of the learning curve.

Models of one design train side by side, as fleets do: a step is as many kernels for five as for
one. On a GPU it is recorded once and replayed.
"""

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.fleets.batch import Errors, draw_rows, gather
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, Weights, form, stack, unstack
from graphcircuits.fleets.forward import forward
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.fleets.train import State, adam, loss_of, recorded
from graphcircuits.fleets.verify import check
from graphcircuits.subject.transformer import Transformer

CLIP = 1.0
"""Largest norm of one model's gradient, of either kind."""
SHARES = ("accuracy", "interchange", "strict", "circuit")
CHECKED = 256
"""Prompts of each call in a check."""
WINDOWS = 256
"""Of held-out text, in which a loss is measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantingConfig:
    """How a model is trained."""

    steps: int = 4000
    """At most."""
    seconds: float = math.inf
    """After which training ends too; the learning rate falls by whichever comes first."""
    text_rows: int = 64
    """Windows of text in a step."""
    rows: int = 256
    """Prompts of each model in a step, for the plain and for the patched run each."""
    cut_rows: int = 64
    """Prompts in a step with edges cut."""
    lr: float = 3e-3
    """The highest learning rate of a model 64 wide; it falls with the root of the width."""
    check_every: int = 500
    inputs: int = 4096
    """Prompts of each call to train on."""
    interchanges: int = 2048
    """Interchanges of each component to train on."""

    def __post_init__(self) -> None:
        low = dict.fromkeys(("steps", "text_rows", "check_every", "inputs", "interchanges"), 1)
        problems = [
            f"{name} must be at least {least}, got {getattr(self, name)}"
            for name, least in (low | {"rows": 2, "cut_rows": 1}).items()
            if getattr(self, name) < least
        ]
        problems += [
            f"{name} must be a number above 0, got {getattr(self, name)}"
            for name in ("lr", "seconds")
            if not getattr(self, name) > 0
        ]
        if problems:
            raise ValueError(f"{'; '.join(problems)}.")

    @property
    def siit(self) -> SiitConfig:
        """The losses on prompts."""
        return SiitConfig(rows=self.rows, cut_rows=self.cut_rows)


@dataclass(frozen=True, eq=False)
class Trained:
    """A model, its twin, and how they learned."""

    planted: Transformer
    twin: Transformer
    curve: tuple[dict[str, float | int], ...]
    """By check: the step, the held-out loss of both in nats a token, and the worst shares of right
    answers of any call."""
    steps: int
    seconds: float
    """Of all that trained side by side, together."""


Rows = list[dict[str, float | int]]
"""A row of the learning curve of each model."""


def train_planted(
    starts: Sequence[Transformer],
    exchanges: Sequence[Sequence[Exchange]],
    checks: Sequence[Sequence[Exchange]],
    text: Int[Tensor, " token"],
    held_out: Int[Tensor, " token"],
    config: PlantingConfig,
    generator: torch.Generator,
    *,
    record: bool = True,
) -> Generator[Rows, None, list[Trained]]:
    """Train models of one design, each with the exchanges of its calls, and their twins.

    Yields how far they are, at every check.
    """
    began, device, n = time.monotonic(), generator.device, len(starts)
    fleet = form([start.config for start in (*starts, *starts)]).to(device)
    models = fleet.take(range(n))
    data, check_data = gather(models, exchanges).to(device), gather(models, checks).to(device)
    state = State.of(stack(fleet, [*starts, *starts]), device)
    planting = _of_models(state, n)
    errors = Errors.unknown(data)
    lr = torch.zeros((), device=device)

    def step() -> None:
        windows = draw_windows(text, config.text_rows, fleet.config.n_ctx, generator)
        loss = text_losses(fleet, state.weights, windows).sum()
        gradients = torch.autograd.grad(loss, list(state.weights.values()))
        with torch.no_grad():
            adam(state, gradients, lr, CLIP)
        rows = draw_rows(data, errors, config.rows, config.cut_rows, generator)
        weights = {name: weight.requires_grad_() for name, weight in _firsts(state, n).items()}
        loss = loss_of(models, weights, rows, data.numerical, config.siit).sum()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            adam(planting, gradients, lr, CLIP)

    make: Callable[[], None] = step
    if record and device.type == "cuda":
        make = recorded(step, generator)
    highest = config.lr * math.sqrt(64 / fleet.config.d_model)
    curves: list[list[dict[str, float | int]]] = [[] for _ in starts]
    done, along = 0, 0.0
    while along < 1:
        elapsed = time.monotonic() - began
        along = min(1.0, max((done + 1) / config.steps, elapsed / config.seconds))
        lr.fill_(highest * rate(along))
        make()
        done += 1
        if done % config.check_every == 0 or along == 1:
            shares = check(models, _firsts(state, n), check_data, CHECKED, 0.0, generator)
            errors.copy_(shares.errors)
            losses = held_out_losses(fleet, state.weights, held_out).tolist()
            for which, curve in enumerate(curves):
                curve.append({"step": done, "loss": losses[which], "twin": losses[n + which]})
                curve[-1] |= {name: getattr(shares, name)[which].min().item() for name in SHARES}
            yield [curve[-1] for curve in curves]
    seconds = time.monotonic() - began
    weights = {name: weight.detach().cpu() for name, weight in state.weights.items()}
    subjects = [
        Transformer(start.config, unstack(fleet, weights, which), start.codec)
        for which, start in enumerate((*starts, *starts))
    ]
    return [
        Trained(planted, twin, tuple(curve), done, seconds)
        for planted, twin, curve in zip(subjects[:n], subjects[n:], curves, strict=True)
    ]


def _firsts(state: State, n: int) -> Weights:
    """The weights of the first subjects, in place, without their gradients."""
    return {name: weight.detach()[:n] for name, weight in state.weights.items()}


def _of_models(state: State, n: int) -> State:
    """The same weights of the first subjects, with moments of their own."""
    weights = _firsts(state, n)
    first, second = ({k: torch.zeros_like(w) for k, w in weights.items()} for _ in range(2))
    return State(weights, first, second, torch.zeros_like(state.count))


def draw_windows(
    text: Int[Tensor, " token"], rows: int, n_ctx: int, generator: torch.Generator
) -> Int[Tensor, "row pos"]:
    """Windows of the text from anywhere."""
    starts = torch.randint(
        len(text) - n_ctx, (rows, 1), generator=generator, device=generator.device
    )
    return text[starts + torch.arange(n_ctx, device=text.device)].long()


def text_losses(
    fleet: Fleet, weights: Weights, windows: Int[Tensor, "row pos"]
) -> Float[Tensor, " subject"]:
    """Cross-entropy of the next token of each model on the same windows, in nats a token."""
    n = len(fleet.members)
    logits, _ = forward(fleet, weights, windows.expand(n, -1, -1))
    wanted = windows[:, 1:].expand(n, -1, -1)
    losses = F.cross_entropy(logits[:, :, :-1].flatten(0, 2), wanted.flatten(), reduction="none")
    return losses.view(n, -1).mean(1)


@torch.no_grad()
def held_out_losses(
    fleet: Fleet, weights: Weights, held_out: Int[Tensor, " token"]
) -> Float[Tensor, " subject"]:
    """The same on held-out windows next to each other."""
    n_ctx = fleet.config.n_ctx
    count = min(WINDOWS, len(held_out) // n_ctx)
    windows = held_out[: count * n_ctx].unflatten(0, (count, n_ctx)).long()
    each = [text_losses(fleet, weights, some) * len(some) for some in windows.split(64)]
    return torch.stack(each).sum(0) / count


def rate(along: float) -> float:
    """A rise over a twentieth of the way, then a cosine down to a hundredth."""
    if along < 0.05:
        return along / 0.05
    return 0.01 + 0.495 * (1 + math.cos(math.pi * (along - 0.05) / 0.95))
