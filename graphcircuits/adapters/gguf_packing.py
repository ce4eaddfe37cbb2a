"""What the blocks of a GGUF file hold: so many numbers in so many bytes, with scales of their own.

Each type comes out as in the `gguf` package, bit for bit; PyTorch takes a third of its time, and
works with all of its threads.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

NAMES = (
    *("F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S"),
    *("IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"),
)
"""Of all types, by their numbers in files."""
TYPES = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""That are read: numbers of a block, and bytes. Those of one number are plain."""
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def unpack(kind: str, blocks: UInt8[Tensor, "block byte"]) -> Float[Tensor, "block number"]:
    """The numbers of some blocks in float32."""

    def half(at: int) -> Tensor:
        return blocks[:, at : at + 2].contiguous().view(torch.float16).float()

    match kind:
        case "Q4_0":
            return _low_high(blocks[:, 2:], 16).float().sub_(8).mul_(half(0))
        case "Q4_1":
            return _low_high(blocks[:, 4:], 16).float().mul_(half(0)).add_(half(2))
        case "Q5_0":
            fifth = blocks[:, 2:6, None] >> _shifts(1) & 1
            values = _low_high(blocks[:, 6:], 16) | fifth.flatten(1) << 4
            return values.float().sub_(16).mul_(half(0))
        case "Q8_0":
            return blocks[:, 2:].view(torch.int8).float().mul_(half(0))
        case "Q4_K" | "Q5_K":
            values = _low_high(blocks[:, -128:], 32)
            if kind == "Q5_K":
                fifth = blocks[:, None, 16:48] >> _shifts(1)[:, None] & 1
                values |= fifth.flatten(1) << 4
            # Of eight scales and eight numbers to take away, six bits each.
            first, second, rest = blocks[:, 4:16].split(4, dim=1)
            scales = torch.cat([first & 63, rest & 15 | first >> 6 << 4], dim=1) * half(0)
            least = torch.cat([second & 63, rest >> 4 | second >> 6 << 4], dim=1) * half(2)
            values = values.float().unflatten(1, (8, 32))
            return values.mul_(scales[..., None]).sub_(least[..., None]).flatten(1)
        case "Q6_K":
            top = blocks[:, 128:192].unflatten(1, (2, 1, 32)) >> _shifts(2)[:, None] & 3
            values = _low_high(blocks[:, :128], 64) | top.flatten(1) << 4
            scales = blocks[:, 192:208].view(torch.int8) * half(208)
            values = values.float().sub_(32).unflatten(1, (16, 16))
            return values.mul_(scales[..., None]).flatten(1)
    return blocks.view(PLAIN[kind]).float()


def _low_high(packed: UInt8[Tensor, "block byte"], group: int) -> UInt8[Tensor, "block number"]:
    """Numbers of four bits: of each group of bytes the lower halves, then the upper ones."""
    groups = packed.unflatten(1, (-1, group))
    return torch.stack([groups & 15, groups >> 4], dim=2).flatten(1)


def _shifts(bits: int) -> UInt8[Tensor, " shift"]:
    """By how much a byte is shifted for each of its parts of so many bits."""
    return torch.arange(0, 8, bits, dtype=torch.uint8)
