"""What trainings of a sweep cost, as a table beside the paper's work and span formulas.

1. `read_costs` takes `times.jsonl` of a sweep, a line per training: seconds of its bundle, how many
   were trained together, steps. They become one row per configuration and device. A JSON file may
   hold finished rows instead: a list of records with a `name` and numbers or text.
2. `cost_markdown` writes the rows; `formula_markdown` the paper's formulas.
"""

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.files import StoreError, parse_json, read_json, read_text, short
from lab.paper.published import FORMULAS

Record = Mapping[str, str | int | float]
"""A `name` and what is known of it."""


def read_costs(path: str | Path) -> list[Record]:
    """Rows of a `times.jsonl`, packed or not, or of a JSON file of rows."""
    if Path(path).name.endswith((".jsonl", ".jsonl.gz")):
        return _of_times(path)
    found = read_json(path)
    problem = f"{path} must be a list of records with a name and numbers or text"
    if not isinstance(found, list) or not found:
        raise StoreError(f"{problem}, got {short(found)}.")
    for record in found:
        if not isinstance(record, dict) or not isinstance(record.get("name"), str):
            raise StoreError(f"{problem}, got {short(record)}.")
        bad = {key: value for key, value in record.items() if not _is_plain(value)}
        if bad:
            raise StoreError(f"{problem}, got {short(bad)}.")
    return found


def _is_plain(value: object) -> bool:
    return type(value) in (str, int) or (type(value) is float and math.isfinite(value))


def _text(path: str | Path) -> str:
    if Path(path).suffix != ".gz":
        return read_text(path)
    try:
        return gzip.decompress(Path(path).read_bytes()).decode()
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise StoreError(f"{path} must be text packed by gzip: {error}") from error


def _of_times(path: str | Path) -> list[Record]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            record = parse_json(line)
            name = record["id"].partition(".")[0]
            key = (name, record.get("device", ""), record.get("precision", ""))
            if not (record["seconds"] > 0 and record["together"] > 0 and record["steps"] > 0):
                raise ValueError("seconds, together and steps must be above 0")
        except (AttributeError, KeyError, TypeError, ValueError, json.JSONDecodeError) as error:
            raise StoreError(
                f"{path}, line {number} is not that of a training: {short(str(error))}"
            ) from error
        groups.setdefault(key, []).append(record)
    if not groups:
        raise StoreError(f"{path} has no line.")
    rows = [_of_group(*key, records) for key, records in groups.items()]
    if len(rows) > 1 and len({key[1:] for key in groups}) == 1:
        _, device, precision = next(iter(groups))
        every = [record for records in groups.values() for record in records]
        rows.append(_of_group("all", device, precision, every))
    return rows


def _of_group(
    name: str, device: str, precision: str, records: Sequence[Mapping[str, Any]]
) -> Record:
    """A training's share of its bundle's time is what it costs."""
    shares = [record["seconds"] / record["together"] for record in records]
    steps = sum(record["steps"] for record in records)
    return {
        "name": name,
        "device": device,
        "precision": precision,
        "runs": len(records),
        "side by side": sum(record["together"] for record in records) / len(records),
        "seconds_per_step": sum(shares) / steps,
        "seconds_per_run": sum(shares) / len(records),
        "runs_per_hour": 3600 * len(records) / sum(shares),
    }


def cost_markdown(records: Sequence[Record]) -> str:
    """A row per record; its columns are whatever the records say."""
    keys = list(dict.fromkeys(key for record in records for key in record if key != "name"))
    rows = [
        [str(record["name"]), *(_cell(record.get(key, "")) for key in keys)] for record in records
    ]
    heads = [key.replace("_", " ").capitalize() for key in keys]
    return markdown_table(["What", *heads], rows)


def _cell(value: str | int | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def formula_markdown() -> str:
    """The paper's work and span of localizing one circuit."""
    return markdown_table(["Method", "Work", "Span"], FORMULAS, left=3)
