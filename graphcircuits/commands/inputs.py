"""The subject and the prompts that the words of a command name.

`SubjectWords` holds the words; its `problems` says which do not go together, and its `load` gives
the subject, its prompts and, if asked for, fresh ones: drawn by another seed or, of a file, those
held back. A case comes with both; a program of a user's own needs its subject as --model, and a
model by itself needs a task or a file of prompts.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcircuits.commands import checks, programs
from graphcircuits.commands.output import printable

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case
    from graphcircuits.circuit import Circuit
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

PROMPT_FILES = (".csv", ".jsonl")
FEWEST_TO_HOLD_BACK = 8
"""Pairs of a file, for some of them to be held back."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """A subject, the prompts to work with, fresh ones, and what is known of them.

    The subject is named, and the prompts state their task, as both are to be printed.
    """

    subject: "Transformer"
    pairs: "Pairs"
    fresh: "Pairs | None"
    truth: "Circuit | None"
    variables: dict[str, str] | None
    """What components compute, where a program says so and the subject is known to follow."""
    roles: dict[str, str] | None
    """The same in sentences."""
    notes: tuple[str, ...]
    """What was done to the prompts, or could be."""


@dataclass(frozen=True, kw_only=True)
class SubjectWords:
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
    device: str
    dtype: str | None

    @classmethod
    def sort(
        cls, case: str | None, pairs_file: Path | None, model: str | None, **others: Any
    ) -> "SubjectWords":
        """The words CASE [PAIRS], where CASE may be the path of a model as well or, with --model,
        the file of prompts."""
        if model is None and case is not None:
            if programs.is_path(case) and not programs.without_subject(case):
                case, model = None, case
        elif case is not None and Path(case).suffix in PROMPT_FILES:
            case, pairs_file = None, Path(case) if pairs_file is None else pairs_file
        return cls(case=case, model=model, pairs_file=pairs_file, **others)

    @property
    def files(self) -> list[Path | None]:
        """What is read, and must not be written over."""
        program = None if self.case is None else programs.split_name(self.case)[0]
        return [program, None if self.model is None else Path(self.model), self.pairs_file]

    def problems(self, *, draw: str = "--pairs") -> list[str]:
        """Words that do not go together, or mean nothing; `draw` is the flag of `n_pairs`."""
        return [
            *checks.in_range(draw, self.n_pairs, 1, checks.MOST_PAIRS),
            *checks.seed_range(self.seed),
            *checks.device_there(self.device),
            *checks.known_dtype(self.dtype),
            *self._subject_problems(),
            *self._prompt_problems(),
        ]

    def _subject_problems(self) -> list[str]:
        case, model, problems = self.case, self.model, []
        if case is not None and model is not None and not programs.is_program(case):
            problems.append(
                "--model goes with a program, path/to/file.py:name, or alone: give a case or "
                f"--model, not both {case} and {model}"
            )
        if case is not None and model is None:
            problems += programs.without_subject(case)
            if not problems and programs.is_path(case):
                problems.append(
                    f"{case} is a path, not a case; give it as --model {case}, with --task or "
                    "--pairs-file"
                )
        if model is not None and (self.fleet != "planted" or self.architecture is not None):
            problems.append(
                "--fleet and --architecture choose among the subjects of a case, not with --model"
            )
        return problems

    def _prompt_problems(self) -> list[str]:
        from graphcircuits import tasks

        task, file, problems = self.task, self.pairs_file, []
        if task is not None and (self.case is not None or self.model is None):
            problems.append(
                "--task goes with --model alone: cases and programs draw their own prompts"
            )
        if task is not None and file is not None:
            problems.append(f"give --task or a file of prompts, not both {task} and {file}")
        if task is None and file is None and self.case is None and self.model is not None:
            problems.append(
                "your own model needs prompts: name a task with --task (graphcircuits tasks lists "
                "them), or a file of prompts, .csv or .jsonl"
            )
        if self.words and file is None:
            problems.append("--words goes with a file of prompts")
        if task is not None:
            try:
                tasks.find(task)
            except ValueError as error:
                problems.append(str(error))
        if self.hold_out is not None and file is None:
            problems.append(
                "--hold-out goes with --pairs-file: other prompts are drawn afresh to judge by"
            )
        elif self.hold_out is not None:
            problems += checks.above("--hold-out", self.hold_out, 0)
            problems += [f"--hold-out must be below 1, got {self.hold_out}"] * (self.hold_out >= 1)
        return problems

    def load(self, *, fresh: bool = False) -> Inputs:
        """Subject and prompts; with `fresh`, others to judge by."""
        from graphcircuits.evaluation.proposal import fresh_seed
        from graphcircuits.task.accuracy import has_answers, only_right

        case, subject, truth = self._subject()
        notes: tuple[str, ...] = ()
        others = None
        if self.pairs_file is not None:
            pairs = self._read(self.pairs_file, subject)
        else:
            pairs = self._draw(case, subject, self.seed)
            others = self._draw(case, subject, fresh_seed(self.seed)) if fresh else None
        if self.only_right and not has_answers(pairs):
            raise ValueError(
                "--only-right needs answers to compare with, and the prompts come without: leave "
                "it out, or add a column correct to the file."
            )
        if self.only_right:
            given, pairs = len(pairs), only_right(subject, pairs)
            others = None if others is None else only_right(subject, others)
            notes = (
                f"{given - len(pairs)} of {given} pairs are left out, which the model gets wrong",
            )
        if self.pairs_file is not None and fresh:
            pairs, others, note = self._hold_back(pairs)
            notes += note
        variables = roles = None
        if case is not None:
            pairs = replace(pairs, task=case.task)
            if truth is not None:
                variables = {name: printable(text) for name, text in case.variables.items()}
                roles = {name: printable(role.text) for name, role in case.roles.items()}
        return Inputs(
            replace(subject, name=printable(subject.name)),
            replace(pairs, task=printable(pairs.task)),
            others,
            truth,
            variables,
            roles,
            notes,
        )

    def _subject(self) -> "tuple[Case | None, Transformer, Circuit | None]":
        """The case or program, if one was named; the subject, and its circuit where it is known."""
        from graphcircuits.adapters.load import find_dtype, load_with_circuit, model_name
        from graphcircuits.cases import load_case

        if self.case is None:
            if self.model is None:
                raise ValueError(
                    "give a case, such as ib-3, or your own model with --model and --task or a "
                    "file of prompts; got neither."
                )
            subject, truth = load_with_circuit(self.model, device=self.device, dtype=self.dtype)
            return None, replace(subject, name=model_name(self.model)), truth
        if self.model is None:
            case = load_case(self.case)
            subject = case.subject(self.fleet, self.architecture)
        else:
            case, subject = programs.planted(self.case, Path(self.model))
            subject = replace(subject, name=case.id)
        truth = None if subject.fleet == "natural" else case.labels(graph=subject.graph)
        dtype = find_dtype(self.dtype)
        subject = subject if dtype is None else subject.to(dtype)
        return case, subject.to(self.device), truth

    def _draw(self, case: "Case | None", subject: "Transformer", seed: int) -> "Pairs":
        """Prompts of the case or program, or of a task of the library in the model's tokens."""
        from graphcircuits import tasks

        if case is not None:
            return case.pairs(self.n_pairs, seed=seed)
        if subject.tokenizer is None:
            raise ValueError(
                f"{self.model} has no tokenizer, which the prompts of --task {self.task} need: "
                "give a model that comes with one (a GGUF file, or a Hugging Face folder with its "
                "tokenizer files), or prompts in token ids with --pairs-file."
            )
        return tasks.find(str(self.task))(subject.tokenizer, n=self.n_pairs, seed=seed)

    def _read(self, file: Path, subject: "Transformer") -> "Pairs":
        """The prompts in a file; words are read by the codec or the tokenizer of the model."""
        from graphcircuits.task.pairs import Pairs

        if not self.words:
            return Pairs.load(file)
        tokenizer = subject.tokenizer if subject.codec is None else subject.codec
        if tokenizer is None:
            raise ValueError(
                f"{self.model or self.case} has no vocabulary to read words with; give token ids, "
                "not --words."
            )
        return Pairs.load(file, tokenizer=tokenizer)

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
