"""The pictures of docs/figures.md, each made as that page says.

python -m lab.benchmarks.pictures [--out docs/figures]

1. The circuit that EAP-IG finds in a subject with a known circuit, alone and against it.
2. How faithful its best edges are, from few to many.
3. A short training, by step.

They take half a minute on one core. The same code gives the same files.
"""

import argparse
from pathlib import Path

import torch

import graphcircuits as gc
from graphcircuits.drawing.library import save_figure
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.history_plot import plot_histories
from graphcircuits.training.members import train_predictor
from lab.examples import read_examples

CASE = "ib-13"
LEARNED, HELD_OUT = ("ib-7", "ib-24", "ib-40"), ("ib-2", "ib-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    case = gc.load_case(CASE)
    subject, pairs = case.subject(), case.pairs(32)
    result = gc.localize(subject, pairs, "eap-ig")
    save_figure(result.plot(edges=14), out / "circuit.svg")
    save_figure(result.plot(edges=len(case.circuit), truth=case.circuit), out / "truth.svg")
    curve = gc.faithfulness_curve(subject, case.pairs(32, seed=1000), result, sizes="log")
    save_figure(curve.plot(), out / "curve.svg")
    config = TrainConfig(steps=60, every=5, predictor=PredictorConfig(width=8, layers=1))
    examples, held_out = (read_examples(ids, config) for ids in (LEARNED, HELD_OUT))
    trained = {
        seed: train_predictor(examples, config, seed=seed, validation=held_out) for seed in range(2)
    }
    plot_histories(
        out / "training.svg",
        {seed: own.history for seed, own in trained.items()},
        chosen={seed: own.step for seed, own in trained.items()},
    )


if __name__ == "__main__":
    main()
