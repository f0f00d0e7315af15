"""Cache steps on CUDA replay captured graphs: launching thousands of small kernels would take longer than they run.

A graph has fixed shapes. Each size of batch, a power of two, has its own, captured at the start; a batch is padded to
the next size. Graphs serve small batches of blocks of the default length: the kernels of large ones run long enough to
hide their launches. A step that reads from the host while it runs cannot be captured.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.model.attention import Kernel, attention
from services.worker.model.decoder import PackedDecoder
from services.worker.model.experts import groups_on_device
from services.worker.model.families import ModelConfig
from services.worker.model.forward_batch import ForwardBatch, ForwardInputs, Transfer, arrays_of
from shared.arrays import Int64
from shared.messages.requests import DEFAULT_BLOCK_LENGTH

BLOCK = DEFAULT_BLOCK_LENGTH
SIZES = (1, 2, 4, 8, 16)  # requests of a batch


def can_capture(kernel: str, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a step with this kernel of attention runs without reads from the host, and reads no canvas."""
    return (
        config.canvas is None
        and kernel != "fallback"  # which reads the lengths of the batch
        and (config.experts is None or groups_on_device(device, dtype))
    )


def size_for(batch: ForwardBatch) -> int | None:
    """The smallest size that holds the batch; None if no graph serves it: recompute parts, text, other blocks, or too
    many."""
    if batch.num_recompute or batch.num_text_spans or (batch.lengths != BLOCK).any():
        return None
    return next((size for size in SIZES if size >= len(batch.lengths)), None)


def pad(batch: ForwardBatch, size: int, padding_entry: int) -> ForwardBatch:
    """Add requests, up to `size`, that write to the cache's `padding_entry` and attend to it alone."""
    missing = size - len(batch.lengths)

    def padded(values: Int64, count: int, value: int) -> Int64:
        return np.pad(values, (0, count), constant_values=value)

    return replace(
        batch,
        tokens=padded(batch.tokens, missing * BLOCK, 0),
        positions=padded(batch.positions, missing * BLOCK, 0),
        lengths=padded(batch.lengths, missing, BLOCK),
        key_starts=padded(batch.key_starts, missing, padding_entry),
        key_lengths=padded(batch.key_lengths, missing, 1),
        write_entries=padded(batch.write_entries, missing * BLOCK, padding_entry),
    )


@dataclass(slots=True)
class Captured:
    """A graph of one size, with the tensors that it reads and writes."""

    graph: Any  # torch.cuda.CUDAGraph
    packed: Tensor  # the inputs' buffer
    hidden: Tensor  # [size * BLOCK, W]


class CacheStepGraphs:
    """The graphs of one decoder and its KV store."""

    def __init__(self, decoder: PackedDecoder, store: KvStore, kernel: Kernel, transfer: Transfer) -> None:
        self._decoder = decoder
        self._store = store
        self._kernel = kernel
        self._transfer = transfer
        self._graphs: dict[int, Captured] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture the graphs of all sizes."""
        for size in SIZES:
            arrays = self._arrays(_empty_batch(self._store.padding_entry), size, np.zeros(1, dtype=np.int64))
            self._graphs[size] = self._capture(arrays)

    def run(self, batch: ForwardBatch, rows: Int64) -> Tensor | None:
        """Returns: the hidden states [R, W] of these rows of the fed tokens, valid until the next run; None if no graph
        serves the batch."""
        size = size_for(batch)
        if size is None or len(rows) > size * BLOCK:
            return None
        captured = self._graphs[size]
        captured.packed.copy_(self._transfer.stage(self._arrays(batch, size, rows)), non_blocking=True)
        captured.graph.replay()
        return captured.hidden[: len(rows)]

    def _arrays(self, batch: ForwardBatch, size: int, rows: Int64) -> list[NDArray[Any]]:
        return arrays_of(pad(batch, size, self._store.padding_entry), np.resize(rows, size * BLOCK))

    def _inputs(self, packed: Tensor, arrays: list[NDArray[Any]]) -> ForwardInputs:
        return ForwardInputs(BLOCK, self._decoder.config.max_length, *self._transfer.views(packed, arrays))

    def _forward(self, inputs: ForwardInputs) -> Tensor:
        """With shapes that depend on the size only. -> hidden [size * BLOCK, W]."""
        attend = attention(inputs, self._store, self._kernel)
        hidden: Tensor = self._decoder(inputs.tokens, inputs.positions, attend, inputs.rows)
        return hidden

    def _capture(self, arrays: list[NDArray[Any]]) -> Captured:
        device = self._decoder.embed.weight.device
        packed = self._transfer.stage(arrays).to(device, copy=True)
        inputs = self._inputs(packed, arrays)
        with torch.cuda.device(device):  # streams belong to a device, and each thread starts on the first one
            warm_up = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            warm_up.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm_up):
                self._forward(inputs)  # chooses and loads kernels, which cannot be captured
            torch.cuda.current_stream().wait_stream(warm_up)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                hidden = self._forward(inputs)
        return Captured(graph, packed, hidden)


def _empty_batch(padding_entry: int) -> ForwardBatch:
    """One request of padding."""
    zeros, one = np.zeros(BLOCK, dtype=np.int64), np.ones(1, dtype=np.int64)
    return ForwardBatch(
        tokens=zeros,
        positions=zeros,
        lengths=one * BLOCK,
        key_starts=one * padding_entry,
        key_lengths=one,
        counts=one,
        write_entries=zeros + padding_entry,
    )
