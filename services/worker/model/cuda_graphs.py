"""Cache steps on CUDA replay captured graphs: launching thousands of small kernels would take longer than they run.

A graph has fixed shapes, so each bucket of requests and keys has its own, captured at first use. A batch is padded to
its bucket, and the padding is masked. Graphs serve small batches only: the kernels of large ones run long enough to
hide their launches. Shape letters: n requests of the bucket, B block length, K keys of the bucket.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import ForwardBatch
from services.worker.model.attention import attend_equal
from services.worker.model.decoder import Attend, PackedDecoder

MAX_REQUESTS = 16  # in a batch that a graph serves
MAX_TOKENS = 512  # fed by such a batch
MIN_KEYS = 256  # keys of the smallest bucket
MAX_GRAPHS = 64  # graphs kept; each takes some MB of the device's memory

Bucket = tuple[int, int, int]  # (n, B, K)


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A batch of cache steps, padded to its bucket; padding requests come last."""

    tokens: Tensor  # [n * B]
    positions: Tensor  # [n * B]
    write: Tensor  # [n * B], cache entries
    read: Tensor  # [n * K], cache entries
    attended: Tensor  # [n, 1, 1, K], whether a key is the request's

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.tokens, self.positions, self.write, self.read, self.attended


def bucket(batch: ForwardBatch) -> Bucket | None:
    """(n, B, K), or None for a batch that no graph serves: recompute parts, unequal lengths, too many tokens."""
    lengths = batch.lengths
    if batch.num_recompute or len(lengths) > MAX_REQUESTS or (lengths != lengths[0]).any():
        return None
    requests, length = _power_of_two(len(lengths)), int(lengths[0])
    if requests * length > MAX_TOKENS:
        return None
    return requests, length, _power_of_two(max(MIN_KEYS, int(batch.key_lengths.max())))


def pad(batch: ForwardBatch, requests: int, keys: int, padding_entry: int) -> PaddedBatch:
    """Pad to this number of requests and keys. The padding writes and attends to the cache's `padding_entry`."""
    missing = requests * int(batch.lengths[0]) - len(batch.tokens)
    attended = np.arange(keys) < batch.key_lengths[:, None]  # [N, K]
    read = np.full((requests, keys), padding_entry, dtype=np.int64)
    read[: len(attended)][attended] = batch.read_entries
    padding = np.zeros((requests - len(attended), keys), dtype=np.bool_)
    padding[:, 0] = True  # a softmax over nothing is NaN
    return PaddedBatch(
        tokens=torch.from_numpy(np.pad(batch.tokens, (0, missing))),
        positions=torch.from_numpy(np.pad(batch.positions, (0, missing))),
        write=torch.from_numpy(np.pad(batch.write_entries, (0, missing), constant_values=padding_entry)),
        read=torch.from_numpy(read.ravel()),
        attended=torch.from_numpy(np.concatenate((attended, padding))[:, None, None]),
    )


def forward(decoder: PackedDecoder, store: KvStore, padded: PaddedBatch) -> Tensor:
    """Run the decoder on a padded batch, with shapes that depend on its bucket only. Shapes: -> hidden [n * B, W]."""
    hidden: Tensor = decoder(padded.tokens, padded.positions, _masked(store, padded))
    return hidden


class CacheStepGraphs:
    """The captured graphs of one decoder and its KV store."""

    def __init__(self, decoder: PackedDecoder, store: KvStore) -> None:
        self._decoder = decoder
        self._store = store
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: OrderedDict[Bucket, tuple[torch.cuda.CUDAGraph, PaddedBatch, Tensor]] = OrderedDict()

    def run(self, batch: ForwardBatch) -> Tensor | None:
        """Returns: hidden states [T, W] of the fed tokens, valid until the next run, or None if no graph fits."""
        key = bucket(batch)
        if key is None:
            return None
        padded = pad(batch, key[0], key[2], self._store.padding_entry)
        if key not in self._graphs:
            if len(self._graphs) == MAX_GRAPHS:
                self._graphs.popitem(last=False)  # least recently used
            self._graphs[key] = self._capture(padded)
        self._graphs.move_to_end(key)
        graph, inputs, hidden = self._graphs[key]
        for captured, new in zip(inputs.tensors, padded.tensors, strict=True):
            captured.copy_(new)
        graph.replay()
        return hidden[: len(batch.tokens)]

    def _capture(self, padded: PaddedBatch) -> tuple[torch.cuda.CUDAGraph, PaddedBatch, Tensor]:
        device = self._decoder.head.weight.device
        inputs = PaddedBatch(*(part.to(device) for part in padded.tensors))
        with torch.cuda.device(device):  # streams belong to a device, and each thread starts on the first one
            warm_up = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            warm_up.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm_up):
                # kernels are selected and loaded in a first run, which cannot be captured
                forward(self._decoder, self._store, inputs)
            torch.cuda.current_stream().wait_stream(warm_up)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                hidden = forward(self._decoder, self._store, inputs)
        return graph, inputs, hidden


def _masked(store: KvStore, padded: PaddedBatch) -> Attend:
    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        store.write(layer, padded.write, k, v)
        k, v = store.read(layer, padded.read)
        return attend_equal(q, k, v, len(padded.attended), padded.attended)

    return attend


def _power_of_two(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()
