"""`gc.train`: a predictor from subjects of several kinds, with labels and without.

1. Settings are read once (`config.py`), sources listed and divided into folds once (`sources.py`).
2. Every subject is read several times (`data.py`), by several workers if asked.
3. Each seed is trained (`members.py`): here, or each as a job of a cluster.
4. What was held out is scored (`validation.py`), and the predictor gets what it knows of itself
   (`facts.py`).

Paper: Pooling, Readout, and Training.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphcircuits.jobs.runner import IN_PROCESS, Resources, Runner
from graphcircuits.predictor.ensemble import Ensemble, save_ensemble
from graphcircuits.training.config import TrainConfig, settings_of
from graphcircuits.training.data import ReadExamples
from graphcircuits.training.facts import with_facts
from graphcircuits.training.members import Lesson, SeedLog, ensemble_of, train_jobs, train_members
from graphcircuits.training.sources import Plan, plan_sources
from graphcircuits.training.validation import means, validate

RETRIES = 2
"""How often the job of a seed is begun again whose worker was lost; clusters lose machines."""

TrainProgress = Callable[[str, int, int], None]
"""Called with what is done (`reading`, `training`), how much of it, and how much there is."""


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """A trained predictor, and what there is to say of its training."""

    predictor: Ensemble
    """The networks of all seeds, as `gc.localize(..., predictor=)` takes them."""
    config: TrainConfig
    n_cases: int
    """Cases that it learned from."""
    held_out: dict[str, dict[str, float]]
    """Its figures on every case that was held out: AUROC as `head` and `qkv` where the circuit is
    known, and `cmd` where circuits were run."""
    histories: dict[int, dict[int, dict[str, Any]]]
    """By seed and step: the `loss`, and under `cases` the figures of the validation."""
    left_out: list[str]
    """Cases of the pool that have no subject to learn from."""
    not_read: dict[str, str]
    """Why others could not be read, by id."""

    @property
    def figures(self) -> dict[str, float]:
        """The means of the held-out figures over cases."""
        return means(self.held_out)

    def save(self, path: str | Path, *, command: str | None = None) -> None:
        """Write the predictor as one file, which `gc.load_predictor` reads."""
        save_ensemble(path, self.predictor, command=command)

    def plot(self, path: str | Path, *, title: str = "") -> None:
        """Draw loss and held-out figures by step: .svg, .png or .pdf."""
        from graphcircuits.training.history_plot import plot_histories

        chosen = dict(zip(self.histories, self.predictor.origin["steps"], strict=True))
        plot_histories(path, self.histories, chosen=chosen, title=title)


def train(
    cases: str | Sequence[str] | None = None,
    *,
    corpus: Sequence[str | Path] = (),
    language: Sequence[str | Path] = (),
    config: TrainConfig | str | Path | None = None,
    steps: int | None = None,
    objective: Mapping[str, float] | None = None,
    targets: str | Path | None = None,
    without_fold: int | None = None,
    validation_fold: int | None = None,
    limit: int | None = None,
    seeds: int = 2,
    device: str = "cpu",
    readings: str | Path | None = None,
    checkpoints: str | Path | None = None,
    runner: Runner = IN_PROCESS,
    resources: Resources | None = None,
    progress: TrainProgress | None = None,
    log: SeedLog | None = None,
) -> TrainingResult:
    """Train a predictor, as `graphcircuits train` does.

    Only programs of the pool are learned from: test cases are for measuring what was trained, and
    discarded ones are related to them.

    Args:
        cases: Shipped cases to learn from: `pool`, `paper-pool`, `interpbench-pool` or ids; `pool`
            if left out and there is neither a corpus nor a language model.
        corpus: Folders of subjects, as `graphcircuits build` makes them.
        language: Folders of small language models.
        config: Settings, a TOML file of them, or `shipped`; None means the defaults.
        steps: Training steps, instead of those of the settings.
        objective: Weights of `labels`, `faithfulness` and `distill`, instead of those there.
        targets: A file of scores found case by case, for `distill`.
        without_fold: A fold that is left out and scored at the end.
        validation_fold: Another that is left out and scored at regular steps.
        limit: The largest number of tasks to learn from, drawn with seed 0.
        seeds: The number of networks, whose logits are averaged.
        device: Where it trains.
        readings: A folder of what was read, for the next training.
        checkpoints: A folder of checkpoints, from which a training that was cut off continues.
        runner: Who reads the subjects (`graphcircuits.jobs`).
        resources: Of the job of each seed, where the runner trains as well; None trains here.
        progress: Hears of sources that were read, and of steps. An interrupt that it raises ends
            the training after a whole step.
        log: Hears the seed, step and figures of every validation of trainings here.

    Returns:
        The predictor, with the figures of what was held out and of the way there.

    Example:
        >>> training = gc.train(["ib-7", "ib-2"], steps=20, seeds=1)  # doctest: +SKIP
        >>> gc.localize(subject, pairs, predictor=training.predictor)  # doctest: +SKIP

    Reference:
        Can Graph Learning Learn Circuits?, Pooling, Readout, and Training; docs/training.md.
    """
    settings = settings_of(config, steps=steps, objective=objective)
    if (settings.distill_weight > 0) != (targets is not None):
        raise ValueError("the objective distill needs targets, and targets need distill.")
    plan = plan_sources(
        cases,
        corpus=corpus,
        language=language,
        without_fold=without_fold,
        validation_fold=validation_fold,
        limit=limit,
    )
    lesson = Lesson(
        sources=tuple(plan.learned),
        validation=tuple(plan.validation or plan.held_out),
        config=settings,
        judged=plan.runs or not settings.by_labels_alone,
        targets=None if targets is None else Path(targets),
        readings=None if readings is None else Path(readings),
        checkpoints=None if checkpoints is None else Path(checkpoints),
        device=device,
    )
    learned, validation, scored = _read(lesson, plan, runner, progress)
    numbers, total = range(seeds), seeds * settings.last

    def heard(done: int) -> None:
        if progress:
            progress("training", done, total)

    if resources is None:
        members = train_members(
            learned.examples,
            settings,
            seeds=numbers,
            validation=validation.examples,
            checkpoints=checkpoints,
            device=device,
            progress=lambda seed, done, n: heard(seed * n + done),
            log=log,
        )
    else:
        members = train_jobs(
            [(lesson, seed) for seed in numbers],
            runner=runner,
            resources=resources,
            retries=RETRIES,
            progress=lambda done, _: heard(done * settings.last),
        )
    ensemble = ensemble_of(members, learned.examples, settings, numbers)
    figures = validate(ensemble.to(device), scored.examples) if scored.examples else {}
    return TrainingResult(
        predictor=with_facts(
            ensemble, learned.examples, scored.examples, figures, config=settings, device=device
        ),
        config=settings,
        n_cases=len({example.case for example in learned.examples}),
        held_out=figures,
        histories={seed: member.history for seed, member in zip(numbers, members, strict=True)},
        left_out=plan.left_out,
        not_read=learned.left_out | validation.left_out | scored.left_out,
    )


def _read(
    lesson: Lesson, plan: Plan, runner: Runner, progress: TrainProgress | None
) -> tuple[ReadExamples, ReadExamples, ReadExamples]:
    """Examples to learn from, those that are scored on the way, and those at the end."""
    total, before = sum(map(len, (plan.learned, plan.validation, plan.held_out))), 0

    def heard(done: int, _: int) -> None:
        if progress:
            progress("reading", before + done, total)

    learned = lesson.read(runner, progress=heard)
    before += len(lesson.sources)
    validation = lesson.read(runner, validation=True, progress=heard)
    if not (plan.validation and plan.held_out):
        # Where one fold is held out, it serves both.
        return learned, validation, validation
    before += len(lesson.validation)
    last = replace(lesson, validation=tuple(plan.held_out))
    return learned, validation, last.read(runner, validation=True, progress=heard)
