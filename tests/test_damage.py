"""Every kind of file, damaged and forged: readers return or refuse, in time and within memory.

A forged file has values of other types or sizes under a hash that is right.
"""

import json
import pickle
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.adapters.interpbench import (
    CONFIG,
    EDGES,
    META,
    MODEL,
    export_interpbench,
    import_interpbench,
)
from graphcircuits.circuit import Circuit
from graphcircuits.config import load_config
from graphcircuits.corpus.collection import load_corpus, load_shard
from graphcircuits.corpus.shards import (
    MANIFEST,
    KeptShard,
    ShardContent,
    read_shard,
    shard_path,
    write_manifest,
    write_shard,
)
from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.calibration import Isotonic, Platt
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble, seen_of
from graphcircuits.predictor.familiarity import Cloud, KnownCases
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.result import Result
from graphcircuits.result_files import RecordedCurve
from graphcircuits.store import StoreError, load_artifact, save_artifact
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.stored import StoredPrompts
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.selection import to_toml
from tests.corpus.small import PLAN, begun, tiny
from tests.damage import (
    WRONG,
    bend,
    forge,
    join_artifact,
    limits,
    nested,
    rehashed,
    rehashed_result,
    split_artifact,
    survives,
)
from tests.subjects import make_config, make_subject

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]

TRIES = 200
"""Of each kind of damage to a file."""


def bent(path: Path, seed: int = 0) -> Iterator[None]:
    """The file at `path`, damaged over and over."""
    rng, whole = random.Random(seed), path.read_bytes()
    for _ in range(TRIES):
        while (data := bend(whole, rng)) == whole:
            pass
        path.write_bytes(data)
        yield
    path.write_bytes(whole)


def make_result() -> Result:
    graph = ComponentGraph(1, 2)
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(0))
    curve = RecordedCurve(sizes=(0, 3), faithfulness=(0.0, 0.5), pairs=2, seed=1)
    about: dict[str, Any] = {"method": "gcl", "options": {"a": [1]}, "seconds": 0.5, "curve": curve}
    table = torch.full((1, 1, 2, 2, 2), 127, dtype=torch.uint8)
    prompts = StoredPrompts(
        clean=[["a", "b"]],
        corrupted=[["c", "d"]],
        answers=["e"],
        patterns=[*table],
        patterns_corrupted=[*table],
    )
    result = Result(graph=graph, scores=scores, **about, prompts=prompts)
    return replace(result, chosen=result.circuit(edges=3))


def forged_artifact(path: Path, seed: int = 1) -> Iterator[None]:
    """The artifact at `path` with another header or other tensors, and the hash of them."""
    rng = random.Random(seed)
    header, tensors = split_artifact(path)
    for _ in range(TRIES):
        changed = dict(tensors)
        name = rng.choice(list(tensors))
        if rng.random() < 0.3:
            x = tensors[name]
            forms: list[Any] = [
                x.double(), x.to(torch.int8), x.to(torch.complex64), x.flatten(), x[None],
                x.new_zeros((10**9, 0)), x.new_zeros(0), torch.tensor(1.0), x.reshape(-1)[:-1],
                x.to(torch.float8_e4m3fn),
            ]  # fmt: skip
            changed[name] = rng.choice(forms).clone()
            if rng.random() < 0.2:
                changed["other"] = changed.pop(name)
        join_artifact(path, forge(header, rng), changed)
        yield


