"""Provisional tokens: a step's predictions for the masks that it leaves, for clients that show the canvas."""

from collections.abc import Sequence

import numpy as np

from services.worker.engine.batch import Part
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import TokenPredictions
from shared.arrays import pack_float32, pack_int32
from shared.messages.requests import Guesses


def provisional_tokens(
    parts: Sequence[Part], batch: ForwardBatch, predictions: TokenPredictions, mask_id: int
) -> list[tuple[str, Guesses]]:
    """The predictions for the candidates that are still masked after `unmask`, with the request id."""
    found = []
    for part, end, count in zip(parts, np.cumsum(batch.counts).tolist(), batch.counts.tolist(), strict=True):
        sequence = part.sequence
        if not sequence.wants_provisional:
            continue
        rows = np.arange(end - count, end)
        masked = rows[sequence.canvas[batch.candidates[rows]] == mask_id]
        message = Guesses(
            step=part.step,
            positions=pack_int32(batch.candidates[masked] - sequence.prompt_length),
            tokens=pack_int32(predictions.tokens[masked]),
            confidences=pack_float32(predictions.confidences[masked]),
        )
        found.append((sequence.request_id, message))
    return found
