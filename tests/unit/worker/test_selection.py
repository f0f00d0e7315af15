"""The threshold rule, and the rule with a second threshold for tokens that may change."""

from math import nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.model.forward_batch import NONE, ForwardBatch
from services.worker.model.selection import select

MASK = 99
NEW, OTHER = 1, 2  # tokens

requests = st.lists(
    st.tuples(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=8)), min_size=1, max_size=6
)
edited = st.tuples(st.sampled_from([MASK, NEW, OTHER]), st.floats(0, 1))  # current token, probability of NEW


def decide(requests: list[tuple[float, list[float]]], *, is_strict: bool = False) -> list[list[bool]]:
    """By request: a threshold and the confidences of its masks."""
    rows = [(MASK, c, threshold) for threshold, own in requests for c in own]
    selected = chosen(rows, [len(own) for _, own in requests], is_strict=is_strict)
    return [[selected.pop(0) for _ in own] for _, own in requests]


def chosen(rows: list[tuple[int, float, float]], counts: list[int], *, is_strict: bool) -> list[bool]:
    """By candidate: its current token, the probability of NEW, and its limit."""
    current, confidences, limits = (np.array(column) for column in zip(*rows, strict=True))
    batch = ForwardBatch(NONE, NONE, NONE, NONE, NONE, np.array(counts), current=current, limits=limits)
    selected: list[bool] = select(np.full(len(rows), NEW), confidences, batch, MASK, is_strict=is_strict).tolist()
    return selected


def test_a_strict_threshold_must_be_exceeded() -> None:
    assert decide([(0.7, [0.7, 0.69, 0.9])], is_strict=True) == [[False, False, True]]


def test_a_confidence_that_is_not_a_number_counts_as_the_least() -> None:
    assert decide([(0.9, [nan, 0.0]), (0.9, [nan, nan])]) == [[False, True], [True, False]]


@given(requests)
def test_the_choice_matches_the_rule_in_plain_python(requests: list[tuple[float, list[float]]]) -> None:
    for (threshold, own), chosen in zip(requests, decide(requests), strict=True):
        best = own.index(max(own))
        assert chosen == [c >= threshold or i == best for i, c in enumerate(own)]


@given(st.lists(edited, min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_edits_match_the_rule_in_plain_python(
    rows: list[tuple[int, float]], threshold: float, edit_threshold: float
) -> None:
    masks = [i for i, (token, _) in enumerate(rows) if token == MASK]
    best = max(masks, key=lambda i: rows[i][1], default=None)
    wanted = [
        i == best or c > threshold if token == MASK else token != NEW and c > edit_threshold
        for i, (token, c) in enumerate(rows)
    ]
    limited = [(token, c, threshold if token == MASK else edit_threshold) for token, c in rows]
    assert chosen(limited, [len(rows)], is_strict=True) == wanted
