"""Certificates of circuits in language models that people know, by the methods that found them.

For each model and task each method finds a circuit on --pairs prompts; it gets a certificate on
fresh ones, with the same method searching again. Units are files in the store; those that are there
are skipped, so that a run can be stopped and go on, or happen on another machine.

python -m lab.benchmarks.certificates --models build/models --device cuda
    [--only smollm2] [--methods gcl,eap-ig,refined,mattr] [--page docs/results/certificates.md]
"""

import argparse
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from graphcircuits import localize, refine
from graphcircuits.certificates.certificate import NAMES, Certificate
from graphcircuits.certificates.certify import certify
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.files import read_json, write_json
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import share_right
from graphcircuits.task.fresh import unseen
from graphcircuits.task.pairs import Pairs
from lab.benchmarks.language_models import LEAST_RIGHT, model_files

METHODS = ("gcl", "eap-ig", "refined", "mattr")
TASKS = ("ioi", "capitals", "agreement", "greater-than", "hypernyms")
"""The first THREE of them that a model does."""
THREE = 3
STEPS = {"refined": 100, "mattr": 100}
"""Steps of the methods that train: they are searched for again four times."""
PAIRS, FRESH = 48, 48


def found_by(method: str, subject: Transformer, pairs: Pairs, seed: int, keep: float) -> Result:
    """The result of a method, with its circuit."""
    if method == "refined":
        start = localize(subject, pairs, "eap-ig", keep=None, seed=seed, keep_prompts=0)
        return refine(subject, pairs, start, steps=STEPS["refined"], keep=keep)
    options = {"steps": STEPS[method]} if method in STEPS else {}
    return localize(subject, pairs, method, keep=keep, seed=seed, keep_prompts=0, **options)


def drawn(subject: Transformer, task: str, n: int) -> tuple[Pairs, Pairs]:
    """Pairs to find circuits on, and others."""
    from graphcircuits import tasks

    found = tasks.find(task)(subject.tokenizer, n=n, seed=0)
    fresh = unseen(tasks.find(task)(subject.tokenizer, n=4 * FRESH, seed=1000), found)
    if fresh is None or len(fresh) < FRESH // 2:
        raise ValueError("too few prompts are left that no circuit was found on")
    return found, fresh[:FRESH]


def measure(
    file: Path, store: Path, methods: Sequence[str], device: str, dtype: str, n: int, until: float
) -> None:
    """The units of a model that are missing."""
    from graphcircuits.adapters.load import load_model

    subject = load_model(file, device=device, dtype=dtype)
    taken = 0
    for task in TASKS:
        if taken == THREE:
            break
        try:
            pairs, fresh = drawn(subject, task, n)
        except ValueError as error:
            sys.stderr.write(f"{file.stem}, {task}: {error}\n")
            continue
        right = share_right(subject, fresh)
        if right < LEAST_RIGHT:
            sys.stderr.write(f"{file.stem}, {task}: right on {right:.0%}\n")
            continue
        taken += 1
        for method in methods:
            place = store / file.stem / task / f"{method}.json"
            if place.exists():
                continue
            if time.time() > until:
                return
            began = time.perf_counter()
            result = found_by(method, subject, pairs, 0, 0.9)
            took = time.perf_counter() - began

            def again(subject: Transformer, pairs: Pairs, seed: int, name: str = method) -> Result:
                return found_by(name, subject, pairs, seed, 0.9)

            certificate = certify(subject, pairs, result, fresh=fresh, search=again)
            place.parent.mkdir(parents=True, exist_ok=True)
            certificate.save(place.with_suffix(".certificate.json"))
            write_json(
                place,
                {
                    "model": file.stem,
                    "task": task,
                    "method": method,
                    "right": right,
                    "seconds": took,
                    "certified_in": certificate.seconds,
                    "device": _machine(device),
                    "dtype": dtype,
                    "verdict": certificate.verdict,
                },
            )
            sys.stderr.write(f"{file.stem}, {task}, {method}: {certificate.verdict}\n")


