"""Limits of memory: where they come from, and what is said where it runs out all the same."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.memory import MEMORY_LIMIT, at_once, bytes_for, explained, half
from graphcircuits.engine.resume import single_edge
from graphcircuits.evaluation.evaluate import faithfulness
from graphcircuits.methods.eap import eap
from graphcircuits.subject.transformer import Transformer
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with 3 GiB free, and 2 GiB that PyTorch holds, of which 1 is in use."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2**30)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)


class OnGpu(Transformer):
    """A subject that says it is on a GPU."""

    @property
    def device(self) -> torch.device:
        return GPU


def on_gpu() -> Transformer:
    plain = make_subject()
    return OnGpu(plain.config, plain.weights)


@pytest.mark.usefixtures("gpu")
def test_without_a_limit_it_is_half_of_what_is_free() -> None:
    assert bytes_for(GPU, None) == 2 * 2**30
    assert bytes_for(torch.device("cpu"), None) == MEMORY_LIMIT
    assert bytes_for(GPU, 7) == bytes_for(torch.device("cpu"), 7) == 7
    # 1000 numbers of 8 bytes each.
    assert at_once(on_gpu(), 1000, None) == 2 * 2**30 // 8000
    assert at_once(make_subject(), 1000, None) == MEMORY_LIMIT // 8000
    assert (half(None), half(9)) == (None, 4)


@pytest.mark.usefixtures("gpu")
def test_a_process_with_a_share_of_a_gpu_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.25)
    assert bytes_for(GPU, None) == 2**30 // 2  # 2 of 8 GiB, of which 1 is in use


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("chunk", "numbers", "said"),
    [
        (6, 1000, "3 should fit: give memory_limit=24000"),
        (5, 1000, "2 should fit: give memory_limit=20000"),
        # Half of what is free is the most that can be asked for.
        (2**30, 2**10, "262144 should fit: give memory_limit=2147483648"),
        (1, 1000, "not even one fits: give fewer or shorter prompts, or the subject in bfloat16"),
        (9, 2**40, "not even one fits: give fewer or shorter prompts, or the subject in bfloat16"),
    ],
)
def test_what_would_fit(chunk: int, numbers: int, said: str) -> None:
    text = f"out of memory on cuda:0 with {chunk} masks at once, where 4.0 GiB were free; {said}."
    with (
        pytest.raises(MemoryError, match=f"^{re.escape(text)}$"),
        explained(on_gpu(), "masks", chunk, numbers),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


def test_other_errors_pass() -> None:
    subject = make_subject()
    text = "out of memory on cpu with 4 edges at once; 2 should fit: give memory_limit=160."
    with pytest.raises(MemoryError, match=text), explained(subject, "edges", 4, 10):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
    with pytest.raises(RuntimeError, match="shapes"), explained(subject, "edges", 4, 10):
        raise RuntimeError("shapes do not fit")


class Small(Transformer):
    """A subject on a device that holds no more than so many runs at once."""

    room = 0

    def mlp(self, stream: Tensor, layer: int) -> tuple[Tensor, Tensor | None, Tensor]:
        if stream.shape[:-2].numel() > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().mlp(stream, layer)


def scores(subject: Transformer, memory_limit: int | None) -> Tensor:
    return eap(subject, make_pairs(subject, "cross-entropy", batch=8), memory_limit=memory_limit)


def closed(subject: Transformer, memory_limit: int | None) -> Tensor:
    circuits = [Circuit.from_names(subject.graph, ["input->m0", "m0->logits"])]
    pairs = make_pairs(subject, "cross-entropy", batch=8)
    return torch.tensor(faithfulness(subject, pairs, circuits, memory_limit=memory_limit))


def masked(subject: Transformer, memory_limit: int | None) -> Tensor:
    pairs = make_pairs(subject, batch=1)
    writers = make_subject("llama").run(pairs.corrupted).writers
    masks = torch.rand(8, subject.graph.n_edges, generator=torch.Generator().manual_seed(0))
    return masked_logits(subject, pairs.clean, masks, writers, memory_limit=memory_limit)


def edges(subject: Transformer, memory_limit: int | None) -> Tensor:
    pairs = make_pairs(subject, batch=1)
    plain = make_subject("llama")
    other, base = plain.run(pairs.corrupted).writers, plain.run(pairs.clean)
    return single_edge(replace(base, subject=subject), other, memory_limit=memory_limit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "what", "room"),
    [
        (scores, "8 prompts", 4),
        (closed, "16 runs of circuits", 8),
        (masked, "8 masks", 4),
        (edges, "11 edges", 5),
    ],
)
def test_the_limit_that_is_named_is_one_that_fits(
    work: Callable[[Transformer, int | None], Tensor],
    what: str,
    room: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = make_subject("llama")
    subject = Small(plain.config, plain.weights)
    monkeypatch.setattr(Small, "room", room)
    with pytest.raises(MemoryError, match=f"^out of memory on cpu with {what} at once; ") as told:
        work(subject, None)
    named = re.search(r"should fit: give memory_limit=(\d+)\.$", str(told.value))
    assert named
    torch.testing.assert_close(work(subject, int(named[1])), work(plain, None))
    monkeypatch.setattr(Small, "room", 0)
    with pytest.raises(MemoryError, match=r"with 1 .* at once; not even one fits"):
        work(subject, 1)
