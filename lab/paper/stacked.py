"""Training predictors of one shape side by side: one computation instead of many small ones.

A case leaves most of a GPU idle, and a sweep trains hundreds of predictors that differ in cases,
seed and learning rate alone. Their weights are stacked (`stacked_layers.py`, `side_by_side.py`).

1. Subjects are read once (`training/data.py`) and put into buckets of one graph (`stack_data.py`).
2. A step draws a few buckets by their size, the same for all runs, and from each bucket for every
   run cases that it learns from, and pairs of theirs. What a run draws depends on its own seed and
   cases and on all subjects there are, not on who stands beside it.
3. The loss is the paper's, averaged over a run's cases of the step. The loop, its schedule and its
   optimizer are those of every training (`training/loop.py`), each run with its own rate.
4. At regular steps every run is scored on its own held-out cases: AUROC with q, k, v apart. After
   the last step it is scored on its test cases, at head level too.

Paper: Pooling, Readout, and Training; and the experimental details.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.predictor.invariant import InvariantAligner
from graphcircuits.predictor.model import Predictor
from graphcircuits.predictor.paper.align import TabpfnAligner
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, mixed_seed, read
from graphcircuits.training.loop import run_steps
from lab.paper.named_source import named_source
from lab.paper.side_by_side import StackedTables, StackedVectors, stacked_logits
from lab.paper.stack_data import Bucket, buckets
from lab.paper.stacked_layers import stacked

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Of graph learning."""
BUCKETS = 4
"""That a step draws from."""
AT_ONCE = 2**26
"""Numbers of vectors that go through the aligner together, all runs counted; fewer where an aligner
of several layers makes tokens of them."""


@dataclass(frozen=True, kw_only=True)
class StackedRun:
    """One training."""

    config: TrainConfig
    seed: int
    train: tuple[str, ...]
    """Ids of the units whose circuits are learned from."""
    validate: tuple[str, ...] = ()
    """Scored every `config.every` steps."""
    test: tuple[str, ...] = ()
    """Scored once, after the last step."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of one training."""

    history: dict[int, dict[str, float]]
    """AUROC with q, k, v apart of every held-out unit, by step; NaN once it has diverged."""
    scores: dict[str, dict[str, float]]
    """AUROC of every test unit, `head` and `qkv`."""
    weights: dict[str, Tensor]
    """Of the predictor after the last step."""


def can_share(one: TrainConfig, other: TrainConfig) -> bool:
    """Whether two trainings can stand side by side: all but the rate and weight decay is equal."""
    return replace(one, lr=other.lr, weight_decay=other.weight_decay) == other


def train_side_by_side(
    runs: Sequence[StackedRun],
    *,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    subjects: str | Path | None = None,
    units: Sequence[str] = (),
    tests: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Trained]:
    """Train all runs, and return what came of each.

    `precision` is the number format of graph learning on a GPU; `subjects` the folder of subjects
    that are not shipped. `units` are further ids that buckets are made of and drawn by, and `tests`
    those that only tests look at: trainings in several calls that name the same are the same
    however runs are put together. `progress` hears of steps.
    """
    _check(runs, precision)
    config = runs[0].config
    ids = tuple(sorted({*units, *tests, *(id for run in runs for id in _units(run))}))
    readings = read_units(read_by(config), ids, None if subjects is None else str(subjects))
    data = buckets(readings, config.predictor, device)
    members = [
        Predictor(config.predictor, generator=torch.Generator().manual_seed(run.seed))
        for run in runs
    ]
    for member, run in zip(members, runs, strict=True):
        _standardize(member, run, readings)
    # Many a CPU has no instructions for short formats, and gains nothing by them where it has.
    dtype = DTYPES[precision] if torch.device(device).type == "cuda" else torch.float32
    stack = _Stack(stacked(members).to(device), runs, data, dtype, tests)
    with _shorter_products(precision):
        state = run_steps(stack, [run.config for run in runs], progress=progress)
        tested = stack.scores([run.test for run in runs], ("head", "qkv"))
    return [
        Trained(
            {step: record["cases"][number] for step, record in state.history.items()},
            tested[number],
            of_run(stack.predictor, number),
        )
        for number in range(len(runs))
    ]


