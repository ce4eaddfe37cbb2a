"""Tasks without templates: windows of text in which one exchanged token changes what follows.

1. Windows of equal length are drawn from text, no two from one place. In each, one token before the
   last is exchanged: for one that followed the same token elsewhere in the text (`same`), for one
   that stands elsewhere in the window (`inside`), or for any token of the text (`any`). Where texts
   of a model begin with a token of their own (BOS), both windows get it in front.
2. A pair is kept where the model's next-token distribution behind the window changes by at least
   so many nats (KL): then there is a circuit that carries the exchanged token to the output.
3. Pairs are sorted into kinds: what was exchanged (a number, a bracket, a word, ...), whether it
   occurs again in the window, how far from the end it is, and what it was exchanged for. A kind
   with enough pairs is a task, judged by output, for which no answer has to be known.
4. `mine_models` writes the tasks of each model to a file of its own; files that are there are kept.

Draws come from the generator alone; the same text, model and seed give the same tasks.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.adapters.load import load_model
from graphcircuits.cases.collection import REPORT
from graphcircuits.io.files import read_json
from graphcircuits.io.store import load_artifact, save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import IN_PROCESS, Runner
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from graphcircuits.training.data import mixed_seed
from graphcircuits.training.sources import MINED
from lab.factory.language.text import SourceText

RULES = ("same", "inside", "any")
NEAR = (2, 4, 8)
"""Distances from the end at which a kind ends and the next begins; 1 is the last token."""
MOST_NUMBERS = 2**26
"""That the windows which run together may take."""
SHORTEST = 4
"""Tokens of a window, so that there is a place before the last that has one before it."""

Windows = Int[Tensor, "window pos"]


@dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """How tasks are mined."""

    windows: int = 60_000
    """Windows that are tried."""
    change: float = 0.1
    """Nats by which the output must change, at least."""
    pairs: int = 36
    """Pairs of a task."""
    most: int = 72
    """Tasks of a model, at most."""
    length: int = 24
    """Tokens of a window, BOS included; fewer where the model's context is shorter."""
    mib: float = 12.0
    """Text, at most."""
    seed: int = 0


@dataclass(frozen=True)
class MinedTask:
    """Pairs of one kind."""

    kind: str
    clean: Windows
    corrupted: Windows


# Mining one model


def mine(
    subject: Transformer,
    ids: Int[Tensor, " token"],
    config: MiningConfig,
    generator: torch.Generator,
) -> list[MinedTask]:
    """At most `config.most` tasks with `config.pairs` pairs each, of the largest kinds first.

    `ids` is a text in the model's tokens, without those that begin or end texts.
    """
    begin = beginning(subject.tokenizer)
    length = min(config.length, subject.config.n_ctx) - len(begin)
    clean = windows_of(ids, config.windows, length, generator)
    places = places_in(len(clean), length, generator)
    rules = torch.randint(len(RULES), (len(clean),), generator=generator)
    corrupted = exchanged(clean, places, rules, ids, generator)
    front = torch.tensor(begin, dtype=ids.dtype).expand(len(clean), -1)
    whole = [torch.cat([front, x], 1) for x in (clean, corrupted)]
    change = changes(subject, *whole)
    kinds: dict[str, list[int]] = {}
    surfaces: dict[int, str] = {}
    for row in (change >= config.change).nonzero().flatten().tolist():
        token, place = int(clean[row, places[row]]), int(places[row])
        if token not in surfaces:
            surfaces[token] = surface(text_of(token, subject.tokenizer))
        kind = f"{surfaces[token]}-{situation(clean[row], place)}-{RULES[rules[row]]}"
        kinds.setdefault(kind, []).append(row)
    chosen = numbered(kinds, config.pairs, config.most)
    return [MinedTask(kind, *(x[rows] for x in whole)) for kind, rows in chosen.items()]


def windows_of(
    ids: Int[Tensor, " token"], n: int, length: int, generator: torch.Generator
) -> Windows:
    """At most `n` windows of a text, each from another place, drawn with the generator."""
    if length < SHORTEST or len(ids) <= length:
        raise ValueError(
            f"windows must have at least {SHORTEST} tokens and the text more than that, got "
            f"windows of {length} and a text of {len(ids)} tokens."
        )
    starts = torch.randperm(len(ids) - length, generator=generator)[:n]
    return ids[starts[:, None] + torch.arange(length)]


