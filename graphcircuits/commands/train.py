"""`graphcircuits train`: a predictor from subjects of several kinds, with labels and without."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from graphcircuits.commands import checks
from graphcircuits.commands.options import Device, Ray, flag, one_runner, resources_on
from graphcircuits.commands.output import Json, print_json, save, say
from graphcircuits.commands.progress import deferred, interruptible, late_progress

if TYPE_CHECKING:
    from graphcircuits.training.train import TrainingResult


def train(
    out: Annotated[Path, flag("Where to write the predictor, a .safetensors file.")],
    cases: Annotated[
        str | None,
        flag(
            "Shipped cases to learn from: pool, paper-pool (50 as the paper has, in folds "
            "of their own), interpbench-pool (InterpBench's 26 of these), or ids with commas "
            "between; pool if left out and there is neither --corpus nor --language."
        ),
    ] = None,
    corpus: Annotated[
        str | None, flag("Folders of corpus or build to learn from, with commas between.")
    ] = None,
    language: Annotated[
        str | None, flag("Folders of language models to learn from, with commas between.")
    ] = None,
    objective: Annotated[
        str | None,
        flag(
            "What is learned, by weight, such as labels=1,faithfulness=1: labels of known "
            "circuits, faithfulness of any, and distill, the scores of --targets."
        ),
    ] = None,
    targets: Annotated[Path | None, flag("Scores found case by case, for distill.")] = None,
    without_fold: Annotated[
        int | None, flag("Leave out this fold of the pool, and score it at the end.")
    ] = None,
    validation_fold: Annotated[
        int | None, flag("Leave out this fold too, and score it at regular steps.")
    ] = None,
    limit: Annotated[
        int | None, flag("Learn from at most this many tasks, drawn with seed 0.")
    ] = None,
    config: Annotated[
        str | None,
        flag(
            "A TOML file of settings, of which the others keep their defaults; or shipped: "
            "those of the shipped predictors."
        ),
    ] = None,
    seeds: Annotated[int, flag("Predictors to train; their logits are averaged.")] = 2,
    steps: Annotated[int | None, flag("Training steps, instead of those in the settings.")] = (
        None
    ),
    device: Device = "cpu",
    processes: Annotated[int, flag("Processes that read subjects.")] = 1,
    ray: Ray = None,
    readings: Annotated[
        Path | None, flag("Folder that keeps what was read for the next training.")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        flag(
            "Folder of checkpoints, which stay; without it they lie beside --out until that "
            "is written."
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None, flag("Folder for TensorBoard logs; needs tensorboard.")
    ] = None,
    plot: Annotated[
        Path | None,
        flag("Draw loss and held-out figures by step: .svg, .png, .pdf. Needs the extra 'plot'."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a predictor; `graphcircuits localize --method gcl --option predictor=FILE` uses it.

    Only programs of the pool are taken: test cases are for measuring what was trained, and
    discarded ones are related to them. Cases of the pool whose subject is not shipped are named. A
    training that was stopped or killed goes on when the same command is given again, and ends with
    the same file; after Ctrl-C it goes on from the very step.
    """
    from graphcircuits.cases import N_FOLDS
    from graphcircuits.drawing.library import SUFFIXES, missing_library
    from graphcircuits.jobs.command import driver_command
    from graphcircuits.jobs.runner import runner_of
    from graphcircuits.training import train as training
    from graphcircuits.training.loop import remove_checkpoints

    checks.refuse(
        checks.suffix("--out", out, ".safetensors"),
        checks.in_range("--seeds", seeds, 1, checks.MOST_SEEDS),
        checks.in_range("--steps", steps, 1),
        checks.in_range("--limit", limit, 1),
        checks.in_range("--without-fold", without_fold, 0, N_FOLDS - 1),
        checks.in_range("--validation-fold", validation_fold, 0, N_FOLDS - 1),
        one_runner(processes, ray),
        checks.device_there(device),
        checks.when(
            tensorboard is not None and ray is not None,
            "--tensorboard hears nothing of trainings on Ray; leave out one of the two",
        ),
        checks.suffix("--plot", plot, *SUFFIXES),
        [] if plot is None else missing_library("--plot"),
        checks.writable(
            {"--out": out, "--plot": plot}, read=[None if config is None else Path(config), targets]
        ),
        checks.writable_folders(
            {"--checkpoints": checkpoints, "--tensorboard": tensorboard, "--readings": readings}
        ),
    )
    folder = checkpoints or out.with_suffix(".checkpoints")
    with (
        interruptible(
            lambda: f"the same command goes on{f' from {folder}' if folder.exists() else ''}."
        ),
        late_progress() as bar,
        ExitStack() as stack,
        closing(runner_of(processes, ray)) as runner,
    ):
        log = None if tensorboard is None else _tensorboard(tensorboard, stack)
        interruption = None if ray is not None else stack.enter_context(deferred())
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)
            if interruption is not None and what == "training":
                interruption.check()

        trained = training.train(
            cases,
            corpus=_listed(corpus),
            language=_listed(language),
            config=config,
            steps=steps,
            objective=None if objective is None else _weights(objective),
            targets=targets,
            without_fold=without_fold,
            validation_fold=validation_fold,
            limit=limit,
            seeds=seeds,
            device=device,
            readings=readings,
            checkpoints=folder,
            runner=runner,
            resources=None if ray is None else resources_on(device, ray),
            progress=progress,
            log=log,
        )
        if interruption is not None:
            interruption.check()
    saved = save(
        {
            out: lambda path: trained.save(path, command=driver_command()),
            plot: lambda path: trained.plot(path, title=out.stem),
        }
    )
    if checkpoints is None and not saved.failures:
        remove_checkpoints(folder, range(seeds))
    if trained.left_out:
        say(f"left out, no subject is shipped: {', '.join(trained.left_out)}", err=True)
    if as_json:
        print_json({"out": str(out)} | _record(trained))
    else:
        _report(trained)
    saved.tell(quiet=as_json)


