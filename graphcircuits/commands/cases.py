"""`graphcircuits cases`: what can be loaded by id."""

from typing import Annotated

import typer

from graphcircuits.commands.output import Json, print_json, print_table, shown


def cases(
    family: Annotated[
        str | None, typer.Option(help="Only one family: ib (InterpBench), tb (TracrBench) or new.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Only one split: test, pool, discarded, fold-0 to fold-4, paper, paper-test, "
            "paper-pool or paper-discarded."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the cases: programs whose circuit is known."""
    from graphcircuits.corpus import case_ids, load_case

    rows = []
    for id in case_ids(family=family, split=split):
        case = load_case(id)
        rows.append(
            {
                "id": case.id,
                "name": case.name,
                "task": case.task,
                "layers": case.layout.n_layers,
                "output": "categorical" if case.categorical else "numerical",
                "vocab": len(case.vocab),
                "max_seq_len": case.max_seq_len,
                "causal": case.causal,
                "split": case.split,
            }
        )
    if as_json:
        print_json(rows)
        return
    columns = ["id", "split", "layers", "output", "vocab", "max_seq_len", "task"]
    print_table(columns, [[shown(row[column]) for column in columns] for row in rows])
