"""What training data and parts of the predictor are worth: held-out CMD, by one command.

1. Subjects of up to four kinds (natural, planted, multi-task, language models) are read once. One
   fold is held out for measuring, another chooses the best step; both share neither program group
   nor model with what is learned from.
2. A setting is what is learned from and how: a number of subjects (`sizes`), kinds of them
   (`kinds`), or everything with one part of the predictor or of the training left out
   (`ablations`). Each is trained from several seeds, which also draw the subjects; a larger number
   of them contains the smaller.
3. Every training is one file of the output folder, so that a run that was cut off goes on, and
   several processes can share the seeds. Beside them stand the untrained predictor and searches.
4. `scaling_page.py` makes a table and a plot of them, with 95% intervals over seeds.

python -m graphcircuits.training.scaling --out build/scaling --natural DIR --planted DIR
    [--multitask DIR] [--language DIR] [--config FILE] [--grid sizes,kinds,ablations]
    [--seeds 0,1,2] [--device cuda] [--processes 8] [--stored] [--table FILE] [--plot FILE]
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch

from graphcircuits.config import load_config
from graphcircuits.engine.stack import Stack
from graphcircuits.methods import METHODS
from graphcircuits.predictor.model import Predictor, PredictorConfig, structure_of
from graphcircuits.store import (
    StoreError,
    content_hash,
    load_artifact,
    save_artifact,
    taken_apart,
    write_atomic,
)
from graphcircuits.training.batches import StackPool
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, read
from graphcircuits.training.inputs import INPUTS
from graphcircuits.training.scaling_page import Record, plot, table
from graphcircuits.training.sources import Source, corpus_sources, language_sources, split
from graphcircuits.training.train import train
from graphcircuits.training.validation import means, validate

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

BASE = TrainConfig(
    predictor=PredictorConfig(prior=True, both_ends=True),
    faithfulness_weight=1.0,
    keep="best",
    views=1,
    batch=64,
    steps=1000,
    every=100,
    lr=1e-3,
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is learned from, and how."""

    grid: str
    name: str
    kinds: tuple[str, ...]
    count: int | None = None
    """Subjects' tasks, all of them if None."""
    config: TrainConfig


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
    changes: dict[str, TrainConfig] = {
        "all of it": base,
        "no message passing": replace(base, predictor=replace(own, connectivity="none")),
        "no prior": replace(base, predictor=replace(own, prior=False)),
        "no labels": replace(base, label_weight=0.0),
        "labels alone": replace(base, faithfulness_weight=0.0, distill_weight=0.0),
        **{f"without {name}": replace(base, without=(name,)) for name in INPUTS},
    }
    return [
        Setting(grid=grid, name=name, kinds=every, config=config)
        for name, config in changes.items()
    ]


# Data


@dataclass(frozen=True, eq=False)
class ScalingData:
    """Examples by kind: to learn from, to choose the step by, and to measure on."""

    learned: Mapping[str, list[Example]]
    watched: Mapping[str, list[Example]]
    held_out: Mapping[str, list[Example]]

    @property
    def all(self) -> list[Example]:
        parts = (self.learned, self.watched, self.held_out)
        return [example for part in parts for found in part.values() for example in found]

    @property
    def content(self) -> str:
        """What stored results depend on."""
        parts = (self.learned, self.watched, self.held_out)
        return content_hash([{k: [x.case for x in v] for k, v in x.items()} for x in parts])


def find_sources(folders: Mapping[str, Sequence[str]]) -> dict[str, list[Source]]:
    """The sources of each kind, from its folders."""
    return {
        kind: [
            source
            for place in places
            for source in (language_sources if kind == "language" else corpus_sources)(place)
        ]
        for kind, places in folders.items()
        if places
    }


def read_data(
    sources: Mapping[str, Sequence[Source]],
    config: TrainConfig,
    *,
    fold: int,
    validation_fold: int,
    most: int | None,
    held_out: int,
    processes: int = 1,
    kept: Path | None = None,
) -> ScalingData:
    """Read everything once; of what is held out at most so many of a kind, drawn with seed 0."""
    together = [source for found in sources.values() for source in found]
    rest, measured = split(together, fold)
    left, watched = split(rest, validation_fold)

    def examples(chosen: Sequence[Source], limit: int | None) -> dict[str, list[Example]]:
        found = {}
        for kind, own in sources.items():
            there = set(own)
            some = _some([source for source in chosen if source in there], limit, seed=0)
            result = read(some, config, processes=processes, kept=kept)
            for id, why in result.left_out.items():
                log.warning("left out: %s: %s", id, why)
            found[kind] = result.examples
            log.info("%d examples of kind %s read", len(result.examples), kind)
        return found

    return ScalingData(
        examples(left, most), examples(watched, held_out), examples(measured, held_out)
    )


