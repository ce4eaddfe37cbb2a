"""Models of a user's own: the options that name them, where they compute, and their prompts.

What is the id of a case is the case, also where a file has that name; `./ib-3` is the file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands.output import printable

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--subject",
        help="Your own model: a file (.gguf, .bin of llama2.c, .safetensors of ours), a folder "
        "(Hugging Face, InterpBench), or a name on the Hugging Face hub. With a program: the "
        "subject that build trained for it.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="float64, float32, bfloat16 or float16, to compute in; that of the file if left out.",
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task", help="Draw prompts of a task, such as ioi; graphcircuits tasks lists them."
    ),
]
Words = Annotated[bool, typer.Option("--words", help="The pairs file holds words, not token ids.")]


def is_case(text: str) -> bool:
    """Whether the text is the id of a case."""
    from graphcircuits.cases import FAMILIES, case_ids, random_seed

    family = text.partition("-")[0]
    listed = family in FAMILIES and text in case_ids(family=family)
    return listed or random_seed(text) is not None


def is_path(text: str) -> bool:
    """Whether the text means a file or a folder: no case, and there or written like a path."""
    path = Path(text)
    written = len(path.parts) > 1 or path.suffix != "" or (text != "" and path.exists())
    return written and not is_case(text)


def own_subject(
    source: str, device: str = "cpu", dtype: str | None = None
) -> tuple["Transformer", "Circuit | None"]:
    """A model as a subject, and its circuit where the folder holds one."""
    from graphcircuits.adapters.load import load_with_circuit

    return load_with_circuit(source, device=device, dtype=dtype)


def title_of(source: str) -> str:
    """What to call a model: the name of its file or folder, or its name on the hub."""
    from graphcircuits.adapters.load import model_name

    return printable(model_name(source))


def placed(transformer: "Transformer", device: str, dtype: str | None) -> "Transformer":
    """A subject where it is to compute, and in which dtype if one was named."""
    from graphcircuits.adapters.load import find_dtype

    if (wanted := find_dtype(dtype)) is not None:
        transformer = transformer.to(wanted)
    return transformer.to(device)


def model_prompts(
    source: str,
    transformer: "Transformer",
    *,
    task: str | None,
    pairs_file: Path | None,
    words: bool,
    n: int,
    seed: int,
) -> tuple["Pairs", str]:
    """The prompts of a model of one's own, drawn or from a file, and what they ask."""
    if task is None:
        assert pairs_file is not None
        return own_pairs(pairs_file, source, transformer, words=words), ""
    pairs = task_pairs(task, source, transformer, n=n, seed=seed)
    return pairs, printable(pairs.task)


def task_pairs(task: str, source: str, transformer: "Transformer", *, n: int, seed: int) -> "Pairs":
    """Prompts of a task of the library, in the tokens of the model."""
    from graphcircuits import tasks

    if transformer.tokenizer is None:
        raise ValueError(
            f"{source} has no tokenizer, which the prompts of --task {task} need: give a model "
            "that comes with one (a GGUF file, or a Hugging Face folder with its tokenizer files), "
            "or prompts in token ids with --pairs-file."
        )
    return tasks.find(task)(transformer.tokenizer, n=n, seed=seed)


def own_pairs(file: Path, source: str, transformer: "Transformer", *, words: bool) -> "Pairs":
    """The prompts in a file; `words` are read by the codec or the tokenizer of the model."""
    from graphcircuits.task.pairs import Pairs

    if not words:
        return Pairs.load(file)
    tokenizer = transformer.tokenizer if transformer.codec is None else transformer.codec
    if tokenizer is None:
        raise ValueError(
            f"{source} has no vocabulary to read words with; give token ids, not --words."
        )
    return Pairs.load(file, tokenizer=tokenizer)


def prompt_problems(
    case: str | None,
    model: str | None,
    *,
    task: str | None,
    pairs_file: Path | None,
    words: bool,
) -> list[str]:
    """Words about prompts that are missing or do not go together, or a task that there is not."""
    problems = []
    if task is not None and (case is not None or model is None):
        problems.append("--task goes with --model alone: cases and programs draw their own prompts")
    if task is not None and pairs_file is not None:
        problems.append(f"give --task or a file of prompts, not both {task} and {pairs_file}")
    if task is None and pairs_file is None and case is None and model is not None:
        problems.append(
            "your own model needs prompts: name a task with --task (graphcircuits tasks lists "
            "them), or a file of prompts, .csv or .jsonl"
        )
    if words and pairs_file is None:
        problems.append("--words goes with a file of prompts")
    if task is not None:
        from graphcircuits import tasks

        try:
            tasks.find(task)
        except ValueError as error:
            problems.append(str(error))
    return problems
