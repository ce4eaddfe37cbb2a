"""Small texts, and what models are made of, for tests."""

from pathlib import Path

import numpy as np

from graphcircuits.io.files import write_json
from lab.factory.language.tokens import encode, make_tokenizer


def document(number: int, size: int) -> str:
    """Lines such as abababab 17: what follows an a stands before it, but not right before."""
    line = f"{48 * ('a' + 'bcdefghi'[number % 8])} {number}\n"
    return line * (size // len(line))


def write_texts(root: Path, *, files: int = 60, size: int = 6000) -> Path:
    """A folder of plain texts in three groups."""
    for number in range(files):
        place = root / f"package{number % 3}" / f"module{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(document(number, size), "ascii")
    return root


def write_data(place: Path, *, bigram_loss: float) -> Path:
    """What a model of characters is made of, as `build` prepares it."""
    documents = [document(number, 4000) for number in range(2)]
    tokenizer = make_tokenizer("chars", documents)
    tokenizer.save_pretrained(place / "chars")
    for name, one in zip(("train", "held_out"), documents, strict=True):
        np.save(place / "chars" / f"{name}.npy", encode(tokenizer, [one]))
    about = {"bigram_loss": bigram_loss, "characters_per_token": 1.0}
    write_json(place / "chars" / "about.json", about)
    return place
