"""`graphcircuits build`: subjects of any fleet and architecture, trained and verified."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands import checks, options
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, say
from graphcircuits.commands.programs import own_case
from graphcircuits.commands.progress import deferred, interruptible, late_progress

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case
    from graphcircuits.cases.multitask import MultiCase

WIDEST = 64.0


def build(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Cases to build; all of them if none is named.")
    ] = None,
    family: Annotated[str | None, flag("All cases of one family instead: ib, tb or new.")] = None,
    program: Annotated[
        str | None,
        flag("Your own program instead, as path/to/file.py:name; the subject takes its name."),
    ] = None,
    vocab: Annotated[str | None, flag("Tokens of your program, as for compile.")] = None,
    max_seq_len: Annotated[int | None, flag("Its longest input, BOS counted.")] = None,
    causal: Annotated[bool, flag("Give it causal attention.", "--causal")] = False,
    fleet: Annotated[
        str,
        flag(
            "How they are trained: planted (the program's circuit, and it alone, does the "
            "task), public (SIIT's three losses) or natural (the task alone)."
        ),
    ] = "planted",
    architecture: Annotated[
        str,
        flag(
            "Architectures, with commas between: plain, relu, rotary, gpt2, neox, llama, "
            "llama-gqa, rms. A subject of each is built."
        ),
    ] = "plain",
    out: Annotated[
        Path, flag("Directory to write subjects to; those that are there are kept.")
    ] = Path("subjects"),
    device: options.Device = "cpu",
    steps: Annotated[int | None, flag("Training steps at most: 6000, or 3000 for natural.")] = None,
    rows: Annotated[int | None, flag("Inputs per step and subject: 256.")] = None,
    lr: Annotated[float | None, flag("Adam's highest learning rate: 0.003.")] = None,
    strict_weight: Annotated[
        float | None, flag("Weight of the strict loss: 1, and 0 for natural.")
    ] = None,
    edge_weight: Annotated[
        float | None, flag("Weight of the edge loss of planted subjects: 1.")
    ] = None,
    seed: Annotated[int, flag("Seed of inputs and weights.")] = 0,
    widen: Annotated[float, flag("Factor on the subjects' width.")] = 1.0,
    minutes: Annotated[
        float | None, flag("Stop after this many minutes; finished subjects stay.")
    ] = None,
    processes: Annotated[int, flag("Workers that prepare the data, while fleets train.")] = 1,
    ray: options.Ray = None,
    as_json: Json = False,
) -> None:
    """Train a subject for each case: a transformer that does what the program does.

    Every finished subject is written at once, and kept: after a build that was stopped or killed,
    the same command trains those that are not there. Subjects that did not pass are in failed/:
    the same settings give the same subject, other settings train a new one. Exit code 1 if a
    subject did not pass.
    """
    import time
    from dataclasses import replace

    from graphcircuits.cases import build as builder
    from graphcircuits.cases.architectures import ARCHITECTURES
    from graphcircuits.cases.orders import Order
    from graphcircuits.fleets.recipes import FLEETS, recipe
    from graphcircuits.jobs.command import driver_command
    from graphcircuits.jobs.runner import runner_of

    names = [name.strip() for name in architecture.split(",")]
    checks.refuse(
        checks.one_of("--fleet", fleet, FLEETS),
        *(checks.one_of("--architecture", name, tuple(ARCHITECTURES)) for name in names),
        checks.distinct("--architecture", names),
        checks.when(
            fleet == "natural" and strict_weight is not None,
            "--strict-weight goes with --fleet planted or public",
        ),
        checks.when(
            fleet != "planted" and edge_weight is not None,
            "--edge-weight goes with --fleet planted",
        ),
        checks.in_range("--steps", steps, 1),
        checks.in_range("--rows", rows, 2),
        checks.above("--lr", lr, 0),
        checks.in_range("--strict-weight", strict_weight, 0),
        checks.in_range("--edge-weight", edge_weight, 0),
        checks.seed_range(seed),
        checks.above("--widen", widen, 0) or checks.in_range("--widen", widen, 0, WIDEST),
        checks.in_range("--minutes", minutes, 0),
        options.one_runner(processes, ray),
        options.device_on(device, ray),
        checks.writable_folders({"--out": out}),
        checks.when(
            program is not None and (ids or family is not None),
            "give cases, --family or --program, not several of them",
        ),
        checks.when(
            program is None and ids and family is not None, "give cases or --family, not both"
        ),
        checks.when(
            program is None and (vocab is not None or max_seq_len is not None or causal),
            "--vocab, --max-seq-len and --causal go with --program",
        ),
        checks.when(
            program is not None and ray is not None,
            "--program cannot be sent to other machines; build it without --ray",
        ),
    )
    if program is None:
        cases = _listed_cases(ids, family)
    else:
        cases = [own_case(program, vocab, max_seq_len, causal)]
    orders = [Order(case.id, fleet, name, seed) for case in cases for name in names]
    there = [order.id for order in orders if builder.subject_path(out, order.id).exists()]
    if there:
        some = f"{len(there)} of these subjects, such as {there[0]}"
        say(f"{out} holds {some}: they stay as they are, whatever the settings", err=True)
    typed = {
        "steps": steps,
        "rows": rows,
        "lr": lr,
        "strict_weight": strict_weight,
        "edge_weight": edge_weight,
    }
    given = {name: value for name, value in typed.items() if value is not None}
    siit = replace(recipe(fleet), **given)
    config = builder.BuildConfig(siit=siit, widen=widen, processes=processes)
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    built: list[builder.Built] = []

    def missing() -> list[str]:
        return [order.id for order in orders if not builder.subject_path(out, order.id).exists()]

    with (
        interruptible(
            lambda: (
                f"{len(orders) - len(missing())} of {len(orders)} subjects are in {out}; the "
                "same command trains the others anew."
            )
        ),
        late_progress() as bar,
        closing(runner_of(1, ray)) as runner,
        deferred() as interruption,
    ):
        left = len(missing())
        overall = bar.add_task("subjects", total=left)
        begun_as = "computing the programs' answers" if ray is None else "fleets train on Ray"
        fleet_task = bar.add_task(begun_as, total=None)

        def show(step: int, passed: int, total: int) -> None:
            bar.update(overall, completed=min(left, len(built) + passed))
            text = f"{passed} of {total} in this fleet pass, step"
            bar.update(fleet_task, completed=step, total=siit.steps, description=text)
            interruption.check()

        for one in builder.build(
            orders,
            out,
            config,
            cases=cases,
            device=device,
            command=driver_command(),
            progress=show,
            deadline=deadline,
            runner=runner,
            resources=options.resources_on(device, ray),
            retries=options.RETRIES,
        ):
            built.append(one)
            bar.update(overall, completed=min(left, len(built)))
            bar.say(_line(one.id, one.report))
    if as_json:
        print_json([one.report for one in built])
    else:
        say(f"{len(orders) - len(missing())} of {len(orders)} subjects in {out}")
    failed = [one.id for one in built if not one.passed]
    unmade = [id for id in missing() if id not in failed]
    if failed:
        hint = "other settings, such as --seed, --steps or --widen, train them anew"
        say(f"not passed: {', '.join(failed)}; {hint}", err=True)
    if unmade:
        say(f"out of time: {', '.join(unmade)}; the same command trains them anew", err=True)
    if missing():
        raise typer.Exit(1)


def _listed_cases(ids: list[str] | None, family: str | None) -> "list[Case | MultiCase]":
    """The cases named; or all of a family, but for those with nothing to train."""
    from graphcircuits.cases import FAMILIES, LANGUAGE_MODELS, case_ids, load_case
    from graphcircuits.cases.multitask import AT
    from graphcircuits.cases.prepare import find_case, is_constant

    if family is not None:
        checks.refuse(checks.one_of("--family", family, tuple(FAMILIES)))
    for id in ids or ():
        model, at, _ = id.partition(AT)
        if id.partition("-")[0] == LANGUAGE_MODELS:
            raise ValueError(
                f"{model} is a planted language model; such models are made in a clone of the "
                f"repository: python -m lab.factory planted DIR --models {model}"
            )
        if at:
            raise ValueError(f"{id} is one task of the model {model}; build {model}.")
    if ids:
        return [find_case(id) for id in dict.fromkeys(ids)]
    return [case for case in map(load_case, case_ids(family=family)) if not is_constant(case)]


def _line(id: str, report: dict[str, Any]) -> str:
    """One subject in a line: what it was measured by, of several tasks the worst."""
    shares = {
        "accuracy": "accuracy",
        "worst_interchange": "interchange",
        "worst_strict": "strict",
        "circuit_accuracy": "circuit",
        "loss": "loss",
    }
    measured = [f"{word} {report[key]:.4f}" for key, word in shares.items() if key in report]
    passed = "passed" if report["passed"] else "FAILED"
    return "  ".join([f"{id:28} {passed}", *measured, f"{report['steps']} steps"])
