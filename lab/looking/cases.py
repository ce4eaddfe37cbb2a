"""Cases as the training of the network that looks reads them.

1. `read_cases` reads every source once: the table of invariants and the proposal of a predictor
   that has not learned from it, on some prompts; the first of these are what looks run on.
2. Others are what circuits are judged on.
3. Cases of one architecture make a group, and run as one stack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.engine.stack import Stack, StackItem, architecture
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.shipped import shipped
from graphcircuits.predictor.ensemble import blinded
from graphcircuits.predictor.invariant import living
from graphcircuits.predictor.looker import Looker, LookerConfig, settled
from graphcircuits.predictor.looking import look_table, proposed, rank_logits
from graphcircuits.predictor.model import read_case
from graphcircuits.predictor.paper.transform import Neighbourhoods
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import FRESH
from graphcircuits.training.sources import Source

START, BLIND = "start", "gcl-blind"
"""What a predictor starts from, without paths; and what it says where it sees no run."""


@dataclass(frozen=True, kw_only=True)
class LookTraining:
    """Settings of a training."""

    looker: LookerConfig = field(default_factory=LookerConfig)
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(steps=600, lr=2e-3, average=0.99, batch=16)
    )
    """Of it: steps, rates, `batch` cases of a group, and the weight of labels."""
    groups: int = 3
    """Drawn in a step."""
    edges: int = 24_000
    """Of each, in all of its cases, at most."""
    read: int = 24
    """Prompt pairs that are read."""
    looked: int = 8
    """Of those, the ones that looks run on."""
    judged: int = 12
    """Others, that circuits are judged on."""
    refined: int = 80
    """Steps of refining, from the proposal to what is learned."""


@dataclass(frozen=True, eq=False)
class LookGroup:
    """Cases of one architecture."""

    sources: tuple[Source, ...]
    items: tuple[StackItem, ...]
    """Subjects and prompt pairs: those that are read first, those that judge behind them."""
    graph: ComponentGraph
    structure: Neighbourhoods
    stack: Stack
    tables: Float[Tensor, "case edge column"]
    starts: Float[Tensor, "case edge"]
    """The values of the proposals."""
    others: Mapping[str, Float[Tensor, "case edge"]]
    """Of START and BLIND."""
    circuits: tuple[Bool[Tensor, " edge"] | None, ...]
    """Where they are known."""

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, eq=False)
class _Read:
    source: Source
    item: StackItem
    structure: Neighbourhoods
    table: Float[Tensor, "edge column"]
    start: Float[Tensor, " edge"]
    others: Mapping[str, Float[Tensor, " edge"]]
    circuit: Bool[Tensor, " edge"] | None


def read_cases(
    sources: Sequence[Source],
    config: LookTraining,
    *,
    predictor: str | None = None,
    device: torch.device | str = "cpu",
) -> tuple[list[LookGroup], dict[str, str]]:
    """Groups of cases, and why others were left out.

    The proposals come from the shipped predictor that left out a source's fold, or `predictor`.
    """
    by_key: dict[object, list[_Read]] = {}
    left_out: dict[str, str] = {}
    before, subject = None, None
    for source in sources:
        # Tasks of one subject share its weights, on the device too.
        if (own := source.subject()) is not before or subject is None:
            before, subject = own, own.to(device)
        try:
            read = _read(source, subject, config, predictor)
        except ValueError as error:
            left_out[source.id] = str(error)
            continue
        by_key.setdefault(architecture(read.item[0]), []).append(read)
    groups = []
    for some in by_key.values():
        for name, group in _groups(some, device):
            if isinstance(group, str):
                left_out[name] = group
            else:
                groups.append(group)
    return groups, left_out


def _read(
    source: Source, subject: Transformer, config: LookTraining, predictor: str | None
) -> _Read:
    read, judged = (
        source.pairs(subject, n, seed).by_output(subject.config.d_vocab_out).to(subject.device)
        for n, seed in ((config.read, 0), (config.judged, FRESH))
    )
    if (len(read), len(judged)) != (config.read, config.judged):
        raise ValueError(
            f"{source.id} has {len(read)} and {len(judged)} pairs, not {config.read} to read and "
            f"{config.judged} to judge by."
        )
    name = predictor or ("default" if source.order is None else f"fold-{source.folds[0]}")
    ensemble = shipped(name).to(subject.device)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        reading = read_case(
            ensemble.config, subject, read, generator=generator, dtype=torch.float32
        )
    assert isinstance(reading.content, Tensor)
    logits, unseeing = (
        x.predict(reading, generator=generator).logits for x in (ensemble, blinded(ensemble))
    )
    starts = [start for x in ensemble.members if (start := x.start(reading)) is not None]
    others = {START: torch.stack(starts).mean(0), BLIND: unseeing}
    alive = living(reading.content, ensemble.config.share)
    circuit = source.circuit(subject, TrainConfig().labels)
    return _Read(
        source,
        (subject, Pairs.concatenate([read, judged])),
        reading.structure,
        reading.content,
        rank_logits(logits, alive),
        others,
        None if circuit is None else circuit.mask,
    )


def _groups(
    reads: Sequence[_Read], device: torch.device | str
) -> Iterator[tuple[str, "LookGroup | str"]]:
    """One group, or several without those that no circuit can be judged on."""
    try:
        stack = Stack.of([read.item for read in reads], device)
    except ValueError as error:
        if len(reads) == 1:
            yield reads[0].source.id, str(error)
            return
        middle = len(reads) // 2
        yield from _groups(reads[:middle], device)
        yield from _groups(reads[middle:], device)
        return
    yield (
        "",
        LookGroup(
            tuple(read.source for read in reads),
            tuple(read.item for read in reads),
            stack.graph,
            reads[0].structure,
            stack,
            torch.stack([read.table for read in reads]),
            torch.stack([read.start for read in reads]),
            {name: torch.stack([read.others[name] for read in reads]) for name in (START, BLIND)},
            tuple(read.circuit for read in reads),
        ),
    )


def look_at(
    stack: Stack, values: Float[Tensor, "case edge"], sizes: int, prompts: int
) -> Float[Tensor, "case edge column"]:
    """What a look says of the edges of all cases, on the first prompts.

    What circuits lack is in units of the gap over all prompts of the case.
    """
    above, masks = proposed(values, sizes)
    masks = masks.requires_grad_()
    lacks = stack.departure(masks, slice(0, prompts))
    (slopes,) = torch.autograd.grad(lacks.sum(), masks)
    return look_table(above, masks.detach(), lacks.detach(), -slopes)


def look_one_by_one(
    group: LookGroup, values: Float[Tensor, "case edge"], config: LookTraining
) -> Float[Tensor, "case edge column"]:
    """The same of every case of a group, one after the other: together they take much memory."""
    return torch.cat(
        [
            look_at(group.stack.subset([case]), values[[case]], config.looker.sizes, config.looked)
            for case in range(len(group))
        ]
    )


def look_again(
    group: LookGroup,
    values: Float[Tensor, "case edge"],
    lookers: Sequence[Looker],
    config: LookTraining,
) -> Float[Tensor, "case edge"]:
    """The values after one more round."""
    look = look_one_by_one(group, values, config)
    structure = group.structure.among(values.isfinite())
    with torch.no_grad():
        moved = [looker(group.tables, look, values, structure) for looker in lookers]
    return settled(torch.stack(moved).mean(0), group.graph)
