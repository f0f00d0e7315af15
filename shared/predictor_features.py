"""The step predictor's input features, defined once for prediction and training.

Source: the appendix "Step Predictor Features"; the names are the paper's. The eleventh feature, the threshold of the
prediction, is not part of the request's state; the predictor puts it first in its rows.
"""

import numpy as np

from shared.arrays import Float32, Float64, Int32

THRESHOLD_FEATURE = "confidence_threshold"
STATE_FEATURES = (
    "output_length",
    "full_progress",
    "full_unmask_progress",
    "block_progress",
    "block_unmask_progress",
    "output_min_confidence",
    "output_q25_confidence",
    "output_median_confidence",
    "output_avg_confidence",
    "output_q75_confidence",
)


def state_features(
    *,
    output_length: Int32,
    block_length: Int32,
    steps: Int32,
    masks_left: Int32,
    block: Int32 | Float64,
    block_masks_left: Int32,
    confidence_stats: Float32,
) -> Float32:
    """The features of n requests between two steps, in the order of STATE_FEATURES.

    `output_length` and `block_length` count free tokens, `steps` the completed steps; `block` is the index of the
    current block, and `confidence_stats` those of the last step (StepResults), zeros before the first. Shapes: all [n],
    confidence_stats [n, 5]; returns [n, 10]. Units: lengths and masks in tokens; progress in 0..1.
    """
    features = np.empty((len(output_length), len(STATE_FEATURES)), dtype=np.float32)
    features[:, 0] = output_length
    features[:, 1] = steps / output_length
    features[:, 2] = 1 - masks_left / output_length
    features[:, 3] = block * block_length / output_length
    features[:, 4] = 1 - block_masks_left / block_length
    features[:, 5:] = confidence_stats
    return features
