"""Every kind of file that is read: how to make one, to forge it, and to read it.

1. `FORMATS` has each kind by name. `Format.make` writes whole files into a folder and gives an
   `Opened`: the files, what reads them, and what writes a forged one in place of a whole one.
2. A forged file has values of other types or sizes, under a hash that is right.
3. `not_finite` likewise puts a NaN or an infinity in place of one number.

`tests.fuzz` tries them by the hundred.
"""

import json
import pickle
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.adapters import interpbench
from graphcircuits.adapters.load import load_model
from graphcircuits.cases.collection import MANIFEST, load_corpus, shard_path
from graphcircuits.certificates.certificate import Certificate
from graphcircuits.certificates.page import certificate_page
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.config import load_config
from graphcircuits.io.files import StoreError
from graphcircuits.io.store import load_artifact, save_artifact
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble, seen_of
from graphcircuits.predictor.facts.calibration import Isotonic, Platt
from graphcircuits.predictor.facts.familiarity import Cloud, KnownCases
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.stored import StoredPrompts
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.sources import language_sources
from lab.benchmarks.interpbench_export import export_interpbench
from lab.factory.language import folder as language_folder
from lab.factory.language.report import markdown
from lab.factory.shards import ShardContent, write_manifest, write_shard
from lab.paper.selection import to_toml
from lab.paper.sweep_results import rows_of
from tests.cases.small import PLAN, begun, tiny
from tests.damage import (
    WRONG,
    forge,
    join_artifact,
    nested,
    rehashed,
    rehashed_result,
    split_artifact,
)
from tests.lab.factory.language.test_report import LEARNED
from tests.subjects import make_config, make_subject
from tests.viewer.certified import certified

Write = Callable[[random.Random], None]
NO_NUMBERS = (float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True)
class Opened:
    """Whole files, and what is done with them."""

    files: list[Path]
    read: Callable[[], object]
    forge: Write | None = None
    not_finite: Write | None = None
    errors: tuple[type[Exception], ...] = field(default=(StoreError, FileNotFoundError))
    """What a reader may raise."""
    sealed: bool = False
    """Whether every byte is under a hash, so that no damaged file may be accepted."""


def spoiled(value: Any, rng: random.Random) -> Any:
    """A plain value with a NaN or an infinity in place of one of its floats."""
    places: list[tuple[Any, Any]] = []
    level: list[Any] = [value]
    while level:
        inner = level.pop()
        items = inner.items() if isinstance(inner, dict) else enumerate(inner)
        for key, item in items:
            if isinstance(item, dict | list):
                level.append(item)
            elif type(item) is float:
                places.append((inner, key))
    place, key = rng.choice(places)
    place[key] = rng.choice(NO_NUMBERS)
    return value


def spoiled_tensors(tensors: dict[str, Tensor], rng: random.Random) -> dict[str, Tensor]:
    """Tensors with a NaN or an infinity in one of them."""
    name = rng.choice([x for x, held in tensors.items() if held.is_floating_point()])
    changed = tensors[name].clone()
    changed.view(-1)[rng.randrange(changed.numel())] = rng.choice(NO_NUMBERS)
    return tensors | {name: changed}


def other_forms(x: Tensor) -> list[Any]:
    """A tensor in other types and shapes, some of them vast and without a number."""
    return [
        x.double(), x.to(torch.int8), x.to(torch.complex64), x.flatten(), x[None],
        x.new_zeros((10**9, 0)), x.new_zeros(0), torch.tensor(1.0), x.reshape(-1)[:-1],
        x.to(torch.float8_e4m3fn),
    ]  # fmt: skip


def json_file(path: Path, seal: Callable[[Any], Any] = lambda content: content) -> dict[str, Any]:
    """Ways to forge a JSON file; `seal` hashes what it holds."""
    text = path.read_text()
    return {
        "forge": lambda rng: _put(path, seal(forge(json.loads(text), rng))),
        "not_finite": lambda rng: _put(path, seal(spoiled(json.loads(text), rng))),
    }


