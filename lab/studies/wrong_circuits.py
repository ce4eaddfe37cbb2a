"""Whether certificates catch circuits that are wrong, and let right ones pass.

On each subject a circuit is found as users find it, and wrong ones are made:

gamed      the fewest edges that keep .9 of the logit difference between the subject's answer on the
           clean prompt and its answer on the corrupted one, pruned by that measure
exchanged  the right circuit with a tenth of its edges, at least one, exchanged for others at random
few        found on four prompts, and certified as such
other      of another task of the same model

Every circuit gets a certificate. A wrong one is caught where one of the lines that should catch it
fails: `sufficient` for gamed ones and those of another task, `sufficient`, `minimal` or `stable`
for the other two. A circuit that was meant to be wrong can be right by luck: where it keeps .8 or
more of the output on 256 other prompts, it does what is asked of a right one; such cases are
counted apart. `truth` are planted circuits as their labels have them.

`small` are small language models with tasks mined from text (docs/small-language-models.md), whose
several tasks of one kind are taken together, and all prompts judge that nothing was found on;
`--mined` names the folder of their tasks.

python -m lab.studies wrong-circuits [--subjects natural multitask planted language] [--split test]
    [--mined build/mined] [--store build/certificates] [--page docs/results/wrong-circuits.md]
    [--processes 2] [--most N] [--kinds gamed ...] [--only-page]
"""

import gzip
import inspect
import json
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from graphcircuits import localize
from graphcircuits.adapters.load import load_model
from graphcircuits.cases import LANGUAGE_MODELS, case_ids
from graphcircuits.certificates.certificate import NAMES, Certificate
from graphcircuits.certificates.certify import certify
from graphcircuits.circuit import Circuit
from graphcircuits.compare.selection import Unit, select_subjects
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.evaluation.proposal import fresh_seed
from graphcircuits.evaluation.pruning import pruned
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.files import read_json, write_atomic, write_json
from graphcircuits.io.store import Artifact, load_artifact
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.sources import MINED
from lab.programs import parser

GROUPS = ("natural", "multitask", "planted", "language", "small")
METHOD = "eap-ig"
"""What finds circuits, so that no case is left out because a predictor learned from it."""
SHOULD_FAIL = {
    "gamed": ("sufficient",),
    "other": ("sufficient",),
    "exchanged": ("sufficient", "minimal", "stable"),
    "few": ("sufficient", "minimal", "stable"),
}
RIGHT = ("found", "truth")
AIM, LUCKY = 0.9, 0.8
"""What gamed circuits keep of the logit difference, and what a circuit keeps of the output on many
other prompts that is not wrong after all."""
JUDGES = 256
FOUR = 4
SMALL_PAIRS, SMALL_FRESH, KINDS = 36, 36, 2
"""Pairs of a kind of mined tasks to find circuits on, and fresh ones; kinds of each model."""


@dataclass(frozen=True)
class Job:
    """A subject with its task."""

    group: str
    id: str
    partner: str | None
    """Another task of the same model."""
    folder: Path
    mined: Path
    kinds: tuple[str, ...] = (*RIGHT, *SHOULD_FAIL)
    """Of circuits, those that are made."""

    @property
    def file(self) -> Path:
        return self.folder / f"{self.id}.json"


@dataclass(frozen=True)
class Problem:
    """A subject and its prompts."""

    subject: Transformer
    pairs: Pairs
    fresh: Pairs
    many: Pairs
    truth: Circuit | None


def problem(job: Job, id: str) -> Problem:
    """That of this id, which is the job's own or its partner's."""
    if job.group == "small":
        return _small(job.mined, *id.split("@"))
    unit = Unit.of(id)
    subject, case = unit.subject(), unit.case
    return Problem(
        subject,
        case.pairs(64, seed=0),
        case.pairs(64, seed=fresh_seed(0)),
        case.pairs(JUDGES, seed=2 * fresh_seed(0)),
        case.labels(graph=subject.graph) if unit.has_truth else None,
    )


