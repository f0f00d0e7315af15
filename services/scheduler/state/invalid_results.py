"""Checks of step results where they enter the scheduler: a worker's fault costs at most the requests that it ran.
Values that are not finite are refused, too; after them the worker checks itself (`worker/engine/self_check.py`)."""

import numpy as np

from shared.arrays import Bool, Float32, Int32, unpack_float32
from shared.messages.steps import StepResults

MAX_ITERATION_S = 3600.0  # a longer latency is an error


def check_lengths(results: StepResults) -> None:
    """Raises: ValueError if the columns do not match."""
    n, odd = divmod(len(results.tickets), 8)
    if odd or not len(results.steps) == len(results.counts) == len(results.confidence_stats) / 5 == 4 * n:
        raise ValueError("columns differ in length")
    total = 4 * sum(memoryview(results.counts).cast("I"))  # unsigned: a negative count becomes too large
    if not len(results.positions) == len(results.tokens) == len(results.confidences) == total:
        raise ValueError("the token columns do not match the counts")
    if len(results.cached) not in (0, 4 * n):
        raise ValueError("`cached` is not a column of the steps")
    if len(results.missing) % 8:
        raise ValueError("`missing` is not a column of int64")


def measured_s(results: StepResults) -> float:
    """The seconds of the iteration; 0, as not measured, if they are out of range or not a number."""
    return results.latency_s if 0.0 <= results.latency_s <= MAX_ITERATION_S else 0.0


def read_probabilities(data: bytes, number: int) -> Float32 | None:
    """The probabilities of this number of labels; None if the data is not valid."""
    found = unpack_float32(data) if len(data) == 4 * number else None
    return found if found is not None and ((found >= 0) & (found <= 1)).all() else None


def invalid_steps(
    counts: Int32,
    positions: Int32,
    tokens: Int32,
    confidences: Float32,
    stats: Float32,
    *,
    vocab_size: int,
    mask_token_id: int,
) -> Bool | None:
    """The steps with the mask, a token outside 0..vocab_size-1, a value that is not finite, or a position twice; None:
    no step has one.

    Shapes: counts [n], positions, tokens and confidences [sum of counts], stats [n, 5] -> [n].
    """
    good_tokens = tokens.view(np.uint32) < vocab_size  # a negative token becomes too large
    good_tokens &= tokens != mask_token_id
    good_tokens &= np.isfinite(confidences)
    good_stats = np.isfinite(stats)
    is_good = np.count_nonzero(good_tokens) == len(tokens) and np.count_nonzero(good_stats) == stats.size
    if is_good and _ascend(counts, positions):
        return None
    owner = np.arange(len(counts)).repeat(counts)
    _, first = np.unique((owner << 32) + positions, return_index=True)
    good_tokens &= np.isin(np.arange(len(positions)), first)
    return ~good_stats.all(axis=1) | (np.bincount(owner, ~good_tokens, minlength=len(counts)) > 0)


def _ascend(counts: Int32, positions: Int32) -> bool:
    """Whether the positions of each step ascend, so that none occurs twice. Workers send them so."""
    follows = np.ones(len(positions) + 1, dtype=np.bool_)
    follows[1:-1] = positions[1:] > positions[:-1]
    follows[counts.cumsum()] = True  # the first ones of the steps
    return len(follows) == np.count_nonzero(follows)
