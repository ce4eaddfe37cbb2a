"""What subjects train on and are judged by, computed ahead of training.

Inputs are drawn, and the program answers them plainly and under interchange, three times per order:
to train on, to decide when training is done, and to judge what came of it. Worker processes work
ahead: while a fleet trains, the data of the next ones are computed.

A program's functions cannot be sent to another process, but its id can: workers prepare cases of
the corpus, and cases of one's own are prepared where they are.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from graphcircuits.cases import MULTITASK, load_case
from graphcircuits.cases.architectures import UnfitError, misfit, subject_config
from graphcircuits.cases.case import OWN, Case
from graphcircuits.cases.multitask import AT, MultiCase, TaskCase, load_multi
from graphcircuits.cases.orders import Order
from graphcircuits.cases.samplers import draw
from graphcircuits.fleets.exchange import FIRST_TOKEN, Exchange, exchange
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.io.store import content_hash
from graphcircuits.jobs.processes import in_order
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.components import graph_of
from graphcircuits.subject.transformer import TransformerConfig

AHEAD = 256
"""Orders whose data are computed before they are asked for: the next fleets."""


class ConstantOutputError(ValueError):
    """A program whose output does not depend on the input has nothing to train."""


def is_constant(case: Case, *, n: int = 64) -> bool:
    """Whether the output is the same for `n` inputs drawn by the case's own sampler."""
    outputs = map(case.evaluate, case.sample(n, torch.Generator().manual_seed(0)))
    first = next(outputs)
    return all(output == first for output in outputs)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """How subjects are built."""

    siit: SiitConfig | None = None
    """How they are trained; None takes the recipe of their fleet."""
    inputs: int = 16384
    """Inputs that a subject trains on, per task."""
    interchanges: int = 4096
    """Interchanges of each component that it trains on."""
    verify_inputs: int = 4096
    verify_interchanges: int = 1024
    widen: float = 1.0
    """Factor on the width of heads, stream and MLPs, for subjects that are too small to train."""
    processes: int = 1
    """Workers that compute the programs' answers; 1 computes them between the trainings."""


@dataclass(frozen=True, eq=False)
class Data:
    """The exchanges of a subject, one per task."""

    train: tuple[Exchange, ...]
    check: tuple[Exchange, ...]
    """These decide when training is done."""
    unseen: tuple[Exchange, ...]
    """These judge what came of it."""
    sha256: str
    """Content of the first two, the program's answers to the inputs drawn, and of their symbols."""
    config: TransformerConfig
    """Of the subject, so that it can be started without its program."""
    codec: Codec


Prepared = Data | str
"""The data of an order, or why there is none."""


def find_case(id: str) -> Case | MultiCase:
    """A case by its id, or a model of several tasks."""
    several = id.partition("-")[0] == MULTITASK and AT not in id
    return load_multi(id) if several else load_case(id)


def case_exchange(case: Case, n_inputs: int, n_interchanges: int, seed: int) -> Exchange:
    """Inputs drawn by the case's sampler with the program's answers; refuses constant outputs."""
    generator = torch.Generator().manual_seed(seed)
    length = case.max_seq_len - 1
    codes = draw(case.sampler, case.tables.vocab, length, n_inputs, generator).numpy()
    drawn = exchange(case.tables, case.layout, codes, n_interchanges, generator)
    if (drawn.targets == drawn.targets[:1]).all():
        raise ConstantOutputError(
            f"case {case.id!r}: the output is the same for every input of {length} tokens, "
            "so there is nothing to train; use another vocabulary, length or program."
        )
    return drawn


def exchanges_of(
    case: Case | MultiCase, n_inputs: int, n_interchanges: int, seed: int
) -> tuple[Exchange, ...]:
    """The exchange of a case, or of each task of a model."""
    if not isinstance(case, MultiCase):
        return (case_exchange(case, n_inputs, n_interchanges, seed),)
    return tuple(
        _in_model(task, case_exchange(task, n_inputs, n_interchanges, seed + 10_000 * number))
        for number, task in enumerate(case.tasks)
    )


