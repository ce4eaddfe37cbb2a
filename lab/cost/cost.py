"""What a method costs on a subject and a task: work and span counted, time and memory measured.

1. The method runs on a subject and on pairs that count how they are used. A pass is a plain run of
   the whole subject, forward or backward. An edge evaluation is a run in which edges carry other
   values, judged by the loss: a masked run, or a single-edge intervention. Both are given for each
   prompt pair.
2. Meanwhile a `Ledger` sees every operation. Work is the floating-point operations of all matrix
   products. The subject's are the products with its weights and those of its attention,
   backward too; all others are the method's own: mixing masked edges, contracting gradients, a
   predictor.
3. Span is the longest chain of matrix products that wait for each other, whatever order they were
   computed in: what is left of the time where nothing waits for a processor. A method that reports
   progress decides step by step, so each of its steps waits for the one before.
4. Time and memory are measured in a second run, without any counting.

This is the work-span model of the paper's appendix "Computational Costs", for one new subject and
task: what a predictor's training took is left out. Elementwise operations count for nothing.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from graphcircuits.compare.measure import measure
from graphcircuits.methods import BeyondTraining, Progress, localize
from graphcircuits.subject.components import PLAIN, Rules
from graphcircuits.subject.layers import TransformerConfig
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

aten = torch.ops.aten
INDEPENDENT = ("exact",)
"""Methods whose steps are runs that do not wait for each other."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Work and span of one run of a method."""

    n_pairs: int
    """Prompt pairs that were given."""
    forwards: float
    """Plain forward passes for each of them."""
    backwards: float
    """Backward passes for each of them, through plain runs and through edge evaluations."""
    evaluations: float
    """Edge evaluations for each of them."""
    steps: int
    """Updates or decisions that the method reported as done one after the other."""
    subject_flops: int
    """Of matrix products with the subject's weights and of its attention, over all pairs."""
    own_flops: int
    """Of all other matrix products."""
    span: int
    """Matrix products in the longest chain."""
    forward_flops: int
    """Of one plain forward pass on all pairs, the unit of work."""
    forward_span: int
    """Of one plain forward pass, the unit of span."""

    @property
    def work_in_passes(self) -> float:
        """All work, in plain forward passes."""
        return (self.subject_flops + self.own_flops) / self.forward_flops

    @property
    def span_in_passes(self) -> float:
        return self.span / self.forward_span


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a method was counted and measured to take."""

    method: str
    edges: int
    options: Mapping[str, Any]
    counts: Counts
    seconds: float
    peak_bytes: int | None
    """Above what was in use before; None where the system cannot tell."""


def cost(
    subject: Transformer,
    pairs: Pairs,
    method: str,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Cost:
    """Run a method twice, once to count and once to measure.

    `progress` hears of the steps of both runs.
    """
    # The run that shows attention is no part of the method.
    options |= {"seed": seed, "keep_prompts": 0}

    def counted(subject: Transformer, pairs: Pairs, step: Progress) -> None:
        # Runs that could all be made at once are no steps.
        heard = progress if method in INDEPENDENT else _both(step, progress)
        localize(subject, pairs, method, progress=heard, **options)

    with warnings.catch_warnings():
        # How good the scores are is not what is asked here.
        warnings.simplefilter("ignore", BeyondTraining)
        counts = count(counted, subject, pairs)
        measured = measure(
            lambda: localize(subject, pairs, method, progress=progress, **options),
            subject.device,
        )
    return Cost(
        method=method,
        edges=subject.graph.n_edges,
        options=measured.value.options,
        counts=counts,
        seconds=measured.seconds,
        peak_bytes=measured.peak_bytes,
    )


def _both(first: Progress, second: Progress | None) -> Progress:
    def call(done: int, total: int) -> None:
        first(done, total)
        if second is not None:
            second(done, total)

    return call


def count(
    call: Callable[[Transformer, Pairs, Progress], object], subject: Transformer, pairs: Pairs
) -> Counts:
    """Count what a call does with the subject, the pairs and the progress callback given to it."""
    tally = _Tally()
    ledger = Ledger(weights=list(subject.weights.values()), data=_own_tensors(pairs))
    steps = 0

    def step(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        ledger.wait()

    watched = _counting_subject(subject, tally), _counting_pairs(pairs, tally)
    with ledger:
        call(*watched, step)
    plain = Ledger(weights=list(subject.weights.values()), data=_own_tensors(pairs))
    with torch.no_grad(), plain:
        subject.logits(pairs.clean.to(subject.device))
    whole = subject.config.n_layers * len(pairs)
    return Counts(
        n_pairs=len(pairs),
        forwards=tally.layers / whole,
        backwards=tally.backward_layers / whole + tally.evaluation_backwards / len(pairs),
        evaluations=tally.evaluations / len(pairs),
        steps=steps,
        subject_flops=ledger.subject_flops,
        own_flops=ledger.own_flops,
        span=ledger.span,
        forward_flops=plain.subject_flops,
        forward_span=plain.span,
    )


def _own_tensors(pairs: Pairs) -> list[Tensor]:
    return list(_tensors_in(getattr(pairs, field.name) for field in fields(pairs)))


# Passes and evaluations


class _Tally:
    """How often counting subjects and pairs were used; each count is of prompts."""

    def __init__(self) -> None:
        self.layers = self.backward_layers = 0
        self.evaluations = self.evaluation_backwards = 0
        self.plain_logits: set[StorageWeakRef] = set()


def _counting_subject(subject: Transformer, tally: _Tally) -> Transformer:
    """The same subject; it counts the layers of plain runs and knows the logits they end in.

    The stream of a plain run has the axes (batch, pos, d_model), its heads one more; evaluations of
    many edges have an axis of those besides.
    """

    return replace(subject, rules=_Counting(tally))


@dataclass(frozen=True)
class _Counting(Rules):
    """Other rules, watched."""

    tally: _Tally
    inner: Rules = PLAIN

    def then(self, other: Rules) -> Rules:
        return replace(self, inner=self.inner.then(other))

    def attend(
        self, config: TransformerConfig, layer: int, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        if q.ndim == 4:
            self.tally.layers += len(q)
            if q.requires_grad and torch.is_grad_enabled():
                self.tally.backward_layers += len(q)
        return self.inner.attend(config, layer, q, k, v)

    def bend(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        bent = self.inner.bend(function, x)
        if bent.ndim == 3:
            # The logits are among these, and nobody takes the loss of the others.
            self.tally.plain_logits.add(_storage(bent))
        return bent

    def read(self, stream: Tensor, index: int) -> Tensor:
        return self.inner.read(stream, index)

    def normalize(
        self, config: TransformerConfig, stream: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        return self.inner.normalize(config, stream, weight, bias)

    def pull_through_norm(
        self, config: TransformerConfig, stream: Tensor, weight: Tensor, grad: Tensor
    ) -> Tensor:
        return self.inner.pull_through_norm(config, stream, weight, grad)

    def scale_of(self, written: Tensor) -> Tensor:
        return self.inner.scale_of(written)

    def multiply(self, gate: Tensor, pre: Tensor) -> Tensor:
        return self.inner.multiply(gate, pre)


def _counting_pairs(pairs: Pairs, tally: _Tally) -> Pairs:
    """The same pairs; they count the runs that they judge, but for plain ones."""

    class CountingPairs(Pairs):
        def loss_at_columns(
            self,
            logits: Float[Tensor, "*mask batch column d_vocab_out"],
            rows: Int[Tensor, " batch"] | None = None,
        ) -> Float[Tensor, "*mask batch"]:
            if _storage(logits) not in tally.plain_logits:
                prompts = logits.shape[:-2].numel()
                tally.evaluations += prompts
                if logits.requires_grad and torch.is_grad_enabled():
                    tally.evaluation_backwards += prompts
            return super().loss_at_columns(logits, rows)

    return CountingPairs(**{field.name: getattr(pairs, field.name) for field in fields(pairs)})


def _storage(tensor: Tensor) -> StorageWeakRef:
    """Equal for tensors that share memory; as long as it is kept, no other storage equals it."""
    return StorageWeakRef(tensor.untyped_storage())


# Work and span

NEUTRAL, WEIGHTS, DATA = range(3)
"""Where numbers come from: constants alone, the subject's weights (and constants), or anything."""


