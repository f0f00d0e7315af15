"""One answer by two ways: replayed graphs, batches with other requests, several ranks."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.gpu_check.findings import Findings, Setup, Skipped
from experiments.gpu_check.kernels import best_kernel, mixed_parts, shape_of
from experiments.gpu_check.roofline import random_decoder
from services.worker.engine.batch import pack
from services.worker.model.attention import kernel_of
from services.worker.model.cuda_graphs import SIZES, CacheStepGraphs, Captured
from services.worker.model.decoder import PackedDecoder
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions
from services.worker.model.tensor_parallel import RankGroup, parallel_runner
from services.worker.model.weights import load
from tests.support.golden import COPY
from tests.support.packed_forward import forward_packed

MAX_ERROR = 0.02  # of the largest hidden value
MIN_EQUAL, MAX_DIFFERENCE = 0.9, 0.1  # share of equal tokens; of a confidence
RANKS_MODEL = "llada/seed1"


class RunAgain(CacheStepGraphs):
    """Runs the forward again where a graph would be replayed, without CUDA."""

    def _capture(self, arrays: list[NDArray[Any]]) -> Captured:
        packed = self._transfer.stage(arrays).clone()
        inputs = self._inputs(packed, arrays)
        hidden = self._forward(inputs)
        return Captured(SimpleNamespace(replay=lambda: hidden.copy_(self._forward(inputs))), packed, hidden)


def _runner(setup: Setup) -> Runner:
    decoder = random_decoder(shape_of(setup, 8, 8), setup.device)
    return Runner(decoder, cache_tokens=4096, attention=best_kernel(setup))


def _cache_steps(runner: Runner, count: int) -> ForwardBatch:
    """The cache steps of requests of different lengths, after their recompute steps."""
    whole, mixed, _ = mixed_parts(runner.config, [3 + 7 * i for i in range(count + 1)])
    runner.run(pack(whole, runner.config))
    return pack(mixed[1:], runner.config)


@torch.inference_mode()
def graphs(setup: Setup, found: Findings) -> None:
    """Replayed cache steps of every size, against the same steps without a graph."""
    runner = _runner(setup)
    kernel, store = kernel_of(runner.attention), runner._store
    assert store is not None, "the runner has a cache"
    kind = CacheStepGraphs if setup.device.type == "cuda" else RunAgain
    captured = kind(runner.decoder, store, kernel, runner._transfer)
    captured.capture()
    found.notes.append(f"attention: {runner.attention}" + ("" if kind is CacheStepGraphs else "; no graphs on a CPU"))
    found.columns = ["requests", "size of the graph", "largest error, of the largest value"]
    for count in [1, 3, 7, *([] if setup.is_toy else [16])]:
        batch = _cache_steps(runner, count)
        replayed = captured.run(batch, batch.rows)
        assert replayed is not None, "a graph serves the batch"
        wanted = forward_packed(runner.decoder, batch, store, kernel)[torch.from_numpy(batch.rows).to(setup.device)]
        error = float((replayed - wanted).abs().max() / wanted.abs().max())
        found.row(count, next(size for size in SIZES if size >= count), f"{error:.1e}")
        found.checks[f"{count} requests: within {MAX_ERROR:.0%}"] = error <= MAX_ERROR


def company(setup: Setup, found: Findings) -> None:
    """A request's predictions alone, and in batches with others."""
    runner = _runner(setup)
    found.notes.append(f"attention: {runner.attention}, {str(runner.dtype).removeprefix('torch.')}")
    found.columns = ["other requests", "step", "equal tokens", "largest difference of a confidence"]
    for others in [1, 4] if setup.is_toy else [1, 7, 31]:
        whole, mixed, _ = mixed_parts(runner.config, [40 + i for i in range(others + 1)])
        for kind, parts in (("recompute", whole), ("mixed", mixed)):
            batch = pack(parts, runner.config)
            together = runner.run(batch)
            ends = batch.counts.cumsum()
            equal, differences = [], []
            for part, end, count in zip(parts, ends.tolist(), batch.counts.tolist(), strict=True):
                alone, rows = runner.run(pack([part], runner.config)), slice(end - count, end)
                equal.append(alone.tokens == together.tokens[rows])
                differences.append(np.abs(alone.confidences - together.confidences[rows]).max())
            share, difference = float(np.concatenate(equal).mean()), float(max(differences))
            found.row(others, kind, f"{share:.1%}", f"{difference:.1e}")
            good = share >= MIN_EQUAL and difference <= MAX_DIFFERENCE
            found.checks[f"with {others} others, {kind}: {MIN_EQUAL:.0%} equal, within {MAX_DIFFERENCE}"] = good


def _load_rank(dtype: torch.dtype, kernel: str, group: RankGroup) -> Runner:
    decoder = load(COPY / RANKS_MODEL, dtype, group.device, group.shard, group.sum)
    return Runner(decoder, 1024, group.gather, kernel)


def _predictions(run: Callable[[ForwardBatch], TokenPredictions], decoder: PackedDecoder) -> TokenPredictions:
    whole, _, _ = mixed_parts(decoder.config, [5, 17, 40])
    return run(pack(whole, decoder.config))


def ranks(setup: Setup, found: Findings) -> None:
    """Two ranks, over NCCL on CUDA, against one."""
    if setup.device.type == "cuda" and torch.cuda.device_count() < 2:
        raise Skipped("one GPU; ranks need two")
    devices = [torch.device("cuda", i) for i in range(2)] if setup.device.type == "cuda" else [setup.device] * 2
    found.columns = ["number format", "equal tokens", "largest difference of a confidence"]
    for dtype, limit in ((torch.float32, 1e-3), (setup.half, MAX_DIFFERENCE)):
        decoder = load(COPY / RANKS_MODEL, dtype, devices[0])
        kernel = "fallback" if dtype is torch.float32 else best_kernel(setup)
        alone = _predictions(Runner(decoder, 1024, attention=kernel).run, decoder)
        with parallel_runner(devices, partial(_load_rank, dtype, kernel)) as runner:
            together = _predictions(runner.run, decoder)
        share = float((alone.tokens == together.tokens).mean())
        difference = float(np.abs(alone.confidences - together.confidences).max())
        name = str(dtype).removeprefix("torch.")
        found.row(name, f"{share:.1%}", f"{difference:.1e}")
        found.checks[f"{name}: {MIN_EQUAL:.0%} equal, within {limit}"] = share >= MIN_EQUAL and difference <= limit
