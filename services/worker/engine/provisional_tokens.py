"""What a step would have put where it left masks: for clients that watch the canvas. Nobody decides by it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.worker.engine.batch import ForwardBatch, Part
from services.worker.model.model_runner import TokenPredictions
from shared.arrays import pack_float32, pack_int32
from shared.messages.requests import Guesses


@dataclass(frozen=True, slots=True)
class ProvisionalTokens:
    """Of one request's step."""

    request_id: str
    message: Guesses


def provisional_tokens(
    parts: Sequence[Part], batch: ForwardBatch, predictions: TokenPredictions, mask_id: int
) -> list[ProvisionalTokens]:
    """Once a batch's tokens are written: for each watched request its candidates that are still masked."""
    guesses = []
    for part, end, count in zip(parts, np.cumsum(batch.counts).tolist(), batch.counts.tolist(), strict=True):
        sequence = part.sequence
        if not sequence.wants_provisional:
            continue
        own = np.arange(end - count, end)
        left = own[sequence.canvas[batch.candidates[own]] == mask_id]
        message = Guesses(
            step=part.step,
            positions=pack_int32(batch.candidates[left] - sequence.prompt_length),
            tokens=pack_int32(predictions.tokens[left]),
            confidences=pack_float32(predictions.confidences[left]),
        )
        guesses.append(ProvisionalTokens(sequence.request_id, message))
    return guesses
