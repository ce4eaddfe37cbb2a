"""Tasks found in text: which windows, what is exchanged in them, what is kept, what is written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from graphcircuits.adapters.hf import no_bar
from graphcircuits.adapters.hf_families import load_transformers
from graphcircuits.adapters.load import load_model
from graphcircuits.io.store import StoreError, load_artifact
from graphcircuits.jobs.processes import Processes
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.training.sources import MINED
from lab.factory import mining
from lab.factory.language import folder as folders
from lab.factory.language.designs import Design
from lab.factory.language.text import SourceText
from lab.factory.language.tokens import make_tokenizer
from lab.factory.mining import (
    RULES,
    MinedTask,
    MiningConfig,
    beginning,
    changes,
    exchanged,
    mine,
    mine_models,
    models_in,
    numbered,
    output_change,
    places_in,
    situation,
    surface,
    text_ids,
    text_of,
    windows_of,
)
from tests.adapters.hf_models import jolted
from tests.lab.factory.language.test_report import LEARNED
from tests.predictor.graphs import seeded
from tests.subjects import SOME, make_subject, make_tokens
from tests.text import byte_level, with_bos, word_level, wrapped

FORMS = ("{0}", "{0}", "{1}", "{2}", "({0})", "[{2}]", "'{0}'", "{0} +\n")
"""Of a word, the same with a capital, and a number."""
CONFIG = MiningConfig(windows=3000, change=0.004, pairs=6, most=80, length=14)
WINDOWS = ("clean", "corrupted")
NAMES = ("gpt2-1x32-chars", "llama-1x32-chars")


def prose(words: int = 900, seed: int = 0) -> str:
    """A text in which no window comes twice."""
    random = Random(seed)
    drawn = ["".join(random.choices("aeioubdgklmnprst", k=4)) for _ in range(words)]
    return " ".join(
        random.choice(FORMS).format(word, word.title(), random.randrange(10**4)) for word in drawn
    )


TEXT = SourceText((prose(), prose(seed=1)), (), "ab12", {})


def speaking(*, bos: bool = False, n_ctx: int = 16) -> Transformer:
    """A random subject like GPT-2 with a tokenizer that has a token for each character."""
    tokenizer = byte_level(words=False)
    tokenizer = wrapped(with_bos(tokenizer) if bos else tokenizer)
    size = len(tokenizer)
    subject = make_subject("gpt-2", n_layers=1, n_ctx=n_ctx, d_vocab=size, d_vocab_out=size)
    return replace(subject, tokenizer=tokenizer)


def write_models(root: Path, *names: str) -> Path:
    """A folder as `python -m lab.factory language` leaves it, with models that learned nothing."""
    for name in names:
        design, tokenizer = Design.parse(name), make_tokenizer("chars", [prose()])
        torch.manual_seed(0)
        model = jolted(design.model(len(tokenizer), tokenizer.eos_token_id))
        root.mkdir(exist_ok=True)
        with folders.staged(root, name) as place, no_bar(load_transformers()):
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)
            folders.keep_model(place, root, {**LEARNED, "model": name})
    return root


def slow_change(subject: Transformer, clean: Tensor, corrupted: Tensor) -> Tensor:
    """What `output_change` computes, from all logits."""
    ours, others = (Categorical(logits=subject.logits(x)[:, -1]) for x in (clean, corrupted))
    return kl_divergence(ours, others)


# Windows


@given(st.integers(4, 12), st.integers(1, 60), st.integers(0, 2**32))
def test_windows_are_from_different_places(length: int, n: int, seed: int) -> None:
    ids = torch.arange(40)
    found = windows_of(ids, n, length, seeded(seed))
    assert found.shape == (min(n, 40 - length), length)
    assert torch.equal(found - found[:, :1], torch.arange(length).expand(found.shape))
    starts = found[:, 0].tolist()
    assert len(set(starts)) == len(starts)
    assert torch.equal(found, windows_of(ids, n, length, seeded(seed)))


@pytest.mark.parametrize(("tokens", "length"), [(40, 3), (8, 8), (0, 8)])
def test_what_has_no_windows(tokens: int, length: int) -> None:
    error = (
        f"^windows must have at least 4 tokens and the text more than that, got windows of {length}"
        rf" and a text of {tokens} tokens\.$"
    )
    with pytest.raises(ValueError, match=error):
        windows_of(torch.arange(tokens), 5, length, seeded(0))


@given(st.integers(4, 70), st.integers(0, 2**32))
def test_neither_the_first_nor_the_last_token_is_exchanged(length: int, seed: int) -> None:
    places = places_in(50, length, seeded(seed))
    assert all(1 <= place <= length - 2 for place in places.tolist())


def test_distances_double_equally_often() -> None:
    distance = 33 - places_in(40_000, 33, seeded(0))
    counts = torch.bincount(distance.log2().floor().long(), minlength=5).tolist()
    assert counts == [0, *4 * [pytest.approx(10_000, rel=0.05)]]


@given(st.lists(st.integers(0, 6), min_size=10, max_size=60), st.integers(0, 2**32))
def test_a_token_is_exchanged_by_its_rule(text: list[int], seed: int) -> None:
    ids, generator = torch.tensor(text), seeded(seed)
    clean = windows_of(ids, 30, 6, generator)
    places = places_in(len(clean), 6, generator)
    rules = torch.randint(3, (len(clean),), generator=generator)
    before = clean.clone()
    corrupted = exchanged(clean, places, rules, ids, generator)
    assert torch.equal(clean, before)
    elsewhere = torch.arange(6) != places[:, None]
    assert torch.equal(corrupted[elsewhere], clean[elsewhere])
    neighbours = set(pairwise(text))
    for window, new, place, rule in zip(
        clean.tolist(), corrupted.tolist(), places.tolist(), rules.tolist(), strict=True
    ):
        match RULES[rule]:
            case "same":
                assert (window[place - 1], new[place]) in neighbours
            case "inside":
                assert new[place] in window
            case "any":
                assert new[place] in text


def test_what_followed_more_often_is_taken_more_often() -> None:
    ids = torch.tensor([5, 1, 2, 1, 2, 1, 3, 1, 4, 0])
    clean = torch.tensor([5, 1, 2, 1]).expand(8000, -1)
    two, same = torch.full((8000,), 2), torch.zeros(8000, dtype=torch.long)
    counts = Counter(exchanged(clean, two, same, ids, seeded(0))[:, 2].tolist())
    assert counts.keys() == {2, 3, 4}
    assert [counts[x] for x in (2, 3, 4)] == pytest.approx([4000, 2000, 2000], rel=0.1)


# Changes of the output


@pytest.mark.parametrize("architecture", SOME)
def test_the_change_is_the_divergence_of_next_tokens(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tied unembeddings are sure of the last token: nothing would change.
    subject = make_subject(architecture, logit_scale=0.1)
    clean = make_tokens(subject, batch=7)
    corrupted = clean.clone()
    corrupted[1:, 3] = (clean[1:, 3] + 1) % subject.config.d_vocab
    slow = slow_change(subject, clean, corrupted).float()
    assert float(slow.max()) > 5e-5
    assert torch.allclose(output_change(subject, clean, corrupted), slow, atol=1e-6)
    found = changes(subject, clean, corrupted)
    assert float(found[0]) == 0
    assert torch.allclose(found, slow, atol=1e-6)
    monkeypatch.setattr(mining, "MOST_NUMBERS", 1)
    assert mining.at_once(subject.config, 5) == 1
    assert torch.allclose(changes(subject, clean, corrupted), slow, atol=1e-6)


def test_where_nothing_is_exchanged_nothing_changes() -> None:
    subject = make_subject()
    clean = make_tokens(subject)
    assert changes(subject, clean, clean).tolist() == [0, 0, 0]


# Tasks


def kind_of(window: list[int], place: int, rule: str) -> str:
    """The kind of a pair, by another way than that of the code."""
    token, distance = window[place], len(window) - place
    near = "2" if distance == 2 else "4" if distance <= 4 else "8" if distance <= 8 else "far"
    again = "again" if token in window[:place] + window[place + 1 :] else "once"
    return f"{surface(TOKENIZER.decode([token]))}-{again}-{near}-{rule}"


TOKENIZER = wrapped(byte_level(words=False))


@pytest.mark.parametrize("bos", [False, True])
def test_a_pair_is_one_exchange_that_changes_the_output(bos: bool) -> None:
    subject = speaking(bos=bos)
    ids = text_ids([prose()], subject.tokenizer)
    tasks = mine(subject, ids, CONFIG, seeded(0))
    length, text = CONFIG.length - bos, ids.tolist()
    starts = {tuple(text[n : n + length]): n for n in range(len(text) - length)}
    assert len(starts) == len(text) - length
    neighbours, taken = set(pairwise(text)), []
    assert len({task.kind for task in tasks}) == len(tasks) > 20
    assert any(task.kind.endswith(".2") for task in tasks)
    for task in tasks:
        assert task.clean.shape == task.corrupted.shape == (CONFIG.pairs, CONFIG.length)
        slow = slow_change(subject, task.clean, task.corrupted)
        assert float(slow.min()) >= CONFIG.change - 1e-5
        kind = task.kind.partition(".")[0]
        for clean, corrupted in zip(task.clean.tolist(), task.corrupted.tolist(), strict=True):
            assert clean[:bos] == corrupted[:bos] == [1][:bos]
            window, other = clean[bos:], corrupted[bos:]
            (place,) = [n for n in range(length) if window[n] != other[n]]
            assert 0 < place < length - 1
            taken.append(starts[tuple(window)])
            rule = kind.rpartition("-")[2]
            assert kind == kind_of(window, place, rule)
            assert rule != "same" or (window[place - 1], other[place]) in neighbours
            assert rule != "inside" or other[place] in window
            assert other[place] in text
    assert len(set(taken)) == len(taken)


def same_tasks(a: Sequence[MinedTask], b: Sequence[MinedTask]) -> bool:
    return [x.kind for x in a] == [x.kind for x in b] and all(
        torch.equal(x.clean, y.clean) and torch.equal(x.corrupted, y.corrupted)
        for x, y in zip(a, b, strict=True)
    )


def test_the_same_seed_gives_the_same_tasks() -> None:
    subject = speaking()
    ids = text_ids([prose()], subject.tokenizer)
    before = torch.get_rng_state()
    one, again, other = (mine(subject, ids, CONFIG, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert same_tasks(one, again)
    assert not same_tasks(one, other)
    assert same_tasks(one[:3], mine(subject, ids, replace(CONFIG, most=3), seeded(0)))
    assert mine(subject, ids, replace(CONFIG, change=1e6), seeded(0)) == []


def test_all_that_change_the_output_are_kept_and_no_others() -> None:
    subject = speaking()
    ids = text_ids([prose()], subject.tokenizer)

    def found(change: float, least: float) -> set[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Every pair by itself, of those that are kept those that change the output so much."""
        every = replace(CONFIG, change=change, pairs=1, most=10**6)
        tasks = mine(subject, ids, every, seeded(0))
        clean, corrupted = (torch.cat([getattr(x, y) for x in tasks]) for y in WINDOWS)
        rows = (changes(subject, clean, corrupted) >= least).nonzero().flatten().tolist()
        kinds = [task.kind.partition(".")[0] for task in tasks]
        return {(kinds[x], tuple(clean[x].tolist()), tuple(corrupted[x].tolist())) for x in rows}

    large = found(0.05, 0.05)
    assert len(large) > 100
    assert large == found(CONFIG.change, 0.05)