@contextmanager
def _shorter_products(precision: str) -> Iterator[None]:
    """Products of matrices outside graph learning, too, in a shorter format where that is."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _check(runs: Sequence[StackedRun], precision: str) -> None:
    if not runs:
        raise ValueError("there is nothing to train: no run was given.")
    if precision not in DTYPES:
        raise ValueError(f"precision must be one of {', '.join(DTYPES)}, got {precision!r}.")
    config = runs[0].config
    if not all(can_share(run.config, config) for run in runs):
        raise ValueError("runs side by side may differ in lr and weight_decay only.")
    if config.average or config.keep != "last":
        raise ValueError("side by side predictors end with the weights of the last step.")
    if not config.by_labels_alone or config.predictor.prior:
        raise ValueError(
            "side by side predictors learn from labels alone and without a prior; use "
            "graphcircuits train for others."
        )
    for run in runs:
        both = set(run.train) & {*run.validate, *run.test}
        if both or not run.train:
            what = f"trains on what it is scored on: {', '.join(sorted(both))}"
            raise ValueError(f"a run {what if both else 'has nothing to train on'}.")


def _units(run: StackedRun) -> tuple[str, ...]:
    return (*run.train, *run.validate, *run.test)


def read_by(config: TrainConfig) -> TrainConfig:
    """The configuration with all that readings do not depend on made equal, to share them.

    A step draws from all prompts of a case, so that all of them are read, and once where every
    context is seen.
    """
    usual, own = TrainConfig(), config.predictor
    shape = ("width", "layers", "heads", "dropout", "learner", "connectivity", "aggregation")
    shared = {name: getattr(usual.predictor, name) for name in shape}
    views = 1 if own.aligner == "tabpfn" else config.views
    return replace(
        usual,
        predictor=replace(own, **shared, context_pairs=config.pairs),
        pairs=config.pairs,
        views=views,
        labels=config.labels,
    )


@lru_cache(maxsize=2)
def read_units(
    config: TrainConfig, ids: tuple[str, ...], subjects: str | None = None
) -> dict[str, list[Example]]:
    """Examples of subjects, by id. What was read last is held, for the line and for the incidence
    graph: the trainings of a sweep look at the same subjects, and take turns."""
    sources = [named_source(id, subjects) for id in ids]
    result = read(sources, config, judged=False)
    if result.left_out:
        raise ValueError("; ".join(f"{id}: {why}" for id, why in result.left_out.items()))
    by_id: dict[str, list[Example]] = {id: [] for id in ids}
    for example in result.examples:
        by_id[example.case].append(example)
    return by_id


def _standardize(
    member: Predictor, run: StackedRun, units: Mapping[str, Sequence[Example]]
) -> None:
    """Scale the inputs of the invariant aligner by those of the run's own cases."""
    if isinstance(member.align, InvariantAligner):
        contents = [x.reading.content for id in sorted(run.train) for x in units[id]]
        tables = [content for content in contents if isinstance(content, Tensor)]
        member.align.standardize_by(torch.cat(tables))


def _auroc(logits: Float[Tensor, " edge"], circuit: Circuit, level: str) -> float:
    """NaN for a run that has diverged: those beside it have not."""
    return math.nan if logits.isnan().any() else auroc(logits, circuit, level)


