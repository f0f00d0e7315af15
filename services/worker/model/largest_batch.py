"""The batch that needs the most memory, and the memory that it needs. On CUDA, the KV cache gets what it leaves."""

from dataclasses import replace

import numpy as np
import torch

from services.worker.model.families import ModelConfig
from services.worker.model.forward_batch import ForwardBatch, sampling_table
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import RankGroup
from shared.messages.requests import DEFAULT_BLOCK_LENGTH, Sampling


def largest_batch(config: ModelConfig, tokens: int, requests: int) -> ForwardBatch:
    """Recompute steps of up to this many tokens and requests, all drawn from truncated distributions."""
    count = max(1, min(requests, tokens // 2))
    length = min(config.max_length, max(2, tokens // count))
    block = config.block_length or min(DEFAULT_BLOCK_LENGTH, length - 1)
    if config.is_block_causal:
        length = max(1, length // block) * block
    span = block if config.is_block_causal else length  # tokens that attend to the same keys
    fed, request = np.arange(count * length).reshape(count, length), np.arange(count)
    last_block = fed[:, -block:].flatten()
    batch = ForwardBatch(
        tokens=np.full(count * length, config.mask_token_id),
        positions=fed.flatten() % length,
        lengths=np.full(count * length // span, span),
        key_starts=np.repeat(request * length, length // span),
        key_lengths=np.tile(np.arange(span, length + 1, span), count),
        counts=np.full(count, block),
        num_recompute=count,
        candidates=last_block % length,
        rows=last_block,
        current=np.full(count * block, config.mask_token_id),
        limits=np.ones(count * block),
        sampling=sampling_table([Sampling(temperature=1.0, top_p=0.9)] * count),
        seeds=request,
        steps=request,
    )
    return _canvases(batch, count, block) if config.canvas else batch


def _canvases(batch: ForwardBatch, count: int, block: int) -> ForwardBatch:
    """The batch of a model that denoises canvases: their tokens last, with keys of their own, as there is no cache."""
    num_text = len(batch.tokens) - count * block
    own = num_text + block * np.arange(count)
    return replace(
        batch,
        tokens=np.zeros_like(batch.tokens),
        key_starts=np.append(np.zeros(len(batch.lengths) - count, dtype=np.int64), own),
        key_lengths=np.append(batch.lengths[: len(batch.lengths) - count], np.full(count, block)),
        rows=num_text + np.arange(count * block),
        num_text_spans=len(batch.lengths) - count,
    )


def forward_bytes(runner: Runner, batch: ForwardBatch, group: RankGroup | None) -> int:
    """The device's memory that a forward needs while it runs. CUDA only. Raises: torch.OutOfMemoryError."""
    torch.cuda.reset_peak_memory_stats(runner.device)
    before = torch.cuda.memory_allocated(runner.device)
    if group is None:
        runner.run(batch)
    else:
        group.run(runner, batch)
    return torch.cuda.max_memory_allocated(runner.device) - before
