"""What `graphcircuits localize` works on: the subject and the prompts that the words name.

`LocalizeWords` holds the words; its `problems` says which do not go together, and its `load` gives
the subject, its prompts and fresh ones: drawn by another seed or, of a file, those held back.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphcircuits.commands.checks import above
from graphcircuits.commands.output import printable
from graphcircuits.commands.programs import is_program, planted, without_subject
from graphcircuits.commands.subjects import (
    is_path,
    own_pairs,
    own_subject,
    placed,
    prompt_problems,
    task_pairs,
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
    variables: dict[str, str] | None
    """What components compute, where a program says so and the subject is known to follow."""
    notes: tuple[str, ...]
    """What was done to the prompts, or could be."""


@dataclass(frozen=True, kw_only=True)
class LocalizeWords:
    """What was typed about the subject and its prompts."""

    case: str | None
    model: str | None
    fleet: str = "planted"
    architecture: str | None = None
    task: str | None
    pairs_file: Path | None
    words: bool
    n_pairs: int
    seed: int
    hold_out: float | None = None
    only_right: bool = False
    vocab: str | None = None
    max_seq_len: int | None = None
    causal: bool = False
    device: str
    dtype: str | None

    def problems(self) -> list[str]:
        """Words that do not go together."""
        problems = []
        if self.case is None or self.model is None:
            if self.vocab is not None or self.max_seq_len is not None or self.causal:
                problems.append(
                    "--vocab, --max-seq-len and --causal go with a program of your own and "
                    "--subject"
                )
            problems += [] if self.case is None else without_subject(self.case)
        elif not is_program(self.case):
            problems.append(f"{_CHOICE}; got both {self.case} and {self.model}")
        if self.model is not None and (self.fleet != "planted" or self.architecture is not None):
            problems.append(
                "--fleet and --architecture choose among the subjects of a case, not with --model"
            )
        problems += prompt_problems(
            self.case, self.model, task=self.task, pairs_file=self.pairs_file, words=self.words
        )
        if self.hold_out is not None and self.pairs_file is None:
            problems.append(
                "--hold-out goes with --pairs-file: other prompts are drawn afresh to judge by"
            )
        elif self.hold_out is not None:
            problems += above("--hold-out", self.hold_out, 0)
            problems += [f"--hold-out must be below 1, got {self.hold_out}"] * (self.hold_out >= 1)
        return problems

    def load(self, *, fresh: bool = True) -> Inputs:
        """Subject and prompts; with `fresh`, others to judge by."""
        from graphcircuits.evaluation.proposal import fresh_seed
        from graphcircuits.task.accuracy import only_right

        case, subject, truth = self._subject()
        notes: tuple[str, ...] = ()
        if self.pairs_file is None:
            pairs = self._draw(case, subject, self.seed)
            others = self._draw(case, subject, fresh_seed(self.seed)) if fresh else None
        else:
            file, model = self.pairs_file, str(self.model)
            pairs, others = own_pairs(file, model, subject, words=self.words), None
        if self.only_right:
            given, pairs = len(pairs), only_right(subject, pairs)
            others = None if others is None else only_right(subject, others)
            notes = (
                f"{given - len(pairs)} of {given} pairs are left out, which the model gets wrong",
            )
        if self.pairs_file is not None and fresh:
            pairs, others, note = self._hold_back(pairs)
            notes += note
        if case is not None:
            pairs = replace(pairs, task=case.task)
        return Inputs(
            replace(subject, name=printable(subject.name)),
            replace(pairs, task=printable(pairs.task)),
            others,
            truth,
            None
            if case is None or truth is None
            else {name: printable(text) for name, text in case.variables.items()},
            notes,
        )

    def _subject(self) -> "tuple[Case | None, Transformer, Circuit | None]":
        """The case or program, if one was named; the subject, and its circuit where it is known."""
        from graphcircuits.cases import load_case

        if self.model is not None and self.case is None:
            subject, truth = own_subject(self.model, self.device, self.dtype)
            return None, replace(subject, name=title_of(self.model)), truth
        if self.model is not None and self.case is not None:
            typed = {"vocab": self.vocab, "max_seq_len": self.max_seq_len, "causal": self.causal}
            case, subject = planted(self.case, Path(self.model), **typed)
            subject = replace(subject, name=case.id)
        elif self.case is None:
            raise ValueError(f"{_CHOICE}; got neither.")
        elif self.pairs_file is not None:
            raise ValueError("a case draws its own prompts; --pairs-file goes with --model.")
        elif is_path(self.case):
            raise ValueError(
                f"{self.case} is a path, not a case; give it as --model {self.case}, with --task "
                "or --pairs-file."
            )
        else:
            case = load_case(self.case)
            subject = case.subject(self.fleet, self.architecture)
        truth = None if subject.fleet == "natural" else case.labels(graph=subject.graph)
        return case, placed(subject, self.device, self.dtype), truth

    def _draw(self, case: "Case | None", subject: "Transformer", seed: int) -> "Pairs":
        if case is not None:
            return case.pairs(self.n_pairs, seed=seed)
        return task_pairs(str(self.task), str(self.model), subject, n=self.n_pairs, seed=seed)

    def _hold_back(self, pairs: "Pairs") -> "tuple[Pairs, Pairs | None, tuple[str, ...]]":
        """The pairs of a file without those that are held back, these, and a note on it."""
        from graphcircuits.task.fresh import hold_back

        enough = len(pairs) >= FEWEST_TO_HOLD_BACK
        if self.hold_out is None:
            hint = (
                "the prompts are those it was found on; --hold-out 0.25 keeps a quarter of them "
                "back to judge by"
            )
            return pairs, None, (hint,) if enough else ()
        if not enough:
            raise ValueError(
                f"--hold-out needs {FEWEST_TO_HOLD_BACK} pairs or more, got {len(pairs)}: of fewer "
                "a part says nothing."
            )
        count = len(pairs)
        pairs, fresh = hold_back(pairs, self.hold_out, seed=self.seed)
        note = f"{len(fresh)} of {count} pairs are held back to judge the circuit by"
        return pairs, fresh, (note,)
