"""One forward as plain arrays: the tokens to feed, the keys each request attends to, and the rows that need the head;
and these arrays on the model's device, brought there in one copy.

Packed: the fed tokens of all requests are concatenated. Shape letters: T fed tokens, N requests, S spans (runs of fed
tokens of one request that attend to the same keys), R rows for the head (candidates: the masked positions of the
current blocks, or where tokens may change all positions of their outputs).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.cache.kv_allocator import Move
from services.worker.model.logit_changes import LogitChanges
from shared.arrays import Float64, Int64, UInt8
from shared.messages.requests import CHANGES, Sampling

NONE: Int64 = np.zeros(0, dtype=np.int64)
NO_BITS: UInt8 = np.zeros((0, 0), dtype=np.uint8)
SAMPLING = np.dtype([(name, np.float64) for name in Sampling.__struct_fields__ if name not in CHANGES])
MIN_TEMPERATURE = 1e-6  # above 0, which is greedy; logits over a lower one could be infinite
_sampling_of = attrgetter(*SAMPLING.names or ())


def sampling_table(rows: Sequence[Sampling]) -> NDArray[Any]:
    """A structured array with a column for each field, as float64, without those that change logits. Shapes: [N]."""
    table = np.array([_sampling_of(row) for row in rows], dtype=SAMPLING)
    temperatures: Float64 = table["temperature"]
    np.maximum(temperatures, MIN_TEMPERATURE, out=temperatures, where=temperatures > 0)
    return table


def slices_of(counts: Int64) -> list[slice]:
    """The rows of each of several groups that lie one behind the other. Shape: counts [N]."""
    return [slice(end - count, end) for end, count in zip(counts.cumsum().tolist(), counts.tolist(), strict=True)]


def _none() -> Int64:
    return NONE


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The input of one forward: recompute parts first, parts of equal lengths next to each other."""

    tokens: Int64  # [T]
    positions: Int64  # [T], from the start of each request's canvas
    lengths: Int64  # [S], tokens fed per span; their sum is T
    key_starts: Int64  # [S], the first cache entry of the request; without a cache, its first row of the fed tokens
    key_lengths: Int64  # [S], tokens that each span attends to, from there on
    counts: Int64  # [N], candidates of each request, at least 1
    num_recompute: int = 0  # the first requests feed all their tokens
    write_entries: Int64 = field(default_factory=_none)  # [T], cache entries for the fed tokens; [0] without a cache
    moves: Sequence[Move] = ()  # copies within the cache, made before all else
    candidates: Int64 = field(default_factory=_none)  # [R], their positions, from the start of each request's canvas
    rows: Int64 = field(default_factory=_none)  # [R], the fed token whose logits predict each candidate
    current: Int64 = field(default_factory=_none)  # [R], the tokens there now: the mask, or one that may change
    limits: Float64 = field(default_factory=lambda: np.zeros(0))  # [R], the probability that writes a token there
    sampling: NDArray[Any] = field(default_factory=lambda: sampling_table([]))  # [N]
    seeds: Int64 = field(default_factory=_none)  # [N]
    steps: Int64 = field(default_factory=_none)  # [N]
    top_logprobs: Int64 = field(default_factory=_none)  # [N], tokens whose probabilities are wanted at each candidate
    # Of requests with a pattern: their candidates, and the tokens allowed there as bits, the first token the highest
    constrained: Int64 = field(default_factory=_none)  # [A], indices of candidates
    allowed: UInt8 = field(default_factory=lambda: NO_BITS)  # [A, ceil(V / 8)]
    changes: Sequence[LogitChanges] = ()  # of the requests with penalties or a bias
    num_text_spans: int = 0  # of finished text that attends to earlier tokens only; those of blocks lie behind them
    # Of requests with labels: the tokens of all possible labels, with the candidate of each
    scored_rows: Int64 = field(default_factory=_none)  # [Q], indices of candidates
    scored_tokens: Int64 = field(default_factory=_none)  # [Q]


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
