"""Selects the candidates whose predicted tokens a step writes. Shape letter: R candidates, grouped by request."""

import numpy as np

from services.worker.model.forward_batch import ForwardBatch, slices_of
from shared.arrays import Bool, Float64, Int64


def select(tokens: Int64, confidences: Float64, batch: ForwardBatch, mask_token_id: int, *, is_strict: bool) -> Bool:
    """Select every candidate whose confidence reaches its limit (with `is_strict`: exceeds it) and whose token is not
    the current one, and always the most confident mask of each request that has masks. A candidate is a mask, whose
    limit is the threshold, or a token that may change, whose limit is the edit threshold.

    Source: the threshold rule of Fast-dLLM; with `is_strict` that of SDAR and LLaDA2; both limits are LLaDA2.1's. Among
    equal confidences, the first candidate counts as the most confident; one that is not a number counts as the least.
    Shapes: tokens and confidences [R] -> [R].
    """
    reached = confidences > batch.limits if is_strict else confidences >= batch.limits
    selected: Bool = reached & (tokens != batch.current)
    is_masked = batch.current == mask_token_id
    score = np.where(is_masked, np.where(np.isnan(confidences), -1.0, confidences), -2.0)
    for rows in slices_of(batch.counts):
        best = rows.start + score[rows].argmax()
        selected[best] |= is_masked[best]
    return selected
