"""Runs one packed batch through a decoder, without the engine."""

import numpy as np
import torch

from services.worker.cache.kv_store import KvStore
from services.worker.model.attention import Kernel, attention, fallback
from services.worker.model.decoder import PackedDecoder
from services.worker.model.forward_batch import ForwardBatch, ForwardInputs, Transfer, arrays_of, max_lengths


@torch.inference_mode()
def forward_packed(
    decoder: PackedDecoder, batch: ForwardBatch, store: KvStore | None, kernel: Kernel = fallback
) -> torch.Tensor:
    """The hidden states of all fed tokens: [T, W]."""
    rows = np.arange(len(batch.tokens))
    put = Transfer(decoder.embed.weight.device).put(arrays_of(batch, rows))
    inputs = ForwardInputs(*max_lengths(batch), *put)
    hidden: torch.Tensor = decoder(inputs.tokens, inputs.positions, attention(inputs, store, kernel))
    return hidden