def test_result_json(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    make_result().save(path)
    assert survives(lambda: Result.load(path), bent(path))[1] > 0.9 * TRIES
    content = json.loads(path.read_text())

    def forged(ours: bool) -> Iterator[None]:
        rng = random.Random(1)
        kept = {key: value for key, value in content.items() if ours or key != "graphcircuits"}
        for _ in range(TRIES):
            path.write_text(json.dumps(rehashed_result(forge(kept, rng))))
            yield

    for ours in (True, False):
        taken, refused = survives(lambda: Result.load(path), forged(ours))
        assert refused > 0.3 * TRIES
        # What nobody reads may change, in files that say nothing of their hash.
        assert taken < 0.4 * TRIES


def test_result_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "result.safetensors"
    make_result().save(path)
    assert survives(lambda: Result.load(path), bent(path)) == (0, TRIES)
    assert survives(lambda: Result.load(path), forged_artifact(path))[1] > 0.8 * TRIES


def test_results_of_eap_ig(tmp_path: Path) -> None:
    graph, path = ComponentGraph(2, 2), tmp_path / "graph.pt"
    shape = (graph.n_writers, graph.n_readers)
    plain = {
        "cfg": {"n_layers": 2, "n_heads": 2, "d_model": 4, "parallel_attn_mlp": False},
        "src_nodes": list(graph.writer_names),
        "dst_nodes": list(graph.reader_names),
    }
    matrices = {"edges_scores": torch.ones(shape), "edges_in_graph": torch.ones(shape).bool()}
    torch.save(plain | matrices, path)
    assert survives(lambda: Result.load(path), bent(path))[1] > 0.8 * TRIES

    def forged() -> Iterator[None]:
        rng = random.Random(1)
        for _ in range(TRIES // 2):
            torch.save(forge(plain | matrices, rng), path)
            yield
            torch.save(plain | _forged_state(matrices, rng), path)
            yield

    assert survives(lambda: Result.load(path), forged())[1] > 0.7 * TRIES


def test_transformers(tmp_path: Path) -> None:
    path = tmp_path / "subject.safetensors"
    codec = Codec(("a", "b", 1), ("x", 0.5, None))
    subject = make_subject("one-layer")
    save_transformer(path, Transformer(subject.config, subject.weights, codec), meta={"a": 1})
    assert survives(lambda: load_transformer(path), bent(path)) == (0, TRIES)
    assert survives(lambda: load_transformer(path), forged_artifact(path))[1] > 0.7 * TRIES


@pytest.mark.parametrize("aligner", ["invariant", "tabpfn"])
def test_predictors(tmp_path: Path, aligner: Any) -> None:
    path = tmp_path / "predictor.safetensors"
    invariant = aligner == "invariant"
    config = PredictorConfig(
        aligner=aligner, width=8, layers=1, d_align=4, heads=2, prior=invariant
    )
    measured = {"planted": {"auroc": {"gcl": 0.9, "eap-ig": 0.8}}}
    origin = {"cases": ["ib-3"], "subjects": seen_of([make_subject()]), "measured": measured}
    predictor, known = Predictor(config), None
    if invariant:
        columns = len(predictor.align.get_buffer("mean"))
        cloud = Cloud(torch.zeros(columns), torch.eye(columns))
        known = KnownCases(cloud, torch.ones(2), torch.tensor([0.1, 0.9]))
    calibration = {"planted": Platt(1.0, 0.0), "natural": Isotonic([0.0, 1.0], [0.2, 0.8])}
    save_ensemble(path, Ensemble((predictor,), origin, calibration=calibration, known=known))
    assert survives(lambda: load_ensemble(path), bent(path)) == (0, TRIES)
    assert survives(lambda: load_ensemble(path), forged_artifact(path))[1] > 0.5 * TRIES


def test_corpora(tmp_path: Path) -> None:
    """The manifest, and a shard that it knows or does not know yet."""
    manifest, shard = begun(tmp_path), PLAN[0]
    ids = [order.id for order in shard.orders]
    content = ShardContent({ids[0]: tiny()}, {id: {"accuracy": 1.0} for id in ids}, {})
    kept = write_shard(tmp_path, shard, manifest.config, content)
    write_manifest(tmp_path, manifest.keeping({shard.name: kept}))

    def read() -> None:
        for entry in load_corpus(tmp_path):
            entry.subject()

    def read_alone() -> None:
        found = read_shard(tmp_path, shard.name)
        kept = KeptShard(found.sha256, 1, 1, 0)
        for entry in load_shard(tmp_path, shard, kept).entries:
            entry.subject()

    path = shard_path(tmp_path, shard.name)
    assert survives(read, bent(path)) == (0, TRIES)
    assert survives(read, bent(tmp_path / MANIFEST))[1] > 0.9 * TRIES
    assert survives(read, forged_artifact(path))[1] > 0.9 * TRIES
    # Where the hash is right too, its types are all that is left to check.
    assert survives(read_alone, forged_artifact(path, seed=2))[1] > 0.5 * TRIES
    write_shard(tmp_path, shard, manifest.config, content)
    header = json.loads((tmp_path / MANIFEST).read_text())

    def forged() -> Iterator[None]:
        rng = random.Random(1)
        for _ in range(TRIES):
            (tmp_path / MANIFEST).write_text(json.dumps(rehashed(forge(header, rng), {})))
            yield

    assert survives(read, forged())[1] > 0.5 * TRIES


def test_artifacts_in_json(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    about: dict[str, Any] = {"config": {"fold": 1}, "meta": {"history": {"1": {"a": 0.5}}}}
    save_artifact(path, kind="thing", seed=0, **about)
    assert survives(lambda: load_artifact(path, "thing"), bent(path))[0] < 0.05 * TRIES
    header = json.loads(path.read_text())

    def forged() -> Iterator[None]:
        rng = random.Random(1)
        for _ in range(TRIES):
            path.write_text(json.dumps(rehashed(forge(header, rng), {})))
            yield

    assert survives(lambda: load_artifact(path, "thing"), forged())[1] > 0.5 * TRIES


def test_configurations(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(to_toml(TrainConfig()))
    lines = path.read_text().splitlines()
    values = [
        *(json.dumps(value) for value in WRONG if value is not None),
        "2020-01-01", "'''", "[" * 60_000, nested(900), "{a = {a = 1}}", "1.1.1.1", "nan", "-inf",
        "9" * 9_000, "0x" + "f" * 9_000, '"\\ud800"',
    ]  # fmt: skip

    def forged() -> Iterator[None]:
        rng = random.Random(1)
        for _ in range(TRIES):
            changed, place = list(lines), rng.randrange(len(lines))
            name = rng.choice([lines[place].split(" ")[0], "a" + ".a" * 9_000, "[a]", "x"])
            changed[place] = f"{name} = {rng.choice(values)}"
            path.write_text("\n".join(changed))
            yield

    for writes in (bent(path), forged()):
        assert (
            survives(lambda: load_config(TrainConfig, path), writes, (ValueError,))[1] > 0.3 * TRIES
        )


def pairs() -> Pairs:
    tokens = torch.tensor([[0, 2, 3], [0, 3, 2]])
    scored = torch.tensor([[False, True, True]] * 2)
    target = torch.tensor([[[0.5, 0.5]] * 3] * 2)
    return Pairs(
        clean=tokens, corrupted=tokens.flip(0), scored=scored, loss_name="kl", targets=target
    )


@pytest.mark.parametrize("words", [False, True])
def test_pairs_in_jsonl(tmp_path: Path, words: bool) -> None:
    path = tmp_path / "pairs.jsonl"
    pairs().save(path)
    codec = Codec(("0", "2", "3")) if words else None
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def forged() -> Iterator[None]:
        rng = random.Random(1)
        for _ in range(TRIES):
            changed = [forge(row, rng) if rng.random() < 0.7 else row for row in rows]
            path.write_text("\n".join(map(json.dumps, changed)))
            yield

    for writes in (bent(path), forged()):
        found = survives(lambda: Pairs.load(path, tokenizer=codec, pad=0), writes)
        assert found[1] > 0.3 * TRIES


def test_pairs_in_csv(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("clean,corrupted,correct_idx,scored,loss\n0 2 3,0 3 2,1,-1,cross-entropy\n")
    cells = [line.split(",") for line in path.read_text().splitlines()]

    def forged() -> Iterator[None]:
        rng = random.Random(1)
        for _ in range(TRIES):
            changed = [list(row) for row in cells]
            row = rng.choice(changed)
            other = rng.choice(
                [str(value) for value in WRONG] + ["1 2 3", "clean", "1e9", "9" * 30]
            )
            row[rng.randrange(len(row))] = other.replace(",", rng.choice([",", " "]))
            path.write_text("\n".join(map(",".join, changed)))
            yield

    for writes in (bent(path), forged()):
        assert survives(lambda: Pairs.load(path, pad=0), writes)[1] > 0.3 * TRIES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subject = Transformer.random(make_config(n_layers=1, n_heads=2), torch.Generator())
    circuit = Circuit.from_names(subject.graph, ["input->m0", "m0->logits"])
    codec = Codec(("a", "b", "c"), (0, 1, 2))
    whole = Transformer(subject.config, subject.weights, codec)
    export_interpbench(tmp_path / "3", whole, circuit, {"lr": 0.1})
    return tmp_path / "3"


@pytest.mark.parametrize("name", [MODEL, CONFIG, EDGES, META])
def test_damaged_folders_of_interpbench(folder: Path, name: str) -> None:
    taken, refused = survives(lambda: import_interpbench(folder), bent(folder / name))
    assert refused > (0.5 if name == META else 0.8) * TRIES
    # Every byte of the weights is under a checksum or a rule, but for those between members.
    assert name != MODEL or taken < 0.2 * TRIES


@pytest.mark.parametrize("name", [MODEL, CONFIG, EDGES, META])
def test_forged_folders_of_interpbench(folder: Path, name: str) -> None:
    path = folder / name
    if name == META:
        whole = json.loads(path.read_text())
    elif name == MODEL:
        whole = torch.load(path, weights_only=True)
    else:
        whole = pickle.loads(path.read_bytes())

    def forged() -> Iterator[None]:
        rng = random.Random(1)
        for _ in range(TRIES):
            if name == META:
                path.write_text(json.dumps(forge(whole, rng)))
            elif name == MODEL:
                torch.save(_forged_state(whole, rng), path)
            else:
                value = forge([list(pair) for pair in whole] if name == EDGES else whole, rng)
                path.write_bytes(pickle.dumps(value, rng.randint(0, 5)))
            yield

    assert survives(lambda: import_interpbench(folder), forged())[1] > 0.4 * TRIES
    shutil.rmtree(folder)


def _forged_state(state: dict[str, Any], rng: random.Random) -> Any:
    changed: dict[Any, Any] = dict(state)
    name = rng.choice(list(state))
    weight = state[name]
    forms: list[Any] = [
        weight.new_zeros(1).expand(10**5, 10**5), weight[None], weight.flatten(), weight.double(),
        weight.new_zeros((10**9, 0)), torch.nn.Parameter(weight.float()), weight.to_sparse(),
        weight.to(torch.complex64), torch.tensor(0), *WRONG[:12],
    ]  # fmt: skip
    changed[name] = rng.choice(forms)
    if rng.random() < 0.2:
        changed[rng.choice(["blocks.x.attn.W_Q", "embed.W_E2", ""])] = changed.pop(name)
    return changed


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
