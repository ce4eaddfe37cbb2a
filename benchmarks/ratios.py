"""How a method compares with another, subject by subject, from the runs that a bench wrote.

Seeds are averaged within a subject. For each file: the mean AUROC and CMD of both, on which part of
the subjects the first has the smaller CMD, the largest ratio of the two, and its median time by
that of EAP.

python -m benchmarks.ratios docs/results/natural-cases.csv [FILE ...] [--method gcl] [--by eap-ig]
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median


def by_subject(rows: Sequence[dict[str, str]], method: str, figure: str) -> dict[str, float]:
    """A figure of every subject, seeds averaged; those without it are left out."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["method"] == method and row[figure]:
            found.setdefault(row["case"], []).append(float(row[figure]))
    return {case: mean(values) for case, values in found.items()}


def compared(rows: Sequence[dict[str, str]], method: str, other: str) -> str:
    """One line."""
    own, base = (by_subject(rows, name, "cmd") for name in (method, other))
    ratios = [own[case] / base[case] for case in own]
    times = [median(float(r["seconds"]) for r in rows if r["method"] == m) for m in (method, "eap")]
    words = [f"{len(own)} subjects"]
    for figure in ("auroc", "cmd"):
        means = [by_subject(rows, name, figure) for name in (method, other)]
        if all(means):
            told = " and ".join(f"{mean(each.values()):.4f}" for each in means)
            words.append(f"{figure} {told}")
    words.append(f"smaller CMD on {mean(ratio < 1 for ratio in ratios):.0%}")
    words.append(f"largest ratio {max(ratios):.2f}")
    words.append(f"{times[0] / times[1]:.2f} times EAP's time")
    return ", ".join(words)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--method", default="gcl")
    parser.add_argument("--by", default="eap-ig")
    words = parser.parse_args(given)
    for path in words.files:
        rows = list(csv.DictReader(path.read_text().splitlines()))
        sys.stdout.write(f"{path.stem}: {compared(rows, words.method, words.by)}\n")


if __name__ == "__main__":
    main()
