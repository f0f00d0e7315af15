"""The active requests as parallel arrays.

A ticket is `count << ROW_BITS | row`: it is unique, and contains its row.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from services.scheduler.events import RequestArrived
from services.scheduler.state.active_keys import ActiveKeys
from services.scheduler.state.columns import Columns
from services.scheduler.state.output_buffer import MASKED, OutputBuffer
from services.scheduler.state.prefix_index import PrefixIndex
from services.scheduler.state.step_pipeline import StepPipeline
from shared.arrays import Bool, Float32, Float64, Int32, Int64, unpack_int32
from shared.edits import NO_EDITS
from shared.pinned import free_positions
from shared.top_tokens import TopTokenTable

ROW_BITS = 20  # up to 1,048,576 active requests
ROW_MASK = (1 << ROW_BITS) - 1
NOWHERE = -1  # no instance
FIRST_ROWS = 64  # the capacity of a new table, which doubles when it is full


@dataclass(slots=True)
class RequestEntry:
    """The part of a row that is not numbers."""

    arrived: RequestArrived
    served_by: list[str] = field(default_factory=list)  # ids of instances that ran a step, in the order of first use
    written_by: set[str] = field(default_factory=set)  # ids of instances that ran a step since its output was empty
    last_instance: str = ""  # id of the instance that ran the last step
    top_tokens: TopTokenTable | None = None  # of its output; None: its client does not want them
    choices: Float32 | None = None  # the probability of each label, once a step has read them
    block_thresholds: list[float] = field(default_factory=list)  # of the steps of the current block, with canvases
    placed_on: list[str] = field(default_factory=list)  # ids of instances it was placed on, in the order of first use

    @property
    def request_id(self) -> str:
        return self.arrived.request.request_id

    def serve(self, instance_id: str) -> bool:
        """Record the instance that runs its steps from now on. Returns: whether another one ran them before."""
        moved = self.last_instance not in ("", instance_id)
        self.last_instance = instance_id
        self.written_by.add(instance_id)
        if instance_id not in self.served_by:
            self.served_by.append(instance_id)
        return moved

    def place(self, instance_id: str) -> int:
        """Record the instance it is placed on. Returns: the index in `placed_on`."""
        if instance_id not in self.placed_on:
            self.placed_on.append(instance_id)
        return self.placed_on.index(instance_id)


class RequestTable(Columns):
    """One row per active request; rows are reused. A free row has ticket 0. Lengths are in tokens, times are Unix times
    in seconds, c is the number of candidate thresholds."""

    ticket: Int64
    tokens: Int64  # prompt and output
    output_length: Int32
    output_start: Int64  # index of the output's first token in `outputs`
    block_length: Int32
    free_tokens: Int32  # of the output, without the pinned ones
    has_pinned: Bool  # its output has pinned tokens
    block_offset: Int32  # tokens of the prompt that belong to the output's first block, which has fewer masks then
    blocks_left: Int32  # with masks, the current one included
    block: Int32  # index of the current block
    block_start: Int32  # its first output position
    block_masks: Int32  # masked when it begins: all but the prompt's and the pinned tokens
    masks_left: Int32  # in the whole output
    block_masks_left: Int32  # in the current block
    has_edits: Bool  # steps may change tokens of the current block
    post_steps: Int32  # of the current block: those that began without masks
    edits: Int32  # changes of tokens that an earlier step had unmasked
    steps: Int32  # done, so also the number of the next step
    block_steps: Int32  # done of the current block; counted with canvases only
    first_step: Int32  # number of the first step that this scheduler ran
    recompute_steps: Int32
    attempts: Int32  # failed ones of the next step, in which the instance ran it alone or its result was invalid
    suspect: Bool  # the next step failed, perhaps because of this request: it runs alone
    instance: Int32  # index of the instance that runs its next step; NOWHERE: deferred
    placement: Int32  # index of that instance in the entry's `placed_on`
    state_instance: Int32  # index of the instance that holds its present state; NOWHERE: none
    migrations: Int32
    cached_tokens: Int32  # of the prompt, that an instance did not compute
    streams: Bool  # its client receives progress
    traced: Bool  # it has a trace context
    has_stop_strings: Bool  # instances do not know these strings
    arrival_s: Float64
    slo_s: Float64
    planned_slo_s: Float64  # by which the policy plans; another one where the SLO is infeasible
    infeasible: Bool  # no threshold meets its SLO, as the policy estimates
    priority: Int32
    min_threshold: Float64  # the client's quality floor
    lowest_threshold: Float64  # used so far
    last_result_s: Float64  # time of the last step's result; 0: none yet
    step_s: Float64  # computing time of the iterations that ran its steps
    threshold_tokens: Float64  # sum over the unmasked tokens of the threshold used
    confidence_stats: Annotated[Float32, 5]
    steps_at: Annotated[Int32, "c"]  # steps done at each candidate threshold
    tokens_at: Annotated[Int32, "c"]  # tokens that these steps unmasked
    steps_left: Annotated[Float64, "c"]  # estimate at each candidate threshold, after `estimate_step` steps
    estimate_step: Int32
    reads_choice: Bool  # it has labels, so each of its blocks takes one step
    is_one_shot: Bool  # the estimate is not the predictor's
    correction: Float64  # factor on the predictor's answer in `steps_left`
    expected_steps: Float64  # that the tokens unmasked here take at the thresholds used, at the mean rates
    predicted_steps: Float64  # total, by the predictor's first answer; 0: no answer yet
    estimate_pending: Bool  # a request for a new estimate is sent
    estimate_masks_left: Int32  # masks left when the last estimate was requested
    least_steps: Float64  # left at the quality floor or the lowest candidate, at the last run of load control
    level: Float64  # highest threshold that load control allows
    key: Int32  # index of its API key in `keys`
    booked: Float64  # share of the SLO window that its steps left take

    def __init__(self, candidates: int, *, caching: bool = False, exact: bool = False, canvas_steps: int = 0) -> None:
        """`candidates` is c; `caching` and `exact`: see StepPipeline; `canvas_steps`: see ModelCard."""
        super().__init__(FIRST_ROWS, c=candidates)
        self.canvas_steps = canvas_steps
        self.pipeline = StepPipeline(FIRST_ROWS, caching=caching, exact=exact)
        self.outputs = OutputBuffer()
        self.entries: list[RequestEntry | None] = [None] * FIRST_ROWS
        self.row_of: dict[str, int] = {}  # by request id
        self.keys = ActiveKeys()
        self._free = list(range(FIRST_ROWS - 1, -1, -1))  # the next one is the last
        self._fresh = 0  # rows from here on have never been used: all their columns are zero
        self._tickets_issued = 0

    @property
    def capacity(self) -> int:
        return len(self.entries)

    def __len__(self) -> int:
        return len(self.row_of)

    def add(self, arrived: RequestArrived) -> int:
        """Add a request with a new id; its output is all masks but the pinned tokens. Returns: its row."""
        assert arrived.request.request_id not in self.row_of, f"{arrived.request.request_id} is active already"
        if not self._free:
            self._grow_rows()
        row = self._free.pop()
        if row < self._fresh:
            self.clear(row)
        self._fresh = max(self._fresh, row + 1)
        self.output_length[row], self.free_tokens[row] = arrived.output_length, arrived.free_tokens
        self.has_pinned[row] = len(arrived.request.pinned) > 0
        self.has_edits[row] = arrived.edit_threshold < NO_EDITS
        self.tokens[row] = len(arrived.prompt_ids) + arrived.output_length
        length, offset = arrived.request.block_length, arrived.block_offset
        self.block_length[row], self.block_offset[row] = length, offset
        self.instance[row] = self.state_instance[row] = NOWHERE
        self.reads_choice[row] = len(arrived.choices) > 0
        self.streams[row], self.traced[row] = arrived.request.stream, bool(arrived.trace)
        self.has_stop_strings[row] = len(arrived.request.stop) > 0
        self.arrival_s[row] = arrived.arrival_s
        self.slo_s[row] = self.planned_slo_s[row] = arrived.slo_s
        self.priority[row] = arrived.request.priority
        self.min_threshold[row] = arrived.request.min_threshold
        self.lowest_threshold[row] = 1.0
        self.output_start[row] = self.outputs.take(arrived.output_length)
        self.key[row] = self.keys.add(arrived.request.key)
        self.entries[row] = RequestEntry(arrived, top_tokens=_unknown_top_tokens(arrived))
        self.row_of[arrived.request.request_id] = row
        self._begin(row)
        self.new_ticket(row)
        return row

    def remove(self, row: int) -> None:
        self.row_of.pop(self.entry(row).request_id)
        self.keys.remove(int(self.key[row]))
        self.entries[row] = None
        self.ticket[row] = 0
        self.suspect[row] = False
        self.outputs.give_back(int(self.output_start[row]), int(self.output_length[row]))
        self.pipeline.clear(row)
        self._free.append(row)

    def restart(self, row: int) -> None:
        """Mask the whole output again but its pinned tokens. The steps stay counted; the thresholds are those of the
        tokens that the output will have."""
        self.output_ids(row).fill(MASKED)
        self.threshold_tokens[row] = 0.0
        self.entry(row).written_by.clear()
        self._begin(row)

    def _begin(self, row: int) -> None:
        """Begin the output of a row, which is all masks."""
        pinned = unpack_int32(self.entry(row).arrived.request.pinned)
        self.output_ids(row)[: len(pinned)] = pinned
        self.post_steps[row] = self.block_steps[row] = 0
        self.entry(row).block_thresholds.clear()
        self.find_block(row)
        self.estimate_masks_left[row] = self.masks_left[row]

    def find_block(self, row: int, done: int | None = None) -> None:
        """Count the masks of an output, and choose its current block: the one after the first `done` tokens; without
        `done`, the first one with masks."""
        length, offset, output_ids = self.block_length.item(row), self.block_offset.item(row), self.output_ids(row)
        masks = np.flatnonzero(output_ids == MASKED)
        self.masks_left[row] = len(masks)
        if done is None:
            done = masks.item(0) if len(masks) else len(output_ids)
        block = (done + offset) // length
        start, stop = max(block * length - offset, 0), (block + 1) * length - offset
        self.block[row], self.block_start[row] = block, start
        self.block_masks_left[row] = np.searchsorted(masks, stop)
        self.block_masks[row], self.blocks_left[row] = stop - start, (len(output_ids) + offset) // length - block
        if self.has_pinned[row]:
            free = free_positions(self.entry(row).arrived.request.pinned, len(output_ids))
            self.block_masks[row] = np.count_nonzero((free >= start) & (free < stop))
            self.blocks_left[row] = len(np.unique((masks + offset) // length))

    def new_ticket(self, row: int) -> None:
        """Start a new attempt: messages with the old ticket are late."""
        self._tickets_issued += 1
        self.ticket[row] = self._tickets_issued << ROW_BITS | row

    @property
    def next_ticket(self) -> int:
        """A lower bound of the tickets to be issued, above all issued ones."""
        return (self._tickets_issued + 1) << ROW_BITS

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
        """The row of each ticket; -1 where the ticket is not valid. Shapes: [n] -> [n]."""
        rows = np.minimum(tickets & ROW_MASK, self.capacity - 1)  # another row's ticket is never equal
        return np.where((self.ticket[rows] == tickets) & (tickets != 0), rows, -1)

    def time_left_s(self, rows: Int64, now_s: float) -> Float64:
        """Seconds to each planned deadline, negative after it. Shapes: [n] -> [n]."""
        return self.arrival_s[rows] + self.planned_slo_s[rows] - now_s

    def begins_block(self, rows: Int64) -> Bool:
        """Whether nothing of the current block is unmasked, or drawn. Shapes: [n] -> [n]."""
        begins: Bool = self.block_masks_left[rows] == self.block_masks[rows]
        return begins & (self.block_steps[rows] == 0) if self.canvas_steps else begins

    def count_canvas_step(self, rows: Int64, thresholds: Float64, ended: Bool) -> Float64:
        """Note a step of each canvas with its threshold. Returns: of the canvases that it ended, the mean threshold of
        all their steps. Shapes: [n] each -> [n]."""
        means = thresholds.copy()
        self.block_steps[rows] = np.where(ended, 0, self.block_steps[rows] + 1)
        for i, (row, has_ended) in enumerate(zip(rows.tolist(), ended.tolist(), strict=True)):
            noted = self.entry(row).block_thresholds
            noted.append(thresholds.item(i))
            if has_ended:
                means[i] = np.mean(noted)
                noted.clear()
        return means

    def next_recomputes(self, rows: Int64) -> Bool:
        """Whether the next step of each placed, idle row is a recompute step: one on an instance without the state, or
        unless the cache is exact the first of a block; without a cache, every step. Shapes: [n] -> [n]."""
        if not self.pipeline.caching:
            return np.ones(len(rows), dtype=np.bool_)
        recomputes: Bool = self.state_instance[rows] != self.instance[rows]
        return recomputes if self.pipeline.exact else recomputes | self.begins_block(rows)

    def text_end(self, rows: Int64 | int) -> Int64:
        """The end of the current block in prompt and output: the tokens that a block-causal model attends to.
        Shapes: [n] -> [n]."""
        prompts = self.tokens[rows] - self.output_length[rows]
        return prompts + self.block_stop(rows)

    def block_stop(self, rows: Int64 | int) -> Int64:
        """The first output position after the current block. Shapes: [n] -> [n]."""
        following: Int64 = self.block_length[rows] * (self.block[rows] + 1)
        return following - self.block_offset[rows]

    def recompute_tokens(self, rows: Int64) -> Int64:
        """The tokens that a recompute step of each feeds, and the keys that a step with the cache attends to.
        Shapes: [n] -> [n]."""
        return self.text_end(rows) if self.pipeline.exact else self.tokens[rows]

    def cache_tokens(self, rows: Int64) -> Int32:
        """The tokens that a step of each with the cache feeds: its block, and if the cache is exact with its first step
        the block before it. Shapes: [n] -> [n]."""
        if not self.pipeline.exact:
            return self.block_length[rows]
        return self.block_length[rows] * (1 + (self.begins_block(rows) & (self.block[rows] > 0)))

    def page_names(self, row: int, prefixes: PrefixIndex) -> list[bytes]:
        """The names of the pages of its text before the current block; none if no instance has a prefix cache."""
        if not prefixes.page_tokens:
            return []
        arrived, block_length = self.entry(row).arrived, self.block_length.item(row)
        text = np.concatenate([arrived.prompt_ids, self.output_ids(row)[: self.block_start[row]]])
        return prefixes.names(text[: self.text_end(row) - block_length], arrived.salt, block_length)

    def output_ids(self, row: int) -> Int32:
        """A view of the output so far, [O], MASKED where it is masked; valid until the next request is added."""
        start = self.output_start[row]
        return self.outputs.tokens[start : start + self.output_length[row]]

    def confidences(self, row: int) -> Float32:
        """As `output_ids`, the confidence of each token at the step that unmasked it; 0 where it is masked, pinned or
        from a checkpoint without."""
        start = self.output_start[row]
        return self.outputs.confidences[start : start + self.output_length[row]]

    def _grow_rows(self) -> None:
        old = self.capacity
        self.double()
        self.pipeline.double()
        self.entries.extend([None] * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))


def _unknown_top_tokens(arrived: RequestArrived) -> TopTokenTable | None:
    request = arrived.request
    if not (request.logprobs and request.top_logprobs):
        return None
    return TopTokenTable.unknown(arrived.output_length, request.top_logprobs)
