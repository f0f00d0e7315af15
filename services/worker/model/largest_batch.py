"""The batch that needs the most memory, and the memory that it needs. On CUDA, the KV cache gets what it leaves."""

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
    return ForwardBatch(
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


def forward_bytes(runner: Runner, batch: ForwardBatch, group: RankGroup | None) -> int:
    """The device's memory that a forward needs while it runs. CUDA only. Raises: torch.OutOfMemoryError."""
    torch.cuda.reset_peak_memory_stats(runner.device)
    before = torch.cuda.memory_allocated(runner.device)
    if group is None:
        runner.run(batch)
    else:
        group.run(runner, batch)
    return torch.cuda.max_memory_allocated(runner.device) - before
