"""Symbols to ids and logits to symbols."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.subject.codec import BOS, PAD, Codec

SYMBOLS = st.lists(st.one_of(st.text(max_size=3), st.integers(2, 99)), min_size=1, unique=True)


@given(SYMBOLS, st.data())
def test_ids_are_bos_then_the_place_in_the_vocabulary(
    vocab: list[object], data: st.DataObject
) -> None:
    codec = Codec(tuple(vocab))
    sequence = data.draw(st.lists(st.sampled_from(vocab), min_size=1, max_size=8))
    ids = codec.encode(sequence)
    assert ids.dtype == torch.int64
    assert ids[0] == BOS == 0
    assert [vocab[index - 2] for index in ids[1:].tolist()] == sequence
    assert PAD == 1
    assert codec.d_vocab == len(vocab) + 2


@given(SYMBOLS, st.data())
def test_decoding_takes_the_largest_logit_after_bos(
    outputs: list[object], data: st.DataObject
) -> None:
    codec = Codec(("a",), tuple(outputs))
    classes = data.draw(st.lists(st.integers(0, len(outputs) - 1), min_size=2, max_size=8))
    logits = torch.nn.functional.one_hot(torch.tensor(classes), len(outputs)).double()
    assert codec.decode(logits) == [outputs[index] for index in classes[1:]]


def test_a_numerical_output_is_the_number() -> None:
    codec = Codec(("a", "b"), None)
    assert codec.d_vocab_out == 1
    assert codec.decode(torch.tensor([[9.0], [0.5], [-2.0]])) == [0.5, -2.0]


def test_errors_say_what_to_do() -> None:
    codec = Codec(("a", "b"), (1, 2))
    with pytest.raises(ValueError, match="empty; give at least one symbol"):
        codec.encode([])
    with pytest.raises(ValueError, match=r"not in the vocabulary: 'c', 'd'; .* 'a', 'b'"):
        codec.encode(["a", "d", "c"])
    with pytest.raises(ValueError, match=r"has 3 symbols; with BOS at most n_ctx - 1 = 2 fit"):
        codec.encode(["a", "b", "a"], n_ctx=3)
    assert len(codec.encode(["a", "b"], n_ctx=3)) == 3
    with pytest.raises(ValueError, match="must have 2 outputs per position, got 3"):
        codec.decode(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="vocab must hold distinct symbols"):
        Codec(("a", "a"))
    with pytest.raises(ValueError, match="outputs must hold distinct symbols, at least one"):
        Codec(("a",), ())


def test_a_task_stands_in_the_place_of_bos() -> None:
    codec = Codec(("a", "b"), (1, 2), ("copy", "count"))
    assert codec.d_vocab == 6
    assert codec.encode(["b", "a"], task="copy").tolist() == [4, 3, 2]
    assert codec.encode(["b", "a"], 3, "count").tolist() == [5, 3, 2]
    assert Codec(("a", "b")).first() == BOS


def test_a_task_must_be_one_that_there_is() -> None:
    codec = Codec(("a", "b"), (1, 2), ("copy", "count"))
    for task in (None, "sort"):
        with pytest.raises(ValueError, match=f"one of the tasks 'copy', 'count'; got {task!r}"):
            codec.encode(["a"], task=task)
    with pytest.raises(ValueError, match="must be given no task, since it has but one; got 'copy'"):
        Codec(("a", "b")).encode(["a"], task="copy")
    with pytest.raises(ValueError, match="tasks must have distinct names"):
        Codec(("a",), None, ("copy", "copy"))
    with pytest.raises(ValueError, match=r"the same name: 'copy'; name the task otherwise\."):
        Codec(("a", "copy"), None, ("copy",))
