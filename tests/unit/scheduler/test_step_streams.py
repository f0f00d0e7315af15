"""Lost step messages, from two positions of a stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.io.step_streams import StreamPosition, has_lost_messages


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (StreamPosition("nats-1", 7), StreamPosition("nats-2", 9)),  # messages without a leader were dropped
        (StreamPosition("nats-1", 7), StreamPosition("nats-1", 2)),  # its server restarted
        (StreamPosition(None, 7), StreamPosition(None, 0)),
    ],
)
def test_another_leader_or_an_earlier_position_means_lost_messages(before: StreamPosition, now: StreamPosition) -> None:
    assert has_lost_messages(before, now)


@given(st.none() | st.text(), st.integers(0, 1000), st.integers(0, 1000))
def test_a_stream_that_only_grows_under_one_leader_has_lost_nothing(leader: str | None, last: int, more: int) -> None:
    assert not has_lost_messages(StreamPosition(leader, last), StreamPosition(leader, last + more))
