"""A step that a GPU repeats without being told every operation anew.

A masked step is some two thousand small operations, and a processor takes longer to ask for them
than a GPU to compute them. Once a step has run a few times on tensors of the same shapes it is
captured as a CUDA graph, which one call starts.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

CALLS_BEFORE = 3
"""Calls that run as they are: capturing costs about as much as ten."""

_log = logging.getLogger(__name__)
Step = Callable[..., tuple[Tensor, ...]]


@dataclass(eq=False)
class Graphed:
    """The same function of tensors, captured for shapes in which it is called often.

    The function must not wait for the GPU, draw random numbers, or depend on anything that changes
    but its arguments. Where a capture fails, and on a CPU, it runs as it is.
    """

    function: Step
    _calls: Counter[tuple] = field(default_factory=Counter)
    _captured: dict[tuple, Step] = field(default_factory=dict)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        key = tuple((x.shape, x.dtype, x.device) for x in inputs)
        if key in self._captured:
            return self._captured[key](*inputs)
        self._calls[key] += 1
        if self._calls[key] == CALLS_BEFORE and all(x.is_cuda for x in inputs):
            try:
                self._captured[key] = captured(self.function, inputs)
            except RuntimeError as error:
                _log.warning("the step runs without a CUDA graph: %s", error)
        return self.function(*inputs)


def captured(function: Step, inputs: tuple[Tensor, ...]) -> Step:
    """The function as a CUDA graph, with the memory that it reads from and writes to."""
    own = tuple(x.detach().clone() for x in inputs)
    # Libraries prepare themselves for a stream at its first use, which cannot be captured.
    stream = torch.cuda.Stream(own[0].device)
    stream.wait_stream(torch.cuda.current_stream(own[0].device))
    with torch.cuda.stream(stream):
        function(*own)
    torch.cuda.current_stream(own[0].device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = function(*own)

    def replay(*inputs: Tensor) -> tuple[Tensor, ...]:
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return tuple(x.clone() for x in outputs)

    return replay