def test_windows_fit_the_context() -> None:
    subject = speaking(bos=True, n_ctx=9)
    ids = text_ids([prose()], subject.tokenizer)
    tasks = mine(subject, ids, replace(CONFIG, windows=500), seeded(0))
    assert tasks[0].clean.shape[1] == 9
    with pytest.raises(ValueError, match="got windows of 3 and a text of "):
        mine(speaking(bos=True, n_ctx=4), ids, CONFIG, seeded(0))


# Kinds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "space"),
        ("\n    ", "space"),
        (" 42", "number"),
        ("Ada", "name"),
        (" Ada", "name"),
        (" the", "word"),
        ("\nthe", "word"),
        ("ing", "piece"),
        ("(", "bracket"),
        (" ]", "bracket"),
        ("'):", "bracket"),
        (' "', "quote"),
        ("n't", "quote"),
        ("`", "quote"),
        (" +", "sign"),
        ("a1", "sign"),
        ("\ufffd", "sign"),
    ],
)
def test_what_a_token_looks_like(text: str, expected: str) -> None:
    assert surface(text) == expected


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (10, "once-2"),
        (9, "once-4"),
        (8, "again-4"),
        (7, "once-8"),
        (4, "once-8"),
        (3, "again-far"),
        (1, "once-far"),
    ],
)
def test_where_a_token_stands(place: int, expected: str) -> None:
    assert situation(torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 3, 9, 10, 11]), place) == expected


