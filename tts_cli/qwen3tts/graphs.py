"""A plain function of tensors as one CUDA graph: thousands of kernels started by one call of the driver."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]

# The first run compiles, loads and chooses kernels, some of which a capture does not allow.
WARM_UPS = 2


class Graphed:
    """`function`, captured at the first call and replayed from then on; with `on` false, just called.

    The function takes tensors and returns a tuple of tensors. It must not read values on the host, nor change its
    arguments; tensors and numbers it takes from elsewhere are those of the first call for ever. It may write to tensors
    of its own when doing so twice is the same as once, as the warm-up runs it. Results belong to the caller.

    Raises `ValueError` when a later call's tensors have other shapes, types or devices than the first's.
    """

    def __init__(self, function: Function, on: bool):
        self._function, self._on = function, on
        self._inputs: list[Tensor] = []
        self._replay: Callable[[], None] | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if not self._on:
            return self._function(*inputs)
        if self._replay is None:
            self._inputs = [tensor.clone() for tensor in inputs]
            self._replay, self._outputs = capture(self._function, self._inputs)
        for held, given in zip(self._inputs, inputs, strict=True):
            if (held.shape, held.dtype, held.device) != (given.shape, given.dtype, given.device):
                raise ValueError(f"captured for {_kind(held)}, called with {_kind(given)}")
            held.copy_(given)
        self._replay()
        return tuple(output.clone() for output in self._outputs)


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def capture(function: Function, inputs: Sequence[Tensor]) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Record `function(*inputs)`: what runs it again on the tensors' contents of then, and its outputs' places."""
    with torch.cuda.device(inputs[0].device):
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                function(*inputs)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the device meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = function(*inputs)
    return graph.replay, outputs
