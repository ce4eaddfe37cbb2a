"""`graphcircuits train`: a predictor from cases whose circuits are known."""

from contextlib import ExitStack, contextmanager
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
from graphcircuits.commands.output import INTERRUPTED, Json, late_progress, print_json, save, say
from graphcircuits.commands.subjects import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from graphcircuits.training.train import TrainConfig


def train(
    out: Annotated[Path, typer.Option(help="Where to write the predictor, a .safetensors file.")],
    cases: Annotated[
        str, typer.Option(help="Cases to learn from: pool, or ids with commas between.")
    ] = "pool",
    without_fold: Annotated[
        int | None,
        typer.Option(help="Leave out the cases of this fold of the pool, and score them."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings; the others keep their defaults.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Predictors to train; their logits are averaged.")] = 2,
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of the set ones.")] = (
        None
    ),
    device: Device = "cpu",
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
    as_json: Json = False,
) -> None:
    """Train a predictor; `graphcircuits localize --method gcl --option predictor=FILE` uses it.

    Only cases of the pool are taken: test cases are for measuring what was trained, and discarded
    ones are related to them. Cases of the pool whose subject is not shipped are named. A training
    that was stopped or killed goes on when the same command is given again, and ends with the same
    file.
    """
    from statistics import mean

    from graphcircuits.predictor.ensemble import save_ensemble
    from graphcircuits.training import train as training

    refuse(
        suffix("--out", out, ".safetensors"),
        in_range("--seeds", seeds, 1, MOST_SEEDS),
        in_range("--steps", steps, 1),
        device_there(device),
        writable({"--out": out}, read=[config]),
        writable_folders({"--checkpoints": checkpoints, "--tensorboard": tensorboard}),
    )
    settings = _settings(config, steps)
    ids, held_out, left_out = _cases(cases, without_fold)
    if left_out:
        say(f"left out, no subject is shipped: {', '.join(left_out)}", err=True)
    kept = checkpoints or out.with_suffix(".checkpoints")
    with _interruptible(kept), late_progress() as bar, ExitStack() as stack:
        reading = bar.add_task("reading cases", total=len(ids) + len(held_out))
        examples = training.read_examples(
            ids, settings, progress=lambda done, _: bar.update(reading, completed=done)
        )
        validation = training.read_examples(
            held_out,
            settings,
            views=1,
            progress=lambda done, _: bar.update(reading, completed=len(ids) + done),
        )
        step = bar.add_task("training", total=seeds * settings.last)

        def progress(seed: int, done: int, total: int) -> None:
            bar.update(step, completed=seed * total + done)

        ensemble = training.train_ensemble(
            ids,
            settings,
            seeds=range(seeds),
            examples=examples,
            validation=validation,
            checkpoints=kept,
            device=device,
            progress=progress,
            log=_tensorboard(tensorboard, stack),
        )
    found = training.validate(ensemble, validation)
    saved = save({out: lambda path: save_ensemble(path, ensemble)})
    if checkpoints is None and not saved.failures:
        training.remove_checkpoints(kept, range(seeds))
    figures = {level: mean(x[level] for x in found.values()) for level in ("qkv", "head") if found}
    if as_json:
        record = {"out": str(out), "cases": len(ids), "seeds": seeds, "steps": settings.last}
        print_json(record | {"auroc": figures, "held_out": found, "left_out": left_out})
        saved.tell(quiet=True)
        return
    without = f" ({len(left_out)} without a subject left out)" if left_out else ""
    say(f"{seeds} predictors, {len(ids)} cases{without}, {settings.last} steps each")
    if found:
        head, qkv = figures["head"], figures["qkv"]
        say(f"{len(found)} held-out cases: mean AUROC {head:.4f} (head), {qkv:.4f} (q/k/v)")
    saved.tell()


@contextmanager
def _interruptible(checkpoints: Path) -> "Iterator[None]":
    """Say, after Ctrl-C, that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        where = f" from {checkpoints}" if checkpoints.exists() else ""
        say(f"interrupted: the same command goes on{where}.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _settings(config: Path | None, steps: int | None) -> "TrainConfig":
    from dataclasses import replace

    from graphcircuits.config import load_config
    from graphcircuits.training.train import TrainConfig

    settings = TrainConfig() if config is None else load_config(TrainConfig, config)
    return settings if steps is None else replace(settings, steps=steps, stop=None)


def _cases(cases: str, without_fold: int | None) -> tuple[list[str], list[str], list[str]]:
    """Ids to learn from, ids to score, and ids of the pool that have no subject to learn from."""
    from graphcircuits.compare.selection import select_cases
    from graphcircuits.corpus import N_FOLDS, load_case
    from graphcircuits.corpus.recognize import shipped_ids

    if cases in ("test", "deep", "all"):
        raise ValueError(f"--cases must be pool or ids, got {cases}: that may hold other cases.")
    ids, left_out = select_cases(cases)
    places = {id: load_case(id).split or "in no split" for id in ids}
    forbidden = [f"{id} ({place})" for id, place in places.items() if place != "pool"]
    if forbidden:
        raise ValueError(f"only cases of the pool are for training, not {', '.join(forbidden)}.")
    absent = sorted(set(ids).difference(shipped_ids()))
    if absent:
        raise ValueError(f"no subject is shipped to learn from: {', '.join(absent)}.")
    if without_fold is None:
        return ids, [], left_out
    if not 0 <= without_fold < N_FOLDS:
        raise ValueError(f"--without-fold must be in 0..{N_FOLDS - 1}, got {without_fold}.")
    held_out = [id for id in ids if load_case(id).fold == without_fold]
    return [id for id in ids if id not in held_out], held_out, left_out


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
