"""Steps: those in flight, their messages, lost ones, what they may write, and the outputs of all requests."""

from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.events import FinishRequest, InstanceLost, SendJobs
from services.scheduler.io.kept_streams import may_have_lost_messages
from services.scheduler.state.job_encoder import MAX_STATES_BYTES
from services.scheduler.state.output_buffer import MASKED, OutputBuffer
from services.scheduler.state.step_pipeline import StepState
from services.scheduler.state.suspects import MAX_ATTEMPTS
from shared.arrays import Int64, pack_float32, pack_int32, unpack_int32
from shared.bus.codec import encode
from shared.bus.watch import StreamCluster, StreamContent, StreamState
from shared.messages.requests import OutcomeStatus
from shared.messages.steps import CACHE, RECOMPUTE, StepResults
from tests.builders import ARRIVAL_S, arrival, registered, scheduler_core
from tests.support.checked_pipeline import CheckedPipeline
from tests.support.scripted_cell import jobs_in, make_cell
from tests.support.scripted_worker import ScriptedWorker

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


PROMPT_TOKENS = MAX_STATES_BYTES // 4 // 3  # two states fit into a message, three do not
JOBS_BYTES = 1024


@pytest.mark.parametrize("lookahead", [0, 1])
def test_large_states_are_divided_among_messages_with_the_jobs_that_need_them(lookahead: int) -> None:
    core, worker = scheduler_core(lookahead=lookahead, end_ids=()), ScriptedWorker("a-1", per_step=4)
    room = 8 * PROMPT_TOKENS
    large = [arrival(f"r-{i}", prompt_tokens=PROMPT_TOKENS, output_tokens=32) for i in range(5)]
    sent = [c for c in core.cycle([registered(max_batch_tokens=room), *large], ARRIVAL_S) if isinstance(c, SendJobs)]
    assert [len(each.jobs.states) for each in sent] == [2, 2, 1]
    assert [each.jobs.forget_below > 0 for each in sent] == [True, False, False]
    assert len({each.jobs.number for each in sent}) == 3
    assert all(len(encode(each.jobs)) <= MAX_STATES_BYTES + JOBS_BYTES for each in sent)
    finished: list[FinishRequest] = []
    while sent:
        results = [each for one in sent for each in worker.run_each(one.jobs)]
        assert not any(each.missing for each in results)
        commands = core.cycle(results, ARRIVAL_S)
        finished += [command for command in commands if isinstance(command, FinishRequest)]
        sent = [command for command in commands if isinstance(command, SendJobs) and command.jobs.tickets]
    assert [each.status for each in finished] == [OutcomeStatus.COMPLETED] * 5
    assert all(each.stats is not None and each.stats.migrations == 0 for each in finished)


def test_a_state_larger_than_a_part_has_its_own_message() -> None:
    large = [arrival(name, prompt_tokens=MAX_STATES_BYTES // 4) for name in ("x", "y")]
    room = registered(max_batch_tokens=MAX_STATES_BYTES)
    sent = [c for c in scheduler_core().cycle([room, *large], ARRIVAL_S) if isinstance(c, SendJobs)]
    assert [[state.request_id for state in each.jobs.states] for each in sent] == [["x"], ["y"]]


def stream(leader: str | None, last_seq: int, created: datetime | None = None) -> StreamState:
    """`leader`: None: there is no cluster."""
    cluster = None if leader is None else StreamCluster(leader=leader)
    return StreamState(state=StreamContent(last_seq=last_seq), cluster=cluster, created=created)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (stream("nats-1", 7), stream("nats-2", 9)),  # messages without a leader were dropped
        (stream("nats-1", 7), stream("nats-1", 2)),  # its server restarted
        (stream(None, 7), stream(None, 0)),
        (stream(None, 7, datetime(2026, 1, 1, tzinfo=UTC)), stream(None, 8, datetime(2026, 1, 2, tzinfo=UTC))),
    ],
)
def test_another_leader_or_an_earlier_position_means_lost_messages(before: StreamState, now: StreamState) -> None:
    assert may_have_lost_messages(before, now)


@given(st.none() | st.text(), st.integers(0, 1000), st.integers(0, 1000))
def test_a_stream_that_only_grows_under_one_leader_has_lost_nothing(leader: str | None, last: int, more: int) -> None:
    assert not may_have_lost_messages(stream(leader, last), stream(leader, last + more))


def test_a_position_behind_the_block_is_not_written() -> None:
    """The block has the first 32 tokens of the output."""
    cell = make_cell({"a-1": 1}, caching=True, per_step=2)
    [result] = cell.answers(cell.send(arrival("r")))
    assert isinstance(result, StepResults)
    beyond = msgspec.structs.replace(
        result,
        counts=pack_int32([3]),
        positions=pack_int32([*unpack_int32(result.positions), 32]),
        tokens=pack_int32([*unpack_int32(result.tokens), 7]),
        confidences=pack_float32([0.5] * 3),
    )
    cell.send(beyond)
    table = cell.core.table
    assert (table.output_ids(table.row_of["r"]) != MASKED).nonzero()[0].tolist() == [0, 1]


def test_a_step_that_ends_clears_the_attempts_before_it() -> None:
    """A request that loses an instance now and then does not fail."""
    cell = make_cell({"a-0": 1}, per_step=2)
    table = cell.core.table
    commands = cell.send(arrival("r"))
    row = table.row_of["r"]
    for number in range(2 * MAX_ATTEMPTS):
        [sent] = jobs_in(commands)
        cell.send(InstanceLost(sent.instance_id))
        assert (table.attempts[row], table.suspect[row]) == (1, True)
        name = f"a-{number + 1}"
        cell.workers[name] = type(cell.workers["a-0"])(name, 2)
        commands = cell.answer(cell.send(registered(name)))
        assert (table.attempts[row], table.suspect[row]) == (0, False)


@given(turns=st.lists(st.tuples(st.integers(1, 8192), st.booleans()), max_size=60))
def test_each_output_has_its_own_part_all_masked_at_first(turns: list[tuple[int, bool]]) -> None:
    buffer, used = OutputBuffer(), list[tuple[int, int, int]]()  # start, length, the token written
    for number, (length, ends) in enumerate(turns):
        start = buffer.take(length)
        assert (buffer.tokens[start : start + length] == MASKED).all()
        buffer.tokens[start : start + length] = number
        used.append((start, length, number))
        if ends:
            ended = used.pop(number // 2 % len(used))
            buffer.give_back(*ended[:2])
        assert all((buffer.tokens[start : start + length] == token).all() for start, length, token in used)


def test_one_long_output_does_not_widen_the_others() -> None:
    buffer = OutputBuffer()
    for _ in range(32_768):
        buffer.take(128)
    buffer.take(4096)
    assert buffer.tokens.nbytes <= 2 * (32_768 * 128 + 4096) * 4


def test_ended_outputs_make_room_for_later_ones() -> None:
    buffer = OutputBuffer()
    for length in (100, 128, 4000, 4096) * 1000:
        buffer.give_back(buffer.take(length), length)
    assert buffer.tokens.nbytes == OutputBuffer().tokens.nbytes
