"""An instance without a model, for tests of the scheduler."""

import msgspec
import numpy as np

from shared.arrays import Bool, Int32, pack_float32, pack_int32, pack_int64, unpack_float32, unpack_int32, unpack_int64
from shared.messages.steps import StepJobs, StepResults
from tests.builders import END_ID, MASK_ID

FIRST_TOKEN = 10


class ScriptedWorker:
    """Unmasks the first `per_step` masked positions of the block, with token = FIRST_TOKEN + position."""

    def __init__(
        self,
        name: str = "a-1",
        per_step: int = 2,
        end_at: int | None = None,
        mask_id: int = MASK_ID,
        block_offset: int = 0,
    ) -> None:
        self.name = name
        self.block_offset = block_offset  # tokens of the prompt in the first block
        self.per_step = per_step
        self.end_at = end_at
        self.mask_id = mask_id
        self.states: dict[int, tuple[Int32, int]] = {}
        self.last_step: dict[int, int] = {}
        self.end_ids: dict[int, list[int]] = {}

    def run_each(self, jobs: StepJobs) -> list[StepResults]:
        """As a worker runs steps sent ahead: one of each request at a time; what is over is passed over."""
        tickets = unpack_int64(jobs.tickets).tolist()
        nth = np.array([tickets[:i].count(ticket) for i, ticket in enumerate(tickets)], dtype=np.int64)
        turns = range(1 + max(nth.tolist(), default=0))
        return [self.run(_part(jobs, nth == turn, first=turn == 0)) for turn in turns]

    def run(self, jobs: StepJobs) -> StepResults:
        for ticket in unpack_int64(jobs.drops).tolist():
            self.states.pop(ticket, None)
        for state in jobs.states:
            self.end_ids[state.ticket] = unpack_int32(state.end_ids).tolist()
            self.last_step.pop(state.ticket, None)  # another scheduler may give the same ticket
            output = unpack_int32(state.canvas)[state.prompt_length :].copy()
            self.states[state.ticket] = (output, state.block_length)
        tickets, blocks, steps = unpack_int64(jobs.tickets), unpack_int32(jobs.blocks), unpack_int32(jobs.steps)
        missing = [t for t in tickets if int(t) not in self.states]
        resident = [i for i, t in enumerate(tickets) if int(t) in self.states]
        ran = [i for i in resident if self._is_due(int(tickets[i]), int(blocks[i]), int(steps[i]))]
        self.last_step |= {int(tickets[i]): int(steps[i]) for i in ran}
        found = [self._unmask(int(tickets[i]), int(blocks[i])) for i in ran]
        positions = [p for part in found for p in part]
        return StepResults(
            instance_id=self.name,
            epoch=jobs.epoch,
            tickets=pack_int64(tickets[ran]),
            steps=pack_int32(steps[ran]),
            counts=pack_int32([len(part) for part in found]),
            positions=pack_int32(positions),
            tokens=pack_int32([self._token(p) for p in positions]),
            confidences=pack_float32([0.5] * len(positions)),
            confidence_stats=pack_float32([[0.5] * 5] * len(ran)),
            missing=pack_int64(missing),
        )

    def _is_due(self, ticket: int, block: int, step: int) -> bool:
        """Whether a step of this number has not run, its block has masks, and the text has not ended before."""
        output, length = self.states[ticket]
        start, stop = self._block_range(block, length)
        masked = (output[start:stop] == self.mask_id).any()
        ended = np.isin(output[:start], self.end_ids[ticket]).any()
        return bool(step > self.last_step.get(ticket, -1) and masked and not ended)

    def _block_range(self, block: int, length: int) -> tuple[int, int]:
        start = block * length - self.block_offset
        return max(start, 0), start + length

    def _token(self, position: int) -> int:
        return END_ID if position == self.end_at else FIRST_TOKEN + position

    def _unmask(self, ticket: int, block: int) -> list[int]:
        output, length = self.states[ticket]
        masked = [p for p in range(*self._block_range(block, length)) if output[p] == self.mask_id]
        for position in masked[: self.per_step]:
            output[position] = self._token(position)
        return masked[: self.per_step]


def _part(jobs: StepJobs, rows: Bool, *, first: bool) -> StepJobs:
    """The message with these rows only; states and drops come with the first part."""
    return msgspec.structs.replace(
        jobs,
        tickets=pack_int64(unpack_int64(jobs.tickets)[rows]),
        steps=pack_int32(unpack_int32(jobs.steps)[rows]),
        blocks=pack_int32(unpack_int32(jobs.blocks)[rows]),
        thresholds=pack_float32(unpack_float32(jobs.thresholds)[rows]),
        kinds=pack_int32(unpack_int32(jobs.kinds)[rows]),
        states=jobs.states if first else [],
        drops=jobs.drops if first else b"",
    )
