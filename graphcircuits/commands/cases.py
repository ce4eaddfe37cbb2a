"""`graphcircuits cases`: what can be loaded by id."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands import checks
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, print_table

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case

MOST_RANDOM = 10_000


def cases(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these, such as ib-3, or the random program of a seed, such as rnd-17."
        ),
    ] = None,
    family: Annotated[
        str | None,
        flag(
            "Only one family: ib (InterpBench), tb (TracrBench), new, or plm, programs in language "
            "models, which are not listed without."
        ),
    ] = None,
    split: Annotated[
        str | None,
        flag(
            "Only one split: test, pool, discarded, fold-0 to fold-4, paper, paper-test, "
            "paper-pool or paper-discarded."
        ),
    ] = None,
    random: Annotated[
        int | None,
        flag(
            "This many random programs instead, all different: the first of --split, or of "
            "the pool."
        ),
    ] = None,
    layers: Annotated[
        int | None, flag("With --random: the most layers that a subject may need, 2 to 8.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the cases: programs whose circuit is known."""
    from graphcircuits.cases import case_ids, load_case
    from graphcircuits.rasp.sample import MAX_LAYERS

    given = {"--family": family, "--split": split, "--random": random}
    beside = [name for name, value in given.items() if value is not None]
    checks.refuse(
        checks.in_range("--random", random, 1, MOST_RANDOM),
        checks.in_range("--layers", layers, 2, MAX_LAYERS),
        checks.when(ids and beside, f"give ids or {', '.join(beside)}, not both"),
        checks.when(
            not ids and random is not None and family is not None,
            "random programs are of no listed family; give --family or --random",
        ),
        checks.when(layers is not None and random is None, "--layers goes with --random"),
    )
    if random is not None:
        from graphcircuits.cases.random_programs import random_ids

        chosen = random_ids("pool" if split is None else split, random, layers=layers)
    else:
        chosen = list(dict.fromkeys(ids)) if ids else case_ids(family=family, split=split)
    rows = [_row(load_case(id)) for id in chosen]
    if as_json:
        print_json(rows)
        return
    columns = ["id", "split", "layers", "output", "vocab", "max_seq_len", "task"]
    cells = [["" if row[name] is None else str(row[name]) for name in columns] for row in rows]
    print_table(columns, cells)


def _row(case: "Case") -> dict[str, Any]:
    # Where the circuit under the paper's labels comes from; None outside the paper's split.
    paper_labels = None if case.worked_out is None else "worked out"
    if case.published is not None:
        paper_labels = "published"
    return {
        "id": case.id,
        "name": case.name,
        "task": case.task,
        "layers": case.layout.n_layers,
        "output": "categorical" if case.categorical else "numerical",
        "vocab": len(case.vocab),
        "max_seq_len": case.max_seq_len,
        "causal": case.causal,
        "split": case.split,
        "fold": case.fold,
        "group": case.group,
        "paper_labels": paper_labels,
    }
