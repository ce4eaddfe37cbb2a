"""Subjects from Hugging Face `transformers` models, and back: the families of `hf_families`.

1. `from_hf` reads the configuration first, and refuses by name what a subject cannot compute before
   any weight is read. Weights that the model needs and the files lack are refused too
   (`transformers` would draw them at random), and so are weights that the family does not know.
2. A model that was loaded here gives up each layer as it is taken over, so that memory holds it
   about once.
3. `to_hf` picks the first family that can hold a subject: whose configuration, made of the
   subject's and read back, says the same. It is filled with the same maps turned round.

`transformers` is an optional dependency; it is imported when one of the two is called.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from graphcircuits.adapters.hf_families import Family, Tensors, few, load_transformers
from graphcircuits.adapters.hf_families.gpt import GPT2, GPT_NEOX
from graphcircuits.adapters.hf_families.llama import LLAMA_KIN
from graphcircuits.adapters.hub import hub_or_cache
from graphcircuits.adapters.rows import WHOLE
from graphcircuits.io.files import printable, read_json, short
from graphcircuits.io.store import check_finite
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes

FAMILIES = {"gpt2": GPT2, "gpt_neox": GPT_NEOX, **LLAMA_KIN}
"""By the model type in a configuration."""
TEXT_PARTS = {"gemma3": "gemma3_text"}
"""Model types that read images as well -> the type of the part that reads text."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")

_KNOWN_TYPES = f"known types: {', '.join([*FAMILIES, *TEXT_PARTS])}"
_LONGEST = 500
"""Characters of another library's error, which may quote a file."""
_WEIGHTS = (".safetensors", ".bin")
# Constants that old files carry along: masks, and the frequencies of rotary positions.
_BUFFER = re.compile(r"(^|\.)((attn|attention)\.(bias|masked_bias)|rotary_emb\.inv_freq)$")


