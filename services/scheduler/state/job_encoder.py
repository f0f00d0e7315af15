"""Writes the step jobs of a cycle: one message an instance, with the states that it does not hold yet."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from services.scheduler.events import SendJobs
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import MASKED, RequestTable
from shared.arrays import Int32, Int64, pack_float32, pack_int32, pack_int64
from shared.messages.requests import Request
from shared.messages.steps import CACHE, RECOMPUTE, RequestState, StepJobs


class JobEncoder:
    """Turns rows that are due into StepJobs, and remembers which tickets an instance may forget."""

    def __init__(
        self,
        epoch: int,
        mask_token_id: int,
        table: RequestTable,
        fleet: Fleet,
        *,
        caching: bool = False,
        end_ids: Sequence[int] = (),
    ) -> None:
        """`end_ids`: a block with one of these tokens is the last of its request."""
        self._epoch = epoch
        self._mask_token_id = mask_token_id
        self._caching = caching
        self._end_ids = pack_int32(end_ids)
        self._table = table
        self._fleet = fleet
        self._drops: dict[int, list[int]] = defaultdict(list)
        self._written = 0  # messages

    def drop(self, slot: int, ticket: int) -> None:
        """The instance in `slot` may forget `ticket`; told with its next message."""
        self._drops[slot].append(ticket)

    def write(self, rows: Int64, ahead: Int64, now_s: float) -> list[SendJobs]:
        """The messages: the next step of each of `rows` [n]; the one after it of each of `ahead` [m], of those that
        cross also as the first of the next block; the drops."""
        table, drops = self._table, self._drops
        self._drops = defaultdict(list)
        crossing = ahead[table.crosses[ahead]]
        number = np.arange(len(rows) + len(ahead) + len(crossing))
        is_ahead, crosses = number >= len(rows), number >= len(rows) + len(ahead)
        rows = np.concatenate([rows, ahead, crossing])
        order = table.instance[rows].argsort(kind="stable")
        rows, is_ahead, crosses = rows[order], is_ahead[order], crosses[order]
        slots = table.instance[rows]
        needs_state = ~is_ahead & (table.holder[rows] != slots)
        tickets = pack_int64(table.ticket[rows])
        steps = pack_int32(table.steps[rows] + is_ahead)
        blocks = pack_int32(table.block[rows] + crosses)
        thresholds = pack_float32(np.where(is_ahead, table.next_threshold[rows], table.threshold[rows]))
        kind = np.where(is_ahead, table.next_kind[rows], table.kind[rows])
        kinds = pack_int32(np.where(crosses, RECOMPUTE, kind))
        commands = []
        of_slots = slots.tolist()
        for slot in sorted({*of_slots, *drops}):
            if self._fleet.instances[slot] is None:
                continue
            first, last = bisect_left(of_slots, slot), bisect_right(of_slots, slot)
            self._written += 1
            jobs = StepJobs(
                epoch=self._epoch,
                number=self._written,
                tickets=tickets[8 * first : 8 * last],
                steps=steps[4 * first : 4 * last],
                blocks=blocks[4 * first : 4 * last],
                thresholds=thresholds[4 * first : 4 * last],
                kinds=kinds[4 * first : 4 * last],
                states=[self._state(row) for row in rows[first:last][needs_state[first:last]].tolist()],
                drops=pack_int64(drops.get(slot, [])),
                forget_below=0 if self._fleet.in_touch[slot] else table.next_ticket,
                sent_s=now_s,
            )
            commands.append(SendJobs(self._fleet.name(slot), jobs))
            self._fleet.in_touch[slot] = True
        return commands

    def kinds(self, rows: Int64) -> Int32:
        """StepKind of the next step of each. Shapes: [n] -> [n].

        With a cache, a block's first step rebuilds it, and so does one on an instance that lacks the state.
        """
        held = self._table.holder[rows] == self._table.instance[rows]
        begins = self._table.block_masks_left[rows] == self._table.block_length[rows]
        cached = held & ~begins & self._caching
        return np.where(cached, CACHE, RECOMPUTE).astype(np.int32)

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
            temperature=arrived.request.temperature,
            seed=_seed(arrived.request),
            trace=arrived.trace,
            guesses=arrived.request.guesses,
            end_ids=self._end_ids,
        )


def _seed(request: Request) -> int:
    """As asked for; else one of the request's own, the same wherever it goes on."""
    if request.seed is not None:
        return request.seed
    return int.from_bytes(blake2b(request.request_id.encode(), digest_size=8).digest(), "little", signed=True)
