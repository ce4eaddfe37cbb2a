"""What training data and parts of the predictor are worth: held-out CMD, by one command.

1. Subjects of up to four kinds (natural, planted, multi-task, language models) are read once
   (`scaling_data.py`). One fold is held out for measuring, another chooses the best step; both
   share neither program group nor model with what is learned from.
2. A setting is what is learned from and how: a number of subjects (`sizes`), kinds of them
   (`kinds`), or everything with one part of the predictor or of the training changed or left out
   (`ablations`); where that changes what is read, it is read again. Each is trained from several
   seeds, which also draw the subjects; a larger number of them contains the smaller.
3. Every training is one file of the output folder, so that a run that was cut off goes on, and
   several processes can share the seeds. Beside them stand the untrained predictor and searches.
4. `scaling_page.py` makes a table and a plot of them, with 95% intervals over seeds.

python -m lab.studies scaling --out build/scaling --natural DIR --planted DIR
    [--multitask DIR] [--language DIR] [--config FILE] [--grid sizes,kinds,ablations]
    [--seeds 0,1,2] [--device cuda] [--processes 8] [--stored] [--table FILE] [--plot FILE]
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from graphcircuits.io.config import load_config
from graphcircuits.io.store import (
    StoreError,
    content_hash,
    load_artifact,
    save_artifact,
    taken_apart,
    write_atomic,
)
from graphcircuits.predictor.model import Predictor, structure_of
from graphcircuits.training.config import TrainConfig, shipped_recipe
from graphcircuits.training.data import Example
from graphcircuits.training.members import train_predictor
from graphcircuits.training.validation import means, search_figures, validate
from lab.programs import parser
from lab.studies.inputs import INPUTS, input_groups, without
from lab.studies.scaling_data import ScalingData, find_sources, read_again, read_data, some_of
from lab.studies.scaling_page import Record, plot, table

log = logging.getLogger(__name__)

KIND = "predictor-scaling"
KINDS = ("natural", "planted", "multitask", "language")
COUNTS = (50, 150, 500, 1500)
GRIDS = ("sizes", "kinds", "ablations")
START = "untrained"
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "eap": ("eap", {}),
    "eap-ig, 5 steps": ("eap-ig", {"steps": 5}),
}
"""What predictors are compared with: a method and its options."""

BASE = replace(shipped_recipe(), keep="best", views=1)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is learned from, and how."""

    grid: str
    name: str
    kinds: tuple[str, ...]
    count: int | None = None
    """Subjects' tasks, all of them if None."""
    config: TrainConfig
    without: str | None = None
    """The group of inputs that the network does not get."""


def settings(grid: str, kinds: Sequence[str], base: TrainConfig) -> list[Setting]:
    """The settings of a grid, for the kinds that there are."""
    every = tuple(kind for kind in KINDS if kind in kinds)
    if grid == "sizes":
        lines = list(dict.fromkeys([every[:1], every]))
        return [
            Setting(grid=grid, name=" + ".join(line), kinds=line, count=count, config=base)
            for line, count in product(lines, COUNTS)
        ]
    if grid == "kinds":
        alone = [(kind,) for kind in every if kind in ("natural", "planted")]
        growing = [every[: n + 1] for n in range(1, len(every))]
        return [
            Setting(grid=grid, name=" + ".join(line), kinds=line, config=base)
            for line in dict.fromkeys([*alone, *growing])
        ]
    own = base.predictor
    there = input_groups(own.share)
    changes: dict[str, TrainConfig] = {
        "all of it": base,
        "no message passing": replace(base, predictor=replace(own, connectivity="none")),
        "no prior": replace(base, predictor=replace(own, prior=False)),
        "no paths": replace(base, predictor=replace(own, paths=False)),
        "no labels": replace(base, label_weight=0.0),
        "no faithfulness": replace(base, faithfulness_weight=0.0, distill_weight=0.0),
        "gradient at the clean run": replace(base, predictor=replace(own, share=1.0, prior=False)),
    }
    if not {"planted", "multitask"} & {*every}:
        # Without labels faithfulness is all there is to learn from.
        del changes["no faithfulness"]
    changed = [
        Setting(grid=grid, name=name, kinds=every, config=config)
        for name, config in changes.items()
        if config != base or config is base
    ]
    blind = [
        Setting(grid=grid, name=f"without {name}", kinds=every, config=base, without=name)
        for name in INPUTS
        if name in there
    ]
    return changed + blind