def from_hf(
    model_or_name: Any,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Transformer:
    """The subject that computes the logits of a causal language model of `transformers`.

    Args:
        model_or_name: A model, a folder of one, or a name on the Hugging Face hub.
        device: Where its weights go; by default the model's own device.
        dtype: By default the model's, or the one that is stored.

    Returns:
        A subject that shares no memory with the model; with a `.tokenizer` where it was loaded.

    Example:
        subject = gc.from_hf("gpt2")

    See docs/reference/subjects.md for the model types.
    """
    transformers = load_transformers()
    if not isinstance(model_or_name, str):
        return _convert(model_or_name, device, dtype, consume=False)
    with nullcontext(True) if Path(model_or_name).is_dir() else hub_or_cache() as reachable:
        settings = _settings(transformers, model_or_name, reachable)
        tokenizer = _tokenizer(transformers, model_or_name)
        model = _load(transformers, model_or_name, settings, dtype)
    return replace(_convert(model, device, dtype, consume=True), tokenizer=tokenizer)


# Converting


def _convert(
    model: Any, device: torch.device | str | None, dtype: torch.dtype | None, *, consume: bool
) -> Transformer:
    """The subject in a model, which loses its layers on the way if it is to be consumed."""
    family, config = _family(model.config), _config(model.config)
    base, head = model.base_model, model.get_output_embeddings()
    if model.config.model_type in TEXT_PARTS:
        base = base.language_model
    state = base.state_dict()
    embedding = state[f"{family.embedding}.weight"]
    if embedding.is_meta:
        raise ValueError("the model has no weights: they are on the meta device.")
    if config.tied_unembedding and head.weight.data_ptr() != embedding.data_ptr():
        config = replace(config, tied_unembedding=torch.equal(head.weight, embedding))
    kind = {"device": device or embedding.device, "dtype": dtype or embedding.dtype}
    weights = {name: torch.empty(shape, **kind) for name, shape in weight_shapes(config).items()}
    added = 1 if family.one_plus else 0
    fill = {"W_E": embedding}
    for ours, theirs in _final_norm(family, config).items():
        fill[ours] = state[theirs] + added
    if family.positions is not None:
        fill["W_pos"] = state[f"{family.positions}.weight"]
    if not config.tied_unembedding:
        fill["W_U"] = head.weight.detach().T
    if config.biases:
        fill["b_U"] = embedding.new_zeros(config.d_vocab_out)
    for name, weight in fill.items():
        _copy(weights[name], weight, name)
    for layer in range(config.n_layers):
        prefix = f"{family.layer_prefix}.{layer}."
        names = [name for name in state if name.startswith(prefix)]
        tensors = {name.removeprefix(prefix): state.pop(name) for name in names}
        for name, weight in _layer(family, config, tensors, prefix).items():
            _copy(weights[name][layer], weight, f"{name} of layer {layer}")
        if consume:
            for parameter in base.get_submodule(prefix.rstrip(".")).parameters():
                parameter.data = parameter.new_empty(0)
    check_finite("the model", weights)
    return Transformer(config, weights)


def _final_norm(family: Family, config: TransformerConfig) -> dict[str, str]:
    """Our weights of the last norm -> theirs."""
    ends = {"w": "weight"} | ({"b": "bias"} if config.norm == "layer" else {})
    return {f"final_norm_{ab}": f"{family.final_norm}.{end}" for ab, end in ends.items()}


def _layer(family: Family, config: TransformerConfig, state: Tensors, prefix: str) -> Tensors:
    """Our weights of one layer, made of all that the state of the layer holds."""
    try:
        weights = family.layer_in(config, state)
    except KeyError as error:
        raise ValueError(f"the model lacks the weight {prefix}{error.args[0]}.") from error
    except RuntimeError as error:
        raise ValueError(
            f"a weight of {prefix.rstrip('.')} is not of the shape that its configuration says: "
            f"{_line(error)}"
        ) from error
    if unknown := sorted(prefix + name for name in state if not _BUFFER.search(name)):
        raise ValueError(
            f"cannot convert a model with the weights {few(unknown)}: its type does not have "
            "them; merge adapters into the model first."
        )
    return weights


def _copy(ours: Tensor, theirs: Tensor, name: str) -> None:
    if ours.shape != theirs.shape:
        expected, got = tuple(ours.shape), tuple(theirs.shape)
        raise ValueError(f"{name} of the model must have shape {expected}, got {got}.")
    ours.copy_(theirs)


def _family(settings: Any) -> Family:
    kind = TEXT_PARTS.get(settings.model_type, settings.model_type)
    if kind not in FAMILIES:
        classes = getattr(settings, "architectures", None) or []
        named = f" ({', '.join(map(str, classes))})" if classes else ""
        raise ValueError(
            f"cannot convert a model of type {kind!r}{named}: {_unlike_a_subject(settings)}; "
            f"{_KNOWN_TYPES}."
        )
    return FAMILIES[kind]


def _unlike_a_subject(settings: Any) -> str:
    """What of an unknown type's configuration no subject computes, or else what is missing here."""
    reasons = {
        "no encoder": getattr(settings, "is_encoder_decoder", False),
        "no mixtures of experts": any(
            getattr(settings, name, None) for name in ("num_local_experts", "num_experts")
        ),
        "no ALiBi positions": getattr(settings, "alibi", False),
        "attention heads, which this type lacks": not getattr(settings, "num_attention_heads", 0),
    }
    if lacking := [reason for reason, given in reasons.items() if given]:
        return f"a subject has {' and '.join(lacking)}"
    return (
        "nothing here says which of its weights is which of a subject's; where TransformerLens "
        "loads it, give its HookedTransformer"
    )


def _config(settings: Any) -> TransformerConfig:
    family = _family(settings)
    text = settings.text_config if settings.model_type in TEXT_PARTS else settings
    if getattr(settings, "quantization_config", None) is not None:
        raise ValueError(
            "cannot convert a model with a quantization_config; take the model that it was made "
            "of, or a GGUF file."
        )
    return TransformerConfig(
        d_vocab=text.vocab_size,
        d_vocab_out=text.vocab_size,
        tied_unembedding=settings.tie_word_embeddings,
        **family.config_in(text),
    )


# Loading


def _settings(transformers: ModuleType, name: str, reachable: bool) -> Any:
    """The configuration of a folder, or of a name on the hub."""
    there = Path(name).is_dir()
    if there:
        _check_type(transformers, Path(name) / "config.json")
    try:
        settings = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # their checks of what a file says raise errors of many kinds
        if there or not isinstance(error, OSError):
            raise ValueError(f"{name}: its config.json cannot be read: {_line(error)}") from error
        if not reachable:
            raise FileNotFoundError(
                f"no model {name!r}: there is no such file or folder, no model of that name was "
                "downloaded before, and the Hugging Face hub cannot be reached from here; give a "
                "file or a folder, or connect to the network."
            ) from error
        raise FileNotFoundError(
            f"no model {name!r}: there is no such file or folder, and the Hugging Face hub does "
            f"not give it: {_line(error)}"
        ) from error
    try:
        config = _config(settings)
    except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
        said = f"{type(error).__name__}: {_line(error)}"
        raise ValueError(f"{name}: its config.json makes no model: {said}") from error
    if there:
        _check_size(config, Path(name))
    return settings


def _check_type(transformers: ModuleType, path: Path) -> None:
    """Refuse a configuration that names no type, or one that the library does not know either."""
    stated = read_json(path)
    kind = stated.get("model_type") if isinstance(stated, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"{path} lacks a model_type, got {short(kind)}; {_KNOWN_TYPES}.")
    if kind not in transformers.CONFIG_MAPPING:
        raise ValueError(
            f"{path} names the model_type {short(kind)}, which transformers "
            f"{transformers.__version__} does not know, nor do we; {_KNOWN_TYPES}."
        )


def _tokenizer(transformers: ModuleType, name: str) -> Any:
    """The tokenizer beside a model, or None if there is none."""
    from transformers.utils.hub import has_file

    if not any(has_file(name, file) for file in TOKENIZER_FILES):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # what reads a damaged file raises errors of many kinds
        raise ValueError(f"{name}: its tokenizer cannot be read: {_line(error)}") from error


@contextmanager
def no_bar(transformers: ModuleType) -> Iterator[None]:
    """Without the library's own progress bar: a folder loads in a moment, a download is to be seen.

    It would stand among what commands say.
    """
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _load(transformers: ModuleType, name: str, settings: Any, dtype: torch.dtype | None) -> Any:
    """The model of a name or folder, with every weight from its files and none left out."""
    version = tuple(int(number) for number in transformers.__version__.split(".")[:2])
    in_dtype = {"dtype" if version >= (4, 56) else "torch_dtype": dtype or "auto"}
    try:
        with no_bar(transformers) if Path(name).is_dir() else nullcontext():
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                name,
                config=settings,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **in_dtype,
            )
    except OSError as error:
        raise FileNotFoundError(f"{name}: its weights are not there: {_line(error)}") from error
    except Exception as error:  # damaged files, and settings that no model can be built of
        raise ValueError(f"{name}: its weights cannot be read: {_line(error)}") from error
    problems = []
    if missing := sorted(info["missing_keys"]):
        problems.append(f"its files lack {few(missing)}")
    if unexpected := sorted(x for x in info["unexpected_keys"] if not _BUFFER.search(x)):
        problems.append(f"its configuration has no place for {few(unexpected)}")
    if other := sorted(info["mismatched_keys"]):
        shapes = [f"{x[0]} of shape {tuple(x[1])}, not {tuple(x[2])}" for x in other]
        problems.append(f"its files hold {few(shapes)}")
    if problems:
        raise ValueError(
            f"the weights of {name} do not fit its config.json: {'; '.join(problems)}."
        )
    return model


