"""Every kind of file, damaged and forged: readers return or refuse, in time and within memory."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphcircuits.adapters.interpbench import (
    CONFIG,
    EDGES,
    MODEL,
    import_interpbench,
)
from graphcircuits.circuit import Circuit
from graphcircuits.io.store import StoreError
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer
from lab.benchmarks.interpbench_export import export_interpbench
from tests.damage import limits
from tests.subjects import make_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]


def test_a_few_of_every_kind() -> None:
    """`make fuzz` is the same with hundreds."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--files", "8"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    *_, damaged, forged, not_finite = done.stdout.splitlines()
    assert damaged.startswith("all")
    assert int(damaged.split()[2]) > 8 * 14
    assert "forged" in forged
    # Of every format that has numbers in it, all.
    assert not_finite.split()[3:] == [str(8 * 18), "0", "0", "0", "0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subject = Transformer.random(make_config(n_layers=1, n_heads=2), torch.Generator())
    circuit = Circuit.from_names(subject.graph, ["input->m0", "m0->logits"])
    codec = Codec(("a", "b", "c"), (0, 1, 2))
    whole = Transformer(subject.config, subject.weights, codec)
    export_interpbench(tmp_path / "3", whole, circuit, {"lr": 0.1})
    return tmp_path / "3"


def test_a_small_folder_that_asks_for_terabytes(folder: Path) -> None:
    settings = pickle.loads((folder / CONFIG).read_bytes())
    (folder / CONFIG).write_bytes(pickle.dumps(settings | {"d_model": 10**6, "d_mlp": 10**6}))
    state = torch.load(folder / MODEL, weights_only=True)
    wide = {8: 10**6, 12: 10**6}
    vast = {
        name: weight[(0,) * weight.ndim].clone().expand([wide.get(n, n) for n in weight.shape])
        for name, weight in state.items()
    }
    torch.save(vast, folder / MODEL)
    assert (folder / MODEL).stat().st_size < 40_000
    with limits(), pytest.raises(StoreError, match=r"on exceeds 1 numbers"):
        import_interpbench(folder)


def test_many_wrong_edges_are_refused_at_once(folder: Path) -> None:
    wrong = [("hook_embed", f"blocks.{n}.hook_mlp_in") for n in range(5, 20_000)]
    (folder / EDGES).write_bytes(pickle.dumps(wrong))
    with limits(), pytest.raises(StoreError, match=r"edges\.pkl: unknown edge 'input->m10'"):
        import_interpbench(folder)
    (folder / EDGES).write_bytes(pickle.dumps([("x", "y")] * 1000))
    with pytest.raises(StoreError, match=r"1000 of 1000 entries .*; \.\.\.; expected such as"):
        import_interpbench(folder)
