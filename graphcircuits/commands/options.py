"""Options as they are typed: those that several commands share, where jobs are worked on, and the
options of methods, their names and values checked before any work starts."""

import inspect
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from graphcircuits.commands import checks
from graphcircuits.commands.output import parse_options

if TYPE_CHECKING:
    from graphcircuits.jobs.runner import Resources
    from graphcircuits.methods import Method

MOST_PROCESSES = 1024
RETRIES = 2
"""How often a job is begun anew whose worker on a cluster was lost; machines come and go there."""


def flag(help: str, *names: str, **settings: Any) -> Any:
    """An option of a command: what it is for, and its names if its argument does not say them."""
    return typer.Option(*names, help=help, **settings)


Model = Annotated[
    str | None,
    flag(
        "Your own model: a file (.gguf, .bin of llama2.c, .safetensors of ours), a folder "
        "(Hugging Face, InterpBench), or a name on the Hugging Face hub. With a program: the "
        "subject that build trained for it.",
        "--model",
        "--subject",
    ),
]
Device = Annotated[str, flag("cpu, cuda, cuda:1, ...", "--device")]
Dtype = Annotated[
    str | None,
    flag(
        "float64, float32, bfloat16 or float16, to compute in; that of the file if left out.",
        "--dtype",
    ),
]
TaskName = Annotated[
    str | None,
    flag("Draw prompts of a task, such as ioi; graphcircuits tasks lists them.", "--task"),
]
Words = Annotated[bool, flag("The pairs file holds words, not token ids.", "--words")]
Draw = Annotated[int, flag("Prompt pairs to draw for a case, a program or a task.")]
Precision = Annotated[str, flag("float64, float32, bfloat16 or float16, to compute in.")]
By = Annotated[
    str | None,
    flag(
        "What faithfulness is measured by: output (how near a circuit comes to the subject's "
        "own output) or loss (that of the task, as MIB has it, which a circuit can win at). If "
        "left out, output; at MIB's sizes, loss.",
        "--by",
    ),
]
PairsArgument = Annotated[
    Path | None,
    typer.Argument(help="Prompt pairs, .csv or .jsonl; a case or program draws its own without."),
]
PairsFile = Annotated[
    Path | None,
    flag(
        "Read the prompt pairs from this file, .csv or .jsonl: columns clean and corrupted in "
        "token ids and, if there are answers, correct and incorrect. Without it a program draws "
        "its own."
    ),
]
MethodOptions = Annotated[
    list[str] | None, flag("An option, METHOD.NAME=VALUE; may be given several times.")
]
Ray = Annotated[
    str | None,
    flag(
        "Work on Ray instead: a cluster at HOST:PORT, the one that this machine is part of "
        "(auto), or without an address one that is started here. Needs the extra 'ray'.",
        "--ray",
        metavar="[ADDRESS]",
    ),
]


class RayCommand(TyperCommand):
    """A command whose option --ray may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from graphcircuits.jobs.command import spelled_out

        return super().parse_args(ctx, spelled_out(args))


def one_runner(processes: int, ray: str | None) -> list[str]:
    """What is wrong with the words that say who works on the jobs."""
    from graphcircuits.jobs.on_ray import address_problems

    both = ray is not None and processes != 1
    return [
        *checks.in_range("--processes", processes, 1, MOST_PROCESSES),
        *checks.when(both, "--processes and --ray exclude each other; give one of them"),
        *address_problems("--ray", ray or None),
    ]


def device_on(device: str, ray: str | None) -> list[str]:
    """What is wrong with the device, here or on a cluster, where every job sees its own GPU."""
    if ray is None:
        return checks.device_there(device)
    wrong = device not in ("cpu", "cuda")
    return checks.when(wrong, f"--device must be cpu or cuda with --ray, got {device!r}")


def resources_on(device: str, ray: str | None) -> "Resources":
    """A job's share: on Ray a GPU of its own if it computes on one, and it sees no other."""
    from graphcircuits.jobs.runner import Resources

    return Resources(gpus=1.0 if ray is not None and device.startswith("cuda") else 0.0)


