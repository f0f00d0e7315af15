"""The threshold rule and the confidence statistics."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine.unmasking import choose, summarize

requests = st.lists(
    st.tuples(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=8)), min_size=1, max_size=6
)


def decide(requests: list[tuple[float, list[float]]]) -> list[list[bool]]:
    confidences = np.array([c for _, own in requests for c in own], dtype=np.float64)
    counts = np.array([len(own) for _, own in requests], dtype=np.int64)
    thresholds = np.array([threshold for threshold, _ in requests], dtype=np.float64)
    chosen = choose(confidences, counts, thresholds)
    return [part.tolist() for part in np.split(chosen, np.cumsum(counts)[:-1])]


def test_every_candidate_at_or_above_the_threshold_is_unmasked() -> None:
    assert decide([(0.7, [0.7, 0.69, 0.9])]) == [[True, False, True]]


def test_the_most_confident_candidate_is_always_unmasked() -> None:
    assert decide([(0.9, [0.1, 0.3, 0.2])]) == [[False, True, False]]


def test_of_equal_confidences_the_first_position_is_unmasked() -> None:
    assert decide([(0.9, [0.3, 0.3])]) == [[True, False]]


def test_threshold_zero_unmasks_everything() -> None:
    assert decide([(0.0, [0.0, 0.5])]) == [[True, True]]


@given(requests)
def test_each_request_is_unmasked_as_if_alone(requests: list[tuple[float, list[float]]]) -> None:
    assert decide(requests) == [decide([request])[0] for request in requests]


@given(requests)
def test_the_choice_matches_the_rule_in_plain_python(requests: list[tuple[float, list[float]]]) -> None:
    for (threshold, own), chosen in zip(requests, decide(requests), strict=True):
        best = own.index(max(own))
        assert chosen == [c >= threshold or i == best for i, c in enumerate(own)]


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), min_size=1, max_size=4))
def test_statistics_cover_only_known_confidences(rows: list[list[float]]) -> None:
    known = np.full((len(rows), 10), np.nan, dtype=np.float32)
    for row, values in zip(known, rows, strict=True):
        row[: len(values)] = values
    wanted = [[np.min(v), np.quantile(v, 0.25), np.quantile(v, 0.5), np.mean(v), np.quantile(v, 0.75)] for v in rows]
    np.testing.assert_allclose(summarize(known), wanted, atol=1e-6)