def test_large_kinds_come_first_and_are_numbered() -> None:
    kinds = {"a": range(5), "b": range(10, 17), "c": range(20, 21), "d": range(30, 35)}
    assert numbered(kinds, 2, 10) == {
        "b": range(10, 12),
        "a": range(2),
        "d": range(30, 32),
        "b.2": range(12, 14),
        "a.2": range(2, 4),
        "d.2": range(32, 34),
        "b.3": range(14, 16),
    }
    assert list(numbered(kinds, 2, 4)) == ["b", "a", "d", "b.2"]
    assert numbered({}, 2, 4) == {}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20)),
    st.integers(1, 6),
    st.integers(1, 12),
)
def test_no_row_is_in_two_tasks(sizes: dict[str, int], pairs: int, most: int) -> None:
    kinds = {kind: [(kind, n) for n in range(size)] for kind, size in sizes.items()}
    ids = {row: n for n, row in enumerate(row for rows in kinds.values() for row in rows)}
    tasks = numbered({kind: [ids[x] for x in rows] for kind, rows in kinds.items()}, pairs, most)
    whole = sum(size // pairs for size in sizes.values())
    assert len(tasks) == min(most, whole)
    assert {len(rows) for rows in tasks.values()} <= {pairs}
    taken = [row for rows in tasks.values() for row in rows]
    assert len(set(taken)) == len(taken)
    names = {n: kind for (kind, _), n in ids.items()}
    assert all(names[n] == name[0] for name, rows in tasks.items() for n in rows)


# Text in tokens


def test_text_in_tokens_begins_and_ends_with_nothing_of_its_own() -> None:
    for bos in (False, True):
        tokenizer = speaking(bos=bos).tokenizer
        assert beginning(tokenizer) == [1][:bos]
        ids = text_ids(["Ada keeps", " shelves."], tokenizer)
        assert tokenizer.decode(ids) == "Ada keeps shelves."
        assert "".join(text_of(x, tokenizer) for x in ids.tolist()) == "Ada keeps shelves."
        assert text_ids([], tokenizer).dtype == ids.dtype == torch.long


def test_the_space_before_a_token_is_part_of_it() -> None:
    """Of those as well that are written without it where a text begins."""
    tokenizer = word_level({"<unk>": 0, "not": 1, "to": 2})
    assert tokenizer.decode([1]) == "not"
    assert text_of(1, tokenizer) == " not"
    assert beginning(tokenizer) == []


# Files


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("made") / "lm", *NAMES)