def _put(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def artifact(path: Path) -> dict[str, Any]:
    """Ways to forge a safetensors file of ours, under the hash of what it then holds."""
    header, tensors = split_artifact(path)

    def forged(rng: random.Random) -> None:
        changed = dict(tensors)
        if rng.random() < 0.3:
            name = rng.choice(list(tensors))
            changed[name] = rng.choice(other_forms(tensors[name])).clone()
            if rng.random() < 0.2:
                changed["other"] = changed.pop(name)
        join_artifact(path, forge(header, rng), changed)

    return {
        "forge": forged,
        "not_finite": lambda rng: join_artifact(path, header, spoiled_tensors(tensors, rng)),
    }


def either(*ways: dict[str, Any]) -> dict[str, Any]:
    """Forge one of several files, drawn anew each time."""
    kinds = ("forge", "not_finite")
    by_kind = {kind: [way[kind] for way in ways if kind in way] for kind in kinds}
    return {
        kind: (lambda rng, found=found: rng.choice(found)(rng))
        for kind, found in by_kind.items()
        if found
    }


# Results


def make_result() -> Result:
    graph = ComponentGraph(1, 2)
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(0))
    curve = FaithfulnessCurve(
        n_edges=graph.n_edges, sizes=(0, 3), faithfulness=(0.0, 0.5), n_pairs=2, seed=1
    )
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


def result_json(folder: Path) -> Opened:
    path = folder / "result.json"
    make_result().save(path)
    return Opened([path], lambda: Result.load(path), **json_file(path, rehashed_result))


def result_of_eap_ig(folder: Path) -> Opened:
    path = folder / "result.json"
    make_result().save(path)
    content = json.loads(path.read_text())
    del content["graphcircuits"]
    _put(path, content)
    return Opened([path], lambda: Result.load(path), **json_file(path))


def result_safetensors(folder: Path) -> Opened:
    path = folder / "result.safetensors"
    make_result().save(path)
    return Opened([path], lambda: Result.load(path), **artifact(path), sealed=True)


def result_pt(folder: Path) -> Opened:
    graph, path = ComponentGraph(2, 2), folder / "graph.pt"
    shape = (graph.n_writers, graph.n_readers)
    whole = {
        "cfg": {"n_layers": 2, "n_heads": 2, "d_model": 4, "parallel_attn_mlp": False},
        "src_nodes": list(graph.writer_names),
        "dst_nodes": list(graph.reader_names),
        "edges_scores": torch.ones(shape),
        "edges_in_graph": torch.ones(shape).bool(),
    }
    torch.save(whole, path)
    tensors = {"edges_scores": whole["edges_scores"]}
    real = graph.edge_writers[0], graph.edge_readers[0]

    def not_finite(rng: random.Random) -> None:
        changed = torch.ones(shape)
        changed[real] = rng.choice(NO_NUMBERS)
        torch.save(whole | {"edges_scores": changed}, path)

    def forged(rng: random.Random) -> None:
        changed = forge(whole, rng) if rng.random() < 0.5 else whole | forged_state(tensors, rng)
        torch.save(changed, path)

    return Opened([path], lambda: Result.load(path), forged, not_finite)


def forged_state(state: dict[str, Any], rng: random.Random) -> Any:
    """A mapping of tensors, one of which is of another form or no tensor at all."""
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


# Subjects, predictors, corpora


def subject(folder: Path) -> Opened:
    path = folder / "subject.safetensors"
    made = make_subject("one-layer")
    whole = Transformer(made.config, made.weights, Codec(("a", "b", 1), ("x", 0.5, None)))
    save_transformer(path, whole, meta={"a": 1})
    return Opened([path], lambda: load_transformer(path), **artifact(path), sealed=True)


def predictor(aligner: Any) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        path, invariant = folder / "predictor.safetensors", aligner == "invariant"
        config = PredictorConfig(
            aligner=aligner, width=8, layers=1, d_align=4, heads=2, prior=invariant
        )
        measured = {"planted": {"auroc": {"gcl": 0.9, "eap-ig": 0.8}}}
        origin = {"cases": ["ib-3"], "subjects": seen_of([make_subject()]), "measured": measured}
        member, known = Predictor(config), None
        if invariant:
            columns = len(member.align.get_buffer("mean"))
            cloud = Cloud(torch.zeros(columns), torch.eye(columns))
            known = KnownCases(cloud, torch.ones(2), torch.tensor([0.1, 0.9]))
        calibration = {"planted": Platt(1.0, 0.0), "natural": Isotonic([0.0, 1.0], [0.2, 0.8])}
        save_ensemble(path, Ensemble((member,), origin, calibration=calibration, known=known))
        return Opened([path], lambda: load_ensemble(path), **artifact(path), sealed=True)

    return make


