"""How long the compiler takes: over InterpBench's 84 programs, and for one with a very wide MLP.

python -m lab.benchmarks.compile [--repeats 5] [--json]

Run like that it also measures how fast the package starts. `ratio` is measured over limit.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator

from graphcircuits.cases import case_ids, load_case
from graphcircuits.rasp import SequenceMap, indices, tokens
from graphcircuits.rasp.compile import compile_program
from lab.benchmarks import Measurement, best_of, startup

WIDE = 1650
"""Hidden units of the widest MLP among the public programs, which takes minutes elsewhere."""


def measure(repeats: int = 5) -> Iterator[Measurement]:
    seconds = []
    for case in map(load_case, case_ids("ib")):
        program = case.program
        inputs = {"vocab": case.vocab, "max_seq_len": case.max_seq_len, "causal": case.causal}
        seconds.append(
            best_of(lambda p=program, kwargs=inputs: compile_program(p, **kwargs), repeats)
        )
    yield Measurement(f"compile, median of {len(seconds)}", statistics.median(seconds), "s", 0.02)
    yield Measurement(f"compile, slowest of {len(seconds)}", max(seconds), "s", 2.0)

    pair = SequenceMap(lambda token, index: (token, index), tokens, indices)
    vocab = range(WIDE // 33)
    model = compile_program(pair, vocab=vocab, max_seq_len=34)
    assert model.transformer.config.d_mlp == WIDE
    wide = best_of(lambda: compile_program(pair, vocab=vocab, max_seq_len=34), repeats)
    yield Measurement(f"compile, MLP {WIDE} wide", wide, "s", 5.0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the compiler.")
    parser.add_argument("--repeats", type=int, default=5, help="the fastest of so many counts")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    options = parser.parse_args()
    all_kept, records = True, []
    for found in itertools.chain(measure(options.repeats), startup.measure()):
        ratio = None if found.limit is None else found.value / found.limit
        all_kept &= found.kept
        records.append({**vars(found), "ratio": ratio})
        if not options.json:
            shown = (
                "" if ratio is None else f"limit {found.limit:g} {found.unit}, ratio {ratio:.3f}"
            )
            print(f"{found.what:32} {found.value:9.4f} {found.unit}  {shown}")
    if options.json:
        print(json.dumps(records))
    return 0 if all_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
