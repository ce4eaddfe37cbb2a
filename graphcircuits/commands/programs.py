"""Programs of a user's own: `path/to/file.py:name`, with the vocabulary and length they need.

`own_case` makes a case of one, and `planted` takes its inputs from the subject that `graphcircuits
build --program` made of it, so that they need not be typed again.

What is the id of a case is the case, also where a file has that name; `./ib-3` is the file.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from graphcircuits.commands import checks
from graphcircuits.commands.output import say

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case
    from graphcircuits.rasp import Value
    from graphcircuits.subject.transformer import Transformer

LONGEST = 1000
"""Tokens of an input, BOS included."""
CHECKED_PAIRS = 64
ENOUGH = 0.9
"""Share of right answers below which a subject does not follow the program, whatever it was."""


def own_case(given: str, vocab: str | None, max_seq_len: int | None, causal: bool) -> "Case":
    """The case of the program that `path/to/file.py:name` means; the name may be left out where the
    file holds but one."""
    from graphcircuits.rasp.load import parse_vocab

    if vocab is None or max_seq_len is None:
        raise ValueError("your own program needs --vocab and --max-seq-len.")
    checks.refuse(checks.in_range("--max-seq-len", max_seq_len, 2, LONGEST))
    tokens = parse_vocab(vocab)
    if not tokens:
        raise ValueError(f"--vocab must hold at least one token, got {vocab!r}.")
    return _case(given, tokens, max_seq_len, causal)


def planted(given: str, file: Path) -> tuple["Case", "Transformer"]:
    """The case of a program on the inputs of a subject that was built from it, and the subject.

    A subject that cannot be this program's is refused; one that fits, but does not give its
    answers, is warned of.
    """
    import torch

    from graphcircuits.adapters.load import load_model

    if not file.exists():
        raise FileNotFoundError(
            f"no subject at {file}: there is no such file; build one with: {build_command(given)}"
        )
    transformer = load_model(file)
    config, codec = transformer.config, transformer.codec
    if codec is None:
        raise ValueError(
            f"{file} has no vocabulary, so no program can give it prompts; "
            f"build a subject with: {build_command(given)}"
        )
    case = _case(given, codec.vocab, config.n_ctx, config.causal)
    problems = _misfits(case, transformer)
    if problems:
        raise ValueError(
            f"{file} is no subject of {given}: {'; '.join(problems)}. "
            f"Build one with: {build_command(given)}"
        )
    transformer = transformer.to(torch.float32)  # stored as half that, and to be computed with
    right = _right_answers(case, transformer)
    if right < ENOUGH:
        say(
            f"warning: {file} gives the answer of {given} at {right:.0%} of the positions; if the "
            "program has changed, build it again: its circuit need not be the subject's.",
            err=True,
        )
    return case, transformer


def build_command(given: str) -> str:
    """How to get a subject of a program."""
    return f"graphcircuits build --program {given} --vocab TOKENS --max-seq-len LENGTH"


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


def is_program(given: str) -> bool:
    """Whether it means a file with a program, not a case."""
    return ":" in given or is_path(given)


def without_subject(given: str) -> list[str]:
    """The problem with a program where a subject is wanted."""
    if split_name(given)[0].suffix != ".py":
        return []
    return [
        f"{given} is a program; name the subject that was built from it with --subject FILE, or "
        f"build one with: {build_command(given)}"
    ]


def split_name(given: str) -> tuple[Path, str | None]:
    """The file and the name in it, where one stands behind a colon."""
    # A path may hold a colon itself.
    path, colon, name = given.rpartition(":")
    if not colon or Path(given).is_file():
        return Path(given), None
    return Path(path), name or None


def _case(given: str, vocab: "tuple[Value, ...]", max_seq_len: int, causal: bool) -> "Case":
    from graphcircuits.cases.case import Case
    from graphcircuits.rasp.load import load_program

    path, name = split_name(given)
    name, program = load_program(path, name)
    return Case(
        id=name,
        program=program,
        vocab=vocab,
        max_seq_len=max_seq_len,
        causal=causal,
        task=f"{name} of {path}",
    )


# What a subject must share with its program


def _misfits(case: "Case", subject: "Transformer") -> list[str]:
    """Why the subject cannot have been built from the program of the case."""
    from graphcircuits.rasp import RaspError
    from graphcircuits.rasp.load import vocab_text

    assert subject.codec is not None
    problems = []
    if subject.case not in (None, case.id):
        problems.append(f"it was built from {subject.case!r}")
    try:
        outputs, _ = case.outputs, case.graph
    except RaspError as error:
        tokens = vocab_text(subject.codec.vocab)
        return [*problems, f"on its tokens, {tokens}, {str(error).rstrip('.')}"]
    if outputs != subject.codec.outputs:
        problems.append(
            f"its outputs are {_shown(subject.codec.outputs)}, "
            f"those of the program {_shown(outputs)}"
        )
    # Whatever its architecture, it has the program's layers and heads.
    if _size(case) != _size(subject):
        problems.append(f"it has {_size(subject)}, the program needs {_size(case)}")
    return problems


def _shown(outputs: "tuple[Value, ...] | None") -> str:
    import reprlib

    return "numbers" if outputs is None else reprlib.repr(list(outputs))


def _size(owner: "Case | Transformer") -> str:
    return f"{owner.graph.n_layers} layers x {owner.graph.n_heads} heads"


def _right_answers(case: "Case", subject: "Transformer") -> float:
    """The share of positions at which the subject answers as the program does."""
    import torch

    from graphcircuits.fleets.train import SiitConfig

    pairs = case.pairs(CHECKED_PAIRS)
    assert pairs.targets is not None
    with torch.no_grad():
        logits = subject.logits(pairs.clean)
    if case.categorical:
        right = logits.argmax(-1) == pairs.targets.argmax(-1)
    else:
        right = (logits[..., 0] - pairs.targets).abs() <= SiitConfig().tolerance
    return right[pairs.scored].float().mean().item()
