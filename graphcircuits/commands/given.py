"""What `interact` and `cost` are given: cases, a model, or a program and the subject built from it.

The words of the two commands are CASE [PAIRS], where CASE may be the path of a model as well. With
--model there is no case: what comes first is a program, or the file of prompts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphcircuits.commands.output import printable
from graphcircuits.commands.programs import planted, program_file, unsuited, without_subject
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
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

PROMPT_FILES = (".csv", ".jsonl")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A subject and its prompts, and what to call it and its task."""

    title: str
    task: str
    subject: "Transformer"
    pairs: "Pairs"


@dataclass(frozen=True)
class Given:
    """Cases or a program, a model, and a file of prompts, each where it was given."""

    cases: str | None
    model: str | None
    pairs: Path | None

    @classmethod
    def of(cls, case: str | None, pairs: Path | None, model: str | None) -> "Given":
        """The words of the command line in their places."""
        if model is None and case is not None and is_path(case) and not without_subject(case):
            return cls(None, case, pairs)
        if model is not None and case is not None and Path(case).suffix in PROMPT_FILES:
            return cls(None, model, Path(case) if pairs is None else pairs)
        return cls(case, model, pairs)

    @property
    def files(self) -> list[Path | None]:
        """What is read, and must not be written over."""
        program = None if self.cases is None else program_file(self.cases)
        return [program, None if self.model is None else Path(self.model), self.pairs]

    def problems(self, task: str | None, *, words: bool) -> list[str]:
        """Words that do not go together."""
        if self.cases is None and self.model is None:
            return ["give a case, such as ib-3, or your own model with --model; got neither"]
        return [
            *([] if self.cases is None else unsuited(self.cases, self.model)),
            *prompt_problems(self.cases, self.model, task=task, pairs_file=self.pairs, words=words),
        ]

    def load(
        self,
        device: str,
        dtype: str | None,
        *,
        task: str | None,
        words: bool,
        n: int,
        seed: int,
        several: bool = False,
    ) -> list[Loaded]:
        """The subjects with their prompts: one, or, if several may be, that of each case."""
        if self.cases is None:
            assert self.model is not None
            subject, _ = own_subject(self.model, device, dtype)
            prompts, about = model_prompts(
                self.model,
                subject,
                task=task,
                pairs_file=self.pairs,
                words=words,
                n=n,
                seed=seed,
            )
            return [Loaded(title_of(self.model), about, subject, prompts)]
        from graphcircuits.cases import load_case

        if self.model is not None:
            case, subject = planted(self.cases, Path(self.model))
            found = [(case, subject, self.model)]
        else:
            ids = [id.strip() for id in self.cases.split(",")] if several else [self.cases]
            found = [(case, case.subject(), case.id) for case in map(load_case, ids)]
        if self.pairs is not None and len(found) > 1:
            raise ValueError(f"one file of prompts cannot serve {len(found)} cases; name one case.")
        return [
            Loaded(
                case.id,
                printable(case.task),
                placed(subject, device, dtype),
                case.pairs(n, seed=seed)
                if self.pairs is None
                else own_pairs(self.pairs, source, subject, words=words),
            )
            for case, subject, source in found
        ]
