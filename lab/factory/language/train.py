"""Training a small language model, and how well it does.

1. `train` minimizes the cross-entropy of the next token on windows drawn from the text, with AdamW
   (Loshchilov and Hutter 2019) as language models are trained: decay on matrices alone, gradients
   clipped at norm 1, a learning rate that rises over a twentieth of the steps and falls with a
   cosine to a tenth. Everything stays on the device; on a GPU it computes in bfloat16 and keeps
   weights in float32.
2. `held_out_loss` is the cross-entropy per token of the subject that was read back from disk, on
   windows of text that was not trained on.
3. `task_shares` asks it prompts of every task; those that its tokenizer cannot be asked come with
   the reason.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Integer
from torch import Tensor, nn

from graphcircuits import tasks
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import share_right

NOTICE = 50
"""Steps after which progress is yielded."""
PROMPTS, PROMPT_SEED = 128, 1
"""In each task."""
WINDOWS = 256
"""Of held-out text, at most."""
_TOGETHER = 32


def train(
    model: Any,
    stream: Integer[Tensor, " token"],
    *,
    context: int,
    steps: int,
    batch: int,
    lr: float,
    weight_decay: float,
    seed: int,
) -> Iterator[tuple[int, float]]:
    """Train the model, on its device, on `batch` tokens of the stream for each step.

    Yields the steps so far and the loss, now and then and at the end.
    """
    device = stream.device
    generator = torch.Generator(device).manual_seed(seed)
    window = torch.arange(context + 1, device=device)
    rows, last = max(1, batch // context), len(stream) - context
    optimizer = torch.optim.AdamW(
        _groups(model, weight_decay), lr=lr, betas=(0.9, 0.95), fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    mixed = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    model.train()
    for step in range(steps):
        starts = torch.randint(last, (rows, 1), generator=generator, device=device)
        tokens = stream[starts + window].long()
        with mixed:
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if (step + 1) % NOTICE == 0 or step + 1 == steps:
            yield step + 1, (now := loss.item())
            if not math.isfinite(now):
                break  # it does not come back from there
    model.eval()


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with and without decay: biases and norms have none."""
    parameters = list(model.parameters())
    return [
        {"params": [x for x in parameters if x.ndim > 1], "weight_decay": weight_decay},
        {"params": [x for x in parameters if x.ndim <= 1], "weight_decay": 0.0},
    ]


def _rate(step: int, steps: int) -> float:
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    along = (step - rise) / max(1, steps - rise)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * along))


def held_out_loss(subject: Transformer, stream: Integer[Tensor, " token"], context: int) -> float:
    """Nats per token, over windows next to each other."""
    count = min(WINDOWS, len(stream) // context)
    windows = stream[: count * context].unflatten(0, (count, context)).long()
    losses = []
    with torch.no_grad():
        for some in windows.split(_TOGETHER):
            logits = subject.logits(some)[:, :-1]
            losses.append(
                F.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="none")
            )
    return torch.cat(losses).mean().item()


def task_shares(subject: Transformer) -> tuple[dict[str, float], dict[str, str]]:
    """On which share of fresh prompts the subject is right, by task; and why others do not fit."""
    shares, reasons = {}, {}
    for name in tasks.names():
        try:
            prompts = tasks.find(name)(subject.tokenizer, PROMPTS, PROMPT_SEED)
        except ValueError as error:
            reasons[name] = str(error)
            continue
        if prompts.clean.shape[1] > subject.config.n_ctx:
            reasons[name] = f"its prompts have up to {prompts.clean.shape[1]} tokens"
            continue
        shares[name] = share_right(subject, prompts)
    return shares, reasons
