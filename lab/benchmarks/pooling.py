"""How effects on single prompts should be pooled: mean of absolute values, or absolute mean.

Published EAP and EAP-IG add up signed effects, so that opposite ones cancel ("sum"); "abs" takes
absolute values first. Both are measured on cases of the pool, never on test cases:

1. on the shipped, planted subjects by AUROC at head level against the true circuit;
2. on natural subjects, trained on the task alone, by CMD over log-spaced sizes on fresh prompts
   (smaller is better). `--train` makes them, fleet by fleet, and keeps them in a folder.

python -m lab.benchmarks.pooling --subjects build/natural --device cuda --train
python -m lab.benchmarks.pooling --subjects build/natural --out build/pooling.json
"""

import argparse
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, product
from pathlib import Path
from statistics import mean, median

import torch

from graphcircuits import Transformer, auroc, load_case
from graphcircuits.cases import case_ids
from graphcircuits.cases.architectures import subject_config
from graphcircuits.cases.build import subject_path
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import ConstantOutputError, case_exchange
from graphcircuits.cases.recognize import shipped_ids
from graphcircuits.cases.subjects import fleets_of
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.recipes import recipe
from graphcircuits.fleets.train import train_fleet
from graphcircuits.io.store import write_json
from graphcircuits.methods import localize
from graphcircuits.subject.files import load_transformer, save_transformer

METHODS = ("eap", "eap-ig", "exact")
POOLS = ("abs", "sum")
PAIRS = 64
TASK_ALONE = recipe("natural")


# Natural subjects


def train(ids: Sequence[str], folder: Path, device: str, processes: int, seed: int) -> None:
    """Train what the folder lacks; a subject that does not learn its task is left out, and said."""
    missing = [id for id in ids if not subject_path(folder, id).exists()]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        drawn = zip(missing, pool.map(_exchanges, missing, 1), strict=True)
        data = {id: exchanges for id, exchanges in drawn if exchanges is not None}
    missing = list(data)
    generator = torch.Generator().manual_seed(seed)
    starts = {
        case.id: Transformer.random(subject_config(case), generator, case.codec)
        for case in map(load_case, missing)
    }
    orders = [Order(id, "natural") for id in missing]
    for members in fleets_of(orders, [starts[id].config for id in missing]):
        began, fleet = time.monotonic(), [missing[i] for i in members]
        exchanges, checks = ([data[id][i : i + 1] for id in fleet] for i in range(2))
        trained = train_fleet(
            [starts[id] for id in fleet],
            exchanges,
            checks,
            TASK_ALONE,
            torch.Generator(device=device).manual_seed(seed),
        )
        for id, one in zip(fleet, trained, strict=True):
            if one.passed:
                meta = {"accuracy_at_least": TASK_ALONE.enough_accuracy, "steps": one.steps}
                save_transformer(subject_path(folder, id), one.subject, seed=seed, meta=meta)
        left = [id for id, one in zip(fleet, trained, strict=True) if not one.passed]
        print(
            f"fleet of {len(fleet)}: {time.monotonic() - began:.0f} s, not learned: {left}",
            flush=True,
        )


def _exchanges(id: str) -> tuple[Exchange, Exchange] | None:
    """What to train on and what to check with; None where the output never changes."""
    torch.set_num_threads(1)
    try:
        return (
            case_exchange(load_case(id), 16384, 0, 1),
            case_exchange(load_case(id), 4096, 0, 2),
        )
    except ConstantOutputError:
        return None


# Measuring


@dataclass(frozen=True)
class Figure:
    """How good one method is on one subject."""

    fleet: str
    case: str
    method: str
    pool: str
    value: float
    """AUROC on planted subjects, CMD on natural ones."""


def measure(id: str, folder: Path) -> list[Figure]:
    """Every method and pooling on the planted and, where there is one, on the natural subject."""
    torch.set_num_threads(1)
    case = load_case(id)
    pairs, fresh = case.pairs(PAIRS, seed=0), case.pairs(PAIRS, seed=1)
    planted, path = case.subject(), subject_path(folder, id)
    natural = load_transformer(path) if path.exists() else None
    figures = []
    for method, pool in product(METHODS, POOLS):
        found = localize(planted, pairs, method, pool=pool)
        figures.append(Figure("planted", id, method, pool, auroc(found, case.circuit)))
        if natural is not None:
            found = localize(natural, pairs, method, pool=pool)
            cmd = faithfulness_curve(natural, fresh, found, by="loss", crossings=()).cmd
            figures.append(Figure("natural", id, method, pool, cmd))
    return figures


def table(figures: Sequence[Figure]) -> str:
    """Markdown: mean and median of either pooling, and on how many subjects "sum" is better."""
    lines = [
        "| fleet | measure | subjects | method | abs: mean, median | sum: mean, median "
        "| sum better / worse |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fleet, method in product(("planted", "natural"), METHODS):
        by_pool: Mapping[str, dict[str, float]] = {
            pool: {
                figure.case: figure.value
                for figure in figures
                if (figure.fleet, figure.method, figure.pool) == (fleet, method, pool)
            }
            for pool in POOLS
        }
        larger = fleet == "planted"
        gains = [
            (total - absolute) * (1 if larger else -1)
            for absolute, total in zip(
                by_pool["abs"].values(), by_pool["sum"].values(), strict=True
            )
        ]
        if not gains:
            continue
        both = [
            f"{mean(by_pool[pool].values()):.4f}, {median(by_pool[pool].values()):.4f}"
            for pool in POOLS
        ]
        counts = f"{sum(gain > 0 for gain in gains)} / {sum(gain < 0 for gain in gains)}"
        measured = "AUROC" if larger else "CMD"
        cells = [fleet, measured, str(len(gains)), method, *both, counts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=Path, required=True, help="folder of natural subjects")
    parser.add_argument("--cases", help="ids with commas between; by default the whole pool")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", action="store_true", help="train them, and measure nothing")
    parser.add_argument("--out", type=Path, help="write every figure as JSON")
    given = parser.parse_args()
    ids = given.cases.split(",") if given.cases else case_ids(split="pool")
    if given.train:
        train(ids, given.subjects, given.device, given.processes, given.seed)
        return
    shipped = set(shipped_ids())
    jobs = [(id, given.subjects) for id in ids if id in shipped]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        figures = list(chain.from_iterable(pool.starmap(measure, jobs, 1)))
    if given.out:
        write_json(given.out, [asdict(figure) for figure in figures])
    print(table(figures))


if __name__ == "__main__":
    main()
