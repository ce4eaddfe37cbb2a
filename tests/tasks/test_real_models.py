"""The tasks on models of others: their tokenizers can be asked, and the models know the answers."""

import os
from pathlib import Path

import pytest

from graphcircuits import tasks
from graphcircuits.adapters.load import load_model
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import share_right

pytestmark = pytest.mark.models

FOLDER = Path(os.environ.get("GRAPHCIRCUITS_MODELS", "build/models"))
HARD = ("binding", "colored-objects")
"""For a model of this size."""


@pytest.fixture(scope="module")
def smollm2() -> Transformer:
    return load_model(FOLDER / "smollm2.gguf")


@pytest.mark.parametrize("name", tasks.names())
def test_smollm2(name: str, smollm2: Transformer) -> None:
    task = tasks.find(name)
    assert len(set(task.texts(smollm2.tokenizer, 64))) == 64
    share = share_right(smollm2, task(smollm2.tokenizer, 32))
    assert share > (0.2 if name in HARD else 0.75)


def test_the_tokenizer_of_llama_2() -> None:
    """It puts a space before every text, so that an answer alone is another token."""
    tokenizer = load_model(FOLDER / "stories15M.bin").tokenizer
    for name in tasks.names():
        assert len(set(tasks.find(name).texts(tokenizer, 64))) == 64
