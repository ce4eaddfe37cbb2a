"""Small language models by name: `gpt2-4x128-bpe2k` has 4 layers, is 128 wide, reads bpe2k.

1. The architecture is one of `ARCHITECTURES`: classes of `transformers` with the dropout and the
   weight decay that such models are trained with.
      gpt2    layer norms, learned positions, GELU, biases; dropout 0.1, decay 0.01 (Radford 2019)
      neox    layer norms, rotary positions in a quarter of each head, layers in parallel, GELU,
              biases, unembedding of its own; no dropout, decay 0.1 (Black 2022; Biderman 2023)
      llama   RMS norms, rotary positions, gated SiLU, no biases; no dropout, decay 0.1
              (Touvron 2023)
      gqa     the same, two query heads for each key head (Ainslie 2023)
2. A head is 32 wide, but there are at least four; MLPs are four times as wide as the model, gated
   ones 8/3 times, which makes as many weights.
3. The context is 256 characters, or 128 tokens of several characters.

`PLAN` lists the models that are made unless others are named, `MANY` those that the shipped
predictors learn from: every architecture in all `SHAPES`.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from graphcircuits.adapters.hf_families import load_transformers
from lab.factory.language.tokens import TOKENIZERS

ARCHITECTURES = ("gpt2", "neox", "llama", "gqa")
DEEPEST, WIDEST = 16, 512
_NAME = re.compile(r"([a-z0-9]+)-(\d{1,3})x(\d{1,4})-([a-z0-9]+)", re.ASCII)

PLAN = (
    "gpt2-2x64-chars",
    "gpt2-4x128-chars",
    "gpt2-2x128-bpe2k",
    "gpt2-4x128-bpe2k",
    "gpt2-8x128-bpe2k",
    "neox-2x128-chars",
    "neox-4x128-bpe2k",
    "neox-6x128-bpe2k",
    "llama-2x128-chars",
    "llama-8x128-chars",
    "llama-2x64-bpe2k",
    "llama-4x128-bpe2k",
    "gqa-6x128-bpe2k",
    "gqa-3x256-bpe4k",
)
SHAPES = (
    "2x64-bpe2k",
    "2x96-chars",
    "2x128-bpe2k",
    "3x64-bpe4k",
    "3x128-bpe2k",
    "4x64-bpe2k",
    "4x96-bpe2k",
    "5x64-chars",
    "6x64-bpe2k",
    "6x96-bpe2k",
    "8x64-bpe2k",
    "12x64-bpe2k",
)
MANY = tuple(f"{architecture}-{shape}" for shape in SHAPES for architecture in ARCHITECTURES)


@dataclass(frozen=True)
class Design:
    """What a model of a name looks like."""

    architecture: str
    layers: int
    width: int
    tokenizer: str

    @classmethod
    def parse(cls, name: str) -> "Design":
        """The design of a name; whatever is wrong with it, at once."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(
                f"a model is ARCHITECTURE-LAYERSxWIDTH-TOKENIZER, such as {PLAN[3]}, got "
                f"{name[:50]!r}."
            )
        design = cls(found[1], int(found[2]), int(found[3]), found[4])
        if problems := design._problems():
            raise ValueError(f"cannot make the model {name}: {'; '.join(problems)}.")
        return design

    def _problems(self) -> list[str]:
        problems = [
            *_unknown("architecture", self.architecture, ARCHITECTURES),
            *_unknown("tokenizer", self.tokenizer, tuple(TOKENIZERS)),
        ]
        if not 1 <= self.layers <= DEEPEST:
            problems.append(f"it must have 1 to {DEEPEST} layers, not {self.layers}")
        if not 32 <= self.width <= WIDEST or self.width % 32:
            problems.append(f"it must be 32 to {WIDEST} wide, a multiple of 32, not {self.width}")
        return problems

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.layers}x{self.width}-{self.tokenizer}"

    @property
    def heads(self) -> int:
        return max(4, self.width // 32)

    @property
    def context(self) -> int:
        return 256 if self.tokenizer == "chars" else 128

    @property
    def dropout(self) -> float:
        return 0.1 if self.architecture == "gpt2" else 0.0

    @property
    def weight_decay(self) -> float:
        return 0.01 if self.architecture == "gpt2" else 0.1

    def model(self, vocabulary: int, end: int) -> Any:
        """A model of `transformers` with fresh weights, drawn from PyTorch's own generator."""
        transformers = load_transformers()
        # Padding stands nowhere in training, and the embedding of a padding token learns nothing.
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}
        if self.architecture == "gpt2":
            config = transformers.GPT2Config(
                n_layer=self.layers,
                n_head=self.heads,
                n_embd=self.width,
                n_positions=self.context,
                vocab_size=vocabulary,
                resid_pdrop=self.dropout,
                embd_pdrop=self.dropout,
                attn_pdrop=self.dropout,
                **ends,
            )
            return transformers.GPT2LMHeadModel(config)
        common = {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            "max_position_embeddings": self.context,
            "vocab_size": vocabulary,
            **ends,
        }
        if self.architecture == "neox":
            config = transformers.GPTNeoXConfig(intermediate_size=4 * self.width, **common)
            return transformers.GPTNeoXForCausalLM(config)
        config = transformers.LlamaConfig(
            intermediate_size=self.width * 8 // 3 // 8 * 8,
            num_key_value_heads=self.heads // (2 if self.architecture == "gqa" else 1),
            tie_word_embeddings=True,
            **common,
        )
        return transformers.LlamaForCausalLM(config)


def _unknown(kind: str, name: str, known: tuple[str, ...]) -> list[str]:
    if name in known:
        return []
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return [f"unknown {kind} {name!r}; {hint}({', '.join(known)})"]
