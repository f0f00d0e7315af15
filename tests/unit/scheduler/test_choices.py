"""Requests with labels: one step per block, and the probability of each label in the outcome."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from services.scheduler.core import SchedulerCore
from services.scheduler.events import FinishRequest, RequestArrived, SaveCheckpoint, SendJobs
from shared.arrays import pack_float32, unpack_int32
from shared.messages.checkpoints import Checkpoint
from shared.messages.steps import StepChoices, StepResults
from tests.builders import ARRIVAL_S, arrival, registered, scheduler_core
from tests.support.present import present
from tests.support.scripted_worker import ScriptedWorker

BLOCK, LABELS = 8, [[10, 11], [12]]
PROBABILITIES = [0.25, 0.75]


def with_labels(output_tokens: int = BLOCK, checkpoint: Checkpoint | None = None, **fields: Any) -> RequestArrived:
    arrived = arrival("r", output_tokens=output_tokens, block_length=BLOCK, choices=["two", "one"], **fields)
    return replace(arrived, choices=[np.array(label, dtype=np.int32) for label in LABELS], checkpoint=checkpoint)


def started(arrived: RequestArrived, epoch: int = 1) -> tuple[SchedulerCore, SendJobs]:
    """A core after the request's arrival, and its first step."""
    core = scheduler_core(tokens_per_step=(2.0,), thresholds=(0.9,), epoch=epoch)
    [jobs] = [c for c in core.cycle([registered("a-1"), arrived], ARRIVAL_S) if isinstance(c, SendJobs)]
    return core, jobs


def result(jobs: SendJobs, worker: ScriptedWorker, probabilities: bytes) -> StepResults:
    results = worker.run(jobs.jobs)
    [ticket] = [state.ticket for state in jobs.jobs.states] or [next(iter(worker.states))]
    return replace(results, choices=[StepChoices(ticket=ticket, probabilities=probabilities)])


def test_a_block_is_estimated_as_one_step() -> None:
    core, jobs = started(with_labels(3 * BLOCK))
    assert core.estimates.remaining(np.array([0]))[0].tolist() == [[3.0]]
    assert [unpack_int32(label).tolist() for label in jobs.jobs.states[0].choices] == LABELS


def test_the_outcome_has_the_probabilities_of_the_step() -> None:
    core, jobs = started(with_labels())
    commands = core.cycle([result(jobs, ScriptedWorker(per_step=BLOCK), pack_float32(PROBABILITIES))], ARRIVAL_S)
    [finish] = [c for c in commands if isinstance(c, FinishRequest)]
    assert present(finish.choices).tolist() == PROBABILITIES
    assert core.totals.learnt_steps == 0


@pytest.mark.parametrize("data", [b"", b"abc", pack_float32([1.0]), pack_float32([2, -1]), pack_float32([np.nan, 1])])
def test_probabilities_that_are_not_valid_are_dropped(data: bytes) -> None:
    core, jobs = started(with_labels())
    commands = core.cycle([result(jobs, ScriptedWorker(per_step=BLOCK), data)], ARRIVAL_S)
    [finish] = [c for c in commands if isinstance(c, FinishRequest)]
    assert finish.choices is None


def test_the_next_scheduler_keeps_those_of_the_first_block() -> None:
    core, jobs = started(with_labels(2 * BLOCK))
    worker = ScriptedWorker(per_step=BLOCK)
    commands = core.cycle([result(jobs, worker, pack_float32(PROBABILITIES))], ARRIVAL_S)
    [saved] = [c for c in commands if isinstance(c, SaveCheckpoint)]
    core, jobs = started(with_labels(2 * BLOCK, saved.checkpoint), epoch=2)
    commands = core.cycle([result(jobs, ScriptedWorker(per_step=BLOCK), pack_float32([0.0, 1.0]))], ARRIVAL_S)
    [finish] = [c for c in commands if isinstance(c, FinishRequest)]
    assert present(finish.choices).tolist() == PROBABILITIES
