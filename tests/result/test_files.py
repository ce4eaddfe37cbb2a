"""Results in JSON: EAP-IG picks our edges, our numbers survive, edits are noticed."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphcircuits import load_case
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError, save_artifact
from graphcircuits.methods import localize
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.files import ABOUT, signless
from graphcircuits.result.result import Result
from tests.damage import limits, nested, rehashed_result

GRAPH = ComponentGraph(2, 4)


def logits(seed: int = 0) -> Tensor:
    """Scores such as a predictor's: mostly far below zero, a few above."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(GRAPH.n_edges, generator=generator) - 5


def top_n(path: Path, n: int, *, absolute: bool) -> set[str]:
    """What EAP-IG's `apply_topn` picks, before pruning: float32, and absolute unless told not."""
    edges = json.loads(path.read_text())["edges"]
    scores = torch.tensor([info["score"] for info in edges.values()], dtype=torch.float32)
    order = (scores.abs() if absolute else scores).argsort(descending=True, stable=True)
    names = list(edges)
    return {names[place] for place in order[:n].tolist()}


# One order whether or not signs are dropped


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_eap_ig_picks_our_edges(tmp_path: Path, dtype: torch.dtype) -> None:
    result = Result(graph=GRAPH, scores=logits().to(dtype))
    assert (result.scores < 0).sum() > 90
    path = tmp_path / "result.json"
    result.save(path)
    for n in (1, 5, 40, 110):
        # Ties at the cut may go either way in a file whose order is that of names.
        cut = result.scores.sort(descending=True).values[n - 1]
        if (result.scores == cut).sum() == 1:
            expected = set(result.circuit(edges=n))
            assert top_n(path, n, absolute=True) == top_n(path, n, absolute=False) == expected
    loaded = Result.load(path)
    assert loaded.scores.dtype == dtype
    assert torch.equal(loaded.scores, result.scores)


@pytest.mark.usefixtures("uninformed")
def test_the_true_edges_of_a_case(tmp_path: Path) -> None:
    case = load_case("ib-3")
    result = localize(case.subject(), case.pairs(50), method="gcl")
    path = tmp_path / "ib-3.json"
    result.save(path)
    truth = set(case.circuit)
    assert len(truth) == 5
    for absolute in (True, False):
        assert top_n(path, 5, absolute=absolute) == truth


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite | st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1e308, -1e308]), min_size=1))
def test_signless_numbers_rank_like_the_scores(values: list[float]) -> None:
    scores = torch.tensor(values, dtype=torch.float64)
    ranked = signless(scores)
    assert (ranked >= 0).all()
    assert torch.equal(ranked[:, None] < ranked, scores[:, None] < scores)
    if min(values) >= 0:
        assert torch.equal(ranked, scores)
    else:
        # Also after rounding to what EAP-IG computes in.
        assert torch.equal(ranked.float()[:, None] < ranked.float(), scores[:, None] < scores)


def test_scores_from_zero_are_written_as_they_are(tmp_path: Path) -> None:
    scores = logits().abs()
    Result(graph=GRAPH, scores=scores).save(tmp_path / "result.json")
    edges = json.loads((tmp_path / "result.json").read_text())["edges"]
    assert [edges[name]["score"] for name in GRAPH.edge_names] == scores.tolist()


def test_every_bit_of_a_score_comes_back(tmp_path: Path) -> None:
    scores = logits().double()
    scores[:4] = torch.tensor([-0.0, 5e-324, -1.7976931348623157e308, 1 / 3], dtype=torch.float64)
    Result(graph=GRAPH, scores=scores).save(tmp_path / "result.json")
    loaded = Result.load(tmp_path / "result.json").scores
    assert torch.equal(loaded.view(torch.int64), scores.view(torch.int64))


# The hash


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    result = Result(graph=GRAPH, scores=logits(), method="gcl", seconds=0.25, d_model=12)
    result.save(path, circuit=result.circuit(edges=5))
    return path


