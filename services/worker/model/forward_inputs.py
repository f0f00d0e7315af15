"""The arrays of a batch on the model's device, brought there in one copy."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.model.forward_batch import ForwardBatch
from shared.arrays import Int64

ALIGNMENT = 8  # bytes
_DTYPES = {np.dtype(name): getattr(torch, name) for name in ("int64", "int32", "float64", "uint8")}


class ForwardInputs(NamedTuple):
    """Shapes as in `ForwardBatch`; `max_q` and `max_k` are the largest numbers of fed tokens and of keys."""

    max_q: int
    max_k: int
    tokens: Tensor  # [T]
    positions: Tensor  # [T]
    rows: Tensor  # [R]
    write_entries: Tensor  # [T]; [0] without a cache
    cu_seq_q: Tensor  # int32 [N + 1], the first row of each request, and the number of rows
    cu_seq_k: Tensor  # int32 [N + 1], the first key of each request, and the end of the last one's
    seqused_k: Tensor  # int32 [N], the number of its keys


class Transfer:
    """Packs arrays of one dimension into one buffer and copies it to the device; on CUDA, the buffer is pinned.

    A buffer is used again by the next call, so the copy must be complete by then: each step ends with a
    synchronisation.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staging = torch.empty(0, dtype=torch.uint8)

    def put(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """The arrays on the device, as views of one buffer; on a CPU the arrays themselves."""
        if self._device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        return self.views(self.stage(arrays).to(self._device, non_blocking=True, copy=True), arrays)

    def stage(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        """The arrays in one buffer on the host, valid until the next call."""
        *starts, size = _starts(arrays)
        if size > len(self._staging):
            is_pinned = self._device.type == "cuda"
            self._staging = torch.empty(2 * size, dtype=torch.uint8, pin_memory=is_pinned)
        staging = self._staging.numpy()
        for array, start in zip(arrays, starts, strict=True):
            staging[start : start + array.nbytes] = array.view(np.uint8)
        return self._staging[:size]

    @staticmethod
    def views(packed: Tensor, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """The arrays in a copy of the buffer."""
        return [
            packed[start : start + array.nbytes].view(_DTYPES[array.dtype])
            for array, start in zip(arrays, _starts(arrays), strict=False)
        ]


def _starts(arrays: Sequence[NDArray[Any]]) -> list[int]:
    """The first byte of each array in the buffer, and the number of bytes."""
    return [0, *accumulate(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)]


def arrays_of(batch: ForwardBatch, rows: Int64) -> list[NDArray[Any]]:
    """The arrays of ForwardInputs, in its order, without the two lengths. `rows`: those of the batch, padded."""
    key_ends = batch.key_starts + batch.key_lengths
    return [
        batch.tokens,
        batch.positions,
        rows,
        batch.write_entries,
        np.append(0, batch.lengths.cumsum()).astype(np.int32),
        np.append(batch.key_starts, key_ends[-1]).astype(np.int32),
        batch.key_lengths.astype(np.int32),
    ]


def max_lengths(batch: ForwardBatch) -> tuple[int, int]:
    """The largest numbers of fed tokens and of keys of a request."""
    return int(batch.lengths.max()), int(batch.key_lengths.max())
