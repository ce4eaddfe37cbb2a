"""Models that others trained, as `make fetch-models` gets them; run by `make test-models`."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from graphcircuits.adapters.gguf import load_gguf
from graphcircuits.adapters.hf import from_hf
from graphcircuits.adapters.llama2c import load_llama2c
from graphcircuits.subject.transformer import Transformer

pytestmark = pytest.mark.models

FOLDER = Path(os.environ.get("GRAPHCIRCUITS_MODELS", "build/models"))
STORE = "When Mary and John went to the store, John gave a drink to"
TEXTS = [
    STORE,
    " leading and trailing  ",
    "def f(x):\n    return x**2  # 1987 + 12,345.67\n",
    "don't I'll we've THEY'RE",
    "naïve café 日本語 한국어 😀👍🏽 ½ Ⅷ",
    "a\n\nb\n \n c\t\td",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]


def model_file(name: str) -> Path:
    path = FOLDER / name
    assert path.is_file(), f"{path} is not there; fetch it with: make fetch-models"
    return path


@cache
def smollm2() -> Transformer:
    return load_gguf(model_file("smollm2.gguf"))


@cache
def as_transformers_reads_it() -> Any:
    """The same file through `transformers`, which unpacks and names the weights itself."""
    name = {"gguf_file": "smollm2.gguf"}
    config = transformers.AutoConfig.from_pretrained(FOLDER, **name)
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    path = str(model_file("smollm2.gguf"))
    state = load_gguf_checkpoint(path, return_tensors=True, model_to_load=empty)["tensors"]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert model.load_state_dict(state, strict=False).missing_keys == ["lm_head.weight"]
    return model.eval()


def test_smollm2_has_the_weights_that_transformers_reads() -> None:
    expected = from_hf(as_transformers_reads_it()).weights
    assert smollm2().weights.keys() == expected.keys()
    for name, weight in smollm2().weights.items():
        assert torch.equal(weight, expected[name]), name


def test_smollm2_has_the_logits_of_transformers() -> None:
    """In float32: logits reach 32, so the bound is some millionths of them."""
    subject = smollm2()
    tokens = torch.tensor([subject.tokenizer(STORE)["input_ids"]])
    with torch.no_grad():
        found, expected = subject.logits(tokens), as_transformers_reads_it()(tokens).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    assert float((found - expected).abs().mean()) < 3e-5


def test_smollm2_gives_the_drink_to_mary() -> None:
    subject = smollm2()
    tokens = torch.tensor([subject.tokenizer(STORE)["input_ids"]])
    with torch.no_grad():
        likely, token = subject.logits(tokens)[0, -1].softmax(-1).max(-1)
    assert subject.tokenizer.decode([int(token)]) == " Mary"
    assert float(likely) == pytest.approx(0.923, abs=0.001)
    assert subject.graph.n_edges == 70651


@pytest.mark.parametrize("name", ["gemma3.gguf", "qwen2.5-coder-1.5b.gguf"])
def test_larger_models_give_the_drink_to_mary(name: str) -> None:
    """In bfloat16, which holds Qwen in half the memory."""
    subject = load_gguf(model_file(name), dtype=torch.bfloat16)
    tokens = torch.tensor([subject.tokenizer(STORE)["input_ids"]])
    with torch.no_grad():
        token = subject.logits(tokens)[0, -1].argmax()
    assert subject.tokenizer.decode([int(token)]) == " Mary"


def test_the_tokenizer_of_smollm2() -> None:
    """As `transformers` reads it, with the cutting of SmolLM2 itself, which that does not know."""
    theirs = transformers.AutoTokenizer.from_pretrained(FOLDER, gguf_file="smollm2.gguf")
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    ours = smollm2().tokenizer
    for text in TEXTS:
        found = ours(text)["input_ids"]
        assert found == theirs(text)["input_ids"], text
        assert ours.decode(found) == text
    said = ours.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said.endswith("<|im_start|>user\nhi<|im_end|>\n")


def test_stories15m_tells_its_story() -> None:
    subject = load_llama2c(model_file("stories15M.bin"))
    tokens = torch.tensor([subject.tokenizer("")["input_ids"]])
    assert tokens.tolist() == [[1]]
    with torch.no_grad():
        for _ in range(40):
            chosen = subject.logits(tokens)[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, chosen], dim=1)
    assert subject.tokenizer.decode(tokens[0], skip_special_tokens=True).startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "sunshine. One day, she saw a big, red ball in the sky."
    )
    assert subject.tokenizer("Once upon a time")["input_ids"] == [1, 9038, 2501, 263, 931]
    for text in TEXTS:
        found = subject.tokenizer(text)["input_ids"]
        assert subject.tokenizer.decode(found, skip_special_tokens=True) == text
