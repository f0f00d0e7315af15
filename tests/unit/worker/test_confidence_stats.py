"""The confidence statistics."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine.step_results import summarize


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), min_size=1, max_size=4))
def test_statistics_cover_only_known_confidences(rows: list[list[float]]) -> None:
    known = np.full((len(rows), 10), np.nan, dtype=np.float32)
    for row, values in zip(known, rows, strict=True):
        row[: len(values)] = values
    wanted = [[np.min(v), np.quantile(v, 0.25), np.quantile(v, 0.5), np.mean(v), np.quantile(v, 0.75)] for v in rows]
    np.testing.assert_allclose(summarize(known), wanted, atol=1e-6)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40), st.integers(0, 100), st.randoms())
def test_the_statistics_of_a_request_do_not_depend_on_its_company(
    values: list[float], width: int, random: Random
) -> None:
    alone = np.array([values], dtype=np.float32)
    random.shuffle(values)
    together = np.full((2, len(values) + width), np.nan, dtype=np.float32)
    together[0, : len(values)], together[1] = values, 0.5
    assert summarize(together)[0].tolist() == summarize(alone)[0].tolist()