def test_every_changed_digit_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path)
    text = path.read_text()
    digits = [place for place, c in enumerate(text) if c.isdigit()]
    for place in digits[::60]:
        edited = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        path.write_text(edited)
        if json.loads(edited) == json.loads(text):
            # The seventeenth digit of a number need not change it.
            assert Result.load(path).scores.tolist() == logits().tolist()
        else:
            with pytest.raises(StoreError):
                Result.load(path)


def test_an_edited_file_says_how_to_use_it(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = json.loads(path.read_text())
    content["edges"]["m0->logits"]["score"] += 1
    path.write_text(json.dumps(content))
    message = "has changed since it was written: .*restore it, or, to read what EAP-IG would read"
    with pytest.raises(StoreError, match=message) as caught:
        Result.load(path)
    assert str(caught.value).endswith("delete that block.")
    block = content.pop("graphcircuits")
    path.write_text(json.dumps(content))
    assert dict(Result.load(path).top(110))["m0->logits"] == content["edges"]["m0->logits"]["score"]
    assert block["sha256"]


def test_layout_of_the_file_is_free(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = Result.load(path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True))
    assert Result.load(path) == before


# Files that lie


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [1.0]}, "scores must be one number for each of 110 edges, got shape"),
        ({"scores": ["x"] * 110}, "the scores in its 'graphcircuits' block must be numbers"),
        ({"scores": [True] * 110}, "the scores in its 'graphcircuits' block must be numbers"),
        ({"scores": [10**400] * 110}, "int too large to convert to float"),
        ({"scores": 1}, "'scores' must be list, got 1"),
        ({"options": None}, "'options' must be dict, got None"),
        ({"seed": 0.5}, "'seed' must be int or NoneType, got 0.5"),
        ({"n_kv_heads": "4"}, "'n_kv_heads' must be int, got '4'"),
        ({"sha256": 3}, "'sha256' must be str, got 3"),
    ],
)
def test_forged_blocks(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = saved(tmp_path)
    content = json.loads(path.read_text())
    content["graphcircuits"] |= changes
    if "sha256" not in changes:
        content = rehashed_result(content)
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=rf"result\.json.*{message}"):
        Result.load(path)