@dataclass(slots=True)
class _Mark:
    """What is known of the numbers in a storage."""

    depth: int
    """Products in the longest chain behind them."""
    origin: int
    product: int = -1
    """The last product behind them, with no other in between; -1 for none."""
    pattern: bool = False
    """Whether they are attention weights or a gradient at attention scores."""


@dataclass(slots=True)
class _Product:
    flops: int
    kind: str
    """`map` by the subject's weights, `attention`, `own`."""
    of_maps: bool
    """Whether both factors were made by the subject's weights: scores may come out of it."""


class Ledger(TorchDispatchMode):
    """Adds up the matrix products made inside, and follows what each of them waited for.

    A product counts as the subject's if one factor is made of its weights alone and the other is
    not. Attention is found from its softmax: the product of mapped vectors that leads to it, what
    is multiplied with its result, and the same in its backward pass. What is known of tensors is
    known by storage: one that was filled piece by piece waits for all its pieces.
    """

    def __init__(self, *, weights: Sequence[Tensor], data: Sequence[Tensor]) -> None:
        super().__init__()
        self.span = 0
        self._floor = 0
        self._products: list[_Product] = []
        # A mark goes when its storage does; until then nothing else can have its key.
        self._marks: dict[StorageWeakRef, _Mark] = {}
        self._next_sweep = 2**14
        for origin, tensors in ((WEIGHTS, weights), (DATA, data)):
            for tensor in tensors:
                self._marks[_storage(tensor)] = _Mark(0, origin)

    @property
    def subject_flops(self) -> int:
        return sum(product.flops for product in self._products if product.kind != "own")

    @property
    def own_flops(self) -> int:
        return sum(product.flops for product in self._products if product.kind == "own")

    def wait(self) -> None:
        """All that follows depends on all that went before."""
        self._floor = self.span

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        read = list(_tensors_in(args))
        marks = [self._mark(tensor) for tensor in read]
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=out)
            made = self._multiplied(marks, flops)
        else:
            made = _Mark(
                max((mark.depth for mark in marks), default=0),
                max((mark.origin for mark in marks), default=NEUTRAL),
                max((mark.product for mark in marks), default=-1),
                any(mark.pattern for mark in marks),
            )
            if packet is aten._softmax:
                made.pattern = self._leads_to_attention(made.product)
            elif packet is aten._softmax_backward_data and marks[1].pattern:
                made.pattern = self._leads_to_attention(marks[0].product, backward=True)
        inputs = {id(tensor) for tensor in read}
        for tensor in _tensors_in((out,)):
            if id(tensor) not in inputs:
                self._note(tensor, made)
        for tensor in _tensors_in(
            args[place] if place < len(args) else kwargs.get(name) for place, name in _written(func)
        ):
            self._note(tensor, made)
        return out

    def _multiplied(self, marks: Sequence[_Mark], flops: int) -> _Mark:
        """Enter a product; its two factors come last among what it reads."""
        factors = marks[-2:]
        origins = {mark.origin for mark in factors}
        if any(mark.pattern for mark in factors):
            kind = "attention"
        else:
            kind = "map" if origins == {WEIGHTS, DATA} else "own"
        of_maps = all(
            mark.product >= 0 and self._products[mark.product].kind == "map" for mark in factors
        )
        self._products.append(_Product(flops, kind, of_maps))
        depth = 1 + max(self._floor, *(mark.depth for mark in marks))
        self.span = max(self.span, depth)
        origin = max(mark.origin for mark in marks)
        return _Mark(depth, origin, len(self._products) - 1)

    def _leads_to_attention(self, place: int, *, backward: bool = False) -> bool:
        """Whether the product behind a softmax is one of attention; it is then entered as such."""
        if place < 0:
            return False
        product = self._products[place]
        if product.kind == "own" and (product.of_maps or backward):
            product.kind = "attention"
        return product.kind == "attention"

    def _mark(self, tensor: Tensor) -> _Mark:
        """Of an unknown tensor: whole numbers and truth values only choose among others."""
        mark = self._marks.get(_storage(tensor))
        if mark is not None:
            return mark
        return _Mark(0, DATA if tensor.is_floating_point() else NEUTRAL)

    def _note(self, tensor: Tensor, made: _Mark) -> None:
        """A storage of which only a part is new keeps what it knew of the rest."""
        key = _storage(tensor)
        old = self._marks.get(key)
        if old is not None:
            made = _Mark(
                max(old.depth, made.depth),
                max(old.origin, made.origin),
                max(old.product, made.product),
                old.pattern or made.pattern,
            )
        self._marks[key] = made
        if len(self._marks) > self._next_sweep:
            self._marks = {key: mark for key, mark in self._marks.items() if not key.expired()}
            self._next_sweep = max(2**14, 2 * len(self._marks))


@cache
def _written(func: Any) -> list[tuple[int, str]]:
    """Places and names of the arguments that an operation writes to: in place, or as its `out`."""
    return [
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, and in lists among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)