def corpus(folder: Path) -> Opened:
    """A manifest, and a shard whose hash it knows."""
    manifest, shard = begun(folder), PLAN[0]
    ids = [order.id for order in shard.orders]
    content = ShardContent({ids[0]: tiny()}, {id: {"accuracy": 1.0} for id in ids}, {})
    write_manifest(
        folder,
        manifest.keeping({shard.name: write_shard(folder, shard, manifest.config, content)}),
    )
    path, listed = shard_path(folder, shard.name), folder / MANIFEST
    whole = listed.read_text()

    def adopted(way: Write) -> Write:
        """Forge the shard, and let the manifest say that it is the one that was finished."""

        def write(rng: random.Random) -> None:
            way(rng)
            header, _ = split_artifact(path)
            said = json.loads(whole)
            if isinstance(header, dict) and "sha256" in header:
                _rename(said, header["sha256"])
            _put(listed, rehashed(said, {}))

        return write

    def read() -> None:
        for entry in load_corpus(folder):
            entry.subject()

    shards = {kind: adopted(way) for kind, way in artifact(path).items()}
    lists = {"forge": json_file(listed, lambda x: rehashed(x, {}))["forge"]}
    return Opened([path, listed], read, **either(shards, lists))


def _rename(value: Any, sha256: str) -> None:
    """Put a hash in place of that of the one shard, wherever it stands."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if key == "sha256" and value is not None and "passed" in value:
            value[key] = sha256
        elif isinstance(item, dict | list):
            _rename(item, sha256)


def interpbench_folder(folder: Path) -> Opened:
    made = Transformer.random(make_config(n_layers=1, n_heads=2), torch.Generator().manual_seed(0))
    circuit = Circuit.from_names(made.graph, ["input->m0", "m0->logits"])
    whole = Transformer(made.config, made.weights, Codec(("a", "b", "c"), (0, 1, 2)))
    export_interpbench(folder, whole, circuit, {"lr": 0.1})
    names = (interpbench.MODEL, interpbench.CONFIG, interpbench.EDGES, interpbench.META)
    model, config, edges, meta = (folder / name for name in names)
    state = torch.load(model, weights_only=True)
    weights = {name: held for name, held in state.items() if name.startswith("embed")}
    settings = pickle.loads(config.read_bytes())
    listed = [list(pair) for pair in pickle.loads(edges.read_bytes())]

    def pickled(path: Path, value: Any) -> Write:
        return lambda rng: _pickle(path, forge(value, rng), rng)

    ways: list[dict[str, Any]] = [
        {
            "forge": lambda rng: torch.save(forged_state(state, rng), model),
            "not_finite": lambda rng: torch.save(state | spoiled_tensors(weights, rng), model),
        },
        {"forge": pickled(config, settings)},
        {"forge": pickled(edges, listed)},
        {"forge": json_file(meta)["forge"]},
    ]
    files = [model, config, edges, meta]
    return Opened(files, lambda: interpbench.import_interpbench(folder), **either(*ways))


def _pickle(path: Path, value: Any, rng: random.Random) -> None:
    path.write_bytes(pickle.dumps(value, rng.randint(0, 5)))


# Other people's models


def gguf(folder: Path) -> Opened:
    from tests.adapters import gguf_models

    path, model = gguf_models.write_model(folder / "model.gguf", "llama")
    settings = gguf_models.settings_of("llama", model)
    tensors = gguf_models.tensors_of("llama", model)
    values = [None, True, 0, 1, -1, 3, 10**6, 0.5, 1e30, *NO_NUMBERS, "", "x", ["a"], [1], [0.5]]

    def forged(rng: random.Random) -> None:
        changed: dict[str, Any] = {"general.architecture": "llama", **settings}
        key = rng.choice(list(changed))
        value = rng.choice(values)
        changed = {name: x for name, x in changed.items() if name != key}
        changed |= {} if value is None else {key: value if value != -1 else 2**32 - 1}
        path.unlink()
        gguf_models.write_raw(path, changed, tensors)

    def not_finite(rng: random.Random) -> None:
        name = rng.choice(list(tensors))
        changed = tensors[name].copy()
        changed.reshape(-1)[rng.randrange(changed.size)] = rng.choice(NO_NUMBERS)
        path.unlink()
        gguf_models.write(path, "llama", settings, tensors | {name: changed})

    return Opened([path], lambda: load_model(path), forged, not_finite)


def llama2c(folder: Path) -> Opened:
    from tests.adapters.test_llama2c import make_model, write, write_tokenizer

    with torch.random.fork_rng(devices=[]):
        path = write(folder / "model.bin", make_model(True))
    words = write_tokenizer(folder / "tokenizer.bin")
    whole = path.read_bytes()

    def forged(rng: random.Random) -> None:
        """Another header, and a file that is as long as it says, where that is not too long."""
        sizes = list(struct.unpack("<7i", whole[:28]))
        sizes[rng.randrange(7)] = rng.choice(
            [0, 1, -1, 2, 3, 64, 1000, 10**6, 2**31 - 1, -(2**31), rng.randrange(10**5)]
        )
        if rng.random() < 0.3:
            # As many layers as fit into a file of some megabytes, which must not take long.
            sizes = [2, 1, rng.randrange(10**6), 1, 1, rng.choice([259, -259]), 1]
        path.write_bytes(struct.pack("<7i", *sizes) + whole[28:])
        d, mlp, layers, heads, groups, words, ctx = sizes
        if all(size > 0 for size in (d, mlp, layers, heads, groups, ctx)) and heads <= d:
            head = d // heads
            each = 2 * d + 2 * d * heads * head + 2 * d * groups * head + 3 * d * mlp
            total = abs(words) * d * (1 if words > 0 else 2) + layers * each + d
            total += 2 * ctx * (head // 2)
            if 28 + 4 * total < 2**28:
                with path.open("r+b") as file:
                    file.truncate(28 + 4 * total)

    def not_finite(rng: random.Random) -> None:
        at = 28 + 4 * rng.randrange((len(whole) - 28) // 4)
        number = struct.pack("<f", rng.choice(NO_NUMBERS))
        path.write_bytes(whole[:at] + number + whole[at + 4 :])

    return Opened([path, words], lambda: load_model(path), forged, not_finite)


def hugging_face(folder: Path) -> Opened:
    from tests.adapters.hf_models import make_model, make_tokenizer

    make_model("gpt2").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    weights = folder / "model.safetensors"
    names = ("config.json", "tokenizer_config.json", "tokenizer.json")
    files = [folder / name for name in names]
    from safetensors.torch import load_file, save_file

    state = load_file(weights)

    def not_finite(rng: random.Random) -> None:
        save_file(spoiled_tensors(state, rng), weights, {"format": "pt"})

    ways = [{"forge": json_file(path)["forge"]} for path in files]
    return Opened(
        [*files, weights],
        lambda: load_model(folder),
        **either(*ways, {"not_finite": not_finite}),
        errors=(ValueError, OSError),
    )


# Everything else


def sweep(folder: Path) -> Opened:
    """Files of trainings: a cross-validation and a refit, read with all others."""
    from tests.lab.paper.sweeps import Trainer, run_with, sweep_in

    whole = sweep_in(folder)
    list(run_with(Trainer(), whole, 2))
    refit = whole.store.path(whole.refitted(whole.plan.names[0])[0])
    crossed = whole.store.path(whole.cross_validation(whole.plan.names[0])[0])
    of_refit, header, tensors = artifact(refit), *split_artifact(refit)
    of_refit["not_finite"] = lambda rng: join_artifact(refit, _scored(header, rng), tensors)
    ways = either(of_refit, json_file(crossed, lambda x: rehashed(x, {})))

    def read() -> None:
        found = sweep_in(folder)
        if rows_of(found) and len(found.measured) == len(whole.measured):
            return
        raise StoreError("what is left of the sweep is made again")

    return Opened([refit, crossed], read, **ways)


def _scored(header: Any, rng: random.Random) -> Any:
    return header | {"meta": spoiled(json.loads(json.dumps(header["meta"])), rng)}


def language_report(folder: Path) -> Opened:
    name = "gpt2-1x32-chars"
    with language_folder.staged(folder, name) as place:
        (place / language_folder.WEIGHTS).write_bytes(b"weights")
        language_folder.keep_model(place, folder, LEARNED | {"model": name})
    path = folder / name / language_folder.REPORT

    def read() -> None:
        language_sources(folder)
        found = language_folder.finished(folder, name)
        if found is None:
            raise StoreError("the model is made again")
        markdown([found], "")

    return Opened([path], read, **json_file(path))


def settings(folder: Path) -> Opened:
    path = folder / "train.toml"
    path.write_text(to_toml(TrainConfig()))
    lines = path.read_text().splitlines()
    values = [
        *(json.dumps(value) for value in WRONG if value is not None),
        "2020-01-01", "'''", "[" * 60_000, nested(900), "{a = {a = 1}}", "1.1.1.1",
        "9" * 9_000, "0x" + "f" * 9_000, '"\\ud800"',
    ]  # fmt: skip
    numbers = [n for n, line in enumerate(lines) if "." in line and line[-1].isdigit()]

    def changed(place: int, name: str, value: str) -> None:
        path.write_text("\n".join([*lines[:place], f"{name} = {value}", *lines[place + 1 :]]))

    def forged(rng: random.Random) -> None:
        place = rng.randrange(len(lines))
        own = lines[place].split(" ")[0]
        name = rng.choice([own, "a" + ".a" * 9_000, "[a]", "x"])
        changed(place, name, rng.choice(values))

    def not_finite(rng: random.Random) -> None:
        place = rng.choice(numbers)
        changed(place, lines[place].split(" ")[0], rng.choice(["nan", "inf", "-inf"]))

    read = lambda: load_config(TrainConfig, path)  # noqa: E731
    return Opened([path], read, forged, not_finite, (ValueError,))


def artifact_json(folder: Path) -> Opened:
    path = folder / "thing.json"
    about: dict[str, Any] = {"config": {"fold": 1}, "meta": {"history": {"1": {"a": 0.5}}}}
    save_artifact(path, kind="thing", seed=0, **about)
    ways = json_file(path, lambda x: rehashed(x, {}))
    return Opened([path], lambda: load_artifact(path, "thing"), **ways)


def certificate(folder: Path) -> Opened:
    path, result = folder / "certificate.json", make_result()
    certified(result.circuit(), core=result.circuit(edges=2), rivals=(result.circuit(),)).save(path)

    def read() -> object:
        found = Certificate.load(path)
        return found.record(), found.table(), certificate_page(found)

    return Opened([path], read, **json_file(path, lambda x: rehashed(x, {})))


def pairs_jsonl(folder: Path) -> Opened:
    path, tokens = folder / "pairs.jsonl", torch.tensor([[0, 2, 3], [0, 3, 2]])
    Pairs(
        clean=tokens,
        corrupted=tokens.flip(0),
        scored=torch.tensor([[False, True, True]] * 2),
        loss_name="kl",
        targets=torch.tensor([[[0.5, 0.5]] * 3] * 2),
    ).save(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def written(change: Callable[[Any, random.Random], Any], rng: random.Random) -> None:
        own = rng.randrange(len(rows))
        changed = [json.loads(json.dumps(row)) for row in rows]
        changed[own] = change(changed[own], rng)
        path.write_text("\n".join(map(json.dumps, changed)))

    def read() -> None:
        Pairs.load(path, pad=0)
        Pairs.load(path, tokenizer=Codec(("0", "2", "3")), pad=0)

    return Opened(
        [path],
        read,
        lambda rng: written(forge, rng),
        lambda rng: written(spoiled, rng),
    )


def pairs_csv(folder: Path) -> Opened:
    path = folder / "pairs.csv"
    path.write_text("clean,corrupted,correct_idx,scored,loss\n0 2 3,0 3 2,1,-1,cross-entropy\n")
    cells = [line.split(",") for line in path.read_text().splitlines()]

    def forged(rng: random.Random) -> None:
        changed = [list(row) for row in cells]
        row = rng.choice(changed)
        others = [str(value) for value in WRONG if not isinstance(value, int) or value < 10**99]
        other = rng.choice([*others, "1 2 3", "clean", "1e9", "9" * 30])
        row[rng.randrange(len(row))] = other.replace(",", rng.choice([",", " "]))
        path.write_text("\n".join(map(",".join, changed)))

    return Opened([path], lambda: Pairs.load(path, pad=0), forged)


FORMATS: dict[str, Callable[[Path], Opened]] = {
    "result, JSON": result_json,
    "result of EAP-IG, JSON": result_of_eap_ig,
    "result, safetensors": result_safetensors,
    "result of EAP-IG, .pt": result_pt,
    "subject": subject,
    "predictor": predictor("invariant"),
    "predictor of the paper": predictor("tabpfn"),
    "corpus": corpus,
    "InterpBench folder": interpbench_folder,
    "GGUF": gguf,
    "llama2.c": llama2c,
    "Hugging Face folder": hugging_face,
    "sweep folder": sweep,
    "language model's report": language_report,
    "artifact, JSON": artifact_json,
    "certificate": certificate,
    "settings, TOML": settings,
    "pairs, JSONL": pairs_jsonl,
    "pairs, CSV": pairs_csv,
}
