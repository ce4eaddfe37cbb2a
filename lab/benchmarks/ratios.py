"""How a method compares with others, subject by subject, from the runs that a bench wrote.

Seeds are averaged within a subject. For each file and each other method: the mean AUROC and log
area of both (CMD in files without it), by how much less the mean area is with its 95% interval over
subjects (paired bootstrap), on which part of the subjects the first has the smaller one, the
largest ratio of the two, how many edges fewer keep 0.9, and its median time by that of EAP.

python -m lab.benchmarks.ratios docs/results/natural-cases.csv.gz [FILE ...] [--method gcl]
    [--by eap-ig eap-ig+paths]
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from lab.benchmarks.contrasts import NEEDED, area_of, by_subject, fewer, in_percent, interval
from lab.files import read_packed


def compared(rows: Sequence[dict[str, str]], method: str, other: str) -> str:
    """One line."""
    area = area_of(rows)
    shown = {"log_area": "log area", "cmd": "CMD"}[area]
    own, base = (by_subject(rows, name, area) for name in (method, other))
    ratios = [own[case] / base[case] for case in own]
    words = [f"{len(own)} subjects"]
    for figure in ("auroc", area):
        means = [by_subject(rows, name, figure) for name in (method, other)]
        if all(means):
            both = " and ".join(f"{mean(each.values()):.4f}" for each in means)
            words.append(f"{shown if figure == area else figure} {both}")
    words.append(f"{shown} less by {in_percent(interval(own, base, ratio=True))}")
    words.append(f"smaller {shown} on {mean(ratio < 1 for ratio in ratios):.0%}")
    words.append(f"largest ratio {max(ratios):.2f}")
    if area == "log_area":
        needed = (by_subject(rows, name, NEEDED) for name in (method, other))
        words.append(f"edges for 0.9 fewer by {in_percent(fewer(*needed))}")
    times = [[float(r["seconds"]) for r in rows if r["method"] == m] for m in (method, "eap")]
    if all(times):
        words.append(f"{median(times[0]) / median(times[1]):.2f} times EAP's time")
    return ", ".join(words)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--method", default="gcl")
    parser.add_argument("--by", nargs="+", default=["eap-ig"])
    words = parser.parse_args(given)
    for path in words.files:
        rows = list(csv.DictReader(read_packed(path).splitlines()))
        there = {row["method"] for row in rows}
        for other in words.by:
            missing = {words.method, other} - there
            if missing:
                parser.error(f"{path} has no runs of {', '.join(sorted(missing))}")
            line = compared(rows, words.method, other)
            sys.stdout.write(f"{path.stem}, {words.method} by {other}: {line}\n")


if __name__ == "__main__":
    main()
