"""A task: prompts in pairs, what the right output is, where it is read, and how far off a run is.

1. `Pairs` holds clean and corrupted prompts, the scored positions, targets, and the loss.
2. `Pairs.loss` turns logits into one number per prompt: the mean over its scored positions of
   kl             the divergence KL(target || model), from distributions or from the clean run
   l1             the distance of a numerical output to its target number
   logit-diff     logit of the incorrect class minus logit of the correct one
   cross-entropy  minus the log probability of the target class
   or whatever the user's own function returns. Lower is closer to the target, always.
3. `Pairs.from_text` makes pairs of texts and words; `Pairs.load` and `Pairs.save` read and write
   CSV and JSONL with the columns in common use.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.drawing.notebook import pairs_html
from graphcircuits.engine.losses import LOSSES, OF_CLASSES, position_losses, wide
from graphcircuits.io.files import StoreError
from graphcircuits.subject.codec import Codec
from graphcircuits.task.files import read_prompts, write_prompts
from graphcircuits.task.problems import first_few, is_integer, pair_problems
from graphcircuits.task.text import PromptTable, text_table

LossFunction = Callable[[Tensor, "Pairs"], Tensor]
"""(logits of shape batch pos d_vocab_out, pairs) -> one loss per prompt, lower is better."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Clean and corrupted prompts of one length, targets, scored positions, and the loss.

    Prompts in words make them by `Pairs.from_text`, files by `Pairs.load`, cases by `case.pairs`.

    Example:
        pairs = gc.Pairs(clean=ids, corrupted=others, scored=last, loss_name="kl")

    See docs/tasks.md; the paper's section "Features" says what the two prompts of a pair are for.
    """

    # Plain tensors: shapes and dtypes are checked below, with an error that says what to do.
    clean: Tensor
    """Token ids (batch pos)."""
    corrupted: Tensor
    """Token ids (batch pos)."""
    scored: Tensor
    """Booleans (batch pos): where the output counts, at least one position in every prompt."""
    loss_name: str | LossFunction
    """One of LOSSES, or a function."""
    targets: Tensor | None = None
    """kl: distributions (batch pos d_vocab_out); l1: numbers (batch pos); the other two: classes
    (batch pos). One class or number per prompt (batch) stands for all its positions. None, for kl
    and l1, until they are taken from the clean run. Values at unscored positions are not read."""
    incorrect: Tensor | None = None
    """logit-diff: the classes (batch pos) or (batch) to be told apart from the targets."""
    case: str | None = field(default=None, compare=False)
    """The case that drew the prompts, where one did. It is no part of their content."""
    task: str = field(default="", compare=False)
    """What they ask, in words, where that is known. It is no part of their content."""

    def __post_init__(self) -> None:
        odd = [
            f"{name} must be a tensor, got {type(getattr(self, name)).__name__}"
            for name in ("clean", "corrupted", "scored", "targets", "incorrect")
            if not isinstance(getattr(self, name), Tensor)
            and not (name in ("targets", "incorrect") and getattr(self, name) is None)
        ]
        if not isinstance(self.loss_name, str) and not callable(self.loss_name):
            odd.append(
                f"loss_name must be one of {', '.join(LOSSES)}, or a function, "
                f"got {self.loss_name!r}"
            )
        odd += [
            f"{name} must be an ordinary tensor with values, got one that is sparse or meta"
            for name, values in self._tensors().items()
            if values.is_meta or values.layout != torch.strided
        ]
        if odd:
            raise TypeError("; ".join(odd) + ".")
        for name in ("clean", "corrupted"):
            ids = getattr(self, name)
            # PyTorch takes small numbers for a mask, or for no index at all.
            if is_integer(ids) and ids.dtype not in (torch.int32, torch.int64):
                object.__setattr__(self, name, ids.long())
        for name in ("targets", "incorrect"):
            values = getattr(self, name)
            whole = isinstance(self.loss_name, str) and self.clean.ndim == 2
            if whole and values is not None and values.ndim == 1:
                spread = values[:, None].expand(-1, self.clean.shape[-1])
                object.__setattr__(self, name, spread)
        if problems := pair_problems(self):
            raise ValueError("; ".join(problems) + ".")

    def __repr__(self) -> str:
        """What they are in one line, without the prompts."""
        count, length = self.clean.shape
        case = "" if self.case is None else f", case={self.case!r}"
        return (
            f"Pairs({count} pairs of {length} tokens, {self._loss_word} loss, "
            f"{self.clean.device}{case})"
        )

    @property
    def _loss_word(self) -> str:
        given = self.loss_name
        return given if isinstance(given, str) else str(getattr(given, "__name__", "own"))

    def _repr_html_(self) -> str:
        classes = self.targets if self.loss_name in OF_CLASSES else None
        about = {"case": self.case, "loss": self._loss_word, "device": self.clean.device}
        return pairs_html(about, self.clean, self.corrupted, self.scored, classes)

    def __len__(self) -> int:
        return self.clean.shape[0]

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> "Pairs":
        """Some of the pairs; a single number gives one pair."""
        if isinstance(index, int):
            index = [index]
        rows = index if isinstance(index, slice | Tensor) else list(index)
        return self._map(lambda values: values[rows])

    def split(self, size: int) -> Iterator["Pairs"]:
        """The pairs in order, at most `size` at a time."""
        if size >= len(self):
            # Taking some of the pairs checks them once more.
            yield self
            return
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def to(self, device: torch.device | str) -> "Pairs":
        return self._map(lambda values: values.to(device))

    @classmethod
    def concatenate(cls, several: Iterable["Pairs"]) -> "Pairs":
        """All of these pairs in one, in order."""
        several = list(several)
        if not several:
            raise ValueError("there is nothing to concatenate; give at least one Pairs.")
        first = several[0]
        for each in several[1:]:
            if each.loss_name != first.loss_name or each.clean.shape[1] != first.clean.shape[1]:
                raise ValueError(
                    "pairs must share loss and length to be concatenated, got "
                    f"{first.loss_name!r} with {first.clean.shape[1]} positions and "
                    f"{each.loss_name!r} with {each.clean.shape[1]}."
                )
            if each._tensors().keys() != first._tensors().keys():
                raise ValueError("some parts have targets and some have none; take them first.")
        joined = {
            name: torch.cat([each._tensors()[name] for each in several])
            for name in first._tensors()
        }
        case = first.case if all(each.case == first.case for each in several) else None
        return replace(first, **joined, case=case)

    @property
    def identical(self) -> bool:
        """Whether corruption changes nothing, so that every edge would look useless."""
        return torch.equal(self.clean, self.corrupted)

    @property
    def needs_targets(self) -> bool:
        """Whether the targets are still to be taken from the clean run."""
        return self.loss_name in ("kl", "l1") and self.targets is None

    def with_targets_from(self, clean_logits: Float[Tensor, "batch pos d_vocab_out"]) -> "Pairs":
        """The same pairs with the output of the clean run as target, for kl and l1.

        One number has no distribution: where kl was what to do without answers, it becomes l1.
        """
        if self.loss_name not in ("kl", "l1"):
            raise ValueError(
                f"targets of {self.loss_name!r} are given, not taken from the clean run."
            )
        self._check_logits(clean_logits, self.clean.shape[1])
        clean_logits = clean_logits.detach()
        if self.loss_name == "l1" or clean_logits.shape[-1] == 1:
            return replace(self, loss_name="l1", targets=clean_logits[..., 0])
        return replace(self, targets=wide(clean_logits).softmax(-1))

    def by_output(self, n_outputs: int) -> "Pairs":
        """The same prompts, with the distance from the subject's own clean output as their loss.

        That is the divergence of distributions, or with one output the distance of numbers. The
        targets are still to be taken from the clean run.
        """
        loss_name = "l1" if n_outputs == 1 else "kl"
        return replace(self, loss_name=loss_name, targets=None, incorrect=None)

    def loss(
        self, logits: Float[Tensor, "*mask batch pos d_vocab_out"]
    ) -> Float[Tensor, "*mask batch"]:
        """One loss per prompt, lower is closer to the target; `mask` axes are carried along."""
        self._check_logits(logits, self.clean.shape[1])
        return self.loss_at_columns(logits[..., self.columns, :])

    def loss_at_columns(
        self,
        logits: Float[Tensor, "*mask batch column d_vocab_out"],
        rows: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "*mask batch"]:
        """The same from the logits at `columns` alone: no others need to be computed.

        `rows` says which prompts the logits are of, if not of all in order.
        """
        # Taken by hand: to make other pairs of them checks them, and so waits for a GPU.
        pick = slice(None) if rows is None else rows
        self._check_logits(logits, self.columns.stop - self.columns.start, rows)
        if not isinstance(self.loss_name, str):
            return (self if rows is None else self[rows])._own_loss(self.loss_name, logits)
        if self.needs_targets:
            raise ValueError(
                f"the {self.loss_name} targets have not been taken from the clean run; call "
                "pairs.with_targets_from(subject.logits(pairs.clean)) first."
            )
        assert self.targets is not None
        scored, targets = self.scored[pick, self.columns], self.targets[pick, self.columns]
        incorrect = None
        if self.loss_name in OF_CLASSES:
            # Class 0 always exists, whatever stands at positions that are not scored.
            targets = targets.where(scored, 0)
        if self.incorrect is not None:
            incorrect = self.incorrect[pick, self.columns].where(scored, 0)
        losses = position_losses(self.loss_name, logits, targets, incorrect)
        return losses.where(scored, 0.0).sum(-1) / scored.sum(-1)

    def _own_loss(self, function: LossFunction, logits: Tensor) -> Tensor:
        # The user's function knows nothing of masks: it sees one run at a time.
        runs = logits.reshape(-1, *logits.shape[-3:])
        by_run = [function(run, self) for run in runs]
        if odd := [type(losses).__name__ for losses in by_run if not isinstance(losses, Tensor)]:
            raise ValueError(f"the loss function must return a tensor, got {odd[0]}.")
        losses = torch.stack(by_run)
        if logits.requires_grad and not losses.requires_grad:
            raise ValueError(
                "the loss function must compute its result from the logits by operations of "
                "PyTorch, or there is no gradient; got a result that does not depend on them."
            )
        if losses.shape[1:] != (len(self),):
            raise ValueError(
                f"the loss function must return one number per prompt, shape ({len(self)},), "
                f"got {tuple(losses.shape[1:])}."
            )
        return losses.reshape(logits.shape[:-2])

    @cached_property
    def columns(self) -> slice:
        """The positions whose logits the loss reads: from the first that any prompt scores to the
        last, or all of them for a function of the user's own."""
        if not isinstance(self.loss_name, str):
            return slice(0, self.clean.shape[1])
        columns = self.scored.any(0).nonzero().flatten().tolist()
        return slice(columns[0], columns[-1] + 1)

    def up_to_last_column(self) -> "Pairs":
        """Without the positions behind the last column, which causal subjects never look at."""
        if self.columns.stop == self.clean.shape[1]:
            return self
        return self._map(lambda values: values[:, : self.columns.stop])

    @cached_property
    def least_classes(self) -> int:
        """How many classes the logits must have at least."""
        if self.loss_name == "kl" and self.targets is not None:
            return self.targets.shape[-1]
        if self.loss_name not in ("cross-entropy", "logit-diff"):
            return 1
        classes = (self.targets, self.incorrect)
        return 1 + max(int(values[self.scored].max()) for values in classes if values is not None)

    def _check_logits(self, logits: Tensor, pos: int, rows: Tensor | None = None) -> None:
        outputs, prompts = logits.shape[-1], len(self) if rows is None else len(rows)
        if logits.shape[-3:-1] != (prompts, pos):
            raise ValueError(
                f"logits must have {(prompts, pos)} prompts and positions, "
                f"got {tuple(logits.shape[-3:-1])}."
            )
        if self.loss_name == "l1" and outputs != 1:
            raise ValueError(f"l1 needs one numerical output per position, got {outputs} logits.")
        classes = self.least_classes
        if self.loss_name == "kl" and self.targets is not None and classes != outputs:
            raise ValueError(
                f"the target distributions have {classes} classes, the logits {outputs}."
            )
        if classes > outputs:
            raise ValueError(
                f"the targets name class {classes - 1}, but the logits have only "
                f"{outputs} classes, 0..{outputs - 1}."
            )

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Pairs":
        changed = {name: function(values) for name, values in self._tensors().items()}
        return replace(self, **changed)

    def save(self, path: str | Path) -> None:
        """Write `.csv` or `.jsonl` (`graphcircuits.task.files`), prompts as token ids."""
        if not isinstance(self.loss_name, str):
            raise ValueError("a loss function cannot be written to a file; save named losses only.")
        write_prompts(path, self)

    @classmethod
    def from_text(
        cls,
        tokenizer: Any,
        clean: Collection[Any],
        corrupted: Collection[Any],
        correct: Collection[Any] | None = None,
        incorrect: Collection[Any] | None = None,
        *,
        loss_name: str | LossFunction | None = None,
        chat: bool = False,
        padding: bool = True,
    ) -> "Pairs":
        """Pairs from prompts in words, scored at the last token of each.

        Args:
            tokenizer: one with the interface of Hugging Face's.
            clean: the prompts.
            corrupted: as many prompts, each other than the clean one where it matters.
            correct: the right answers, where they count: words of one token, with the space in
                front that they have behind the prompt (" Mary"), or token ids.
            incorrect: answers that the right ones are compared with.
            loss_name: where it is None, logit-diff with incorrect answers, cross-entropy with
                correct ones alone, else kl, the distance to what the subject itself says.
            chat: set every prompt as a user's message in the chat template of the tokenizer.
            padding: pad shorter prompts at the end, which is sound for causal subjects; without it
                all must have one length.

        Returns:
            The pairs.

        Example:
            gc.Pairs.from_text(tokenizer, ["Paris is in"], ["Rome is in"])
            gc.Pairs.from_text(tokenizer, ["Paris is in"], ["Rome is in"], [" France"], [" Italy"])

        See docs/tasks.md.
        """
        table = text_table(
            tokenizer, clean, corrupted, correct, incorrect, chat=chat, padding=padding
        )
        return cls._from_table(table, loss_name)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        loss_name: str | LossFunction | None = None,
        tokenizer: Codec | Callable[[str], Any] | None = None,
        pad: int | None = None,
    ) -> "Pairs":
        """Read `.csv` or `.jsonl`; columns, `tokenizer` and `pad` as in `graphcircuits.task.files`.

        The loss is `loss_name`, else the `loss` column, else what the columns suggest: logit-diff
        with correct and incorrect classes, cross-entropy with correct ones, l1 with numbers, else
        kl.
        """
        table = read_prompts(path, tokenizer=tokenizer, pad=pad)
        try:
            return cls._from_table(table, loss_name)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from error

    @classmethod
    def _from_table(cls, table: PromptTable, loss_name: str | LossFunction | None) -> "Pairs":
        loss_name = loss_name or table.default_loss()
        # Columns that the loss does not read are let be: a file may serve several tasks.
        if loss_name in ("kl", "l1"):
            axes = 3 if loss_name == "kl" else 2
            targets = None if table.target is None or table.target.ndim != axes else table.target
        else:
            targets = table.target if table.correct is None else table.correct
        return cls(
            clean=table.clean,
            corrupted=table.corrupted,
            scored=table.scored,
            loss_name=loss_name,
            targets=targets,
            incorrect=None if loss_name in ("cross-entropy", "kl", "l1") else table.incorrect,
        )


def check_losses(clean: Float[Tensor, " batch"], corrupted: Float[Tensor, " batch"]) -> None:
    """Refuse losses that are not finite, or that corruption leaves as they are."""
    for name, losses in (("clean", clean), ("corrupted", corrupted)):
        if bad := (~losses.isfinite()).nonzero().flatten().tolist():
            raise ValueError(
                f"the loss must be finite, but on {name} prompts {first_few(bad)} it is "
                f"{losses[bad[0]].item()}; look at the subject's logits and the targets there."
            )
    if torch.equal(clean, corrupted):
        raise ValueError(
            "the loss is constant: every prompt has the same loss on its clean and its corrupted "
            f"run ({clean.mean().item():.4g} on average), so all scores would be zero; "
            "check the loss, the scored positions and the corrupted prompts."
        )
