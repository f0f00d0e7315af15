"""Requests of an instance that computes wrong."""

from dataclasses import replace

import msgspec

from services.scheduler.core import SchedulerCore
from services.scheduler.events import (
    Command,
    FinishRequest,
    InstanceLost,
    InstanceQuarantined,
    RequestArrived,
    SaveCheckpoint,
    SendJobs,
)
from services.scheduler.state.checkpoints import take_checkpoint
from services.scheduler.state.output_buffer import MASKED
from services.scheduler.state.suspects import MAX_ATTEMPTS
from shared.messages.requests import OutcomeStatus
from tests.builders import ARRIVAL_S, arrival, registered, scheduler_core
from tests.support.scripted_worker import FIRST_TOKEN, ScriptedWorker

OUTPUT = 8


def request(name: str, *, stream: bool = False) -> RequestArrived:
    return arrival(name, prompt_tokens=3, output_tokens=OUTPUT, block_length=4, stream=stream)


def run(core: SchedulerCore, worker: ScriptedWorker, commands: list[Command]) -> list[Command]:
    """Run the jobs that were sent to this worker."""
    jobs = [c.jobs for c in commands if isinstance(c, SendJobs) and c.instance_id == worker.name and c.jobs.tickets]
    return core.cycle([worker.run(each) for each in jobs], ARRIVAL_S + 1)


def test_requests_of_a_quarantined_instance_start_again_on_another() -> None:
    core, worker = scheduler_core(), ScriptedWorker("a-1", per_step=4)
    commands = core.cycle([registered("a-1"), request("r"), request("streamed", stream=True)], ARRIVAL_S)
    commands = run(core, worker, commands)
    rows = [core.table.row_of[name] for name in ("r", "streamed")]
    assert [int(core.table.block[row]) for row in rows] == [1, 1]
    commands = core.cycle([InstanceQuarantined("a-1"), InstanceLost("a-1")], ARRIVAL_S + 1)
    assert (core.table.output_ids(rows[0]) == MASKED).all()
    assert [int(core.table.block[row]) for row in rows] == [0, 1]  # clients have read the tokens of the other
    assert core.table.attempts[rows].tolist() == [0, 0]
    assert not core.table.suspect[rows].any()
    [saved] = [c for c in commands if isinstance(c, SaveCheckpoint)]
    assert (saved.request_id, saved.checkpoint.output_ids) == ("r", b"")  # the next scheduler starts it again, too
    other, finished = ScriptedWorker("b-1", per_step=4), list[FinishRequest]()
    commands = core.cycle([registered("b-1")], ARRIVAL_S + 1)
    while len(finished) < 2:
        commands = run(core, other, commands)
        finished += [c for c in commands if isinstance(c, FinishRequest)]
    for finish in finished:
        assert finish.status is OutcomeStatus.COMPLETED
        assert finish.output_ids.tolist() == list(range(FIRST_TOKEN, FIRST_TOKEN + OUTPUT))
        assert finish.stats is not None
        assert "a-1" in finish.stats.instances
        assert finish.stats.mean_threshold <= max(core.settings.thresholds)
        assert ("a-1" in finish.written_by) is finish.arrived.request.stream


def test_a_quarantine_fails_a_request_that_had_too_many_attempts_before() -> None:
    """The scheduler before stopped after the checkpoint and before the outcome."""
    before, core = scheduler_core(), scheduler_core()
    before.cycle([request("r")], ARRIVAL_S)
    checkpoint = msgspec.structs.replace(take_checkpoint(before.table, 0), attempts=MAX_ATTEMPTS)
    core.cycle([registered("a-1"), replace(request("r"), checkpoint=checkpoint)], ARRIVAL_S)
    commands = core.cycle([InstanceQuarantined("a-1"), InstanceLost("a-1")], ARRIVAL_S + 1)
    [finish] = [c for c in commands if isinstance(c, FinishRequest)]
    assert finish.status is OutcomeStatus.FAILED