def places_in(n: int, length: int, generator: torch.Generator) -> Int[Tensor, " window"]:
    """Which token of each window is exchanged: neither the first nor the last."""
    # As often two or three tokens from the end as four to seven, or eight to fifteen: near ones
    # matter most.
    far = torch.rand(n, generator=generator).mul(math.log((length - 1) / 2)).exp() * 2
    return (length - far.long()).clamp(1, length - 2)


def exchanged(
    clean: Windows,
    places: Int[Tensor, " window"],
    rules: Int[Tensor, " window"],
    ids: Int[Tensor, " token"],
    generator: torch.Generator,
) -> Windows:
    """The windows with the token at each place exchanged by each rule; some stay the same."""
    rows = torch.arange(len(clean))
    order = ids[:-1].sort(stable=True)
    before = clean[rows, places - 1].contiguous()
    first, last = (torch.searchsorted(order.values, before, right=x) for x in (False, True))
    share = torch.rand(len(clean), generator=generator, dtype=torch.float64)
    followers = order.indices[first + (share * (last - first)).long()] + 1
    inside = torch.randint(clean.shape[1], (len(clean),), generator=generator)
    anywhere = torch.randint(len(ids), (len(clean),), generator=generator)
    choices = torch.stack([ids[followers], clean[rows, inside], ids[anywhere]])
    corrupted = clean.clone()
    corrupted[rows, places] = choices[rules, rows]
    return corrupted


def changes(subject: Transformer, clean: Windows, corrupted: Windows) -> Float[Tensor, " window"]:
    """KL of the output behind each window from that behind the exchanged one; 0 where they are the
    same."""
    found = torch.zeros(len(clean))
    different = (clean != corrupted).any(1).nonzero().flatten()
    step = at_once(subject.config, clean.shape[1])
    for start in range(0, len(different), step):
        rows = different[start : start + step]
        found[rows] = output_change(subject, clean[rows], corrupted[rows])
    return found


