"""`graphcircuits train`: a predictor from subjects of several kinds, with labels and without."""

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands.checks import (
    MOST_SEEDS,
    device_there,
    in_range,
    refuse,
    suffix,
    writable,
    writable_folders,
)
from graphcircuits.commands.options import RETRIES, Ray, one_runner, resources_on
from graphcircuits.commands.output import INTERRUPTED, Json, print_json, save, say
from graphcircuits.commands.progress import deferred, late_progress
from graphcircuits.commands.subjects import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from graphcircuits.training.config import TrainConfig
    from graphcircuits.training.sources import Source

SHIPPED = "shipped"
"""What --config calls the settings of the shipped predictors."""


def train(
    out: Annotated[Path, typer.Option(help="Where to write the predictor, a .safetensors file.")],
    cases: Annotated[
        str | None,
        typer.Option(
            help="Shipped cases to learn from: pool, paper-pool (50 as the paper has, in folds "
            "of their own), interpbench-pool (InterpBench's 26 of these), or ids with commas "
            "between; pool if left out and there is neither --corpus nor --language."
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(help="Folders of corpus or build to learn from, with commas between."),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="Folders of language models to learn from, with commas between."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What is learned, by weight, such as labels=1,faithfulness=1: labels of known "
            "circuits, faithfulness of any, and distill, the scores of --targets."
        ),
    ] = None,
    targets: Annotated[
        Path | None, typer.Option(help="Scores found case by case, for distill.")
    ] = None,
    without_fold: Annotated[
        int | None,
        typer.Option(help="Leave out this fold of the pool, and score it at the end."),
    ] = None,
    validation_fold: Annotated[
        int | None,
        typer.Option(help="Leave out this fold too, and score it at regular steps."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Learn from at most this many tasks, drawn with seed 0.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="A TOML file of settings, of which the others keep their defaults; or shipped: "
            "those of the shipped predictors."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Predictors to train; their logits are averaged.")] = 2,
    steps: Annotated[
        int | None, typer.Option(help="Training steps, instead of those in the settings.")
    ] = (None),
    device: Device = "cpu",
    processes: Annotated[int, typer.Option(help="Processes that read subjects.")] = 1,
    ray: Ray = None,
    readings: Annotated[
        Path | None, typer.Option(help="Folder that keeps what was read for the next training.")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            help="Folder of checkpoints, which stay; without it they lie beside --out until that "
            "is written."
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard logs; needs tensorboard.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw loss and held-out figures by step: .svg, .png, .pdf. Needs the extra 'plot'."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a predictor; `graphcircuits localize --method gcl --option predictor=FILE` uses it.

    Only programs of the pool are taken: test cases are for measuring what was trained, and
    discarded ones are related to them. Cases of the pool whose subject is not shipped are named. A
    training that was stopped or killed goes on when the same command is given again, and ends with
    the same file; after Ctrl-C it goes on from the very step.
    """
    from graphcircuits.drawing.library import SUFFIXES, missing_library
    from graphcircuits.jobs.command import driver_command
    from graphcircuits.jobs.runner import runner_of
    from graphcircuits.predictor.ensemble import save_ensemble
    from graphcircuits.training import data
    from graphcircuits.training import train as training
    from graphcircuits.training.checkpoint import remove_checkpoints
    from graphcircuits.training.finish import finished
    from graphcircuits.training.history_plot import plot_histories, read_histories
    from graphcircuits.training.seeds import SeedLesson, train_seeds
    from graphcircuits.training.validation import means, validate

    refuse(
        suffix("--out", out, ".safetensors"),
        in_range("--seeds", seeds, 1, MOST_SEEDS),
        in_range("--steps", steps, 1),
        in_range("--limit", limit, 1),
        one_runner(processes, ray),
        device_there(device),
        _unheard(tensorboard, ray),
        suffix("--plot", plot, *SUFFIXES),
        [] if plot is None else missing_library("--plot"),
        writable(
            {"--out": out, "--plot": plot}, read=[None if config is None else Path(config), targets]
        ),
        writable_folders(
            {"--checkpoints": checkpoints, "--tensorboard": tensorboard, "--readings": readings}
        ),
    )
    settings = _settings(config, steps, objective, targets)
    known = {} if targets is None else data.load_targets(targets)
    plan = _plan(cases, corpus, language, without_fold, validation_fold, limit)
    if plan.left_out:
        say(f"left out, no subject is shipped: {', '.join(plan.left_out)}", err=True)
    kept = checkpoints or out.with_suffix(".checkpoints")
    judged = plan.runs or not settings.by_labels_alone
    with _interruptible(kept), late_progress() as bar, ExitStack() as stack:
        runner = stack.enter_context(closing(runner_of(processes, ray)))
        parts = (plan.learned, plan.watched, plan.held_out)
        reading = bar.add_task("reading cases", total=sum(map(len, parts)))

        def read(place: int) -> data.ReadExamples:
            before = sum(map(len, parts[:place]))
            return data.read(
                parts[place],
                settings,
                views=None if place == 0 else 1,
                judged=judged,
                runner=runner,
                kept=readings,
                progress=lambda done, _: bar.update(reading, completed=before + done),
            )

        learned, watched, held_out = map(read, range(3))
        examples = data.with_targets(learned.examples, known) if known else learned.examples
        step = bar.add_task("training", total=seeds * settings.last)

        if ray is None:
            with deferred() as interruption:

                def progress(seed: int, done: int, total: int) -> None:
                    bar.update(step, completed=seed * total + done)
                    interruption.check()

                ensemble = training.ensemble_of(
                    examples,
                    settings,
                    seeds=range(seeds),
                    validation=watched.examples or held_out.examples,
                    checkpoints=kept,
                    device=device,
                    progress=progress,
                    log=_tensorboard(tensorboard, stack),
                )
                interruption.check()
        else:
            lesson = SeedLesson(
                learned=tuple(plan.learned),
                validation=tuple(plan.watched if watched.examples else plan.held_out),
                config=settings,
                judged=judged,
                targets=targets,
                readings=readings,
                checkpoints=kept,
                device=device,
            )
            ensemble = train_seeds(
                lesson,
                examples,
                seeds=range(seeds),
                runner=runner,
                resources=resources_on(device, ray),
                retries=RETRIES,
                progress=lambda done, _: bar.update(step, completed=done * settings.last),
            )
        scored = held_out.examples or watched.examples
        found = validate(ensemble.to(device), scored) if scored else {}
        ensemble = finished(ensemble, examples, scored, config=settings, device=device)

    def draw(path: Path) -> None:
        last = dict(enumerate(ensemble.origin["steps"]))
        plot_histories(path, read_histories(kept, range(seeds)), kept=last, title=out.stem)

    saved = save(
        {
            out: lambda path: save_ensemble(path, ensemble, command=driver_command()),
            plot: draw,
        }
    )
    if checkpoints is None and not saved.failures:
        remove_checkpoints(kept, range(seeds))
    figures, count = means(found), len({example.case for example in examples})
    unread = learned.left_out | watched.left_out | held_out.left_out
    if as_json:
        record = {"out": str(out), "cases": count, "seeds": seeds, "steps": settings.last}
        record |= {"kept_steps": ensemble.origin["steps"], "fleets": ensemble.origin["fleets"]}
        record |= {"auroc": {x: y for x, y in figures.items() if x != "cmd"}}
        record |= {"cmd": figures.get("cmd"), "held_out": found, "measured": ensemble.measured}
        print_json(record | {"left_out": plan.left_out, "not_read": unread})
        saved.tell(quiet=True)
        return
    for id, why in unread.items():
        say(f"left out: {id}: {why}", err=True)
    without = f" ({len(plan.left_out)} without a subject left out)" if plan.left_out else ""
    say(f"{seeds} predictors, {count} cases{without}, {settings.last} steps each")
    words = []
    if "head" in figures:
        words.append(f"mean AUROC {figures['head']:.4f} (head), {figures['qkv']:.4f} (q/k/v)")
    if "cmd" in figures:
        words.append(f"mean CMD {figures['cmd']:.4f}")
    if words:
        say(f"{len(found)} held-out cases: {', '.join(words)}")
    for kind, measured in ensemble.measured.items():
        told = [
            f"{figure.upper()} {own['gcl']:.4f}, of eap-ig {own['eap-ig']:.4f}"
            for figure, own in measured.items()
        ]
        say(f"held-out {kind} subjects: {'; '.join(told)}")
    saved.tell()


def _unheard(tensorboard: Path | None, ray: str | None) -> list[str]:
    if tensorboard is None or ray is None:
        return []
    return ["--tensorboard hears nothing of trainings on Ray; leave out one of the two"]


@contextmanager
def _interruptible(checkpoints: Path) -> "Iterator[None]":
    """Say, after Ctrl-C, that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        where = f" from {checkpoints}" if checkpoints.exists() else ""
        say(f"interrupted: the same command goes on{where}.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _settings(
    config: str | None, steps: int | None, objective: str | None, targets: Path | None
) -> "TrainConfig":
    from dataclasses import replace

    from graphcircuits.io.config import load_config
    from graphcircuits.training.config import TrainConfig, shipped_recipe

    if config == SHIPPED:
        settings = shipped_recipe()
    else:
        settings = TrainConfig() if config is None else load_config(TrainConfig, config)
    settings = settings if steps is None else replace(settings, steps=steps, stop=None)
    if objective is not None:
        settings = replace(settings, **_weights(objective))
    if (settings.distill_weight > 0) != (targets is not None):
        raise ValueError("the objective distill needs --targets, and --targets needs distill.")
    return settings


def _weights(objective: str) -> dict[str, float]:
    """The weights of objectives, those that are not named at zero."""
    names = {"labels": "label_weight", "faithfulness": "faithfulness_weight"}
    names |= {"distill": "distill_weight"}
    found = dict.fromkeys(names.values(), 0.0)
    for part in objective.split(","):
        name, _, value = part.strip().partition("=")
        try:
            found[names[name]] = float(value or 1)
        except (KeyError, ValueError):
            raise ValueError(
                "--objective must be of labels, faithfulness and distill with a weight each, such "
                f"as labels=1,faithfulness=0.5, got {part.strip()!r}."
            ) from None
    return found


@dataclass(frozen=True)
class _Plan:
    """What is learned from, what is scored on the way, and what at the end."""

    learned: "list[Source]"
    watched: "list[Source]"
    held_out: "list[Source]"
    left_out: list[str]
    """Cases of the pool without a subject."""
    runs: bool
    """Whether there are subjects whose circuits can be judged only by running them."""


def _plan(
    cases: str | None,
    corpus: str | None,
    language: str | None,
    without_fold: int | None,
    validation_fold: int | None,
    limit: int | None,
) -> _Plan:
    from random import Random

    from graphcircuits.cases import N_FOLDS
    from graphcircuits.cases.relations import POOLS
    from graphcircuits.training.sources import (
        corpus_sources,
        language_sources,
        shipped_sources,
        split,
    )

    folds = {"--without-fold": without_fold, "--validation-fold": validation_fold}
    refuse(*(in_range(flag, fold, 0, N_FOLDS - 1) for flag, fold in folds.items()))
    if without_fold is not None and without_fold == validation_fold:
        raise ValueError("--without-fold and --validation-fold must be different folds.")
    pool = cases if cases in POOLS else "pool"
    if pool != "pool" and (corpus is not None or language is not None):
        raise ValueError(
            f"--cases {pool} has folds of its own, which --corpus and --language do not follow; "
            "give it alone."
        )
    sources, left_out = [], []
    if cases is not None or (corpus is None and language is None):
        ids, left_out = _cases(cases or "pool", pool)
        sources += shipped_sources(ids, pool)
    for folder in _listed(corpus):
        sources += corpus_sources(folder)
    for folder in _listed(language):
        sources += language_sources(folder)
    held_out, watched = [], []
    if without_fold is not None:
        sources, held_out = split(sources, without_fold)
    if validation_fold is not None:
        sources, watched = split(sources, validation_fold)
    if limit is not None and limit < len(sources):
        chosen = sorted(Random(0).sample(range(len(sources)), limit))
        sources = [sources[place] for place in chosen]
    return _Plan(sources, watched, held_out, left_out, bool(corpus or language))


def _listed(folders: str | None) -> list[str]:
    return [] if folders is None else [x.strip() for x in folders.split(",") if x.strip()]


def _cases(cases: str, pool: str = "pool") -> tuple[list[str], list[str]]:
    """Ids to learn from, and ids of the pool that have no subject to learn from."""
    from graphcircuits.cases.recognize import shipped_ids
    from graphcircuits.compare.selection import select_cases
    from graphcircuits.training.sources import refuse_others

    if cases in ("test", "deep-pool", "deep-test", "all"):
        raise ValueError(
            f"--cases must be pool, paper-pool, interpbench-pool or ids, got {cases}: that may "
            "hold other cases."
        )
    ids, left_out = select_cases(cases)
    refuse_others(ids, pool)
    absent = sorted(set(ids).difference(shipped_ids()))
    if absent:
        raise ValueError(f"no subject is shipped to learn from: {', '.join(absent)}.")
    return ids, left_out


def _tensorboard(
    folder: Path | None, stack: ExitStack
) -> "Callable[[int, int, Mapping[str, float]], None] | None":
    """What writes the figures of a seed and step to TensorBoard, if asked for."""
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "TensorBoard logs need the package tensorboard: pip install tensorboard"
        ) from error
    writers: dict[int, Any] = {}

    def log(seed: int, step: int, figures: "Mapping[str, float]") -> None:
        if seed not in writers:
            writers[seed] = SummaryWriter(str(folder / f"seed{seed}"))
            stack.callback(writers[seed].close)
        for name, value in figures.items():
            writers[seed].add_scalar(name, value, step)

    return log
