"""Messages of step jobs: large request states are divided among several."""

import pytest

from services.scheduler.events import FinishRequest, SendJobs
from services.scheduler.state.job_encoder import MAX_STATES_BYTES
from shared.bus.codec import encode
from shared.messages.requests import OutcomeStatus
from tests.builders import ARRIVAL_S, arrival, registered, scheduler_core
from tests.support.scripted_worker import ScriptedWorker

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