class _Stack:
    """The predictors in training."""

    def __init__(
        self,
        predictor: Predictor,
        runs: Sequence[StackedRun],
        data: Sequence[Bucket],
        dtype: torch.dtype,
        tests: Sequence[str],
    ) -> None:
        self.predictor, self.runs, self.data, self.dtype = predictor, runs, data, dtype
        self.config = runs[0].config
        self.device = predictor.readout.weight.device
        tested = {*tests, *(id for run in runs for id in run.test)}
        self.inside = [bucket for bucket in data if set(bucket.ids) - tested]
        self.sizes = [float(len(set(bucket.ids) - tested)) for bucket in self.inside]
        self.own = [
            [[place for place, id in enumerate(bucket.ids) if id in run.train] for run in runs]
            for bucket in self.inside
        ]

    # One step

    def backward(self, step: int) -> Float[Tensor, " run"]:
        """Add the gradients of every run; its loss."""
        drawn = self._drawn(step)
        counts = torch.stack([weights.sum(1) for _, _, weights in drawn]).sum(0).clamp_min(1)
        seeds = [run.seed for run in self.runs]
        noise = torch.Generator(self.device).manual_seed(mixed_seed(step, seeds, "noise"))
        total = torch.zeros(len(self.runs), device=self.device)
        for place, (bucket, cases, weights) in enumerate(drawn):
            pairs = self._pairs(bucket, step)
            identifiers = self._identifiers(bucket, cases.shape[1], step, place)
            limit = self._at_once(bucket, pairs.shape[1])
            for start in range(0, cases.shape[1], limit):
                some = slice(start, start + limit)
                part = {name: x[:, some] for name, x in identifiers.items()}
                content = bucket.take(cases[:, some], pairs, part)
                shares = weights[:, some] / counts[:, None]
                losses = self._losses(bucket, content, cases[:, some], shares, noise)
                losses.sum().backward()
                total = total + losses.detach()
        return total

    def _drawn(
        self, step: int
    ) -> list[tuple[Bucket, Int[Tensor, "run case"], Float[Tensor, "run case"]]]:
        """Buckets, the cases of each run in them, and which of those count."""
        generator = torch.Generator().manual_seed(mixed_seed(step, "buckets"))
        sizes = torch.tensor(self.sizes)
        n = min(BUCKETS, len(self.inside))
        each = math.ceil((self.config.batch or int(sizes.sum())) / n)
        found = []
        for place in torch.multinomial(sizes, n, generator=generator).tolist():
            own = self.own[place]
            size = min(each, int(self.sizes[place]))
            rows = [
                self._choice(own[run], size, mixed_seed(self.runs[run].seed, step, place))
                for run in range(len(self.runs))
            ]
            cases, counts = (torch.stack(x) for x in zip(*rows, strict=True))
            found.append((self.inside[place], cases.to(self.device), counts.to(self.device)))
        return found

    @staticmethod
    def _choice(own: Sequence[int], size: int, seed: int) -> tuple[Tensor, Tensor]:
        """So many of a run's own cases; filled up with the first, which does not count."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(own), generator=generator)[:size]
        chosen = torch.tensor(own, dtype=torch.int64)[order]
        filling = size - len(chosen)
        return F.pad(chosen, (0, filling)), F.pad(torch.ones(len(chosen)), (0, filling))

    def _pairs(self, bucket: Bucket, step: int) -> Int[Tensor, "run pair"]:
        """The prompt pairs that each run looks at, or the draw of prompts."""
        if bucket.tables is None:
            there, wanted = bucket.scored.shape[1], self.config.step_pairs
        else:
            there, wanted = bucket.tables.shape[1], 1
        rows = []
        for run in self.runs:
            generator = torch.Generator().manual_seed(mixed_seed(run.seed, step, "pairs"))
            rows.append(torch.randperm(there, generator=generator)[:wanted])
        return torch.stack(rows).to(self.device)

    def _identifiers(
        self, bucket: Bucket, cases: int, step: int, place: int
    ) -> dict[str, Float[Tensor, "run case component width identifier"]]:
        """Those of each run, by its seed."""
        by_run = []
        for run in self.runs:
            generator = torch.Generator(self.device)
            generator.manual_seed(mixed_seed(run.seed, step, place, "identifiers"))
            by_run.append(bucket.draw(generator, cases, self.config.predictor.identifiers))
        return {name: torch.stack([x[name] for x in by_run]) for name in by_run[0]}

    def _at_once(self, bucket: Bucket, pairs: int) -> int:
        """Cases that go through together."""
        contexts = 1 if bucket.tables is not None else pairs * bucket.scored.shape[2]
        align = self.predictor.align
        tokens = align.tokens_weigh if isinstance(align, TabpfnAligner) else 1
        return max(1, AT_ONCE // (len(self.runs) * bucket.numbers * contexts * tokens))

    def _losses(
        self,
        bucket: Bucket,
        content: StackedVectors | StackedTables,
        cases: Int[Tensor, "run case"],
        weights: Float[Tensor, "run case"],
        noise: torch.Generator,
    ) -> Float[Tensor, " run"]:
        logits = stacked_logits(
            self.predictor, bucket.structure, content, noise=noise, dtype=self.dtype
        )
        labels = bucket.labels[cases].to(logits)
        losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return (losses * bucket.weights[cases] * weights[:, :, None]).sum((1, 2))

    # Scores

    def validate(self) -> list[dict[str, float]]:
        """AUROC with q, k, v apart of the held-out units of every run."""
        figures = self.scores([run.validate for run in self.runs], ("qkv",))
        return [{id: own["qkv"] for id, own in cases.items()} for cases in figures]

    @torch.no_grad()
    def scores(
        self, wanted: Sequence[Sequence[str]], levels: Sequence[str]
    ) -> list[dict[str, dict[str, float]]]:
        """AUROC at some levels of the units that each run wants, by its id."""
        self.predictor.eval()
        found: list[dict[str, dict[str, float]]] = [{} for _ in wanted]
        for bucket in self.data:
            own = [[n for n, id in enumerate(bucket.ids) if id in ids] for ids in wanted]
            size = max(map(len, own))
            if not size:
                continue
            rows = torch.tensor([x + [0] * (size - len(x)) for x in own], device=self.device)
            n_pairs = min(self.config.predictor.context_pairs, bucket.scored.shape[1])
            pairs = torch.arange(max(1, n_pairs), device=self.device).expand(len(own), -1)
            limit = self._at_once(bucket, pairs.shape[1])
            for start in range(0, size, limit):
                cases = rows[:, start : start + limit]
                logits = self._judged(bucket, cases, pairs).cpu().double()
                for run, places in enumerate(own):
                    for row, place in enumerate(places[start : start + limit]):
                        circuit = bucket.circuits[place]
                        found[run][bucket.ids[place]] = {
                            level: _auroc(logits[run, row], circuit, level) for level in levels
                        }
        return found

    def _judged(
        self, bucket: Bucket, cases: Int[Tensor, "run case"], pairs: Int[Tensor, "run pair"]
    ) -> Float[Tensor, "run case edge"]:
        """Logits; every case has one draw of identifiers, whatever the run and the step."""
        generator = torch.Generator(self.device).manual_seed(0)
        drawn = bucket.draw(generator, len(bucket.ids), self.config.predictor.identifiers)
        content = bucket.take(cases, pairs, {name: x[cases] for name, x in drawn.items()})
        return stacked_logits(self.predictor, bucket.structure, content, dtype=self.dtype)


def of_run(module: torch.nn.Module, run: int) -> dict[str, Tensor]:
    """The parameters and buffers of one run of a stack, as the network alone has them."""
    return {name: x[run].detach().cpu().clone() for name, x in module.state_dict().items()}
