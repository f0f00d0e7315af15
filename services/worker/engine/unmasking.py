"""Chooses the masks that become tokens in a step, and summarizes the confidences. Pure NumPy.

Rows are the candidates of all requests of a batch, grouped by request: the masked positions of its current block,
ascending. Shape letters: R rows, N requests.
"""

import numpy as np

from shared.arrays import Bool, Float32, Float64, Int32, Int64


def choose(confidences: Float64, counts: Int64, thresholds: Float64, *, is_strict: bool = False) -> Bool:
    """Choose every candidate at or above its request's threshold, and always each request's most confident one.

    Source: the threshold rule of Fast-dLLM; with `is_strict` that of SDAR and LLaDA2, above the threshold only. Among
    equal confidences, the first position counts as the most confident.
    Shapes: confidences [R]; counts [N], candidates of each request, at least 1; thresholds [N] -> chosen [R].
    """
    request = np.repeat(np.arange(len(counts)), counts)  # [R]
    limits = thresholds[request]
    chosen: Bool = confidences > limits if is_strict else confidences >= limits
    best_first = np.lexsort((-confidences, request))  # stable: the first position wins a tie
    chosen[best_first[np.cumsum(counts) - counts]] = True
    return chosen


def choose_with_edits(
    current: Int32, mask_id: int, tokens: Int64, confidences: Float64, *, threshold: float, edit_threshold: float
) -> Bool:
    """Of one request: choose masks as `choose` with `is_strict`, and tokens to change: those that differ from the
    predicted one, if its probability is above `edit_threshold`.

    Source: LLaDA2.1's decoding with two thresholds. Shapes: current, tokens and confidences [r] -> chosen [r].
    """
    masked = current == mask_id
    chosen: Bool = masked & (confidences > threshold)
    if masked.any():
        chosen[np.where(masked, confidences, -1.0).argmax()] = True
    chosen |= ~masked & (tokens != current) & (confidences > edit_threshold)
    return chosen


def summarize(known: Float32) -> Float32:
    """Min, lower quartile, median, mean and upper quartile of each request's known confidences.

    Shapes: known [N, O], NaN where unknown, at least one known per row -> [N, 5].
    """
    count = np.count_nonzero(~np.isnan(known), axis=1)  # [N]
    ordered = np.sort(known, axis=1)  # NaN sorts last
    rows = np.arange(len(known))

    def quantile(share: float) -> Float32:
        place = (count - 1) * share
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, count - 1)
        low, high = ordered[rows, below], ordered[rows, above]
        value: Float32 = low + (high - low) * (place - below).astype(np.float32)
        return value

    mean = np.nansum(known, axis=1) / count
    columns = [ordered[:, 0], quantile(0.25), quantile(0.5), mean, quantile(0.75)]
    return np.stack(columns, axis=1).astype(np.float32)