def _some(items: Sequence[Any], count: int | None, seed: int) -> list[Any]:
    """Some of the items at random, in their order; more of them contain fewer."""
    order = list(range(len(items)))
    Random(seed).shuffle(order)
    return [items[place] for place in sorted(order[:count])]


# Trainings


def scaling(
    chosen: Sequence[Setting],
    data: ScalingData,
    out: str | Path,
    *,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
) -> Iterator[Record]:
    """Train what the folder does not hold; yield every record, references first."""
    stacks: StackPool | None = None
    yield from references(data, chosen[0].config, out, device)
    for seed, setting in product(seeds, chosen):
        about = _about(setting, data.content, seed)
        path = Path(out) / f"{content_hash(about)[:16]}.json"
        found = stored(path)
        if found is None:
            stacks = stacks or StackPool(data.all, device)
            meta = _measured(setting, data, seed, device, stacks)
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
        "data": content,
        "seed": seed,
    }


def _measured(
    setting: Setting,
    data: ScalingData,
    seed: int,
    device: torch.device | str,
    stacks: StackPool,
) -> dict[str, Any]:
    """Train from a seed, and measure on everything that is held out."""
    pool = [example for kind in setting.kinds for example in data.learned[kind]]
    config = setting.config
    learned = _restructured(_some(pool, setting.count, seed), config)
    watched = _restructured([x for found in data.watched.values() for x in found], config)
    trained = train(learned, config, seed=seed, validation=watched, device=device, stacks=stacks)
    return {
        "examples": len(learned),
        "step": trained.step,
        "figures": _figures(trained.predictor, data.held_out, config),
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
    """The untrained predictor and searches on what is held out."""
    for name in (START, *SEARCHES):
        setting = Setting(grid="references", name=name, kinds=(), config=config)
        about = _about(setting, data.content, None)
        path = Path(out) / f"{content_hash(about)[:16]}.json"
        if stored(path) is None:
            if name == START:
                own = replace(config, predictor=replace(config.predictor, prior=True))
                predictor = Predictor(own.predictor).to(device)
                figures = _figures(predictor, data.held_out, own)
            else:
                figures = {
                    kind: {"cmd": _search_cmd(examples, *SEARCHES[name], config.pairs)}
                    for kind, examples in data.held_out.items()
                    if examples
                }
            meta = {"examples": 0, "step": 0, "figures": figures}
            save_artifact(path, kind=KIND, config=about, seed=None, meta=meta)
        found = stored(path)
        assert found is not None
        yield found


def _search_cmd(
    examples: Sequence[Example], method: str, options: Mapping[str, Any], pairs: int
) -> float:
    """The mean CMD of a method that sees the prompts that predictors read."""
    total = 0.0
    for example in examples:
        assert example.item is not None
        assert example.source is not None
        subject = example.item[0]
        seen = example.source.pairs(subject, pairs, 0)
        scores = METHODS[method](subject, seen, **options)
        total += float(Stack.of([example.item]).cmd(scores[None])[0])
    return total / len(examples)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the trainings")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", default="", help="folders, with commas between")
    parser.add_argument("--config", type=Path, help="TOML file of the settings that all share")
    parser.add_argument("--grid", default=",".join(GRIDS), help="grids, with commas between")
    parser.add_argument("--seeds", default="0,1,2", help="seeds, with commas between")
    parser.add_argument("--fold", type=int, default=0, help="what is measured on")
    parser.add_argument("--validation-fold", type=int, default=1, help="what chooses the step")
    parser.add_argument("--most", type=int, help="of a kind, tasks to learn from")
    parser.add_argument("--held-out", type=int, default=150, help="of a kind, tasks to measure on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="processes that read subjects")
    parser.add_argument("--readings", type=Path, help="folder that keeps what was read")
    parser.add_argument("--stored", action="store_true", help="train nothing, report what is there")
    parser.add_argument("--table", type=Path, help="where to write the table, as Markdown")
    parser.add_argument("--plot", type=Path, help="where to write the plot, .png or .svg")
    given = parser.parse_args()
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
    base = replace(base, views=1)
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
    for record in scaling(chosen, data, given.out, seeds=seeds, device=given.device):
        log.info("%s", record)
        yield record


if __name__ == "__main__":
    main()