def _in_model(task: TaskCase, alone: Exchange) -> Exchange:
    """A program's exchange in the tokens and classes of the model that it is a task of."""
    ids = task.codec.encode(task.tables.vocab, task=task.task_token)
    # BOS becomes the task, PAD stays, and tokens get the model's ids.
    tokens = torch.cat([ids[:1], torch.arange(1, FIRST_TOKEN), ids[1:]])[alone.tokens]
    if task.outputs is None or task.codec.outputs is None:
        return replace(alone, tokens=tokens)
    classes = torch.tensor([task.codec.outputs.index(value) for value in task.outputs])
    targets, swapped = classes[alone.targets], classes[alone.swapped]
    return replace(alone, tokens=tokens, targets=targets, swapped=swapped)


def prepare(order: Order, case: Case | MultiCase, config: BuildConfig) -> Prepared:
    """The data of an order; or why its program has nothing to train, or does not fit."""
    amounts = (
        (config.inputs, config.interchanges),
        (config.verify_inputs, config.verify_interchanges),
        (config.verify_inputs, config.verify_interchanges),
    )
    natural = order.fleet == "natural"
    try:
        shape = subject_config(case, order.architecture, config.widen)
        drawn = [
            exchanges_of(case, n_inputs, 0 if natural else n_interchanges, 1000 * order.seed + i)
            for i, (n_inputs, n_interchanges) in enumerate(amounts, start=1)
        ]
    except (ConstantOutputError, UnfitError) as error:
        return str(error)
    if natural:
        drawn = [tuple(map(_task_alone, exchanges)) for exchanges in drawn]
    for task in drawn[0]:
        if (reason := misfit(case.id, task.components, task.edges, graph_of(shape))) is not None:
            return reason
    train, check, unseen = drawn
    content = [
        [{**vars(task), "edges": sorted(task.edges)} for task in tasks] for tasks in (train, check)
    ]
    sha256 = content_hash(*content, case.codec)
    return Data(train, check, unseen, sha256, shape, case.codec)


def _task_alone(exchange: Exchange) -> Exchange:
    """Inputs and answers, and no word about components: any architecture can learn them."""
    fields = ("base", "source", "swapped", "scored")
    none = {name: getattr(exchange, name)[:0] for name in fields}
    return replace(exchange, components=(), edges=frozenset(), **none)


# --- many orders, ahead of time ------------------------------------------------------------------


def prepared(
    orders: Iterable[Order],
    config: BuildConfig,
    processes: int = 1,
    cases: Mapping[str, Case | MultiCase] | None = None,
) -> Generator[tuple[Order, Prepared], None, None]:
    """The data of every order, in their order; `cases` are those at hand, by id."""
    wanted, at_hand = list(orders), cases or {}

    def stays_here(order: Order) -> bool:
        case = at_hand.get(order.case)
        return processes == 1 or (case is not None and case.family == OWN)

    sent = [order for order in wanted if not stays_here(order)]
    work = partial(_prepare_small, config=config)
    with closing(in_order(processes, work, sent, ahead=AHEAD)) as results:
        for order in wanted:
            if stays_here(order):
                case = at_hand.get(order.case) or find_case(order.case)
                yield order, prepare(order, case, config)
            else:
                yield order, _with_tensors(next(results), _wide)


def _prepare_small(order: Order, config: BuildConfig) -> Prepared:
    """Data in the smallest integers that hold them: they go through a pipe, and wait."""
    return _with_tensors(prepare(order, find_case(order.case), config), _smallest)


def _with_tensors(data: Prepared, change: Callable[[Tensor], Tensor]) -> Prepared:
    if isinstance(data, str):
        return data

    def changed(task: Exchange) -> Exchange:
        own = {x: change(value) for x, value in vars(task).items() if isinstance(value, Tensor)}
        return replace(task, **own)

    train, check, unseen = (tuple(map(changed, x)) for x in (data.train, data.check, data.unseen))
    return replace(data, train=train, check=check, unseen=unseen)


def _smallest(x: Tensor) -> Tensor:
    """A copy, since a part of a tensor is sent with all of it; integers are never negative here."""
    if x.dtype != torch.int64 or not x.numel():
        return x.clone()
    return x.to(getattr(torch, np.min_scalar_type(-1 - int(x.max())).name), copy=True)


def _wide(x: Tensor) -> Tensor:
    return x if x.is_floating_point() or x.dtype == torch.bool else x.long()
