"""The slow twin of a plain run: one prompt, one head, one position, one key at a time."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.subject.transformer import Transformer, TransformerConfig


def slow_norm(config: TransformerConfig, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if config.norm == "layer":
        x = x - x.mean()
    x = x / (x.square().mean() + config.norm_eps).sqrt() * weight
    return x if bias is None else x + bias


def slow_scaling(config: TransformerConfig, frequency: float) -> float:
    """As Llama 3.1 publishes it, by wavelength."""
    scaling = config.rotary_scaling
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    length, wavelength = scaling.original_n_ctx, 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / scaling.factor
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def slow_rotate(config: TransformerConfig, layer: int, x: Tensor, place: int) -> Tensor:
    turned, half = x.clone(), config.rotary_size // 2
    for i in range(half):
        base, windows = config.rotary_base, config.windows or (None,) * config.n_layers
        if config.window_rotary_base is not None and windows[layer] is not None:
            turns = config.window_rotary_base ** (-2 * i / config.rotary_size)
        else:
            turns = slow_scaling(config, base ** (-2 * i / config.rotary_size))
        angle = torch.tensor(place * turns, dtype=torch.float64)
        pair = torch.complex(x[i], x[i + half]) * torch.polar(torch.tensor(1.0).double(), angle)
        turned[i], turned[i + half] = pair.real, pair.imag
    return turned


def slow_cap(x: Tensor, cap: float | None) -> Tensor:
    if cap is None:
        return x
    up, down = (2 * x / cap).exp(), torch.ones_like(x)
    return cap * (up - down) / (up + down)


def slow_logits(subject: Transformer, tokens: Tensor) -> Tensor:
    config, w = subject.config, subject.weights
    activations = {
        "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
        "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": lambda x: x.clamp(min=0),
        "silu": lambda x: x * torch.sigmoid(x),
    }
    act = activations[config.activation]
    windows = config.windows or (None,) * config.n_layers

    def norm(name: str, x: Tensor, *index: int) -> Tensor:
        if f"{name}_w" not in w:
            return x
        bias = w[f"{name}_b"][index] if config.norm == "layer" else None
        return slow_norm(config, x, w[f"{name}_w"][index], bias)

    def bias(name: str, *index: int) -> Tensor:
        return w[name][index] if name in w else torch.tensor(0.0).double()

    def qk(n: int, name: str, read: Tensor) -> list[Tensor]:
        """The queries or the keys of all heads at a position."""
        count = w[f"W_{name}"].shape[1]
        made = [read @ w[f"W_{name}"][n, i] + bias(f"b_{name}", n, i) for i in range(count)]
        if config.qk_norm == "none":
            return made
        weight, shared = w[f"{name.lower()}_norm_w"][n], torch.cat(made)
        if config.qk_norm == "head":
            return [v / (v.square().mean() + config.norm_eps).sqrt() * weight for v in made]
        size = (shared.square().mean() + config.norm_eps).sqrt()
        return [v / size * weight[i] for i, v in enumerate(made)]

    rows = []
    for prompt in tokens:
        x = [w["W_E"][token] * config.embedding_scale for token in prompt]
        if config.positions == "learned":
            x = [v + w["W_pos"][place] for place, v in enumerate(x)]
        for n in range(config.n_layers):
            read = [norm("attn_norm", v, n) for v in x]
            attended = [bias("b_O", n) + torch.zeros_like(v) for v in x]
            queries, keys = [qk(n, "Q", v) for v in read], [qk(n, "K", v) for v in read]
            for head in range(config.n_heads):
                kv = head // (config.n_heads // config.n_groups)
                q, k = [each[head] for each in queries], [each[kv] for each in keys]
                values = [v @ w["W_V"][n, kv] + bias("b_V", n, kv) for v in read]
                if config.positions == "rotary":
                    q = [slow_rotate(config, n, v, place) for place, v in enumerate(q)]
                    k = [slow_rotate(config, n, v, place) for place, v in enumerate(k)]
                for place in range(len(x)):
                    seen = range(place + 1 if config.causal else len(x))
                    if (window := windows[n]) is not None:
                        seen = seen[-window:]
                    scores = torch.stack([q[place] @ k[s] for s in seen])
                    scores = scores * (config.attention_scale or config.d_head**-0.5)
                    scores = slow_cap(scores, config.score_cap)
                    weights = scores.exp() / scores.exp().sum()
                    mixed = [a * values[s] for a, s in zip(weights, seen, strict=True)]
                    z = torch.stack(mixed).sum(0)
                    attended[place] = attended[place] + z @ w["W_O"][n, head]
            for place in range(len(x)):
                after = x[place] + norm("attn_out_norm", attended[place], n)
                mlp_in = norm("mlp_norm", x[place] if config.parallel else after, n)
                pre = mlp_in @ w["W_in"][n] + bias("b_in", n)
                hidden = act(mlp_in @ w["W_gate"][n]) * pre if config.gated_mlp else act(pre)
                written = hidden @ w["W_out"][n] + bias("b_out", n)
                x[place] = after + norm("mlp_out_norm", written, n)
        W_U = w["W_E"].T if config.tied_unembedding else w["W_U"]
        out = [(norm("final_norm", v) @ W_U + bias("b_U")) * config.logit_scale for v in x]
        rows.append(slow_cap(torch.stack(out), config.logit_cap))
    return torch.stack(rows)