def _check_size(config: TransformerConfig, folder: Path) -> None:
    """Refuse a folder whose configuration has more weights than its files have bytes."""
    shapes = weight_shapes(config)
    # Matrices alone: biases that a family lacks are made here, not read.
    least = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("W_"))
    held = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in _WEIGHTS)
    if least > held:
        raise ValueError(
            f"the weights of {folder} do not fit its config.json: that has {least} weights, and "
            f"its files hold {held} bytes."
        )


def _line(error: Exception) -> str:
    """The first line of what an error says, and the next where it only announces that."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    said = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])
    return printable(said if len(said) <= _LONGEST else f"{said[:_LONGEST]} ...")


# Back


def to_hf(subject: Transformer) -> Any:
    """A `transformers` model with the logits of `subject`, in the first family that can hold it."""
    transformers = load_transformers()
    reasons = {name: _lost(family, subject) for name, family in FAMILIES.items()}
    name = next((name for name, reason in reasons.items() if not reason), None)
    if name is None:
        listed = "; ".join(f"{name}: {', '.join(reason)}" for name, reason in reasons.items())
        raise ValueError(f"no model type can hold this subject ({listed}).")
    family, config = FAMILIES[name], subject.config
    model = transformers.AutoModelForCausalLM.from_config(family.config_out(subject))
    state = {f"{family.embedding}.weight": subject.weights["W_E"]}
    if family.positions is not None:
        state[f"{family.positions}.weight"] = subject.weights["W_pos"]
    added = 1 if family.one_plus else 0
    for ours, theirs in _final_norm(family, config).items():
        state[theirs] = subject.weights[ours] - added
    for layer in range(config.n_layers):
        weights = _layer_weights(subject, layer)
        prefix = f"{family.layer_prefix}.{layer}."
        state |= {prefix + name: x for name, x in family.layer_out(config, weights).items()}
    model = model.to(device=subject.device, dtype=subject.dtype).eval()
    missing = model.base_model.load_state_dict(state, strict=False).missing_keys
    assert not missing, missing
    if not config.tied_unembedding:
        with torch.no_grad():
            model.get_output_embeddings().weight.copy_(subject.weights["W_U"].T)
    return model


def _layer_weights(subject: Transformer, layer: int) -> Tensors:
    return {n: weight[layer] for n, weight in subject.weights.items() if n not in WHOLE}


def _lost(family: Family, subject: Transformer) -> list[str]:
    """What a model of this type would not have as the subject has it: it is read back."""
    config = subject.config
    try:
        back = _config(family.config_out(subject))
    except Exception as error:  # noqa: BLE001  their checks raise errors of many kinds
        return [_line(error)]
    ours, theirs = _computed(config), _computed(back)
    lost = [f"has {n}={theirs[n]}, not {ours[n]}" for n in ours if ours[n] != theirs[n]]
    if lost or not config.biases:
        return lost
    missing = {"b_U": bool(subject.weights["b_U"].any())}
    for layer in range(config.n_layers):
        weights = _layer_weights(subject, layer)
        held = family.layer_in(config, family.layer_out(config, weights))
        missing |= {n: True for n, x in weights.items() if bool(x.any()) > bool(held[n].any())}
    return [f"has no {name}" for name, is_missing in missing.items() if is_missing]


def _computed(config: TransformerConfig) -> dict[str, Any]:
    """The settings of a subject, each way to say the same put in one."""
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    settings["n_kv_heads"] = config.n_groups
    settings["attention_scale"] = config.attention_scale or config.d_head**-0.5
    if config.positions == "rotary":
        settings["rotary_dim"] = config.rotary_size
    else:
        settings |= dict.fromkeys(("rotary_dim", "rotary_base", "rotary_scaling"))
    if set(config.windows or ()) <= {None}:
        settings |= {"windows": None, "window_rotary_base": None}
    elif config.window_rotary_base is None and config.rotary_scaling is None:
        settings["window_rotary_base"] = config.rotary_base
    return settings