def test_models_are_found_by_name(language: Path, tmp_path: Path) -> None:
    (tmp_path / "own.gguf").touch()
    found = models_in([language], [tmp_path / "own.gguf"])
    assert found == {name: language / name for name in NAMES} | {"own": tmp_path / "own.gguf"}
    (tmp_path / f"{NAMES[0]}.gguf").touch()
    with pytest.raises(ValueError, match=f"must have different names, got {NAMES[0]} twice"):
        models_in([language], [tmp_path / f"{NAMES[0]}.gguf"])
    error = rf"no language models in {tmp_path}, {tmp_path}/no\.gguf: expected folders that `pyth"
    with pytest.raises(FileNotFoundError, match=error):
        models_in([tmp_path, language], [tmp_path / "no.gguf"])


def mined(
    folder: Path, models: dict[str, Path], config: MiningConfig = CONFIG, **options: Any
) -> dict[str, dict[str, int]]:
    return dict(mine_models(folder, models, TEXT, config, **options))


def test_a_file_says_what_it_is_made_of(language: Path, tmp_path: Path) -> None:
    models = models_in([language], [])
    found = mined(tmp_path / "new" / "mined", models)
    assert list(found) == list(NAMES)
    for name, kinds in found.items():
        path = tmp_path / "new" / "mined" / f"{name}.safetensors"
        artifact = load_artifact(path, MINED)
        assert artifact.config == {**asdict(CONFIG), "text": "ab12"}
        sha256 = folders._sha256(language / name / folders.WEIGHTS)
        assert artifact.meta == {"model": str(language / name), "sha256": sha256, "kinds": kinds}
        assert set(kinds.values()) == {CONFIG.pairs}
        assert len(kinds) > 5
        tensors = {f"{kind}.{x}" for kind in kinds for x in WINDOWS}
        assert artifact.tensors.keys() == tensors
        # What the tokenizer makes of both documents, and of nothing else.
        tokenizer = load_model(language / name).tokenizer
        for tensor in artifact.tensors.values():
            assert tensor.shape == (CONFIG.pairs, CONFIG.length)
        clean = {
            tokenizer.decode(row) for kind in kinds for row in artifact.tensors[f"{kind}.clean"]
        }
        assert all(window in "".join(TEXT.train) for window in clean)
    # A model draws windows of its own, whatever others are mined before it.
    mined(tmp_path / "alone", {NAMES[1]: models[NAMES[1]]})
    one, other, alone = (
        (tmp_path / place / f"{name}.safetensors").read_bytes()
        for place, name in (
            ("new/mined", NAMES[0]),
            ("new/mined", NAMES[1]),
            ("alone", NAMES[1]),
        )
    )
    assert one != other == alone


