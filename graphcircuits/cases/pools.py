"""The pools that predictors are trained and selected on, with the folds and groups of each.

1. `pool` is ours: every listed case of the split's pool, in the split's folds and groups.
2. `interpbench-pool` is InterpBench's part of the paper's pool: 26 cases in the paper's own 20
   groups. Two of them, `ib-25` and `ib-106`, our split discards, because it relates them to test
   cases. The paper does not publish its folds, so these are dealt out as ours are (`split.deal`)
   and stored in `data/interpbench.json`, where nothing can move them.
3. `paper-pool` has 24 cases of TracrBench beside those, as the paper's 50 do. The paper does not
   say which: these are the smallest, by layers and then by edges of the circuit, of the tasks that
   our split relates to no test case, that repeat no other case, and whose own program TracrBench
   could compile. They come to 32 groups, where the paper has 31. `data/paper-pool.json` holds the
   50, in folds that are dealt out in the same way. Two of them, `tb-count-less-freq` and
   `tb-test-at-least-two-equal`, have no subject.

All give every case that is listed, whether its subject ships or not.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from graphcircuits.cases import split_records
from graphcircuits.cases.interpbench import released

POOLS = ("pool", "paper-pool", "interpbench-pool")


@dataclass(frozen=True)
class PoolCase:
    """A case of a pool, with its place there."""

    id: str
    fold: int
    group: str
    """The first case of its group."""


def pool_cases(pool: str = "pool") -> list[PoolCase]:
    """The cases of a pool, in the order of `case_ids`."""
    if pool not in POOLS:
        raise ValueError(f"unknown pool {pool!r}; choose from {', '.join(POOLS)}.")
    records = _paper_pool() if pool == "paper-pool" else _in_pool(pool)
    return [PoolCase(id, record["fold"], record["group"]) for id, record in records.items()]


def _in_pool(pool: str) -> Mapping[str, Mapping[str, Any]]:
    """The records of a split's pool."""
    records = released() if pool == "interpbench-pool" else split_records()
    return {id: record for id, record in records.items() if record["split"] == "pool"}


@cache
def _paper_pool() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(files("graphcircuits").joinpath("data/paper-pool.json").read_text("utf-8"))
