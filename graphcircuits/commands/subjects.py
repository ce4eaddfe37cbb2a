"""Subjects of a user's own: the files and folders that commands take; reading words for them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.transformer import Transformer


def own_subject(path: Path) -> tuple["Transformer", "Circuit | None"]:
    """A subject, and its circuit where the folder holds one."""
    if path.is_file():
        from graphcircuits.store import load_transformer

        return load_transformer(path), None
    if (path / "ll_model.pth").is_file():
        from graphcircuits.adapters.interpbench import import_interpbench

        imported = import_interpbench(path)
        return imported.transformer, imported.circuit
    if (path / "config.json").is_file():
        from graphcircuits.adapters.hf import from_hf

        return from_hf(str(path)), None
    raise FileNotFoundError(
        f"no subject at {path}: expected a .safetensors file, or a folder with ll_model.pth "
        "(InterpBench) or config.json (Hugging Face)."
    )


def tokenizer_of(path: Path, transformer: "Transformer") -> Any:
    """What turns words into the subject's tokens: its codec, or the folder's own tokenizer."""
    if transformer.codec is not None:
        return transformer.codec
    if (path / "tokenizer_config.json").is_file():
        from graphcircuits.adapters.hf_families import load_transformers

        return load_transformers().AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    raise ValueError(f"{path} has no vocabulary to read words with; give token ids, not --words.")
