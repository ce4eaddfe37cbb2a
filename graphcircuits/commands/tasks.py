"""`graphcircuits tasks`: the tasks for language models, and how well a model does them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands import checks
from graphcircuits.commands.options import Device, Dtype, Model, flag
from graphcircuits.commands.output import Json, print_json, print_table, save, say
from graphcircuits.commands.progress import late_progress

if TYPE_CHECKING:
    from graphcircuits.tasks import Task


def tasks(
    name: Annotated[
        str | None, typer.Argument(help="One task, such as ioi; all of them if left out.")
    ] = None,
    model: Model = None,
    pairs: Annotated[int, flag("Prompts to ask the model in each task.")] = 64,
    seed: Annotated[int, flag("Draws those prompts.")] = 0,
    out: Annotated[
        Path | None,
        flag("Write the prompt pairs of one task in the model's token ids: .csv or .jsonl."),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """List tasks for language models; with --model, on how many prompts the model is right."""
    import torch

    from graphcircuits.adapters.load import load_model, model_name
    from graphcircuits.task.accuracy import share_right
    from graphcircuits.tasks import find, names

    checks.refuse(
        checks.in_range("--pairs", pairs, 1, checks.MOST_PAIRS),
        checks.seed_range(seed),
        checks.device_there(device),
        checks.known_dtype(dtype),
        checks.suffix("--out", out, ".csv", ".jsonl"),
        checks.writable({"--out": out}, read=[None if model is None else Path(model)]),
        checks.when(out and not (name and model), "--out goes with one task and --model"),
    )
    chosen = [find(task) for task in (names() if name is None else [name])]
    if model is None:
        _list(chosen, as_json)
        return
    subject = load_model(model, device=device, dtype=dtype)
    if subject.tokenizer is None:
        raise ValueError(
            f"{model} has no tokenizer, which tasks need: give a model that comes with one, such "
            "as a GGUF file, or a Hugging Face folder with its tokenizer files."
        )
    rows: list[dict[str, Any]] = []
    saved = save({})
    with late_progress() as bar:
        step = bar.add_task(model_name(model), total=len(chosen))
        for task in chosen:
            try:
                prompts = task(subject.tokenizer, n=pairs, seed=seed)
                texts = torch.cat([prompts.clean, prompts.corrupted], dim=1)
                row = {
                    "name": task.name,
                    "problem": None,
                    "pairs": len(texts.unique(dim=0)),
                    "tokens": prompts.clean.shape[1],
                    "right": share_right(subject, prompts),
                }
                rows.append(row)
            except ValueError as error:
                if name is not None:
                    raise
                rows.append({"name": task.name, "problem": str(error)})
            else:
                saved = save({out: prompts.save})
            bar.advance(step)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["task", "different pairs", "tokens", "right"],
            [
                [row["name"], str(row["pairs"]), str(row["tokens"]), f"{row['right']:.0%}"]
                for row in rows
                if row["problem"] is None
            ],
            numbers=3,
        )
        for row in rows:
            if row["problem"] is not None:
                say(row["problem"])
    saved.tell(quiet=as_json)


def _list(chosen: "list[Task]", as_json: bool) -> None:
    fields = ("name", "description", "example", "reference")
    records = [{field: getattr(task, field) for field in fields} for task in chosen]
    if as_json:
        print_json(records)
    elif len(records) == 1:
        for field in fields:
            # A prompt may have several lines.
            for line in records[0][field].splitlines():
                say(line)
    else:
        rows = [[record["name"], record["description"], record["example"]] for record in records]
        print_table(["task", "what it asks", "example"], rows)