def _listed(folders: str | None) -> list[str]:
    return [] if folders is None else [x.strip() for x in folders.split(",") if x.strip()]


def _weights(objective: str) -> dict[str, float]:
    """The weights of objectives; settings refuse those that there are not."""
    weights = {}
    for word in objective.split(","):
        name, _, value = word.strip().partition("=")
        try:
            weights[name] = float(value or 1)
        except ValueError:
            raise ValueError(
                "--objective must be names with a weight each, such as labels=1,faithfulness=0.5, "
                f"got {word.strip()!r}."
            ) from None
    return weights


def _tensorboard(folder: Path, stack: ExitStack) -> Callable[[int, int, Mapping[str, float]], None]:
    """What writes the figures of a seed and step to TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "TensorBoard logs need the package tensorboard: pip install tensorboard"
        ) from error
    writers: dict[int, Any] = {}

    def log(seed: int, step: int, figures: Mapping[str, float]) -> None:
        if seed not in writers:
            writers[seed] = SummaryWriter(str(folder / f"seed{seed}"))
            stack.callback(writers[seed].close)
        for name, value in figures.items():
            writers[seed].add_scalar(name, value, step)

    return log


def _record(trained: "TrainingResult") -> dict[str, Any]:
    """What `--json` prints."""
    origin, figures = trained.predictor.origin, trained.figures
    return {
        "cases": trained.n_cases,
        "seeds": len(trained.histories),
        "steps": trained.config.last,
        "kept_steps": origin["steps"],
        "fleets": origin["fleets"],
        "auroc": {name: value for name, value in figures.items() if name != "cmd"},
        "cmd": figures.get("cmd"),
        "held_out": trained.held_out,
        "measured": trained.predictor.measured,
        "left_out": trained.left_out,
        "not_read": trained.not_read,
    }


def _report(trained: "TrainingResult") -> None:
    """What is printed otherwise."""
    figures, absent = trained.figures, trained.left_out
    for id, why in trained.not_read.items():
        say(f"left out: {id}: {why}", err=True)
    without = f" ({len(absent)} without a subject left out)" if absent else ""
    n = len(trained.histories)
    say(f"{n} predictors, {trained.n_cases} cases{without}, {trained.config.last} steps each")
    words = []
    if "head" in figures:
        words.append(f"mean AUROC {figures['head']:.4f} (head), {figures['qkv']:.4f} (q/k/v)")
    if "cmd" in figures:
        words.append(f"mean CMD {figures['cmd']:.4f}")
    if words:
        say(f"{len(trained.held_out)} held-out cases: {', '.join(words)}")
    for kind, measured in trained.predictor.measured.items():
        compared = [
            f"{name.upper()} {means['gcl']:.4f}, of eap-ig {means['eap-ig']:.4f}"
            for name, means in measured.items()
            if "gcl" in means
        ]
        say(f"held-out {kind} subjects: {'; '.join(compared)}")