# Trainings


def scaling(
    chosen: Sequence[Setting],
    data: ScalingData,
    out: str | Path,
    *,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
    processes: int = 1,
    kept: Path | None = None,
) -> Iterator[Record]:
    """Train what the folder does not hold; yield every record, references first.

    `data` was read by the configuration of the first setting; it is read again, in so many
    processes and with readings `kept` in a folder, for settings that read otherwise.
    """
    # A prior is read wherever there is one, so that one setting changes what is read of a case.
    by_share = {chosen[0].config.predictor.share: data}
    yield from references(data, chosen[0].config, out, device)
    for seed, setting in product(seeds, chosen):
        about = _about(setting, data.content, seed)
        path = Path(out) / f"{content_hash(about)[:16]}.json"
        found = stored(path)
        if found is None:
            share = setting.config.predictor.share
            if share not in by_share:
                again = read_again(data, setting.config, processes=processes, kept=kept)
                by_share[share] = again
            meta = _measured(setting, by_share[share], seed, device)
            save_artifact(path, kind=KIND, config=about, seed=seed, meta=meta)
            found = stored(path)
        assert found is not None
        yield found


def _about(setting: Setting, content: str, seed: int | None) -> dict[str, Any]:
    return {
        "grid": setting.grid,
        "name": setting.name,
        "kinds": list(setting.kinds),
        "count": setting.count,
        "train": asdict(setting.config),
        "without": setting.without,
        "data": content,
        "seed": seed,
    }


def _measured(
    setting: Setting,
    data: ScalingData,
    seed: int,
    device: torch.device | str,
) -> dict[str, Any]:
    """Train from a seed, and measure on everything that is held out."""
    pool = [example for kind in setting.kinds for example in data.learned[kind]]
    config = setting.config
    hide = partial(without, group=setting.without, config=config.predictor)
    learned = hide(_restructured(some_of(pool, setting.count, seed), config))
    watched = hide(_restructured([x for found in data.watched.values() for x in found], config))
    held_out = {kind: hide(examples) for kind, examples in data.held_out.items()}
    trained = train_predictor(learned, config, seed=seed, validation=watched, device=device)
    return {
        "examples": len(learned),
        "step": trained.step,
        "figures": _figures(trained.predictor, held_out, config),
    }


def _figures(
    predictor: Predictor, held_out: Mapping[str, list[Example]], config: TrainConfig
) -> dict[str, dict[str, float]]:
    """The mean figures of each kind."""
    return {
        kind: means(validate(predictor, _restructured(examples, config)))
        for kind, examples in held_out.items()
        if examples
    }


def _restructured(examples: Sequence[Example], config: TrainConfig) -> list[Example]:
    """The examples on the transformed graph of another configuration."""
    found, known = [], {}
    for example in examples:
        assert example.item is not None
        graph = example.item[0].graph
        if graph not in known:
            known[graph] = structure_of(graph, config.predictor)
        reading = replace(example.reading, structure=known[graph])
        found.append(replace(example, reading=reading))
    return found


def references(
    data: ScalingData, config: TrainConfig, out: str | Path, device: torch.device | str
) -> Iterator[Record]:
    """Searches on what is held out; so is an untrained predictor that has a prior."""
    for name in (*([START] if config.predictor.prior else []), *SEARCHES):
        setting = Setting(grid="references", name=name, kinds=(), config=config)
        about = _about(setting, data.content, None)
        path = Path(out) / f"{content_hash(about)[:16]}.json"
        if stored(path) is None:
            if name == START:
                predictor = Predictor(config.predictor).to(device)
                figures = _figures(predictor, data.held_out, config)
            else:
                figures = {
                    kind: means(search_figures(examples, *SEARCHES[name], pairs=config.pairs))
                    for kind, examples in data.held_out.items()
                    if examples
                }
            meta = {"examples": 0, "step": 0, "figures": figures}
            save_artifact(path, kind=KIND, config=about, seed=None, meta=meta)
        found = stored(path)
        assert found is not None
        yield found


