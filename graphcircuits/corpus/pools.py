"""The pools that predictors are trained and selected on, with the folds and groups of each.

1. `pool` is ours: every listed case of the split's pool, in the split's folds and groups.
2. `paper-pool` is InterpBench's part of the paper's pool: 26 cases in the paper's own 20 groups.
   Two of them, `ib-25` and `ib-106`, our split discards, because it relates them to test cases. The
   paper does not publish its folds, so these are dealt out as ours are (`split.deal`) and stored in
   `data/interpbench.json`, where nothing can move them.

Both give every case that is listed, whether its subject ships or not.
"""

from dataclasses import dataclass

from graphcircuits.corpus import split_records
from graphcircuits.corpus.interpbench import released

POOLS = ("pool", "paper-pool")


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
    records = released() if pool == "paper-pool" else split_records()
    return [
        PoolCase(id, record["fold"], record["group"])
        for id, record in records.items()
        if record["split"] == "pool"
    ]
