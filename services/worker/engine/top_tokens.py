"""The most probable tokens at the positions that a step unmasked, for clients that want them."""

from collections.abc import Sequence

import numpy as np

from services.worker.engine.batch import Part
from services.worker.engine.step_results import StepOutcome
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import TopPredictions
from shared.arrays import pack_float32, pack_int32
from shared.messages.steps import StepTopTokens


def top_tokens(
    parts: Sequence[Part], batch: ForwardBatch, top: TopPredictions, outcome: StepOutcome
) -> list[StepTopTokens]:
    """Those of each request that wants them. `outcome`: of the same batch."""
    found = []
    unmasked = np.split(outcome.positions, np.cumsum(outcome.counts)[:-1])
    ends = np.cumsum(batch.counts)
    for part, positions, count, end in zip(parts, unmasked, batch.counts.tolist(), ends.tolist(), strict=True):
        sequence, k = part.sequence, part.sequence.top_logprobs
        if not k:
            continue
        candidates = batch.candidates[end - count : end] - sequence.prompt_length
        rows = end - count + np.searchsorted(candidates, positions)
        at = np.searchsorted(top.rows, rows)
        message = StepTopTokens(
            ticket=sequence.ticket,
            positions=pack_int32(positions),
            tokens=pack_int32(top.tokens[at, :k]),
            confidences=pack_float32(top.confidences[at, :k]),
        )
        found.append(message)
    return found
