"""The active requests as parallel arrays: one row a request, rows reused.

A ticket is `count << ROW_BITS | row`: never given twice, and its row is read off it without a look-up.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from services.scheduler.events import RequestArrived
from shared.arrays import Bool, Float32, Float64, Int32, Int64

ROW_BITS = 20  # up to 1,048,576 active requests
ROW_MASK = (1 << ROW_BITS) - 1
MASKED = -1  # a masked position of the output
NOWHERE = -1  # no instance

_COLUMNS: dict[str, Any] = {
    "ticket": np.int64,  # 0: the row is free
    "prompt_length": np.int32,  # tokens, as all lengths
    "tokens": np.int64,  # prompt and output
    "output_length": np.int32,
    "block_length": np.int32,
    "blocks": np.int32,  # how many
    "block": np.int32,  # index of the current one
    "masks_left": np.int32,  # in the whole output
    "block_masks_left": np.int32,  # in the current block
    "steps": np.int32,  # steps done, so also the number of the next one
    "first_step": np.int32,  # the first that this scheduler ran
    "recompute_steps": np.int32,
    "attempts": np.int32,  # times the request was taken from an instance that did not answer
    "instance": np.int32,  # where its next step runs; NOWHERE: deferred
    "place": np.int32,  # where that instance stands in the entry's `placed_on`
    "holder": np.int32,  # which instance holds its present state; NOWHERE: none
    "migrations": np.int32,
    "in_flight": np.bool_,  # a step job is out
    "ahead": np.bool_,  # and the one after it, too, in the same block
    "crosses": np.bool_,  # and for where that ends first, the first step of the next block
    "streams": np.bool_,  # its client wants progress
    "stops": np.bool_,  # its client gave stop strings, which instances do not know
    "kind": np.int32,  # StepKind of the step that is out
    "next_kind": np.int32,  # of the step that is out ahead
    "sent_s": np.float64,  # Unix time, seconds, as all times
    "arrival_s": np.float64,
    "slo_s": np.float64,
    "priority": np.int32,
    "min_threshold": np.float64,  # the client's quality floor
    "threshold": np.float64,  # of the step that is out or comes next
    "next_threshold": np.float64,  # of the step that is out ahead
    "lowest_threshold": np.float64,  # used so far
    "step_s": np.float64,  # computing time of the iterations that ran its steps
    "threshold_tokens": np.float64,  # sum over unmasked tokens of the threshold used
    "confidence_stats": (np.float32, 5),
    "steps_at": (np.int32, "c"),  # steps done at each candidate threshold
    "tokens_at": (np.int32, "c"),  # tokens they unmasked
    "steps_left": (np.float64, "c"),  # estimate at each candidate threshold, after `estimate_step` steps
    "estimate_step": np.int32,
    "predicted_steps": np.float64,  # in all, by the predictor's first answer; 0: none has come
    "asked": np.bool_,  # a new estimate is on its way
    "asked_masks": np.int32,  # masks left when one was last asked
    "highest": np.int32,  # index of the highest candidate threshold that load control leaves it
}


@dataclass(slots=True)
class RequestEntry:
    """What a row holds beside numbers."""

    arrived: RequestArrived
    served_by: list[str] = field(default_factory=list)  # instances that ran a step, in the order of first use
    last: str = ""  # of these, the one that ran the last step
    placed_on: list[str] = field(default_factory=list)  # instances it was given to, likewise

    @property
    def request_id(self) -> str:
        return self.arrived.request.request_id

    def serve(self, instance_id: str) -> bool:
        """Note that this instance runs its steps from now on; whether it has moved there from another."""
        moved = self.last not in ("", instance_id)
        self.last = instance_id
        if instance_id not in self.served_by:
            self.served_by.append(instance_id)
        return moved

    def place(self, instance_id: str) -> int:
        """Note that it is given to this instance; where that stands in `placed_on`."""
        if instance_id not in self.placed_on:
            self.placed_on.append(instance_id)
        return self.placed_on.index(instance_id)


class RequestTable:
    """Columns are attributes named as in `_COLUMNS`, each of shape [capacity]."""

    ticket: Int64
    prompt_length: Int32
    tokens: Int64
    output_length: Int32
    block_length: Int32
    blocks: Int32
    block: Int32
    masks_left: Int32
    block_masks_left: Int32
    steps: Int32
    first_step: Int32
    recompute_steps: Int32
    attempts: Int32
    instance: Int32
    place: Int32
    holder: Int32
    migrations: Int32
    in_flight: Bool
    ahead: Bool
    crosses: Bool
    streams: Bool
    stops: Bool
    kind: Int32
    next_kind: Int32
    sent_s: Float64
    arrival_s: Float64
    slo_s: Float64
    priority: Int32
    min_threshold: Float64
    threshold: Float64
    next_threshold: Float64
    lowest_threshold: Float64
    step_s: Float64
    threshold_tokens: Float64
    confidence_stats: Float32  # [capacity, 5]
    steps_at: Int32  # [capacity, c]
    tokens_at: Int32  # [capacity, c]
    steps_left: Float64  # [capacity, c]
    estimate_step: Int32
    predicted_steps: Float64
    asked: Bool
    asked_masks: Int32
    highest: Int32

    def __init__(self, candidates: int, capacity: int = 64, width: int = 256) -> None:
        """`candidates` is the number c of candidate thresholds."""
        for name, kind in _COLUMNS.items():
            dtype, *shape = kind if isinstance(kind, tuple) else (kind,)
            sizes = [candidates if size == "c" else size for size in shape]
            setattr(self, name, np.zeros((capacity, *sizes), dtype=dtype))
        self.output = np.full((capacity, width), MASKED, dtype=np.int32)  # [capacity, longest output]
        self.entries: list[RequestEntry | None] = [None] * capacity
        self.row_of: dict[str, int] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._tickets_given = 0

    @property
    def capacity(self) -> int:
        return len(self.entries)

    def __len__(self) -> int:
        return len(self.row_of)

    def add(self, arrived: RequestArrived) -> int:
        """Give a new request a row; its output is all masks."""
        if not self._free:
            self._grow_rows()
        if arrived.output_length > self.output.shape[1]:
            self._grow_width(arrived.output_length)
        row = self._free.pop()
        for name in _COLUMNS:
            getattr(self, name)[row] = 0
        self.prompt_length[row] = len(arrived.prompt_ids)
        self.output_length[row] = self.masks_left[row] = self.asked_masks[row] = arrived.output_length
        self.tokens[row] = len(arrived.prompt_ids) + arrived.output_length
        self.block_length[row] = self.block_masks_left[row] = arrived.request.block_length
        self.blocks[row] = arrived.output_length // arrived.request.block_length
        self.instance[row] = self.holder[row] = NOWHERE
        self.streams[row] = arrived.request.stream
        self.stops[row] = len(arrived.request.stop) > 0
        self.arrival_s[row] = arrived.arrival_s
        self.slo_s[row] = arrived.slo_s
        self.priority[row] = arrived.request.priority
        self.min_threshold[row] = arrived.request.min_threshold
        self.lowest_threshold[row] = 1.0
        self.output[row] = MASKED
        self.entries[row] = RequestEntry(arrived)
        self.row_of[arrived.request.request_id] = row
        self.new_ticket(row)
        return row

    def remove(self, row: int) -> None:
        self.row_of.pop(self.entry(row).request_id)
        self.entries[row] = None
        self.ticket[row] = 0
        self._free.append(row)

    def new_ticket(self, row: int) -> None:
        """Name a new attempt: whatever still comes for the old ticket is late."""
        self._tickets_given += 1
        self.ticket[row] = self._tickets_given << ROW_BITS | row

    @property
    def next_ticket(self) -> int:
        """Above all that were given, and at most what will be."""
        return (self._tickets_given + 1) << ROW_BITS

    def entry(self, row: int) -> RequestEntry:
        entry = self.entries[row]
        assert entry is not None, f"row {row} is free"
        return entry

    def active(self) -> Int64:
        """Rows in use, [n], in the order of service."""
        return self.in_order(self.ticket.nonzero()[0])

    def in_order(self, rows: Int64) -> Int64:
        """Rows in the order of service: higher priority first, then earlier arrival. Shapes: [n] -> [n]."""
        return rows[np.lexsort((self.arrival_s[rows], -self.priority[rows]))] if len(rows) > 1 else rows

    def rows_of_tickets(self, tickets: Int64) -> Int64:
        """The row of each ticket; -1 where the ticket is no longer (or never was) in force."""
        rows = np.minimum(tickets & ROW_MASK, self.capacity - 1)  # another row's ticket is never equal
        return np.where((self.ticket[rows] == tickets) & (tickets != 0), rows, -1)

    def output_ids(self, row: int) -> Int32:
        """The output as it stands, [O], MASKED where it is masked."""
        ids: Int32 = self.output[row, : self.output_length[row]]
        return ids

    def _grow_rows(self) -> None:
        old = self.capacity
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.output = np.concatenate([self.output, np.full_like(self.output, MASKED)])
        self.entries.extend([None] * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))

    def _grow_width(self, needed: int) -> None:
        wider = np.full((self.capacity, max(needed, 2 * self.output.shape[1])), MASKED, dtype=np.int32)
        wider[:, : self.output.shape[1]] = self.output
        self.output = wider
