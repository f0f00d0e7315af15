"""Functions of several norms and element-wise operations, of which torch's compiler makes one kernel each on CUDA.

The compiler needs Triton, which comes with torch for CUDA, and a C compiler; without them it warns, and the operations
run one by one, as on a CPU.
Shape letters: T tokens, C columns of an MLP.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

Activation = Callable[[Tensor], Tensor]
"""Of a gated MLP: any shape -> the same."""


class Fused(Generic[P, R]):
    """A function whose first argument is a tensor; on CUDA it is one kernel where torch can compile it."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, Tensor)
        return (self._kernel if first.is_cuda else self.function)(*args, **kwargs)

    @cached_property
    def _kernel(self) -> Callable[P, R]:
        from torch import _dynamo  # noqa: PLC0415 - its import takes a second, and is needed on CUDA only

        _dynamo.config.suppress_errors = True  # run the operations one by one where it cannot compile them
        return torch.compile(self.function)


@Fused
def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """The inner values of a gated MLP. Shapes: gates and values side by side [T, 2 C] -> [T, C]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(gate) * up
