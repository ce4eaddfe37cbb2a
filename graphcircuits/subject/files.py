"""The file of a subject: weights, configuration and codec as one artifact."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcircuits.io.config import build_config
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import DTYPES, check_finite, load_artifact, save_artifact
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer, TransformerConfig


def save_transformer(
    path: str | Path,
    transformer: Transformer,
    *,
    seed: int | None = None,
    meta: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> str:
    """Write a transformer with its config and codec; return the sha256 of the artifact."""
    codec = transformer.codec
    for symbol in () if codec is None else (*codec.vocab, *(codec.outputs or ())):
        if symbol is not None and not isinstance(symbol, str | int | float):
            raise TypeError(
                f"only text, numbers and booleans can be stored as symbols: {symbol!r}."
            )
    return save_artifact(
        path,
        kind="transformer",
        config={"transformer": transformer.config, "codec": codec},
        seed=seed,
        tensors=transformer.weights,
        meta=meta,
        command=command,
    )


def load_transformer(path: str | Path) -> Transformer:
    """The subject in a file that `graphcircuits build` or `save_transformer` wrote.

    Args:
        path: a `.safetensors` file. The rest of what it says, such as the report of the training,
            is read by `load_artifact(path, "transformer")`.

    Returns:
        The subject. One that was built for a case knows the case, and how it was trained.

    Example:
        subject = gc.load_transformer("runs/ib-3.safetensors")

    See docs/subjects.md.
    """
    artifact = load_artifact(path, "transformer")
    stored = artifact.config
    other = {str(x.dtype) for x in artifact.tensors.values()} - {str(x) for x in DTYPES.values()}
    report = artifact.meta.get("report")
    case = _text(report, "case")
    try:
        if stored.keys() != {"transformer", "codec"}:
            keys = short(sorted(stored))
            raise ValueError(f"its config must hold transformer and codec, got {keys}")
        if other:
            raise ValueError(f"weights must be one of {', '.join(DTYPES)}, got {sorted(other)}")
        config = build_config(TransformerConfig, stored["transformer"])
        codec = None if stored["codec"] is None else build_config(Codec, stored["codec"])
        check_finite("it", artifact.tensors)
        # Shapes are compared before anything is computed from a size.
        fleet = None if case is None else _text(report, "fleet") or "planted"
        return Transformer(config, dict(artifact.tensors), codec, case, fleet=fleet)
    except ValueError as error:
        raise StoreError(f"{path}: {str(error).rstrip('.')}.") from error


def _text(report: object, name: str) -> str | None:
    """What a report says under a name, if there is one and it is text."""
    value = report.get(name) if isinstance(report, Mapping) else None
    return value if isinstance(value, str) else None
