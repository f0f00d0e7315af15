"""Which steps of a result message are invalid."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.state.invalid_results import invalid_steps

any_position = st.one_of(st.integers(0, 4), st.integers(-(2**31), 2**31 - 1))


@given(st.lists(st.lists(any_position, max_size=4), max_size=5))
def test_a_step_is_invalid_exactly_if_it_has_a_position_twice(steps: list[list[int]]) -> None:
    positions = np.array([position for step in steps for position in step], dtype=np.int32)
    counts, stats = np.array([len(step) for step in steps], dtype=np.int32), np.zeros((len(steps), 5), np.float32)
    others = np.full(len(positions), 7, np.int32), np.full(len(positions), 0.5, np.float32)
    found = invalid_steps(counts, positions, *others, stats, vocab_size=10, mask_token_id=9)
    expected = [len(set(step)) < len(step) for step in steps]
    assert (found.tolist() if found is not None else [False] * len(steps)) == expected
