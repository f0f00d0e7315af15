"""Encodes a cycle's step jobs: one message per instance, with the request states that it does not hold yet; several
messages if these states are large, as the bus limits the size of a message."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec
import numpy as np

from services.scheduler.events import SendJobs
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.output_buffer import MASKED
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_pipeline import SENT_ACROSS
from shared.arrays import Bool, Int64, pack_float32, pack_int32, pack_int64
from shared.messages.requests import Request
from shared.messages.steps import RequestState, StepJobs

MAX_STATES_BYTES = 4 << 20  # of a message's states; the rest of a message of 8 MiB is for its jobs


@dataclass(slots=True)
class JobEncoder:
    """Builds StepJobs from rows. Collects, for each instance, the tickets to drop; its next message has them."""

    _epoch: int
    _mask_token_id: int
    _end_ids: bytes  # int32; a block with one of these tokens is the last block of its request
    _table: RequestTable
    _fleet: Fleet
    _drops: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # tickets by instance index
    _num_messages: int = 0

    def drop(self, index: int, ticket: int) -> None:
        """Have the instance forget `ticket` with its next message."""
        self._drops[index].append(ticket)

    def encode(self, rows: Int64, ahead: Int64, now_s: float) -> list[SendJobs]:
        """The messages to all instances. Each of `rows` [n] gets a job for its next step, each of `ahead` [m] one for
        the step after that. If the latter may begin the next block (SENT_ACROSS), it has a second job as that block's
        first step, and the instance runs only one of the two. The first message to an instance has its drops."""
        table, pipeline, drops = self._table, self._table.pipeline, self._drops
        self._drops = defaultdict(list)
        across = ahead[pipeline.state[ahead] == SENT_ACROSS]
        number = np.arange(len(rows) + len(ahead) + len(across))
        is_successor, is_across = number >= len(rows), number >= len(rows) + len(ahead)
        rows = np.concatenate([rows, ahead, across])
        order = table.instance[rows].argsort(kind="stable")
        rows, is_successor, is_across = rows[order], is_successor[order], is_across[order]
        instances = table.instance[rows]
        needs_state = ~is_successor & (table.state_instance[rows] != instances)
        tickets = pack_int64(table.ticket[rows])
        steps = pack_int32(table.steps[rows] + is_successor)
        blocks = pack_int32(table.block[rows] + is_across)
        thresholds = pack_float32(np.where(is_successor, pipeline.next_threshold[rows], pipeline.threshold[rows]))
        kind = np.where(is_successor, pipeline.successor_kind, pipeline.kind[rows])
        kinds = pack_int32(np.where(is_across, pipeline.next_block_kind, kind))
        batches = pack_int32(pipeline.batch[rows] + is_successor)
        commands = []
        index_of_row = instances.tolist()
        for index in sorted({*index_of_row, *drops}):
            if self._fleet.instances[index] is None:
                continue
            first, last = bisect_left(index_of_row, index), bisect_right(index_of_row, index)
            for begin, end, states in self._parts(rows, needs_state, first, last):
                self._num_messages += 1
                is_first = begin == first
                jobs = StepJobs(
                    epoch=self._epoch,
                    number=self._num_messages,
                    tickets=tickets[8 * begin : 8 * end],
                    steps=steps[4 * begin : 4 * end],
                    blocks=blocks[4 * begin : 4 * end],
                    thresholds=thresholds[4 * begin : 4 * end],
                    kinds=kinds[4 * begin : 4 * end],
                    batches=batches[4 * begin : 4 * end],
                    states=states,
                    drops=pack_int64(drops.get(index, [])) if is_first else b"",
                    forget_below=0 if self._fleet.synchronized[index] else table.next_ticket,
                    sent_s=now_s,
                )
                commands.append(SendJobs(self._fleet.instance_id(index), jobs))
                self._fleet.synchronized[index] = True
        return commands

    def _parts(
        self, rows: Int64, needs_state: Bool, first: int, last: int
    ) -> Iterator[tuple[int, int, list[RequestState]]]:
        """Divides the jobs `first` to `last`, exclusive, of an instance into messages: the first job of each, the end,
        and the states. A state comes with its request's first job."""
        states, num_bytes = list[RequestState](), 0
        for i in (first + needs_state[first:last].nonzero()[0]).tolist():
            state = self._state(int(rows[i]))
            state_bytes = len(msgspec.msgpack.encode(state))
            if states and num_bytes + state_bytes > MAX_STATES_BYTES:
                yield first, i, states
                first, states, num_bytes = i, [], 0
            states.append(state)
            num_bytes += state_bytes
        yield first, last, states

    def _state(self, row: int) -> RequestState:
        table = self._table
        arrived, output = table.entry(row).arrived, table.output_ids(row)
        filled = np.where(output == MASKED, self._mask_token_id, output)
        return RequestState(
            ticket=int(table.ticket[row]),
            request_id=arrived.request.request_id,
            prompt_length=len(arrived.prompt_ids),
            block_length=arrived.request.block_length,
            canvas=pack_int32(np.concatenate([arrived.prompt_ids, filled])),
            confidences=table.confidences(row)[: int(table.block_stop(row))].tobytes() if table.steps[row] else b"",
            seed=_seed(arrived.request),
            **arrived.request.own_fields(),
            edit_threshold=arrived.edit_threshold,
            post_steps=int(table.post_steps[row]),
            block_thresholds=pack_float32(table.entry(row).block_thresholds),
            trace=arrived.trace,
            guesses=arrived.request.guesses,
            end_ids=self._end_ids_of(arrived.request),
            pattern=arrived.request.pattern,
            pinned=arrived.request.pinned,
            text_tokens=min(arrived.request.max_tokens or len(output), len(output)) if arrived.request.pattern else 0,
            choices=[pack_int32(own) for own in arrived.choices],
            salt=arrived.salt,
            top_logprobs=arrived.request.top_logprobs if arrived.request.logprobs else 0,
        )

    def _end_ids_of(self, request: Request) -> bytes:
        """int32, the tokens at which the text ends early; empty if it does not, in this cell or of this request."""
        if request.pinned:  # an end token may stand before pinned text
            return b""
        if not self._end_ids or not (request.ignore_eos or request.stop_token_ids):
            return self._end_ids
        return pack_int32(request.stop_token_ids) + (b"" if request.ignore_eos else self._end_ids)


def _seed(request: Request) -> int:
    """The client's seed; otherwise a hash of the request's id, so that each request has its own on all instances."""
    if request.seed is not None:
        return request.seed
    return int.from_bytes(blake2b(request.request_id.encode(), digest_size=8).digest(), "little", signed=True)
