"""The next scheduler continues a streamed request after its last step, and retracts no token."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from services.scheduler.core import SchedulerCore
from services.scheduler.events import Command, FinishRequest, SaveCheckpoint, SendJobs, SendProgress
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.service import is_urgent
from services.scheduler.state.checkpoints import take_checkpoints
from services.scheduler.state.output_buffer import MASKED
from shared.arrays import pack_float32, pack_int32, unpack_float32, unpack_int32
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import OutcomeStatus, TopTokens
from tests.builders import ARRIVAL_S, EPOCH, MASK_ID, arrival, registered, scheduler_core
from tests.support.present import present
from tests.support.scripted_worker import FIRST_TOKEN, ScriptedWorker

OUTPUT, BLOCK, VOCAB = 12, 4, 100
REQUEST = arrival("r", prompt_tokens=3, output_tokens=OUTPUT, block_length=BLOCK, stream=True)
EXPECTED = list(range(FIRST_TOKEN, FIRST_TOKEN + OUTPUT))


def core_at(threshold: float, epoch: int) -> SchedulerCore:
    return scheduler_core(
        lambda _: FixedThresholdPolicy(threshold, MigrationPolicy.NEVER), epoch=epoch, vocab_size=VOCAB
    )


def run(core: SchedulerCore, worker: ScriptedWorker, commands: list[Command]) -> list[Command]:
    return core.cycle([worker.run(c.jobs) for c in commands if isinstance(c, SendJobs) and c.jobs.tickets], ARRIVAL_S)


def streamed(commands: list[Command]) -> dict[int, int]:
    """The tokens that the client receives, by position."""
    progress = [c.progress for c in commands if isinstance(c, SendProgress)]
    return {
        int(position): int(token)
        for each in progress
        for position, token in zip(unpack_int32(each.positions), unpack_int32(each.tokens), strict=True)
    }


def last_checkpoint(commands: list[Command]) -> Checkpoint:
    """The checkpoint, which is sent before the step's progress."""
    kinds = [type(c) for c in commands if isinstance(c, SaveCheckpoint | SendProgress)]
    assert kinds == [SaveCheckpoint, SendProgress]
    [saved] = [c for c in commands if isinstance(c, SaveCheckpoint)]
    assert is_urgent(saved)
    return saved.checkpoint


@pytest.mark.parametrize("per_step", [1, 3, 4])
@pytest.mark.parametrize("steps", range(1, 12))
@pytest.mark.parametrize("offset", [0, 3])
def test_streamed_tokens_survive_the_scheduler(steps: int, per_step: int, offset: int) -> None:
    """`offset`: the tokens of the prompt in the first block."""
    request = replace(REQUEST, output_length=OUTPUT - offset, block_offset=offset)
    core, worker = core_at(0.9, EPOCH), ScriptedWorker("a-1", per_step, block_offset=offset)
    commands = core.cycle([registered("a-1"), request], ARRIVAL_S)
    seen: dict[int, int] = {}
    checkpoint = None
    for _ in range(steps):
        commands = run(core, worker, commands)
        if any(isinstance(c, FinishRequest) for c in commands):
            break
        seen |= streamed(commands)
        checkpoint = last_checkpoint(commands)
    core, worker = core_at(0.5, EPOCH + 1), ScriptedWorker("b-1", per_step=2, block_offset=offset)
    commands = core.cycle([registered("b-1"), replace(request, checkpoint=checkpoint)], ARRIVAL_S)
    output = core.table.output_ids(core.table.row_of["r"])
    assert {position: int(token) for position, token in enumerate(output) if token != MASKED} == seen
    [state] = [state for c in commands if isinstance(c, SendJobs) for state in c.jobs.states]
    canvas = unpack_int32(state.canvas)[state.prompt_length :]
    assert {position: int(token) for position, token in enumerate(canvas) if token != MASK_ID} == seen
    known = unpack_float32(state.confidences)
    assert set(np.flatnonzero(known).tolist()) == set(seen)
    while not (finished := [c for c in commands if isinstance(c, FinishRequest)]):
        commands = run(core, worker, commands)
        assert seen.keys().isdisjoint(streamed(commands))
    assert (finished[0].status, finished[0].output_ids.tolist()) == (
        OutcomeStatus.COMPLETED,
        EXPECTED[: OUTPUT - offset],
    )
    decisions, stats = present(finished[0].decisions), present(finished[0].stats)
    ran_before = checkpoint.steps if checkpoint is not None else 0
    assert (decisions.first_step, len(unpack_int32(decisions.blocks))) == (ran_before, stats.steps - ran_before)