def test_what_is_there_is_kept(
    language: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = models_in([language], [])
    last = mined(tmp_path, {NAMES[1]: models[NAMES[1]]})
    path = tmp_path / f"{NAMES[1]}.safetensors"
    written = path.stat().st_mtime_ns
    # What is there comes first.
    both = mined(tmp_path, models)
    assert list(both) == [NAMES[1], NAMES[0]]
    assert both[NAMES[1]] == last[NAMES[1]]
    assert path.stat().st_mtime_ns == written
    monkeypatch.setattr(mining, "load_model", None)
    assert mined(tmp_path, models) == both


def test_a_file_of_other_settings_is_refused(language: Path, tmp_path: Path) -> None:
    models = models_in([language], [])
    models.pop(NAMES[1])
    mined(tmp_path, models)
    path = tmp_path / f"{NAMES[0]}.safetensors"
    before = path.read_bytes()
    error = (
        rf"^{path} was mined with change 0\.004, not 0\.5; seed 0, not 3: give the same, or name "
        r"another folder\.$"
    )
    with pytest.raises(ValueError, match=error):
        mined(tmp_path, models, replace(CONFIG, change=0.5, seed=3))
    with pytest.raises(ValueError, match="was mined with text ab12, not cd34: give the same, or"):
        list(mine_models(tmp_path, models, replace(TEXT, sha256="cd34"), CONFIG))
    assert path.read_bytes() == before
    path.write_bytes(before[:-1])
    with pytest.raises(StoreError, match="is not a whole safetensors file"):
        mined(tmp_path, models)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    """The same command goes on with what is there, but not with the tasks of other weights."""
    one, other = (write_models(tmp_path / x, NAMES[0]) for x in ("one", "other"))
    mined(tmp_path / "mined", models_in([one], []))
    place = other / NAMES[0]
    weights = place / folders.WEIGHTS
    weights.write_bytes(weights.read_bytes() + b" ")
    with folders.staged(other, "staged") as staged:
        for path in place.iterdir():
            path.rename(staged / path.name)
        folders.keep_model(staged, other, {**LEARNED, "model": NAMES[0]})
    error = f"was mined with other weights than those of {place}: give the same, or name another"
    with pytest.raises(ValueError, match=error):
        mined(tmp_path / "mined", models_in([other], []))


def test_a_model_in_which_nothing_is_found(language: Path, tmp_path: Path) -> None:
    models = models_in([language], [])
    found = mined(tmp_path, models, replace(CONFIG, change=1e6))
    assert found == {name: {} for name in NAMES}
    assert mined(tmp_path, models, replace(CONFIG, change=1e6)) == found


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_transformer(path, make_subject())
    with pytest.raises(
        ValueError, match=rf"^{path} has no tokenizer, which text needs: give a mod"
    ):
        mined(tmp_path / "mined", models_in([], [path]))
    assert not (tmp_path / "mined").exists()


@pytest.mark.slow
def test_processes_mine_the_same(language: Path, tmp_path: Path) -> None:
    models = models_in([language], [])
    one, two = (tmp_path / x for x in ("one", "two"))
    assert mined(one, models) == mined(two, models, runner=Processes(2))
    for name in NAMES:
        file = f"{name}.safetensors"
        assert (one / file).read_bytes() == (two / file).read_bytes()
