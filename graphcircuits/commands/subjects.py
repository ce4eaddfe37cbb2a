"""Subjects of a user's own: the files and folders that commands take, and their prompts.

What is the id of a case is the case, also where a file has that name; `./ib-3` is the file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs


def is_case(text: str) -> bool:
    """Whether the text is the id of a case."""
    from graphcircuits.corpus import FAMILIES, case_ids

    family = text.partition("-")[0]
    return family in FAMILIES and text in case_ids(family=family)


def is_path(text: str) -> bool:
    """Whether the text means a file or a folder: no case, and there or written like a path."""
    path = Path(text)
    written = len(path.parts) > 1 or path.suffix != "" or (text != "" and path.exists())
    return written and not is_case(text)


def own_subject(path: Path) -> tuple["Transformer", "Circuit | None"]:
    """A subject, and its circuit where the folder holds one."""
    if path.is_file():
        from graphcircuits.subject.files import load_transformer

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


def own_pairs(file: Path, path: Path, transformer: "Transformer", *, words: bool) -> "Pairs":
    """The prompts in a file; `words` are read as the subject at `path` reads them."""
    from graphcircuits.task.pairs import Pairs

    return Pairs.load(file, tokenizer=tokenizer_of(path, transformer) if words else None)


def tokenizer_of(path: Path, transformer: "Transformer") -> Any:
    """What turns words into the subject's tokens: its codec, or the folder's own tokenizer."""
    if transformer.codec is not None:
        return transformer.codec
    if (path / "tokenizer_config.json").is_file():
        from graphcircuits.adapters.hf_families import load_transformers

        return load_transformers().AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    raise ValueError(f"{path} has no vocabulary to read words with; give token ids, not --words.")
