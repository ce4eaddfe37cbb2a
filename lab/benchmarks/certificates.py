"""Certificates of circuits in language models that people know, by the methods that found them.

For each model and task each method finds a circuit on --pairs prompts; it gets a certificate on
fresh ones, with the same method searching again. Units are files in the store; those that are there
are skipped, so that a run can be stopped and go on, or happen on another machine.

python -m lab.benchmarks.certificates --models build/models --device cuda
    [--only smollm2] [--methods gcl,eap-ig,refined,mattr] [--page docs/results/certificates.md]

Lines are judged by the thresholds that `certify` has now, whatever they were when it was measured.
"""

import argparse
import inspect
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from graphcircuits import localize, refine
from graphcircuits.certificates.certificate import NAMES, Certificate, Line
from graphcircuits.certificates.certify import certify
from graphcircuits.evaluation.evaluate import shown
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
STEPS = {"refined": 60, "mattr": 60}
"""Steps of the methods that train."""
FEW_SEARCHES = 3
"""Fresh searches by these."""
PAIRS, FRESH = 48, 48


def found_by(method: str, subject: Transformer, pairs: Pairs, seed: int, keep: float) -> Result:
    """The result of a method, with its circuit."""
    if method == "refined":
        start = localize(subject, pairs, "eap-ig", keep=None, seed=seed, keep_prompts=0)
        return refine(subject, pairs, start, steps=STEPS["refined"], keep=keep)
    options: dict[str, Any] = {"steps": STEPS[method]} if method in STEPS else {}
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

            searches = FEW_SEARCHES if method in STEPS else None
            certificate = certify(
                subject, pairs, result, fresh=fresh, search=again, searches=searches
            )
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


def _ok(line: Line) -> bool:
    """Whether it passes by today's threshold; that of `minimal` was another once."""
    if line.name != "minimal":
        return line.passed
    return line.value >= inspect.signature(certify).parameters["minimal_from"].default


def _passes(certificate: Certificate) -> bool:
    return not certificate.missing and all(map(_ok, certificate.lines.values()))


OTHERS = {
    "by loss": "by logit difference",
    "zero ablation": "with zeros instead of corrupted values",
}
"""What the story tells of beside the output with corrupted values."""


def story(units: Sequence[Unit]) -> str:
    """What the certificates say of the task that everybody knows, circuit by circuit."""
    lines = []
    for about, certificate in units:
        if about["task"] != "ioi" or "sufficient" not in certificate.lines:
            continue
        found = certificate.lines
        told = [
            f"**{about['model']}, {about['method']}**: {len(certificate.circuit):,} of "
            f"{certificate.circuit.graph.n_edges:,} edges keep {found['sufficient'].value:.2f} of "
            "the output"
        ]
        details = found["sufficient"].details
        others = {words: details[name]["value"] for name, words in OTHERS.items()}
        # None where it could not be measured.
        parts = [f"{value:.2f} {words}" for words, value in others.items() if value is not None]
        told += [", ".join(parts)] if parts else []
        if line := found.get("minimal"):
            told.append(f"{1 - line.value:.0%} of its edges do nothing measurable when cut alone")
        if line := found.get("stable"):
            among = line.details["among_themselves"]
            told.append(
                f"fresh searches share {line.value:.2f} with it"
                + ("" if among is None else f" and {among:.2f} among themselves")
            )
        if (line := found.get("not by chance")) and "same degrees" in line.details:
            told.append(
                "random circuits of the same degrees keep "
                f"{line.details['same degrees']['mean']:.2f} in the mean, "
                f"{line.details['same degrees']['best']:.2f} at best"
            )
        if line := found.get("unique"):
            equal = [one for one in line.details["rivals"] if one["equal"]]
            best = min(equal, key=lambda one: one["shared"], default=None)
            told.append(
                "no rival was found"
                if best is None
                else f"a rival of {best['edges']:,} edges keeps {best['kept']:.2f} and shares "
                f"{best['shared']:.0%}"
            )
        lines.append(f"- {'; '.join(told)}.")
    return "\n".join(lines)


def table(units: Sequence[Unit]) -> str:
    """A row for each circuit: its size, and the value of every line, failed ones in bold."""
    rows = []
    for about, certificate in units:
        cells = []
        for name in NAMES:
            line = certificate.lines.get(name)
            cells.append(
                "-" if line is None else line.figure if _ok(line) else f"**{line.figure}**"
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
        passed = sum(map(_passes, some))
        cells = []
        for name in NAMES:
            lines = [one.lines[name] for one in some if name in one.lines]
            ok = sum(map(_ok, lines))
            mean = sum(line.value for line in lines) / max(1, len(lines))
            cells.append(f"{shown(mean)}, {ok}/{len(lines)}")
        rows.append([method, f"{passed}/{len(some)}", *cells])
    return markdown_table(["method", "pass all", *NAMES], rows)


STORY = """In short:

- **Small and stable pull apart.** In Gemma and SmolLM2 refining gives much smaller circuits than
  gradients, and the least stable ones: fresh searches share about half of their edges, or less.
  Those of `gcl` and `eap-ig` are several times as large, and come back.
- **Who reads whom is looser than who takes part.** Exchange the edges of the larger circuits at
  random, so that every component keeps its numbers of edges, and much of the output is kept, in
  some as much as before. Random connected circuits of the same size keep next to nothing. The
  refined circuits of Gemma and SmolLM2 do not survive the exchange.
- **It hangs on what stands in for the rest.** With zeros instead of corrupted values no circuit
  keeps nearly as much, and most do worse than nothing.
- **Few of them are the only ones.** In Gemma, Qwen and SmolLM2 a short search found, for all but
  one of the circuits of `gcl` and `eap-ig`, another that keeps as much and shares three quarters
  of the smaller one's edges, or fewer.
- **Nothing is left without them**, and only one, in Qwen, has a part whose loss costs the circuit
  more than half of the output and the whole model next to nothing.
"""
"""Without figures: those are in the lines that follow it."""


def page(units: Sequence[Unit], command: str) -> str:
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
        f"{len(units)} of {len(METHODS) * THREE * len({about['model'] for about, _ in units})} "
        "circuits were measured, by this program with `--models DIR --device cuda` (Qwen with "
        "`--dtype bfloat16 --methods gcl,eap-ig`), before the time on the GPU was over. "
        f"`refined` are {STEPS['refined']} steps from `eap-ig`, `mattr` takes {STEPS['mattr']} "
        "steps; both search afresh "
        f"{FEW_SEARCHES} times.",
        "## Indirect object identification",
        "*When Mary and John went to the store, John gave a book to*: the answer is the name that "
        "was said once. The most studied circuit of all; what certificates say of it here:",
        STORY.strip(),
        story(units),
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
    words.add_argument("--only", help="the units of this model alone, and no page")
    words.add_argument("--only-page", action="store_true", help="of what is in the store")
    words.add_argument("--methods", default=",".join(METHODS))
    words.add_argument("--pairs", type=int, default=PAIRS)
    words.add_argument("--device", default="cpu")
    words.add_argument("--dtype", default="float32")
    words.add_argument("--minutes", type=float, default=1e9)
    chosen = words.parse_args(given)
    warnings.simplefilter("ignore")
    until = time.time() + 60 * chosen.minutes
    for file in [] if chosen.only_page else model_files(chosen.models):
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
        chosen.page.write_text(page(units_in(chosen.store), command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
