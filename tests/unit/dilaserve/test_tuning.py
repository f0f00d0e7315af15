"""The suggestions of `dilaserve tune`, and the options that it stores."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dilaserve.prediction.suggested_slo import suggested_slo_s
from dilaserve.tuning.steps import OPTIONS, check_same_options
from dilaserve.tuning.suggestions import TOLERANCE, Quality, agreement, exact_match, suggested_thresholds
from shared.errors import BadInput

THRESHOLDS = (0.5, 0.7, 0.9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.90, 0.93, 0.94), (0.5, 0.7, 0.9)),
        ((0.80, 0.90, 0.94), (0.7, 0.9)),
        ((0.94, 0.80, 0.94), (0.9,)),  # a lower one that is good by chance is not kept
        ((0.0, 0.0, 0.0), (0.9,)),
        ((0.0, 0.02, 0.04), (0.7, 0.9)),
    ],
)
def test_thresholds_are_kept_down_to_the_first_loss(values: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert suggested_thresholds(Quality(THRESHOLDS, values, "exact match")) == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_suggestion_ends_with_the_highest_threshold_and_loses_little(values: list[float]) -> None:
    thresholds = [0.1 * (number + 1) for number in range(len(values))]
    kept = suggested_thresholds(Quality(thresholds, values, "exact match"))
    assert list(kept) == thresholds[-len(kept) :]
    assert all(values[thresholds.index(kept_one)] >= max(values) - TOLERANCE for kept_one in kept[:-1])


def test_quality_is_the_share_of_right_answers_at_each_threshold() -> None:
    texts = ["no", "The answer is 4.", "The answer is 4.", "no", "no", "The answer is 7.", "x", "x", "x"]
    found = exact_match(THRESHOLDS, texts, ["4", "7", None])
    assert found == Quality(THRESHOLDS, [0.0, 0.5, 1.0], "exact match")
    assert exact_match(THRESHOLDS, texts, [None, None, None]) is None


def test_without_answers_quality_is_the_agreement_with_the_highest_threshold() -> None:
    outputs = [np.array(row, dtype=np.int32) for row in ([1, 2], [1, 3], [1, 4], [5, 6], [5, 6], [5, 6])]
    assert agreement(THRESHOLDS, outputs).values == [0.75, 0.75, 1.0]


def test_the_suggested_slo_is_five_times_the_latency_with_two_digits() -> None:
    assert (suggested_slo_s(1.4856), suggested_slo_s(0.02)) == (7.4, 0.1)


@pytest.mark.parametrize("stored", [b"[]", b"{", b'{"model": "\xff"}'])
def test_stored_options_that_cannot_be_read_are_refused(tmp_path: Path, stored: bytes) -> None:
    (tmp_path / OPTIONS).write_bytes(stored)
    with pytest.raises(BadInput, match="choose another folder"):
        check_same_options(tmp_path, {"model": "demo"})
