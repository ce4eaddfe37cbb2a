"""Submissions to the circuit track of MIB (Mueller et al. 2025), out and in.

A submission is a folder with one folder per task and model, such as `ioi_gpt2` or
`arc-easy_llama3`. In each is either

1. one file with a score for every edge, `importances.json` or `importances.pt`, or
2. one file per circuit, its edges marked `in_graph`, for growing parts of all edges: MIB wants one
   with at most each of PARTS. We name them `circuit-0.1.json` (in percent) and so on; the names are
   not looked at when they are read.

`write_submission` writes either as JSON, `read_submission` reads either, `.pt` as data. MIB's graph
gives every head its own keys and values, and its sizes count those edges: an edge into a group of
heads counts once for each of them.

MIB asks for at least two models and two tasks; nothing here sees to that.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from graphcircuits.circuit import Circuit
from graphcircuits.io.files import StoreError
from graphcircuits.result.files import ungrouped
from graphcircuits.result.result import Result

PARTS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Of all edges, the sizes of the circuits that MIB asks for."""
_SCORES = "importances"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*_[A-Za-z0-9][\w.+-]*")
_SUFFIXES = (".json", ".pt")


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """What a submission says of one task and model: scores, or circuits from small to large."""

    task: str
    model: str
    result: Result | None = None
    circuits: tuple[Circuit, ...] = ()


def write_submission(
    folder: str | Path,
    results: Mapping[tuple[str, str], Result],
    *,
    circuits: bool = False,
    signed: bool = False,
) -> list[Path]:
    """Write scores, or with `circuits` the nine circuits they give, by (task, model).

    With `signed` they are the signed effects (`Result.by_sign`): MIB ranks by these for its CPR,
    and with `--absolute` by their size for its CMD.

    Underscores in a task's name become hyphens, as in MIB's own folders. Circuits hold the best
    edges without those on no path from input to logits. The files that were written are returned.
    """
    names = {key: f"{key[0].replace('_', '-')}_{key[1]}" for key in results}
    problems = [f"{x!r} cannot be a folder" for x in names.values() if not _NAME.fullmatch(x)]
    counts = sorted(Counter(names.values()).items())
    problems += [f"{name!r} is given twice" for name, count in counts if count > 1]
    if not results:
        problems.append("there are no results")
    if problems:
        raise ValueError(
            f"a submission needs results by task and model, such as ('ioi', 'gpt2'): "
            f"{'; '.join(problems)}."
        )
    written = []
    for key, result in results.items():
        target = Path(folder) / names[key]
        if not circuits:
            written.append(target / f"{_SCORES}.json")
            result.save(written[-1], signed=signed)
            continue
        ranked = result.by_sign() if signed else result
        for share in PARTS:
            written.append(target / f"circuit-{100 * share:g}.json")
            best = ranked.circuit(edges=best_counts(ranked, [share])[0])
            result.save(written[-1], circuit=best.pruned())
    return written


def best_counts(result: Result, shares: Sequence[float]) -> list[int]:
    """How many of the best edges are at most these shares of all edges, as MIB counts edges.

    An edge into a group of heads counts once for each head, among the best and among all. Where one
    no longer fits as a whole, it is left out with all behind it.
    """
    full, shared = ungrouped(result.graph)
    counts = torch.bincount(shared, minlength=result.graph.n_edges)
    taken = counts[result.ranking()].cumsum(0)
    # 0.29 * 100 falls short of 29 by a rounding error.
    limits = [math.floor(share * full.n_edges + 1e-9) for share in shares]
    return torch.searchsorted(taken, torch.tensor(limits), right=True).tolist()


def read_submission(folder: str | Path) -> dict[tuple[str, str], Entry]:
    """Everything in a submission, by (task, model); no code in the files is run."""
    folders = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    entries = [_read(path) for path in folders if _NAME.fullmatch(path.name)]
    if not entries:
        raise StoreError(
            f"{folder} is not a submission to MIB: it has no folder named after a task and a "
            "model, such as ioi_gpt2."
        )
    return {(entry.task, entry.model): entry for entry in entries}


def _read(folder: Path) -> Entry:
    task, _, model = folder.name.partition("_")
    paths = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    if not paths:
        raise StoreError(
            f"{folder} holds neither .json nor .pt; expected {_SCORES}.json or circuits."
        )
    if len(paths) == 1:
        return Entry(task=task, model=model, result=Result.load(paths[0]))
    if scores := [path.name for path in paths if path.stem == _SCORES]:
        raise StoreError(
            f"{folder} holds {', '.join(scores)} and {len(paths) - len(scores)} other files: which "
            "of them counts cannot be told; keep the scores alone or the circuits alone."
        )
    circuits = [_read_circuit(path) for path in paths]
    graphs = {circuit.graph for circuit in circuits}
    if len(graphs) > 1:
        listed = ", ".join(sorted(map(str, graphs)))
        raise StoreError(f"{folder}: its circuits are of different graphs: {listed}.")
    return Entry(task=task, model=model, circuits=tuple(sorted(circuits, key=len)))


def _read_circuit(path: Path) -> Circuit:
    result = Result.load(path)
    if result.chosen is not None:
        return result.chosen
    return Circuit.from_mask(result.graph, torch.zeros(result.graph.n_edges, dtype=torch.bool))