LARGEST = 2**63 - 1
"""Whole numbers beyond this have no place in a tensor."""
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    types.NoneType: "null",
}


def listed_methods(text: str | None) -> list[str]:
    """Methods with commas between; without a text all but those that must be named. Unknown ones
    are refused."""
    from graphcircuits.methods import METHODS, NAMED_ONLY, find_method

    usual = [name for name in METHODS if name not in NAMED_ONLY]
    names = usual if text is None else text.replace(" ", "").split(",")
    for name in names:
        find_method(name)
    checks.refuse(checks.distinct("--methods", names))
    return names


def named_method(text: str) -> "str | Method":
    """The name of a method of the table, or the function that path/to/file.py:name means."""
    from graphcircuits.commands.programs import split_name
    from graphcircuits.methods import find_method, load_method

    if ":" not in text and not text.endswith(".py"):
        find_method(text)
        return text
    path, name = split_name(text)
    if name is None:
        raise ValueError(f"--method {text} must name a function of the file, such as {text}:mine.")
    return load_method(path, name)


def method_options(
    given_method: "str | Method", given: Sequence[str], *, flag: str = "--option "
) -> dict[str, Any]:
    """`["steps=10", "pool=sum"]` as options of a method: names it has, values that fit them.

    `flag` is what stood before each of the texts.
    """
    from graphcircuits.methods import find_method
    from graphcircuits.methods.method import known, name_of

    named = isinstance(given_method, str)
    entry = find_method(given_method) if named else known(given_method)
    method = given_method if named else name_of(given_method)
    hints, defaults, options = entry.annotations, entry.options, parse_options(given)
    for text, (name, value) in zip(given, options.items(), strict=True):
        if name not in defaults:
            raise ValueError(
                f"{flag}{text}: {method} has no option {_typed(text)!r}; {_known(name, defaults)}."
            )
        hint = hints[name]
        hint = type(defaults[name]) if hint is inspect.Parameter.empty else hint
        if hint is str and not isinstance(value, str):
            options[name] = value = text.partition("=")[2]  # 5 may be the name of a file
        if not _fits(hint, value):
            raise ValueError(f"{flag}{text}: {_typed(text)} of {method} must be {_words(hint)}.")
    return options


def options_by_method(given: Sequence[str], methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`["eap-ig.steps=10"]` as options of those of the methods that have any."""
    by_method: dict[str, list[str]] = {}
    for text in given:
        method, dot, rest = text.partition(".")
        if not dot or "=" in method:
            raise ValueError(f"an option of a method is METHOD.NAME=VALUE, got {text!r}.")
        by_method.setdefault(method, []).append(rest)
    options = {
        method: method_options(method, texts, flag=f"--option {method}.")
        for method, texts in by_method.items()
    }
    idle = sorted(options.keys() - set(methods))
    if idle:
        raise ValueError(f"options are given for methods that do not run: {', '.join(idle)}.")
    return options


def _typed(text: str) -> str:
    return text.partition("=")[0].strip()


def _known(name: str, options: Iterable[str]) -> str:
    """The options that there are, the nearest to what was typed first of all."""
    from difflib import get_close_matches

    spelled = [option.replace("_", "-") for option in options]
    near = get_close_matches(name.lower().replace("_", "-"), spelled, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}it has {', '.join(spelled) or 'none'}"


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value that was read as JSON is of an annotated type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(one, value) for one in inner)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, list) and all(_fits(inner[0], item) for item in value)
    if hint in (int, float):
        kinds, largest = (int, LARGEST) if hint is int else (int | float, sys.float_info.max)
        return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) <= largest
    return not isinstance(hint, type) or isinstance(value, hint)


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, inner))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list, each item {_words(inner[0])}"
    return _WORDS.get(hint, str(getattr(hint, "__name__", hint)))
