"""What `graphcircuits localize` works on: a subject, prompts, and what is known of both.

1. `Typed` holds the words that name them; its `problems` says which do not go together.
2. Its `load` gives the subject, its prompts and fresh ones: drawn by another seed or, of a file,
   those that were held back. Prompts that the model gets wrong are left out on request.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphcircuits.commands.checks import above
from graphcircuits.commands.output import printable
from graphcircuits.commands.programs import is_program, planted, without_subject
from graphcircuits.commands.subjects import (
    is_path,
    model_prompts,
    own_pairs,
    own_subject,
    placed,
    prompt_problems,
    title_of,
)

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case
    from graphcircuits.circuit import Circuit
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

FEWEST_TO_HOLD_BACK = 8
"""Pairs of a file, for some of them to be held back."""
_CHOICE = (
    "give a case, such as graphcircuits localize ib-3, or your own model with --model and --task "
    "or --pairs-file"
)


@dataclass(frozen=True, eq=False)
class Inputs:
    """A subject, the prompts to work with, fresh ones, and what is known of them."""

    subject: "Transformer"
    pairs: "Pairs"
    fresh: "Pairs | None"
    truth: "Circuit | None"
    title: str
    about: str
    case: "Case | None"
    notes: tuple[str, ...] = ()
    """What was done to the prompts, or could be."""

    @property
    def variables(self) -> dict[str, str] | None:
        """What components compute, where a program says so and the subject is known to follow."""
        if self.case is None or self.truth is None:
            return None
        return {name: printable(text) for name, text in self.case.variables.items()}


@dataclass(frozen=True, kw_only=True)
class Typed:
    """What was typed about the subject and its prompts."""

    case: str | None
    model: str | None
    fleet: str
    architecture: str | None
    task: str | None
    pairs_file: Path | None
    words: bool
    n_pairs: int
    seed: int
    hold_out: float | None
    only_right: bool
    vocab: str | None
    max_seq_len: int | None
    causal: bool
    device: str
    dtype: str | None

    def problems(self) -> list[str]:
        """Words that do not go together."""
        chosen = self.fleet != "planted" or self.architecture is not None
        problem = "--fleet and --architecture choose among the subjects of a case, not with --model"
        return [
            *self._misplaced(),
            *([problem] if self.model is not None and chosen else []),
            *prompt_problems(
                self.case,
                self.model,
                task=self.task,
                pairs_file=self.pairs_file,
                words=self.words,
            ),
            *self._not_held_back(),
        ]

    def _misplaced(self) -> list[str]:
        if self.case is None or self.model is None:
            typed = self.vocab is not None or self.max_seq_len is not None or self.causal
            problem = (
                "--vocab, --max-seq-len and --causal go with a program of your own and --subject"
            )
            lonely = [] if self.case is None else without_subject(self.case)
            return [*([problem] if typed else []), *lonely]
        if not is_program(self.case):
            return [f"{_CHOICE}; got both {self.case} and {self.model}"]
        return []

    def _not_held_back(self) -> list[str]:
        share = self.hold_out
        if share is None:
            return []
        if self.pairs_file is None:
            return ["--hold-out goes with --pairs-file: other prompts are drawn afresh to judge by"]
        return above("--hold-out", share, 0) or (
            [f"--hold-out must be below 1, got {share}"] if share >= 1 else []
        )

    def load(self) -> Inputs:
        """Subject and prompts."""
        from graphcircuits.evaluation.proposal import fresh_seed

        found = self._own() if self.model is not None else self._of_case()
        if self.pairs_file is not None:
            return self._from_file(found)
        drawn = self._drawn(found, fresh_seed(self.seed))
        return self._answered(replace(found, fresh=drawn))

    def _own(self) -> Inputs:
        """Of a model of the user's own, or of a program and the subject that was built of it."""
        assert self.model is not None
        if self.case is None:
            subject, truth = own_subject(self.model, self.device, self.dtype)
            pairs, about = model_prompts(
                self.model,
                subject,
                task=self.task,
                pairs_file=self.pairs_file,
                words=self.words,
                n=self.n_pairs,
                seed=self.seed,
            )
            return Inputs(subject, pairs, None, truth, title_of(self.model), about, None)
        case, subject = planted(
            self.case,
            Path(self.model),
            vocab=self.vocab,
            max_seq_len=self.max_seq_len,
            causal=self.causal,
        )
        pairs = (
            case.pairs(self.n_pairs, seed=self.seed)
            if self.pairs_file is None
            else own_pairs(self.pairs_file, self.model, subject, words=self.words)
        )
        subject = placed(subject, self.device, self.dtype)
        truth, about = _truth(case, subject), printable(case.task)
        return Inputs(subject, pairs, None, truth, case.id, about, case)

    def _of_case(self) -> Inputs:
        """Of a subject that ships."""
        from graphcircuits.cases import load_case

        if self.case is None:
            raise ValueError(f"{_CHOICE}; got neither.")
        if self.pairs_file is not None:
            raise ValueError("a case draws its own prompts; --pairs-file goes with --model.")
        if is_path(self.case):
            raise ValueError(
                f"{self.case} is a path, not a case; give it as --model {self.case}, with --task "
                "or --pairs-file."
            )
        case = load_case(self.case)
        subject = case.subject(self.fleet, self.architecture)
        title = replace(case.shipped(self.fleet, self.architecture), case=case.id).id
        truth = _truth(case, subject)
        pairs = case.pairs(self.n_pairs, seed=self.seed)
        subject = placed(subject, self.device, self.dtype)
        return Inputs(subject, pairs, None, truth, title, case.task, case)

    def _drawn(self, found: Inputs, seed: int) -> "Pairs":
        if found.case is not None:
            return found.case.pairs(self.n_pairs, seed=seed)
        from graphcircuits import tasks

        assert self.task is not None
        return tasks.find(self.task)(found.subject.tokenizer, n=self.n_pairs, seed=seed)

    def _from_file(self, found: Inputs) -> Inputs:
        """With some of the pairs held back, or a word about it."""
        from graphcircuits.task.fresh import hold_back

        found, count = self._answered(found), len(found.pairs)
        if self.hold_out is None:
            hint = (
                "the prompts are those it was found on; --hold-out 0.25 keeps a quarter of them "
                "back to judge by"
            )
            return replace(found, notes=(*found.notes, hint)) if _enough(found.pairs) else found
        if not _enough(found.pairs):
            raise ValueError(
                f"--hold-out needs {FEWEST_TO_HOLD_BACK} pairs or more, got {len(found.pairs)}: "
                "of fewer a part says nothing."
            )
        pairs, fresh = hold_back(found.pairs, self.hold_out, seed=self.seed)
        note = f"{len(fresh)} of {count} pairs are held back to judge the circuit by"
        return replace(found, pairs=pairs, fresh=fresh, notes=(*found.notes, note))

    def _answered(self, found: Inputs) -> Inputs:
        """Without the pairs that the model gets wrong, where that was asked for."""
        from graphcircuits.task.accuracy import only_right

        if not self.only_right:
            return found
        pairs = only_right(found.subject, found.pairs)
        fresh = None if found.fresh is None else only_right(found.subject, found.fresh)
        note = f"{len(found.pairs) - len(pairs)} of {len(found.pairs)} pairs are left out, which "
        note += "the model gets wrong"
        return replace(found, pairs=pairs, fresh=fresh, notes=(*found.notes, note))


def _enough(pairs: "Pairs") -> bool:
    return len(pairs) >= FEWEST_TO_HOLD_BACK


def _truth(case: "Case", subject: "Transformer") -> "Circuit | None":
    """The circuit that the subject was trained to have, in its own graph."""
    return None if subject.fleet == "natural" else case.labels(graph=subject.graph)