def test_sizes_beyond_the_edges_are_refused_unbuilt(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    edges = {f"a{n}": {"score": 1.0} for n in range(2000)}
    for cfg in ({"n_layers": 10**5, "n_heads": 1}, {"n_layers": 2, "n_heads": 10**12}):
        path.write_text(json.dumps({"cfg": cfg, "nodes": {}, "edges": edges}))
        with (
            limits(),
            pytest.raises(StoreError, match=r"too few edges for .* heads: 2000\."),
        ):
            Result.load(path)


def test_deep_and_endless_files(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text(nested(100_000))
    with pytest.raises(StoreError, match="nested deeper than 100 levels"):
        Result.load(path)
    os.mkfifo(tmp_path / "pipe.json")
    with limits(), pytest.raises(StoreError, match="expected a regular file"):
        Result.load(tmp_path / "pipe.json")


# The curve, and graphs whose heads share keys


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_curve_is_kept_beside_the_scores(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"result{suffix}"
    curve = FaithfulnessCurve(
        n_edges=GRAPH.n_edges, sizes=[0, 7], faithfulness=[0.0, 0.75], n_pairs=3, by="loss"
    )
    result = Result(graph=GRAPH, scores=logits(), curve=curve)
    result.save(path)
    assert Result.load(path) == result
    assert Result.load(path).curve == curve
    assert result != Result(graph=GRAPH, scores=logits())
    other = FaithfulnessCurve(n_edges=111, sizes=(111,), faithfulness=(1.0,), n_pairs=1)
    with pytest.raises(ValueError, match="of a graph of 111 edges, the scores of one of 110"):
        Result(graph=GRAPH, scores=logits(), curve=other)


def test_curves_of_files_from_before_are_by_loss(tmp_path: Path) -> None:
    """There was no other measure; another word than ours is refused."""
    path = tmp_path / "result.json"
    curve = FaithfulnessCurve(n_edges=110, sizes=[7], faithfulness=[0.75], n_pairs=3)
    Result(graph=GRAPH, scores=logits(), curve=curve).save(path)
    saved = json.loads(path.read_text())
    block = saved["graphcircuits"]
    assert block["curve"].pop("by") == "output"
    path.write_text(json.dumps(rehashed_result(saved)))
    assert Result.load(path).curve == replace(curve, by="loss")
    block["curve"]["by"] = "taste"
    path.write_text(json.dumps(rehashed_result(saved)))
    with pytest.raises(ValueError, match="measured by one of output, loss, got 'taste'"):
        Result.load(path)


def test_a_result_without_a_curve_says_nothing_of_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    Result(graph=GRAPH, scores=logits()).save(path)
    assert "curve" not in json.loads(path.read_text())["graphcircuits"]
    assert Result.load(path).curve is None


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_probabilities_are_kept_beside_the_scores(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"result{suffix}"
    plain = Result(graph=GRAPH, scores=logits())
    result = replace(plain, probabilities=logits().double().sigmoid())
    result.save(path)
    loaded = Result.load(path)
    assert loaded == result != plain
    assert loaded.probabilities is not None
    assert torch.equal(loaded.probabilities, logits().double().sigmoid().float())
    plain.save(path)
    assert Result.load(path).probabilities is None
    assert b"probabilities" not in path.read_bytes()


def test_views_of_probabilities() -> None:
    plain = Result(graph=GRAPH, scores=logits())
    assert plain.top_probabilities() is None
    assert plain.to_csv().splitlines()[0] == "rank,edge,writer,reader,score"
    p = logits().sigmoid()
    result = replace(plain, probabilities=p)
    best = p.sort(descending=True).values
    assert result.top_probabilities(4) == best[:4].tolist()
    first, second = result.to_csv().splitlines()[:2]
    assert first.endswith(",score,probability")
    assert second.endswith(f",{best[0]:.6g}")
    # Where keys are shared the likeliest head counts, as for scores.
    brought = result.on(ComponentGraph(2, 4, n_kv_heads=2))
    assert brought.probabilities is not None
    torch.testing.assert_close(brought.probabilities, brought.scores.float().sigmoid())


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_probability_is_refused(tmp_path: Path) -> None:
    for wrong in (logits()[1:].sigmoid(), logits().sigmoid() + 1, logits() * torch.nan):
        with pytest.raises(ValueError, match=r"one number in 0\.\.1 for each of 110 edges, got"):
            Result(graph=GRAPH, scores=logits(), probabilities=wrong)
    path = tmp_path / "a.json"
    result = Result(graph=GRAPH, scores=logits(), probabilities=logits().sigmoid())
    result.save(path)
    content = json.loads(path.read_text())
    for value in ("much", ["much"], [0.5], [2.0] * 110, [10**400] * 110):
        content["graphcircuits"]["probabilities"] = value
        path.write_text(json.dumps(rehashed_result(content)))
        with pytest.raises(StoreError, match=r"probabilities must be|too large"):
            Result.load(path)
    path = tmp_path / "a.safetensors"
    for tensor in (torch.rand(110).double(), torch.rand(3)):
        tensors = {"scores": logits(), "probabilities": tensor}
        meta = {name: getattr(result, name) for name in ABOUT if name != "seed"}
        save_artifact(
            path,
            kind="result",
            config=GRAPH,
            seed=None,
            tensors=tensors,
            meta=meta | {"d_model": None},
        )
        with pytest.raises(StoreError, match="must be a float32 for each of 110 scores"):
            Result.load(path)


# Signed effects


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_signs_are_kept_beside_the_scores(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"result{suffix}"
    plain = Result(graph=GRAPH, scores=logits().abs())
    result = replace(plain, signed=logits().double())
    result.save(path)
    loaded = Result.load(path)
    assert loaded == result != plain
    assert loaded.signed is not None
    assert torch.equal(loaded.signed, logits())
    plain.save(path)
    assert Result.load(path).signed is None
    assert b"signed" not in path.read_bytes()


def test_mib_ranks_a_signed_file_by_sign_or_by_size(tmp_path: Path) -> None:
    path = tmp_path / "signed.json"
    effects = logits(seed=1) + 5  # about as many above 0 as below
    result = Result(graph=GRAPH, scores=logits().abs(), signed=effects)
    result.save(path, signed=True)
    assert top_n(path, 20, absolute=False) == set(result.by_sign().circuit(edges=20))
    by_size = Result(graph=GRAPH, scores=effects.abs())
    assert top_n(path, 20, absolute=True) == set(by_size.circuit(edges=20))
    assert top_n(path, 20, absolute=True) != top_n(path, 20, absolute=False)
    assert Result.load(path) == result
    result.save(path)
    assert top_n(path, 20, absolute=True) == set(result.circuit(edges=20))
    with pytest.raises(ValueError, match="these scores come without signs; eap, eap-ig"):
        by_size.save(path, signed=True)


def test_views_of_signs() -> None:
    likely, effects = logits().sigmoid(), logits(seed=1)
    result = Result(graph=GRAPH, scores=logits(), signed=effects, probabilities=likely)
    result = replace(result, chosen=result.circuit(edges=3))
    first, second = result.to_csv().splitlines()[:2]
    best = int(logits().argmax())
    assert first.endswith(",score,probability,signed")
    assert second.endswith(f",{likely[best]:.6g},{effects[best]:.6g}")
    by_sign = result.by_sign()
    assert torch.equal(by_sign.scores, effects)
    assert (by_sign.chosen, by_sign.probabilities) == (None, None)
    # To first order an edge into a group does what its heads do together.
    brought = result.on(ComponentGraph(2, 4, n_kv_heads=2))
    assert brought.signed is not None
    heads = GRAPH.edge_indices(["input->a0.h2<k>", "input->a0.h3<k>"])
    group = brought.graph.edge_indices(["input->a0.g1<k>"])
    torch.testing.assert_close(brought.signed[group], effects[heads].sum()[None])
    torch.testing.assert_close(brought.signed.sum(), effects.sum())


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_effect_is_refused(tmp_path: Path) -> None:
    for wrong, reason in ((logits()[1:], "one number for each of 110"), (logits() / 0, "finite")):
        with pytest.raises(ValueError, match=f"signed must be {reason}"):
            Result(graph=GRAPH, scores=logits(), signed=wrong)
    path = tmp_path / "a.json"
    Result(graph=GRAPH, scores=logits(), signed=logits()).save(path)
    content = json.loads(path.read_text())
    for value in ("much", ["much"], [0.5], [10**400] * 110):
        content["graphcircuits"]["signed"] = value
        path.write_text(json.dumps(rehashed_result(content)))
        with pytest.raises(StoreError, match=r"signed must be|too large"):
            Result.load(path)


def test_scores_of_heads_that_share_keys() -> None:
    shared = ComponentGraph(2, 4, n_kv_heads=2)
    result = Result(graph=GRAPH, scores=logits(), method="theirs")
    chosen = result.circuit(edges=30)
    result = replace(result, chosen=chosen)
    brought = result.on(shared)
    assert (brought.graph, brought.method) == (shared, "theirs")
    assert brought.chosen is not None
    scores = dict(zip(GRAPH.edge_names, result.scores.tolist(), strict=True))
    for name, score in zip(shared.edge_names, brought.scores.tolist(), strict=True):
        heads = [name]
        if name.endswith(("<k>", "<v>")):
            # a0.g1<k> is the key of a0.h2 and a0.h3.
            start, group, letter = name[:-4], int(name[-4]), name[-3:]
            heads = [f"{start[:-1]}h{2 * group + n}{letter}" for n in (0, 1)]
        assert score == max(scores[head] for head in heads)
        assert (name in brought.chosen) == any(head in chosen for head in heads)
    assert brought.on(shared) is brought
    with pytest.raises(ValueError, match=r"which cannot be brought to ComponentGraph\(n_layers=3"):
        result.on(ComponentGraph(3, 4))
    with pytest.raises(ValueError, match="cannot be brought"):
        brought.on(GRAPH)
