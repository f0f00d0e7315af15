"""The batch that needs the most memory, and the memory that it needs. On CUDA, the KV cache gets what it leaves."""

import numpy as np
import torch

from services.worker.engine.batch import ForwardBatch, Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model.families import ModelConfig
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import RankGroup
from shared.messages.requests import DEFAULT_BLOCK_LENGTH


def largest_batch(config: ModelConfig, tokens: int, requests: int) -> ForwardBatch:
    """Recompute steps of up to this many tokens and requests, all drawn from truncated distributions."""
    count = max(1, min(requests, tokens // 2))
    length = min(config.max_length, max(2, tokens // count))
    block = config.block_length or min(DEFAULT_BLOCK_LENGTH, length - 1)
    if config.is_block_causal:
        length = max(1, length // block) * block
    canvas = np.full(length, config.mask_token_id, dtype=np.int32)
    unknown = np.full(block, np.nan, dtype=np.float32)
    sequences = [
        SequenceState(
            i,
            length - block,
            block,
            canvas,
            unknown,
            temperature=1.0,
            seed=i,
            top_p=0.9,
            is_aligned=config.is_block_causal,
        )
        for i in range(count)
    ]
    return pack([Part(sequence, 0, 0, 0, length) for sequence in sequences], config)


def forward_bytes(runner: Runner, batch: ForwardBatch, group: RankGroup | None) -> int:
    """The device's memory that a forward needs while it runs. CUDA only. Raises: torch.OutOfMemoryError."""
    torch.cuda.reset_peak_memory_stats(runner.device)
    before = torch.cuda.memory_allocated(runner.device)
    if group is None:
        runner.run(batch)
    else:
        group.run(runner, batch)
    return torch.cuda.max_memory_allocated(runner.device) - before
