"""Subjects from the `.bin` files of Karpathy's llama2.c: small Llamas in float32.

1. Seven int32 give the sizes: d_model, d_mlp, layers, heads, groups of keys and values, vocabulary
   (negative where the unembedding is a matrix of its own) and context. They fix the size of the
   file to the byte, so a cut or foreign file is refused before anything is read.
2. The matrices follow, each stacked over layers, and are read one by one. Coordinates of queries
   and keys that turn together stand side by side and are put into halves. Behind the last norm lie
   the cosines and sines of the positions; they must be those of base 10000.
3. `tokenizer.bin`, beside the model or given, holds a score and a text per token: SentencePiece's
   BPE, which the tokenizer of `gguf_tokenizer` computes.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcircuits.adapters.gguf_tokenizer import (
    CONTROL,
    NORMAL,
    SPACE,
    FileTokens,
    finished,
    sentencepiece,
)
from graphcircuits.adapters.hf_families import load_transformers
from graphcircuits.adapters.rows import WHOLE, Shape, from_rows, halves, layer_shapes, stored_shape
from graphcircuits.io.files import StoreError, read_bytes
from graphcircuits.io.store import check_finite
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes

TOKENIZER = "tokenizer.bin"
_HEADER = struct.Struct("<7i")
_NEWER = 0x616B3432
_ORDER = (
    *("W_E", "attn_norm_w", "W_Q", "W_K", "W_V", "W_O", "mlp_norm_w", "W_gate", "W_out", "W_in"),
    *("final_norm_w", "cos", "sin", "W_U"),
)
_UNKNOWN, _BYTE = 2, 6
"""Kinds of tokens that no text is made of."""
_FIRST = 3 + 256
"""Tokens that every vocabulary begins with: unknown, BOS, EOS and the bytes."""


def load_llama2c(
    path: str | Path, tokenizer: str | Path | None = None, *, dtype: torch.dtype | None = None
) -> Transformer:
    """The subject in a `.bin` file of llama2.c, with the tokenizer beside it if there is one."""
    path = Path(path)
    config, shapes = _sizes(path)
    beside = path.with_name(TOKENIZER)
    if tokenizer is None and beside.is_file():
        tokenizer = beside
    made = None if tokenizer is None else read_llama2c_tokenizer(tokenizer, config.d_vocab)
    weights = {}
    with path.open("rb") as file:
        file.seek(_HEADER.size)
        for name, shape in shapes.items():
            numbers = np.fromfile(file, "<f4", math.prod(shape))
            stored = torch.from_numpy(numbers).view(shape)
            check_finite(path, {name: stored})
            if name in ("cos", "sin"):
                _check_positions(path, config, name, stored)
            else:
                weights[name] = _weight(config, name, stored).to(dtype or torch.float32)
    return Transformer(config, weights, tokenizer=made)


def _sizes(path: Path) -> tuple[TransformerConfig, dict[str, Shape]]:
    """The configuration and the tensors in their order, if the file is of their size."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise StoreError(f"{path} is not a model of llama2.c: it holds {len(header)} bytes.")
    sizes = _HEADER.unpack(header)
    if sizes[0] == _NEWER:
        raise StoreError(
            f"{path} is in version {sizes[1]} of llama2.c's format; version 0 is read: "
            "export the model with --version 0."
        )
    d_model, d_mlp, n_layers, n_heads, n_groups, vocabulary, n_ctx = sizes
    d_vocab = abs(vocabulary)
    try:
        config = TransformerConfig(
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_groups,
            d_model=d_model,
            d_head=d_model // max(n_heads, 1),
            d_mlp=d_mlp,
            n_ctx=n_ctx,
            d_vocab=d_vocab,
            d_vocab_out=d_vocab,
            positions="rotary",
            norm="rms",
            activation="silu",
            gated_mlp=True,
            tied_unembedding=vocabulary > 0,
            biases=False,
        )
    except (ValueError, ZeroDivisionError) as error:
        raise StoreError(f"{path} is not a model of llama2.c: {error}") from error
    shapes: dict[str, Shape] = {
        name: (n_layers, *stored_shape(name, shape)) for name, shape in layer_shapes(config).items()
    }
    whole = {name: shape for name, shape in weight_shapes(config).items() if name in WHOLE}
    shapes |= {name: stored_shape(name, shape) for name, shape in whole.items()}
    shapes["cos"] = shapes["sin"] = (n_ctx, config.d_head // 2)
    shapes = {name: shapes[name] for name in _ORDER if name in shapes}
    expected = _HEADER.size + 4 * sum(math.prod(shape) for shape in shapes.values())
    if (held := path.stat().st_size) != expected:
        raise StoreError(
            f"{path} is not a whole model of llama2.c: by its header "
            f"({', '.join(map(str, sizes))}) it takes {expected} bytes, and it holds {held}."
        )
    return config, shapes


def _check_positions(path: Path, config: TransformerConfig, name: str, stored: Tensor) -> None:
    half = config.d_head // 2
    frequencies = config.rotary_base ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(config.n_ctx)[:, None] * frequencies
    if not torch.allclose(stored.double(), getattr(angles, name)(), atol=1e-3):
        raise StoreError(
            f"{path} has rotary positions whose base is not {config.rotary_base:g}, or it is no "
            "model of llama2.c."
        )


def _weight(config: TransformerConfig, name: str, stored: Tensor) -> Tensor:
    shape = weight_shapes(config)[name]
    if name in WHOLE:
        return from_rows(name, stored, shape).contiguous()
    layers = stored.unbind()
    if name in ("W_Q", "W_K"):
        layers = [halves(rows, shape[1]) for rows in layers]
    return torch.stack([from_rows(name, rows, shape[1:]) for rows in layers])


def read_llama2c_tokenizer(path: str | Path, d_vocab: int) -> Any:
    """The tokenizer in a `tokenizer.bin` of llama2.c with so many tokens."""
    load_transformers()  # so that, without it, the error says what to install
    if d_vocab < _FIRST:
        raise _wrong_tokenizer(path, f"its first {_FIRST} tokens are fixed, and it has {d_vocab}")
    data, offset = read_bytes(path), 4
    tokens, scores = [], torch.empty(d_vocab)
    for i in range(d_vocab):
        if offset + 8 > len(data):
            raise _wrong_tokenizer(path, f"it ends after {i} of {d_vocab} tokens")
        score, length = struct.unpack_from("<fi", data, offset)
        text = data[offset + 8 : offset + 8 + max(length, 0)]
        offset += 8 + len(text)
        if len(text) != length:
            raise _wrong_tokenizer(path, f"token {i} has {length} bytes, {len(text)} are left")
        scores[i] = score
        tokens.append(text)
    if offset < len(data):
        raise _wrong_tokenizer(path, f"{len(data) - offset} bytes follow {d_vocab} tokens")
    try:
        texts = [text.decode() for text in tokens]
    except UnicodeDecodeError as error:
        raise _wrong_tokenizer(path, "a token is not UTF-8") from error
    # The texts of BOS and EOS have line breaks around them; those of bytes are the characters of
    # that number in old files. Both would be found in ordinary text.
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    kinds = [_UNKNOWN, CONTROL, CONTROL, *[_BYTE] * 256]
    pieces = [text.replace(" ", SPACE) for text in texts[_FIRST:]]
    vocabulary = FileTokens(
        source=path, tokens=names + pieces, kinds=kinds + [NORMAL] * len(pieces)
    )
    backend = sentencepiece(vocabulary, scores.numpy(), unknown=0, prefix=True)
    ids: dict[str, int | None] = {"bos": 1, "eos": 2, "unk": 0, "pad": None}
    return finished(vocabulary, backend, ids, add_bos=True)


def _wrong_tokenizer(path: str | Path, what: str) -> StoreError:
    return StoreError(f"{path} is not the tokenizer of this model: {what}.")
