"""The confidence statistics."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine.confidence_stats import summarize


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), min_size=1, max_size=4))
def test_statistics_cover_only_known_confidences(rows: list[list[float]]) -> None:
    known = np.full((len(rows), 10), np.nan, dtype=np.float32)
    for row, values in zip(known, rows, strict=True):
        row[: len(values)] = values
    wanted = [[np.min(v), np.quantile(v, 0.25), np.quantile(v, 0.5), np.mean(v), np.quantile(v, 0.75)] for v in rows]
    np.testing.assert_allclose(summarize(known), wanted, atol=1e-6)