def _small(mined: Path, model: str, kind: str) -> Problem:
    artifact = load_artifact(mined / f"{model}.safetensors", MINED)
    subject = load_model(artifact.meta["model"], device="cpu", dtype=torch.float32)
    clean, corrupted = (
        torch.cat([artifact.tensors[f"{one}.{side}"] for one in _of_kind(artifact, kind)]).long()
        for side in ("clean", "corrupted")
    )
    scored = torch.zeros(clean.shape, dtype=torch.bool)
    scored[:, -1] = True
    every = Pairs(clean=clean, corrupted=corrupted, scored=scored, loss_name="kl", task=kind)
    ends = SMALL_PAIRS + SMALL_FRESH
    fresh = every[SMALL_PAIRS:ends]
    many = every[SMALL_PAIRS:]
    return Problem(subject, every[:SMALL_PAIRS], fresh, many, None)


def _of_kind(artifact: Artifact, kind: str) -> list[str]:
    """The tasks of a kind: windows were dealt to them at random."""
    return [one for one in sorted(artifact.meta["kinds"]) if re.fullmatch(rf"{kind}(\.\d+)?", one)]


def small_ids(mined: Path) -> list[str]:
    """The first KINDS of every model that have enough prompts, as model@kind."""
    ids = []
    for path in sorted(mined.glob("*.safetensors")):
        artifact = load_artifact(path, MINED)
        kinds = sorted({re.sub(r"\.\d+$", "", one) for one in artifact.meta["kinds"]})
        enough = [one for one in kinds if len(_of_kind(artifact, one)) >= 2]
        ids += [f"{path.stem}@{kind}" for kind in enough[:KINDS]]
    return ids


def unit_ids(group: str, split: str, mined: Path) -> list[str]:
    """The ids of the subjects of a group: of the test split, or of the pool."""
    if group == "small":
        return small_ids(mined)
    if group == "language":
        return list(case_ids(LANGUAGE_MODELS, split))
    fleet = "natural" if group == "natural" else "planted"
    selection = "multitask" if group == "multitask" else split
    return list(select_subjects(selection, fleet)[0])


def jobs_of(
    groups: Sequence[str], split: str, folder: Path, mined: Path, most: int | None
) -> Iterator[Job]:
    """Every case of the groups, with the next task of its model where it has several."""
    for group in groups:
        ids = unit_ids(group, split, mined)
        models: dict[str, list[str]] = {}
        for id in ids:
            models.setdefault(_model_of(id), []).append(id)
        for id in ids[:most]:
            others = models[_model_of(id)]
            following = others[(others.index(id) + 1) % len(others)]
            yield Job(group, id, None if following == id else following, folder, mined)


def _model_of(id: str) -> str:
    return id.partition("@")[0] if "@" in id else id


def logit_difference(subject: Transformer, pairs: Pairs) -> Pairs | None:
    """The pairs that ask for the subject's clean answer against its corrupted one, at the positions
    where these differ; None where they differ on too few prompts, or outputs are numbers."""
    if subject.config.d_vocab_out == 1:
        return None
    with torch.no_grad():
        clean, corrupted = (
            subject.logits(tokens).argmax(-1) for tokens in (pairs.clean, pairs.corrupted)
        )
    scored = pairs.scored & (clean != corrupted)
    rows = scored.any(1)
    if int(rows.sum()) < len(pairs) // 2:
        return None
    asked = replace(
        pairs, scored=pairs.scored, loss_name="logit-diff", targets=clean, incorrect=corrupted
    )[rows]
    return replace(asked, scored=scored[rows])


def gamed(subject: Transformer, pairs: Pairs) -> Circuit | None:
    """The smallest circuit found that keeps .9 of the logit difference."""
    asked = logit_difference(subject, pairs)
    if asked is None:
        return None
    ranking = localize(subject, asked, METHOD, keep=None)
    runs = CircuitRuns(subject, asked, by="loss")
    n_edges, size = subject.graph.n_edges, 1
    while size < n_edges and runs([ranking.circuit(edges=size, prune=True)])[0] < AIM:
        size = min(n_edges, max(size + 1, int(1.25 * size)))
    return pruned(runs, ranking.circuit(edges=size, prune=True), AIM)[0]


def exchanged(circuit: Circuit, generator: torch.Generator) -> Circuit:
    """A tenth of the edges, at least one, in exchange for as many others."""
    mask = circuit.mask.clone()
    inside, outside = mask.nonzero().flatten(), (~mask).nonzero().flatten()
    n = min(max(1, round(len(inside) / 10)), len(outside))
    mask[inside[torch.randperm(len(inside), generator=generator)[:n]]] = False
    mask[outside[torch.randperm(len(outside), generator=generator)[:n]]] = True
    return Circuit.from_mask(circuit.graph, mask)


# A subject


