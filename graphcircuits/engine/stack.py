"""Many subjects of one architecture run under masks at once: what training on faithfulness repeats.

Small subjects leave a GPU idle; a training step takes dozens of them, so they run as one. Subjects
of a stack share all of their configuration but vocabulary, context and whether they look ahead, so
that they have one graph and weights of equal shapes. Prompts are padded to the longest, logits to
the most classes. The masked run (`engine/masked.py`) is vectorized over subjects, and nothing in it
waits for a GPU. Memory grows with subjects x masks x prompts, which the caller chooses. The tests
check that losses and gradients are those of each subject alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.engine.losses import LOSSES, OF_CLASSES, position_losses, wide
from graphcircuits.engine.masked import ablated_writers, corrupted_streams, resumed_logits
from graphcircuits.engine.relaxed import check_gap, departure, log_sizes, ranks
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.attention import attend
from graphcircuits.subject.components import Components, Rules, Vectors
from graphcircuits.subject.layers import TransformerConfig
from graphcircuits.subject.transformer import Transformer

if TYPE_CHECKING:
    from graphcircuits.task.pairs import Pairs

MASKS_AT_ONCE = 10
"""Masks per subject that `Stack.cmd` runs together."""

StackItem = tuple[Transformer, "Pairs"]
Rows = slice | Int[Tensor, " row"]
"""Which prompts, the same of every subject."""
ALL = slice(None)


def architecture(subject: Transformer) -> tuple[TransformerConfig, torch.dtype]:
    """What subjects must share to be stacked."""
    config = subject.config
    # Windows need causal=True, and tied unembeddings vocabularies of one size.
    alike = replace(config, d_vocab=1, d_vocab_out=1, n_ctx=1, causal=True)
    return alike, subject.dtype


@dataclass(frozen=True, eq=False)
class _HiddenKeys(Rules):
    """Each subject of a stack sees its own keys, since prompts are padded to the longest."""

    unseen: Tensor | None

    def attend(
        self, config: TransformerConfig, layer: int, q: Vectors, k: Vectors, v: Vectors
    ) -> Vectors:
        return attend(config, layer, q, k, v, self.unseen)


@dataclass(frozen=True, eq=False)
class Stack:
    """Subjects of one architecture, each with as many prompt pairs of its own task."""

    graph: ComponentGraph
    """That of every subject."""
    config: TransformerConfig = field(repr=False)
    columns: slice
    """Positions at which logits are computed."""
    loss_names: tuple[str, ...]
    """By subject."""
    shared: bool
    """Whether all are one subject with several tasks: weights then have no axis of subjects."""
    weights: dict[str, Tensor] = field(repr=False)
    own: Float[Tensor, "subject batch pos d_model"] = field(repr=False)
    """What `input` writes on clean prompts, less what it writes on corrupted ones."""
    writers: Float[Tensor, "subject writer batch pos d_model"] = field(repr=False)
    """What cut edges carry."""
    streams: Float[Tensor, "subject stream batch pos d_model"] = field(repr=False)
    """What readers read where every edge is cut."""
    unseen: Float[Tensor, "subject pos pos"] | None = field(repr=False)
    """Where subjects look ahead or not, and prompts differ in length: what hides keys."""
    absent: Bool[Tensor, "subject d_vocab_out"] | None = field(repr=False)
    """The classes that a subject does not have."""
    share: Float[Tensor, "subject batch column"] = field(repr=False)
    """The part that each position has in its prompt's loss."""
    distributions: Float[Tensor, "subject batch column d_vocab_out"] | None = field(repr=False)
    """Targets of kl."""
    numbers: Float[Tensor, "subject batch column"] | None = field(repr=False)
    """Targets of l1."""
    classes: Int[Tensor, "subject batch column 2"] | None = field(repr=False)
    """Correct and incorrect class, of cross-entropy and logit-diff."""
    kind: Int[Tensor, " subject"] = field(repr=False)
    """The place of each subject's loss among LOSSES."""
    ends: Float[Tensor, "2 subject batch"] = field(repr=False)
    """The losses with every edge kept, and with every edge cut."""

    @classmethod
    @torch.no_grad()
    def of(cls, items: Sequence[StackItem], device: torch.device | str = "cpu") -> "Stack":
        """Subjects of one architecture with their pairs, equally many of each.

        Each runs on its corrupted prompts where it is; what comes of it goes to `device`.
        """
        _check(items)
        ready = [_prepared(subject, pairs) for subject, pairs in items]
        configs = [subject.config for subject, _ in ready]
        pos = max(pairs.clean.shape[1] for _, pairs in ready)
        classes = max(config.d_vocab_out for config in configs)
        scored = [pairs.columns for _, pairs in ready]
        columns = slice(min(x.start for x in scored), max(x.stop for x in scored))
        ahead = any(not config.causal for config in configs)
        lengths = {pairs.clean.shape[1] for _, pairs in ready}
        hides = ahead and (len(lengths) > 1 or any(config.causal for config in configs))
        runs = [_cut_run(subject, pairs, pos) for subject, pairs in ready]
        own, writers, streams = (torch.stack(each).to(device) for each in zip(*runs, strict=True))
        sizes = torch.tensor([config.d_vocab_out for config in configs], device=device)
        fewer = bool((sizes < classes).any())
        shared = all(subject is items[0][0] for subject, _ in items)
        chosen = ready[:1] if shared else ready
        weights = [_weights(subject, classes) for subject, _ in chosen]
        stacked = {
            name: torch.stack([each[name] for each in weights]).to(device) for name in weights[0]
        }
        bare = cls(
            graph=ready[0][0].graph,
            config=replace(
                configs[0],
                d_vocab=classes,
                d_vocab_out=classes,
                n_ctx=pos,
                causal=not ahead,
                tied_unembedding=False,
            ),
            columns=columns,
            loss_names=tuple(str(pairs.loss_name) for _, pairs in ready),
            shared=shared,
            weights={name: x[0] for name, x in stacked.items()} if shared else stacked,
            own=own,
            writers=writers,
            streams=streams,
            unseen=torch.stack([_unseen(*x, pos) for x in ready]).to(device) if hides else None,
            absent=torch.arange(classes, device=device) >= sizes[:, None] if fewer else None,
            **_targets([pairs for _, pairs in ready], columns, classes, own),
            ends=own.new_zeros(2, len(ready), own.shape[1]),
        )
        masks = own.new_ones(len(ready), 1, bare.graph.n_edges)
        whole, cut = (bare.losses(x)[:, 0] for x in (masks, torch.zeros_like(masks)))
        check_gap(whole.mean(1).tolist(), cut.mean(1).tolist())
        return replace(bare, ends=torch.stack([whole, cut]))

    def __len__(self) -> int:
        return len(self.own)

    @property
    def n_pairs(self) -> int:
        """Prompt pairs of each subject."""
        return self.own.shape[1]

    @property
    def device(self) -> torch.device:
        return self.own.device

    @property
    def gap(self) -> Float[Tensor, " subject"]:
        """How much worse the loss is with every edge cut, over all prompts."""
        return (self.ends[1] - self.ends[0]).mean(1)

    def subset(self, index: Sequence[int]) -> "Stack":
        """Some of the subjects, in this order."""
        chosen = torch.tensor(list(index), dtype=torch.long).to(self.device)
        moved = {
            each.name: value.index_select(int(each.name == "ends"), chosen)
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), Tensor)
        }
        weights = self.weights
        if not self.shared:
            weights = {name: x.index_select(0, chosen) for name, x in weights.items()}
        names = tuple(self.loss_names[chosen_index] for chosen_index in index)
        return replace(self, **moved, weights=weights, loss_names=names)

    # Runs

    def logits(
        self, masks: Float[Tensor, "subject mask edge"], rows: Rows = ALL
    ) -> Float[Tensor, "subject mask row column d_vocab_out"]:
        """Logits at `columns`; those of classes that a subject does not have mean nothing."""
        expected = (len(self), self.graph.n_edges)
        if (masks.shape[0], masks.shape[-1]) != expected:
            raise ValueError(
                f"masks must be of {expected[0]} subjects and {expected[1]} edges, "
                f"got shape {tuple(masks.shape)}."
            )
        masks = masks.to(self.own.dtype)
        if not torch.is_grad_enabled():
            masks = masks.detach()

        def run(
            weights: dict[str, Tensor], unseen: Tensor | None, masks: Tensor, *cut: Tensor
        ) -> Tensor:
            subject = Components(self.config, weights, rules=_HiddenKeys(unseen))
            own, writers, streams = cut
            moved = own.expand(len(masks), 1, *own.shape)
            return resumed_logits(
                subject, masks, writers, streams, 0, [moved], columns=self.columns
            )

        dims = (None if self.shared else 0, None if self.unseen is None else 0, 0, 0, 0, 0)
        vectorized: Callable[..., Tensor] = torch.func.vmap(run, in_dims=dims)
        # Without gradients the masked run writes into tensors made beforehand, which cannot be
        # vectorized. What needs none is not recorded in any case.
        with torch.enable_grad():
            cut = (self.own[:, rows], self.writers[:, :, rows], self.streams[:, :, rows])
            return vectorized(self.weights, self.unseen, masks, *cut)

    def losses(
        self, masks: Float[Tensor, "subject mask edge"], rows: Rows = ALL
    ) -> Float[Tensor, "subject mask row"]:
        """One loss per subject, mask and prompt; of all prompts, or of those of `rows`."""
        outputs = wide(self.logits(masks, rows))
        if self.absent is not None:
            outputs = outputs.masked_fill(self.absent[:, None, None, None], -torch.inf)
        losses = None
        for name in dict.fromkeys(self.loss_names):
            by_column = position_losses(name, outputs, *self._targets_of(name, rows))
            here = (by_column * self.share[:, None, rows]).sum(-1)
            of_kind = (self.kind == LOSSES.index(name))[:, None, None]
            losses = here if losses is None else torch.where(of_kind, here, losses)
        assert losses is not None
        return losses

    def _targets_of(self, name: str, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Targets and wrong classes of one loss; those of subjects with another mean nothing."""
        targets, incorrect = {"kl": self.distributions, "l1": self.numbers}.get(name), None
        if name in OF_CLASSES:
            assert self.classes is not None
            targets, incorrect = self.classes.unbind(-1)
            incorrect = incorrect[:, None, rows]
        assert targets is not None
        return targets[:, None, rows], incorrect

    def departure(
        self, masks: Float[Tensor, "subject mask edge"], rows: Rows = ALL
    ) -> Float[Tensor, "subject mask"]:
        """(loss - loss of the clean run) / gap, which is 1 - faithfulness; means over prompts."""
        clean = self.ends[0][:, None, rows]
        return departure(self.losses(masks, rows), clean, self.gap[:, None])

    @torch.no_grad()
    def cmd(
        self,
        scores: Float[Tensor, "subject edge"],
        sizes: Sequence[int] | None = None,
        at_once: int = MASKS_AT_ONCE,
    ) -> Float[Tensor, " subject"]:
        """Circuit-model distance of the best edges, at log-spaced sizes if none are given.

        Edges of equal scores are taken in edge order. `at_once` masks of a subject run together.
        """
        n_edges = self.graph.n_edges
        sizes = log_sizes(n_edges) if sizes is None else list(sizes)
        order = ranks(scores.to(self.device))
        counts = torch.tensor(sizes).to(self.device)
        departures = [
            self.departure((order[:, None] < some[:, None]).to(self.own))
            for some in counts.split(at_once)
        ]
        return torch.trapezoid(torch.cat(departures, 1).abs(), counts.to(self.own) / n_edges, dim=1)


# What a stack is made of


def _prepared(subject: Transformer, pairs: "Pairs") -> tuple[Transformer, "Pairs"]:
    """On one device, with targets, and without positions that nothing looks at."""
    pairs = pairs.to(subject.device)
    if subject.config.causal:
        pairs = pairs.up_to_last_column()
    if pairs.needs_targets:
        pairs = pairs.with_targets_from(subject.logits(pairs.clean))
    return subject, pairs


def _cut_run(subject: Transformer, pairs: "Pairs", pos: int) -> tuple[Tensor, Tensor, Tensor]:
    """The fields `own`, `writers` and `streams` of one subject."""
    writers = ablated_writers(subject, pairs.corrupted).permute(2, 0, 1, 3)
    own = subject.embed(pairs.clean) - writers[0]
    streams = corrupted_streams(subject, writers, len(pairs))
    more = (0, 0, 0, pos - own.shape[1])
    return F.pad(own, more), F.pad(writers, more), F.pad(streams, more)


def _weights(subject: Transformer, classes: int) -> dict[str, Tensor]:
    """All but those of embedding, which has been done; unembeddings for so many classes."""
    weights = {n: w for n, w in subject.weights.items() if n not in ("W_E", "W_pos")}
    weights["W_U"] = subject.unembedding
    more = classes - subject.config.d_vocab_out
    return {n: F.pad(w, (0, more)) if n in ("W_U", "b_U") else w for n, w in weights.items()}


def _unseen(subject: Transformer, pairs: "Pairs", pos: int) -> Float[Tensor, "key pos"]:
    """Minus infinity where a position does not see a key; padding sees itself alone."""
    length, device = pairs.clean.shape[1], subject.device
    seen = torch.eye(pos, dtype=torch.bool, device=device)
    real = torch.ones(length, length, dtype=torch.bool, device=device)
    seen[:length, :length] = real.triu() if subject.config.causal else real
    hidden = torch.zeros(pos, pos, dtype=subject.dtype, device=device)
    return hidden.masked_fill(~seen, -torch.inf)


def _targets(
    pairs: Sequence["Pairs"], columns: slice, classes: int, like: Tensor
) -> dict[str, Any]:
    """The fields that say what the right outputs are, and where they count."""
    width = columns.stop - columns.start
    wide, device = torch.promote_types(like.dtype, torch.float32), like.device

    def at_columns(x: Tensor) -> Tensor:
        """The values at columns, zeros where a prompt has none."""
        x = x[:, columns]
        return F.pad(x, (0, 0) * (x.ndim - 2) + (0, width - x.shape[1]))

    share, distributions, numbers, by_class, kinds = [], [], [], [], []
    for each in pairs:
        assert each.targets is not None
        scored = at_columns(each.scored)
        counts = scored if each.targets.ndim == 2 else scored[..., None]
        targets = at_columns(each.targets).where(counts, 0)
        name, zeros = each.loss_name, torch.zeros_like(scored, dtype=wide)
        kinds.append(LOSSES.index(str(name)))
        share.append(scored.to(wide) / scored.sum(-1, keepdim=True))
        distribution = targets.to(wide) if name == "kl" else zeros[..., None]
        distributions.append(F.pad(distribution, (0, classes - distribution.shape[-1])))
        numbers.append(targets.to(wide) if name == "l1" else zeros)
        correct = targets.long() if name in OF_CLASSES else zeros.long()
        incorrect = correct if each.incorrect is None else at_columns(each.incorrect).long()
        by_class.append(torch.stack([correct, incorrect.where(scored, 0)], dim=-1))
    names = {LOSSES[kind] for kind in kinds}
    return {
        "share": torch.stack(share).to(device),
        "distributions": torch.stack(distributions).to(device) if "kl" in names else None,
        "numbers": torch.stack(numbers).to(device) if "l1" in names else None,
        "classes": torch.stack(by_class).to(device) if names & set(OF_CLASSES) else None,
        "kind": torch.tensor(kinds).to(device),
    }


# Bad input


def _check(items: Sequence[StackItem]) -> None:
    if not items:
        raise ValueError("a stack needs at least one subject, got none.")
    problems = []
    if len({architecture(subject) for subject, _ in items}) > 1:
        problems.append("subjects of a stack must share one architecture and dtype")
    counts = sorted({len(pairs) for _, pairs in items})
    if len(counts) > 1:
        problems.append(f"every subject needs equally many pairs, got {counts}")
    odd = [pairs.loss_name for _, pairs in items if pairs.loss_name not in LOSSES]
    if odd:
        problems.append(f"the loss must be one of {', '.join(LOSSES)}, got {odd[0]!r}")
    if problems:
        raise ValueError("; ".join(problems) + ".")