def at_once(config: TransformerConfig, length: int) -> int:
    """How many windows may run together."""
    inside = 8 * config.d_model + 3 * config.d_mlp + config.n_heads * length
    return max(1, MOST_NUMBERS // (4 * config.d_vocab_out + length * inside))


@torch.no_grad()
def output_change(
    subject: Transformer, clean: Windows, corrupted: Windows
) -> Float[Tensor, " window"]:
    """KL of the output behind each window from that behind the exchanged one."""
    ours, others = (_next_token(subject, x) for x in (clean, corrupted))
    return (ours.exp() * (ours - others)).sum(-1).cpu()


def _next_token(subject: Transformer, windows: Windows) -> Float[Tensor, "window d_vocab_out"]:
    """Log probabilities behind each window: logits at all places would take much memory."""
    stream = subject.embed(windows.to(subject.device))
    for layer in range(subject.config.n_layers):
        stream = subject.layer(stream, layer)
    last = subject.rules.read(stream, 2 * subject.config.n_layers)[:, -1:]
    return subject.unembed(last)[:, 0].float().log_softmax(-1)


# Kinds


def surface(text: str) -> str:
    """What a token looks like."""
    word = text.strip()
    if not word:
        return "space"
    if word.isdigit():
        return "number"
    if word.isalpha():
        return "name" if word[0].isupper() else ("word" if text[0].isspace() else "piece")
    if any(x in "()[]{}<>" for x in word):
        return "bracket"
    return "quote" if any(x in "\"'`" for x in word) else "sign"


def situation(window: Int[Tensor, " pos"], place: int) -> str:
    """Whether a token occurs again in its window, and at most how far from the end it is."""
    again = "again" if int((window == window[place]).sum()) > 1 else "once"
    distance = len(window) - place
    return f"{again}-{next((str(end) for end in NEAR if distance <= end), 'far')}"


def numbered(kinds: Mapping[str, Sequence[int]], pairs: int, most: int) -> dict[str, Sequence[int]]:
    """Rows of at most `most` tasks of `pairs` pairs: one of each kind, those with the most windows
    first; then a second one of each that has enough left, called KIND.2, and so on."""
    largest = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    tasks: dict[str, Sequence[int]] = {}
    for number in range(len(largest[0][1]) // pairs if largest else 0):
        start = number * pairs
        for kind, rows in largest:
            if len(rows) >= start + pairs and len(tasks) < most:
                name = f"{kind}.{number + 1}" if number else kind
                tasks[name] = rows[start : start + pairs]
    return tasks


# Text in tokens


def beginning(tokenizer: Any) -> list[int]:
    """The token that the model's texts begin with, where its tokenizer puts one there."""
    begin = getattr(tokenizer, "bos_token_id", None)
    return [begin] if begin is not None and tokenizer("x")["input_ids"][0] == begin else []


def text_of(token: int, tokenizer: Any) -> str:
    """A token as it stands in a text; some tokenizers leave out the space of the first one."""
    return tokenizer.decode([token, token])[len(tokenizer.decode([token])) :]


def text_ids(documents: Sequence[str], tokenizer: Any) -> Int[Tensor, " token"]:
    """Documents behind each other in tokens, without those that begin or end texts."""
    ids: list[int] = []
    for document in documents:
        ids += tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


# Files


def models_in(folders: Sequence[Path], files: Sequence[Path]) -> dict[str, Path]:
    """Models by name: those of folders that `python -m lab.factory language` wrote, and files."""
    found = [path.parent for folder in folders for path in sorted(folder.glob(f"*/{REPORT}"))]
    empty = [str(folder) for folder in folders if not any(folder.glob(f"*/{REPORT}"))]
    empty += [str(path) for path in files if not path.is_file()]
    if empty:
        raise FileNotFoundError(
            f"no language models in {', '.join(empty)}: expected folders that `python -m "
            "lab.factory language` wrote, or files of models."
        )
    paths = [*found, *files]
    names = [path.name if path.is_dir() else path.stem for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"models must have different names, got {', '.join(twice)} twice.")
    return dict(zip(names, paths, strict=True))


def mine_models(
    folder: Path,
    models: Mapping[str, Path],
    text: SourceText,
    config: MiningConfig,
    *,
    device: str = "cpu",
    runner: Runner = IN_PROCESS,
) -> Iterator[tuple[str, dict[str, int]]]:
    """The name of each model and how many pairs each of its tasks has, as their files get ready.

    A file that is there is kept; one that was mined with other settings, or from a model with other
    weights, is refused.
    """
    settings = {**asdict(config), "text": text.sha256}
    kept = {
        name: _kept(folder / f"{name}.safetensors", model, settings)
        for name, model in models.items()
    }
    for name, found in kept.items():
        if found is not None:
            yield name, found
    unmined = [item for item in models.items() if kept[item[0]] is None]
    yield from runner.run(partial(_mine_one, folder, text, config, settings, device), unmined)


def _mine_one(
    folder: Path,
    text: SourceText,
    config: MiningConfig,
    settings: Mapping[str, Any],
    device: str,
    model: tuple[str, Path],
) -> Iterator[tuple[str, dict[str, int]]]:
    """Mine one model and write its file."""
    name, path = model
    subject = load_model(path, device=device, dtype=torch.float32)
    if subject.tokenizer is None:
        raise ValueError(
            f"{path} has no tokenizer, which text needs: give a model that comes with one."
        )
    generator = torch.Generator().manual_seed(mixed_seed(config.seed, name))
    tasks = mine(subject, text_ids(text.train, subject.tokenizer), config, generator)
    _save(folder / f"{name}.safetensors", path, tasks, settings, config.seed)
    yield name, {task.kind: len(task.clean) for task in tasks}


def _kept(path: Path, model: Path, settings: Mapping[str, Any]) -> dict[str, int] | None:
    if not path.is_file():
        return None
    artifact = load_artifact(path, MINED)
    other = [
        f"{name} {artifact.config.get(name)}, not {value}"
        for name, value in settings.items()
        if artifact.config.get(name) != value
    ]
    if artifact.meta["sha256"] != _sha256(model):
        other.append(f"other weights than those of {model}")
    if other:
        raise ValueError(
            f"{path} was mined with {'; '.join(other)}: give the same, or name another folder."
        )
    return dict(artifact.meta["kinds"])


def _save(
    path: Path, model: Path, tasks: Sequence[MinedTask], settings: Mapping[str, Any], seed: int
) -> None:
    tensors = {}
    for task in tasks:
        tensors[f"{task.kind}.clean"] = task.clean.to(torch.int32)
        tensors[f"{task.kind}.corrupted"] = task.corrupted.to(torch.int32)
    kinds = {task.kind: len(task.clean) for task in tasks}
    save_artifact(
        path,
        kind=MINED,
        config=settings,
        seed=seed,
        tensors=tensors,
        meta={"model": str(model), "sha256": _sha256(model), "kinds": kinds},
        command=driver_command(),
    )


def _sha256(model: Path) -> str:
    """Of the weights of a model."""
    if model.is_dir():
        return read_json(model / REPORT)["sha256"]
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