def test_a_request_whose_last_step_was_saved_only_ends() -> None:
    core, worker = core_at(0.9, EPOCH), ScriptedWorker("a-1", BLOCK)
    commands = core.cycle([registered("a-1"), REQUEST], ARRIVAL_S)
    for _ in range(OUTPUT // BLOCK):
        commands = run(core, worker, commands)
    [saved] = [c for c in commands if isinstance(c, SaveCheckpoint)]
    commands = core_at(0.9, EPOCH + 1).cycle([replace(REQUEST, checkpoint=saved.checkpoint)], ARRIVAL_S)
    [finish] = [c for c in commands if isinstance(c, FinishRequest)]
    assert finish.output_ids.tolist() == EXPECTED


def test_a_checkpoint_of_an_earlier_request_with_the_same_id_changes_nothing() -> None:
    core, worker = core_at(0.9, EPOCH), ScriptedWorker("a-1", per_step=1)
    checkpoint = last_checkpoint(run(core, worker, core.cycle([registered("a-1"), REQUEST], ARRIVAL_S)))
    core = core_at(0.9, EPOCH + 1)
    other = replace(checkpoint, block_length=2 * BLOCK, block_ids=b"", is_suspect=True)
    core.cycle([replace(REQUEST, checkpoint=other)], ARRIVAL_S)
    row = core.table.row_of["r"]
    assert not core.table.suspect[row]
    assert (core.table.output_ids(row) == MASKED).all()


def top_tokens(position: int, *, vocab: bool = True) -> TopTokens:
    tokens = pack_int32([3, 2 if vocab else VOCAB])
    return TopTokens(positions=pack_int32([position]), tokens=tokens, confidences=pack_float32([0.5, 0.25]))


@pytest.mark.parametrize(
    ("fields", "damage"),
    [
        ({}, {"block_ids": pack_int32([MASKED] * (BLOCK - 1))}),
        ({}, {"block_ids": pack_int32([MASK_ID] * BLOCK)}),
        ({}, {"block_ids": pack_int32([10_000] * BLOCK)}),
        ({"logprobs": True}, {"confidences": b""}),
        ({"logprobs": True}, {"confidences": b"abc"}),
        ({"logprobs": True}, {"confidences": pack_float32([np.nan] * BLOCK)}),
        ({"logprobs": True, "top_logprobs": 2}, {"top_tokens": None}),
        ({"logprobs": True, "top_logprobs": 2}, {"top_tokens": top_tokens(10**6)}),
        ({"logprobs": True, "top_logprobs": 2}, {"top_tokens": top_tokens(0, vocab=False)}),
    ],
)
def test_a_checkpoint_without_valid_data_that_are_wanted_is_ignored(
    fields: dict[str, Any], damage: dict[str, Any]
) -> None:
    core, worker = core_at(0.9, EPOCH), ScriptedWorker("a-1", per_step=1)
    wanted = replace(REQUEST, request=replace(REQUEST.request, **fields))
    saved = last_checkpoint(run(core, worker, core.cycle([registered("a-1"), wanted], ARRIVAL_S)))
    valid = replace(saved, top_tokens=top_tokens(0))
    for checkpoint, tokens in ((valid, 1), (replace(valid, **damage), 0)):
        core = core_at(0.9, EPOCH + 1)
        core.cycle([replace(wanted, checkpoint=checkpoint)], ARRIVAL_S)
        row = core.table.row_of["r"]
        unmasked = core.table.output_ids(row) != MASKED
        assert np.count_nonzero(unmasked) == tokens
        assert (core.table.confidences(row)[unmasked] > 0).all()
    [kept] = take_checkpoints(core.table, np.array([row]))
    assert kept.top_tokens in (None, TopTokens(positions=b"", tokens=b"", confidences=b""))