def stored(path: Path) -> Record | None:
    """What a file holds; None where there is none, or it is not whole."""
    try:
        with taken_apart(path, "training"):
            found = load_artifact(path, KIND)
            about, meta = found.config, found.meta
            return Record(
                grid=about["grid"],
                name=about["name"],
                count=about["count"],
                seed=about["seed"],
                examples=meta["examples"],
                step=meta["step"],
                figures=meta["figures"],
            )
    except (FileNotFoundError, StoreError):
        return None


def main(arguments: Sequence[str]) -> None:
    words = parser("lab.studies scaling", __doc__)
    words.add_argument("--out", type=Path, required=True, help="folder of the trainings")
    for kind in KINDS:
        words.add_argument(f"--{kind}", default="", help="folders, with commas between")
    words.add_argument("--config", type=Path, help="TOML file of the settings that all share")
    words.add_argument("--grid", default=",".join(GRIDS), help="grids, with commas between")
    words.add_argument("--seeds", default="0,1,2", help="seeds, with commas between")
    words.add_argument("--fold", type=int, default=0, help="what is measured on")
    words.add_argument("--validation-fold", type=int, default=1, help="what chooses the step")
    words.add_argument("--most", type=int, help="of a kind, tasks to learn from")
    words.add_argument("--held-out", type=int, default=150, help="of a kind, tasks to measure on")
    words.add_argument("--device", default="cpu")
    words.add_argument("--processes", type=int, default=1, help="processes that read subjects")
    words.add_argument("--readings", type=Path, help="folder that keeps what was read")
    words.add_argument("--stored", action="store_true", help="train nothing, report what is there")
    words.add_argument("--table", type=Path, help="where to write the table, as Markdown")
    words.add_argument("--plot", type=Path, help="where to write the plot, .png or .svg")
    given = words.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if given.stored:
        found = [stored(path) for path in sorted(given.out.glob("*.json"))]
        records = [record for record in found if record is not None]
    else:
        records = list(_run(given))
    if not records:
        raise SystemExit(f"{given.out} holds no trainings")
    text = table(records)
    if given.table:
        write_atomic(given.table, text.encode())
    if given.plot:
        plot(given.plot, records)
    sys.stdout.write(text)


def _run(given: argparse.Namespace) -> Iterator[Record]:
    base = BASE if given.config is None else load_config(TrainConfig, given.config)
    base = replace(base, views=1, unlabelled_views=1)
    folders = {kind: [x for x in getattr(given, kind).split(",") if x] for kind in KINDS}
    if not any(folders.values()):
        raise SystemExit(f"give folders of subjects by --{', --'.join(KINDS)}")
    if unknown := set(given.grid.split(",")) - set(GRIDS):
        raise SystemExit(f"--grid must be of {', '.join(GRIDS)}, got {', '.join(sorted(unknown))}")
    data = read_data(
        find_sources(folders),
        base,
        fold=given.fold,
        validation_fold=given.validation_fold,
        most=given.most,
        held_out=given.held_out,
        processes=given.processes,
        kept=given.readings,
    )
    kinds = [kind for kind, examples in data.learned.items() if examples]
    chosen = [x for grid in given.grid.split(",") for x in settings(grid, kinds, base)]
    there = {kind: len(examples) for kind, examples in data.learned.items()}
    # A number that there is not is left to `kinds`, which takes all.
    chosen = [x for x in chosen if (x.count or 0) <= sum(there[kind] for kind in x.kinds)]
    seeds = [int(seed) for seed in given.seeds.split(",")]
    where = {"device": given.device, "processes": given.processes, "kept": given.readings}
    for record in scaling(chosen, data, given.out, seeds=seeds, **where):
        log.info("%s", record)
        yield record