def measured(job: Job) -> Path:
    """Certify the circuits of a subject, into one file."""
    if job.file.exists():
        return job.file
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    asked = problem(job, job.id)
    subject, pairs, fresh = asked.subject, asked.pairs, asked.fresh
    found = localize(subject, pairs, METHOD)
    found_at: dict[str, tuple[Circuit, Pairs, Result | str]] = {}
    found_at["found"] = found.circuit(), pairs, found
    if asked.truth is not None:
        found_at["truth"] = (asked.truth, pairs, METHOD)
    generator = torch.Generator().manual_seed(0)
    found_at["exchanged"] = (exchanged(found.circuit(), generator), pairs, found)
    four = pairs[:FOUR]
    few = localize(subject, four, METHOD)
    if few.chosen is not None and len(few.chosen):
        found_at["few"] = (few.circuit(), four, few)
    cheat = gamed(subject, pairs) if "gamed" in job.kinds else None
    if cheat is not None and len(cheat):
        found_at["gamed"] = (cheat, pairs, METHOD)
    if job.partner is not None and "other" in job.kinds:
        theirs = localize(subject, problem(job, job.partner).pairs, METHOD).circuit()
        found_at["other"] = (theirs, pairs, METHOD)
    judges = CircuitRuns(subject, asked.many)
    records = {}
    for kind, (circuit, own, search) in found_at.items():
        if not len(circuit) or kind not in job.kinds:
            continue
        certificate = certify(subject, own, circuit, fresh=fresh, search=search)
        records[kind] = _short(certificate) | {"keeps": judges([circuit])[0]}
    about = {"group": job.group, "id": job.id, "edges": subject.graph.n_edges}
    write_json(job.file, about | {"circuits": records})
    return job.file


def _short(certificate: Certificate) -> dict[str, Any]:
    """What the tables need."""
    return {
        "edges": len(certificate.circuit),
        "seconds": certificate.seconds,
        "lines": {
            name: {"passed": line.passed, "value": line.value, "interval": line.interval}
            for name, line in certificate.lines.items()
        },
        "details": {
            "never": _detail(certificate, "stable", "never_came_back"),
            "among": _detail(certificate, "stable", "among_themselves"),
        },
        "missing": dict(certificate.missing),
    }


def _detail(certificate: Certificate, line: str, name: str) -> Any:
    return certificate.lines[line].details.get(name) if line in certificate.lines else None


# What they say


