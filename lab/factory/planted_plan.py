"""Choose the planted language models: their sizes, their calls and where each is planted.

1. A call stands in the split where a random program of its structure would (`assignment_of`): those
   that are related to held-out or discarded cases, or whose structure is held out, are for tests.
2. `MODELS` are the models. One for tests has calls for tests alone, one of the pool calls of one
   fold.
3. `factory.planted.places` draws where each is planted.
4. `learn_merges` counts merges of neighbours on text that is one part calls in six, and puts those
   that make up the words of calls first, so that the smallest vocabulary has them.

`python -m lab.factory planted-plan` writes `data/language.json`, which says besides which calls
passed, by the reports that `planted-page` has stored: these are the cases that `case_ids` lists.
With `--text build/text` it learns the merges anew, and writes `data/merges.json`: all models have
to be made again after that.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from graphcircuits.adapters.hf_families import load_transformers
from graphcircuits.cases.calls import CALLS, Call
from graphcircuits.cases.language import Design
from graphcircuits.cases.random_programs import assignment_of, circuit_of, structure_hash
from graphcircuits.cases.tokens import ALPHABET, END, PIECES, UNKNOWN
from graphcircuits.io.store import write_atomic
from graphcircuits.rasp.layout import lay_out
from lab import DATA
from lab.factory.language.packages import read_documents
from lab.factory.planted.places import place
from lab.factory.planted.reports import Report, read_reports
from lab.programs import parser

LISTED, MERGES = DATA / "language.json", DATA / "merges.json"
LARGEST = 8000
"""Tokens of the largest vocabulary."""
LEARNED_FROM = 2**23
"""Characters that merges are counted on."""

SIZES = {
    "gpt2-2": ("gpt2", 2, 4, 64, 1000),
    "gqa-3": ("llama-gqa", 3, 8, 64, 2000),
    "gpt2-4": ("gpt2", 4, 4, 64, 1000),
    "llama-5": ("llama", 5, 4, 64, 1000),
    "neox-6": ("neox", 6, 4, 64, 1000),
    "gpt2-12": ("gpt2", 12, 4, 128, 8000),
}
"""Architecture, layers, heads, width and vocabulary. They are few, since models of one size train
side by side."""
# Part of the split, size, calls, whether these share heads, and the seed of places and weights.
MODELS: tuple[tuple[str, str, str, bool, int], ...] = (
    ("test", "gpt2-2", "shift count", True, 0),
    ("test", "gpt2-4", "carry flip alike tally predict sort change shift", True, 1),
    ("test", "gpt2-4", "count carry flip alike", False, 2),
    ("test", "llama-5", "tally predict sort", True, 3),
    ("test", "llama-5", "change shift count carry flip alike", True, 4),
    ("test", "neox-6", "tally predict sort change shift", True, 5),
    ("test", "neox-6", "count carry flip", False, 6),
    ("test", "gqa-3", "alike shift count flip", True, 24),
    ("fold-0", "gpt2-2", "same larger add", True, 8),
    ("fold-0", "llama-5", "after same larger add", False, 9),
    ("fold-0", "gpt2-12", "after same larger add", True, 10),
    ("fold-1", "gpt2-4", "first last copy back", True, 11),
    ("fold-1", "neox-6", "even more both recall again", True, 12),
    ("fold-1", "gqa-3", "first last copy", True, 13),
    ("fold-1", "gpt2-12", "back even more both recall again far first", True, 14),
    ("fold-1", "gpt2-12", "last copy back even more both", True, 15),
    ("fold-2", "gpt2-4", "follow twice", False, 26),
    ("fold-2", "gpt2-12", "balance follow twice", False, 17),
    ("fold-2", "gpt2-12", "balance follow twice", True, 18),
    ("fold-3", "gpt2-4", "find rise leap", True, 19),
    ("fold-3", "neox-6", "find rise leap", True, 20),
    ("fold-4", "llama-5", "where total hop pick", True, 21),
    ("fold-4", "neox-6", "where total hop", False, 22),
    ("fold-4", "gpt2-12", "pick where total hop", True, 23),
)


def standing(call: Call) -> tuple[str, str]:
    """Where a call belongs, `test` or a fold, and what it is related to."""
    found = assignment_of(structure_hash(circuit_of(lay_out(call.tables))), constant=False)
    part = f"fold-{found['fold']}" if found["split"] == "pool" else "test"
    return part, found["group"]


def plan() -> dict[str, dict[str, Any]]:
    """All models, as the file has them."""
    standings = {name: standing(call) for name, call in CALLS.items()}
    models = {}
    for number, (part, size, calls, shared, seed) in enumerate(MODELS):
        names = calls.split()
        if odd := [name for name in names if standings[name][0] != part]:
            raise ValueError(f"plm-{number} is of {part}, and {', '.join(odd)} is not.")
        architecture, layers, heads, width, vocabulary = SIZES[size]
        design = Design(
            architecture=architecture,
            layers=layers,
            heads=heads,
            width=width,
            vocabulary=vocabulary,
        )
        split = {"split": "test"} if part == "test" else {"split": "pool", "fold": int(part[-1])}
        rng = random.Random(seed)
        models[f"plm-{number}"] = {
            "design": asdict(design),
            "shared": shared,
            "seed": seed,
            **split,
            "groups": {name: standings[name][1] for name in names},
            "places": place([CALLS[name] for name in names], design.graph, shared, rng),
        }
    return models


def passed_calls(model: dict[str, Any], report: Report | None) -> list[str]:
    """The calls that passed in a model that was made by this plan; none if it is to be made."""
    if report is None or any(report[name] != model[name] for name in ("design", "places")):
        return []
    return [name for name, call in report["calls"].items() if call["passed"]]


# --- tokens --------------------------------------------------------------------------------------


def learn_merges(documents: Sequence[str]) -> list[tuple[str, str]]:
    """Merges of neighbours, the most frequent first, but those of the words of calls before all."""
    load_transformers()
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    counted = Tokenizer(models.BPE(unk_token=UNKNOWN))
    counted.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=LARGEST,
        special_tokens=[END, UNKNOWN],
        initial_alphabet=list(ALPHABET),
        show_progress=False,
    )
    counted.train_from_iterator(_with_calls(documents), trainer)
    merges = [tuple(pair) for pair in json.loads(counted.to_str())["model"]["merges"]]
    made = {"".join(pair): pair for pair in merges}
    needed: dict[tuple[str, str], None] = {}

    def need(piece: str) -> None:
        if piece in made and made[piece] not in needed:
            for part in made[piece]:
                need(part)
            needed[made[piece]] = None

    for call in CALLS.values():
        for word in call.spoken:
            need(call.name if word == call.name else ALPHABET[0] + word)
    return [*needed, *(pair for pair in merges if pair not in needed)]


def _with_calls(documents: Sequence[str]) -> Any:
    generator, left = torch.Generator().manual_seed(0), LEARNED_FROM
    calls = cycle(CALLS.values())
    for document in documents:
        if left <= 0:
            return
        left -= len(document)
        yield document
        lines = [
            call.text(words)
            for call in islice(calls, 1 + len(document) // 150)
            for words in call.sample(1, generator)
        ]
        yield "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Write both files."""
    words = parser("lab.factory planted-plan", __doc__)
    words.add_argument("--text", type=Path, help="folder that `lab.factory text` wrote")
    given = words.parse_args(arguments)
    if given.text is not None:
        merges = learn_merges(read_documents(given.text / "train.jsonl.xz"))
        pairs = [" ".join(pair) for pair in merges]
        text = json.dumps(pairs, separators=(",", ":"), ensure_ascii=False)
        write_atomic(MERGES, f"{text}\n".encode())
        sys.stdout.write(f"wrote {MERGES}\n")
    models, reports = plan(), read_reports()
    for id, model in models.items():
        model["passed"] = passed_calls(model, reports.get(id))
    write_atomic(LISTED, json.dumps(models, indent=1).encode() + b"\n")
    cases = sum(len(model["passed"]) for model in models.values())
    sys.stdout.write(f"{len(models)} models, {cases} cases that passed\nwrote {LISTED}\n")
