"""The step predictor's features, against values computed by hand."""

import numpy as np

from shared.predictor_features import STATE_FEATURES, state_features


def test_every_feature_matches_the_paper() -> None:
    features = state_features(
        output_length=np.array([64, 96], dtype=np.int32),
        block_length=np.array([32, 32], dtype=np.int32),
        steps=np.array([12, 0], dtype=np.int32),
        masks_left=np.array([24, 96], dtype=np.int32),
        block=np.array([1, 0], dtype=np.int32),
        block_masks_left=np.array([24, 32], dtype=np.int32),
        confidence_stats=np.array([[0.1, 0.3, 0.5, 0.6, 0.9], [0, 0, 0, 0, 0]], dtype=np.float32),
    )
    expected = {
        "output_length": [64, 96],
        "full_progress": [12 / 64, 0],
        "full_unmask_progress": [40 / 64, 0],
        "block_progress": [1 / 2, 0],
        "block_unmask_progress": [8 / 32, 0],
        "output_min_confidence": [0.1, 0],
        "output_q25_confidence": [0.3, 0],
        "output_median_confidence": [0.5, 0],
        "output_avg_confidence": [0.6, 0],
        "output_q75_confidence": [0.9, 0],
    }
    assert tuple(expected) == STATE_FEATURES
    np.testing.assert_allclose(features, np.array(list(expected.values())).T, rtol=1e-6)
    assert features.dtype == np.float32