def failed(record: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether one of these lines failed, by today's thresholds: that of `minimal` was another."""
    least = inspect.signature(certify).parameters["minimal_from"].default
    lines = {name: record["lines"][name] for name in names if name in record["lines"]}
    return any(
        line["value"] < least if name == "minimal" else not line["passed"]
        for name, line in lines.items()
    )


def rows(files: Sequence[dict[str, Any]]) -> tuple[list[list[str]], list[list[str]]]:
    """The share of right circuits that fail each line, and of wrong ones that are caught."""
    right, wrong = [], []
    for kind in RIGHT:
        some = [one["circuits"][kind] for one in files if kind in one["circuits"]]
        if some:
            shares = [f"{_share([failed(one, [name]) for one in some])}" for name in NAMES]
            passed = _share([not failed(one, NAMES) for one in some])
            right.append([kind, str(len(some)), passed, *shares])
    for kind, names in SHOULD_FAIL.items():
        some = [one["circuits"][kind] for one in files if kind in one["circuits"]]
        if not some:
            continue
        lucky = [one for one in some if one["keeps"] >= LUCKY]
        true = [one for one in some if one["keeps"] < LUCKY]
        wrong.append(
            [
                kind,
                str(len(some)),
                ", ".join(names),
                _share([failed(one, names) for one in some]),
                f"{len(lucky)}, {_share([failed(one, names) for one in lucky])}",
                _share([failed(one, names) for one in true]),
                *(_share([failed(one, [name]) for one in some]) for name in NAMES),
            ]
        )
    return right, wrong


def _share(hits: Sequence[bool]) -> str:
    return f"{sum(hits) / len(hits):.2f}" if hits else "-"


def page(files: Sequence[dict[str, Any]], command: str, remark: str = "") -> str:
    """The page as Markdown."""
    blocks = ["# Right and wrong circuits under certificates", _about(files), remark]
    groups = [group for group in GROUPS if any(one["group"] == group for one in files)]
    for title, some in [
        ("All subjects", files),
        *((group, [x for x in files if x["group"] == group]) for group in groups),
    ]:
        right, wrong = rows(some)
        blocks += [f"## {title[0].upper()}{title[1:]}", f"{len(some)} subjects with a task."]
        blocks += [markdown_table(["Right", "Circuits", "Pass", *NAMES], right)]
        columns = ["Wrong", "Circuits", "Should fail", "Caught", "Lucky, of them caught"]
        columns += ["Others caught", *NAMES]
        blocks += [markdown_table(columns, wrong, left=3)]
    end = f"By `{command}`; which lines every circuit fails is in wrong-circuits.jsonl.gz."
    return "\n\n".join([*filter(None, blocks), end]) + "\n"


def _about(files: Sequence[dict[str, Any]]) -> str:
    seconds = sorted(
        one["circuits"]["found"]["seconds"] for one in files if "found" in one["circuits"]
    )
    middle = seconds[len(seconds) // 2] if seconds else float("nan")
    return (
        "Every circuit gets a certificate ([how](../certificates.md)) on fresh prompts. *Found* "
        f"are circuits that `{METHOD}` proposes on 64 pairs, *truth* planted circuits by their "
        "labels. *Gamed* circuits are the smallest that keep .9 of a logit difference; "
        "*exchanged* ones are found ones with a tenth of their edges, at least one, exchanged at "
        "random; *few* were found on four pairs; *other* on another task of the same model. The "
        "columns by line are the share of circuits that fail it. A circuit that was meant to be "
        f"wrong and keeps {LUCKY:g} on {JUDGES} further prompts is *lucky*: nothing is wrong with "
        "what it does. That is the measure of `sufficient` again: that the others are caught says "
        "that its prompts are enough, and not that a circuit can be wrong in no other way. "
        f"A certificate took {middle:.1f} s in the median, on one thread."
    )


def main(given: Sequence[str]) -> None:
    """Certify what is not in the store yet, and write the page."""
    words = parser("lab.studies wrong-circuits", __doc__)
    words.add_argument("--subjects", nargs="+", default=GROUPS[:-1], choices=GROUPS)
    words.add_argument("--split", default="test", choices=("test", "pool"))
    words.add_argument("--mined", type=Path, default=Path("build/mined"))
    words.add_argument("--store", type=Path, default=Path("build/certificates"))
    words.add_argument("--page", type=Path, default=Path("docs/results/wrong-circuits.md"))
    words.add_argument("--processes", type=int, default=2)
    words.add_argument("--kinds", nargs="+", default=Job.kinds, choices=Job.kinds)
    words.add_argument("--most", type=int, help="cases of each group")
    words.add_argument("--only-page", action="store_true", help="of what is in the store")
    chosen = words.parse_args(given)
    folder = chosen.store / chosen.split
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        replace(job, kinds=tuple(chosen.kinds))
        for job in jobs_of(chosen.subjects, chosen.split, folder, chosen.mined, chosen.most)
    ]
    if not chosen.only_page:
        _measure(jobs, chosen.processes)
    files = [read_json(job.file) for job in jobs if job.file.exists()]
    command = shlex.join(["python", "-m", "lab.studies", "wrong-circuits", *given])
    words_of = f"{len(files)} of {len(jobs)} subjects with a task were measured."
    chosen.page.write_text(page(files, command, words_of))
    lines = "".join(f"{json.dumps(_row(one))}\n" for one in files)
    data = chosen.page.with_suffix(".jsonl.gz")
    write_atomic(data, gzip.compress(lines.encode(), mtime=0))
    sys.stdout.write(f"wrote {chosen.page}\n")


def _measure(jobs: Sequence[Job], processes: int) -> None:
    with ProcessPoolExecutor(processes, get_context("spawn")) as workers:
        for done in as_completed([workers.submit(measured, job) for job in jobs]):
            try:
                sys.stderr.write(f"{done.result().stem}\n")
            except (ValueError, OSError) as error:
                sys.stderr.write(f"left out: {error}\n")


def _row(one: dict[str, Any]) -> dict[str, Any]:
    """A subject: of every circuit its edges, what it keeps, and the lines that it fails."""
    return {
        "id": one["id"],
        "circuits": {
            kind: {
                "edges": record["edges"],
                "keeps": round(record["keeps"], 4),
                "fails": [name for name in NAMES if failed(record, [name])],
            }
            for kind, record in one["circuits"].items()
        },
    }