def _machine(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


# The page

Unit = tuple[dict[str, Any], Certificate]


def units_in(store: Path) -> list[Unit]:
    """All units, by model and task, methods in order."""
    files = [file for file in store.glob("*/*/*.json") if ".certificate" not in file.name]
    read = [
        (read_json(file), Certificate.load(file.with_suffix(".certificate.json"))) for file in files
    ]
    return sorted(
        read,
        key=lambda unit: (
            unit[0]["model"],
            TASKS.index(unit[0]["task"]),
            METHODS.index(unit[0]["method"]),
        ),
    )


def table(units: Sequence[Unit]) -> str:
    """A row for each circuit: its size, and the value of every line, failed ones in bold."""
    rows = []
    for about, certificate in units:
        cells = []
        for name in NAMES:
            line = certificate.lines.get(name)
            cells.append(
                "-" if line is None else line.figure if line.passed else f"**{line.figure}**"
            )
        details = certificate.lines["stable"].details if "stable" in certificate.lines else {}
        among = details.get("among_themselves")
        core = "-" if certificate.core is None else f"{len(certificate.core):,}"
        rows.append(
            [
                about["method"],
                f"{len(certificate.circuit):,}",
                *cells,
                "-" if among is None else f"{among:.2f}",
                core,
                f"{about['certified_in']:.0f}",
            ]
        )
    columns = ["method", "edges", *NAMES, "searches share", "core", "seconds"]
    return markdown_table(columns, rows)


def means(units: Sequence[Unit]) -> str:
    """For each method: the share of its circuits that pass every line, and mean values."""
    rows = []
    for method in METHODS:
        some = [certificate for about, certificate in units if about["method"] == method]
        if not some:
            continue
        passed = sum(one.passed for one in some)
        cells = []
        for name in NAMES:
            lines = [one.lines[name] for one in some if name in one.lines]
            ok = sum(line.passed for line in lines)
            mean = sum(line.value for line in lines) / max(1, len(lines))
            cells.append(f"{mean:.2f}, {ok}/{len(lines)}")
        rows.append([method, f"{passed}/{len(some)}", *cells])
    return markdown_table(["method", "pass all", *NAMES], rows)


def page(units: Sequence[Unit], command: str, story: str) -> str:
    """The page as Markdown."""
    blocks = [
        "# Certificates of circuits in language models",
        "Circuits found as users find them, for .9 of the model's own output on "
        f"{PAIRS} prompts, and what a [certificate](../certificates.md) says of each on "
        f"{FRESH} fresh prompts, of which at most 32 judge on graphs of 10,000 edges and more. "
        "Values stand with intervals over prompts (*stable*: over searches); **bold** ones fail. "
        "*Searches share* is the mean overlap of the fresh searches among themselves, *core* the "
        "edges that came back in three of four of them, *seconds* what the certificate took, "
        "several programs on one machine. "
        f"`refined` are {STEPS['refined']} steps from `eap-ig`, `mattr` takes {STEPS['mattr']} "
        "steps; both are searched for again in the same way.",
        story,
        "## All",
        "Mean value, and how many of the circuits pass the line.",
        means(units),
    ]
    for model in dict.fromkeys(about["model"] for about, _ in units):
        here = [unit for unit in units if unit[0]["model"] == model]
        blocks.append(f"## {model}")
        blocks.append(f"{here[0][1].circuit.graph.n_edges:,} edges, {here[0][0]['dtype']}.")
        for task in dict.fromkeys(about["task"] for about, _ in here):
            some = [unit for unit in here if unit[0]["task"] == task]
            right = some[0][0]["right"]
            blocks += [f"### {task}", f"Right on {right:.0%} of the fresh prompts.", table(some)]
    return "\n\n".join([*filter(None, blocks), f"By `{command}`."]) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write the page."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--models", type=Path, default=Path("build/models"))
    words.add_argument("--store", type=Path, default=Path("build/certificates/models"))
    words.add_argument("--page", type=Path, default=Path("docs/results/certificates.md"))
    words.add_argument("--story", type=Path, help="Markdown that goes before the tables")
    words.add_argument("--only", help="the units of this model alone, and no page")
    words.add_argument("--methods", default=",".join(METHODS))
    words.add_argument("--pairs", type=int, default=PAIRS)
    words.add_argument("--device", default="cpu")
    words.add_argument("--dtype", default="float32")
    words.add_argument("--minutes", type=float, default=1e9)
    chosen = words.parse_args(given)
    warnings.simplefilter("ignore")
    until = time.time() + 60 * chosen.minutes
    for file in model_files(chosen.models) if chosen.models.is_dir() else []:
        if chosen.only in (None, file.stem):
            measure(
                file,
                chosen.store,
                chosen.methods.split(","),
                chosen.device,
                chosen.dtype,
                chosen.pairs,
                until,
            )
    if chosen.only is None:
        command = shlex.join(["python", "-m", "lab.benchmarks.certificates", *sys.argv[1:]])
        story = chosen.story.read_text().strip() if chosen.story else ""
        chosen.page.write_text(page(units_in(chosen.store), command, story))
    return 0


if __name__ == "__main__":
    sys.exit(main())
