"""The states of the steps in flight, and the transitions between them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.state.step_pipeline import StepState
from shared.arrays import Int64
from shared.messages.steps import CACHE, RECOMPUTE
from tests.support.checked_pipeline import CheckedPipeline

IN_FLIGHT = [StepState.SENT, StepState.SENT_AHEAD, StepState.SENT_ACROSS]


def rows(*numbers: int) -> Int64:
    return np.array(numbers, dtype=np.int64)


def pipeline_in(state: StepState, *, caching: bool = False) -> CheckedPipeline:
    """Row 0 is in `state`; its step has the threshold 0.5, and its successor 0.7."""
    pipeline = CheckedPipeline(capacity=4, caching=caching)
    if state in IN_FLIGHT:
        pipeline.send(rows(0), np.array([0.5]), np.array([RECOMPUTE], np.int32), 100.0, rows(1))
    if state in IN_FLIGHT[1:]:
        across = np.array([state is StepState.SENT_ACROSS])
        pipeline.send_ahead(rows(0), np.array([0.7]), across, 101.0)
    return pipeline


@pytest.mark.parametrize("state", StepState)
def test_each_state_is_reached_and_left_by_take_back(state: StepState) -> None:
    pipeline = pipeline_in(state)
    assert pipeline.state.tolist() == [state, 0, 0, 0]
    pipeline.take_back(rows(0))
    assert pipeline.state.tolist() == [StepState.IDLE] * 4


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("block_ended", [False, True])
@pytest.mark.parametrize("state", IN_FLIGHT)
def test_a_result_promotes_the_successor_that_runs(state: StepState, *, block_ended: bool, caching: bool) -> None:
    pipeline = pipeline_in(state, caching=caching)
    pipeline.complete(rows(0), np.array([block_ended]))
    runs = state is StepState.SENT_ACROSS or (state is StepState.SENT_AHEAD and not block_ended)
    assert pipeline.state[0] == (StepState.SENT if runs else StepState.IDLE)
    if runs:
        assert pipeline.threshold[0] == 0.7
        assert pipeline.kind[0] == (CACHE if caching and not block_ended else RECOMPUTE)


def test_rows_are_selected_by_state_and_time_of_the_last_send() -> None:
    pipeline = CheckedPipeline(capacity=4, caching=False)
    pipeline.send(rows(1, 2), np.array([0.5, 0.5]), np.array([RECOMPUTE] * 2, np.int32), 100.0, rows(1, 1))
    pipeline.send_ahead(rows(2), np.array([0.5]), np.array([False]), 105.0)
    assert pipeline.in_flight().tolist() == [1, 2]
    assert pipeline.unanswered_since(103.0).tolist() == [1]
    assert pipeline.unanswered_since(106.0).tolist() == [1, 2]


@given(data=st.data())
def test_rows_do_not_affect_each_other(data: st.DataObject) -> None:
    """The same transitions on many rows at once and on single rows lead to the same states."""
    together = CheckedPipeline(capacity=6, caching=True)
    alone = [CheckedPipeline(capacity=1, caching=True) for _ in range(6)]
    for _ in range(data.draw(st.integers(1, 12))):
        state = data.draw(st.sampled_from(StepState))
        chosen = np.flatnonzero(together.state == state)
        flags = np.array([data.draw(st.booleans()) for _ in chosen], dtype=np.bool_)
        thresholds = np.array([data.draw(st.sampled_from([0.5, 0.7])) for _ in chosen])
        kinds = np.full(len(chosen), CACHE, dtype=np.int32)
        advances = data.draw(st.booleans())
        for pipeline, index, part in [
            (together, chosen, slice(None)),
            *((alone[row], rows(0), slice(i, i + 1)) for i, row in enumerate(chosen.tolist())),
        ]:
            match state:
                case StepState.IDLE if advances:
                    pipeline.send(index, thresholds[part], kinds[part], 1.0, rows(*[1] * len(index)))
                case StepState.IDLE:
                    pipeline.take_back(index)
                case StepState.SENT if advances:
                    pipeline.send_ahead(index, thresholds[part], flags[part], 2.0)
                case _:
                    pipeline.complete(index, flags[part])
    for name in ("state", "kind", "threshold", "next_threshold"):
        assert getattr(together, name).tolist() == [getattr(pipeline, name)[0] for pipeline in alone]
