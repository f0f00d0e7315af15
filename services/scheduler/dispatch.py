"""Places requests on instances and sends their steps.

The dispatcher decides when a request may or must move; the policy decides its instance and its threshold.
"""

from dataclasses import dataclass

import numpy as np

from services.scheduler.algorithms.placement import may_find_room
from services.scheduler.events import SendJobs
from services.scheduler.policies import MigrationPolicy, Policy, ThresholdChoice
from services.scheduler.state.decision_log import DecisionLog
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.job_encoder import JobEncoder
from services.scheduler.state.request_table import NOWHERE, RequestTable
from services.scheduler.state.step_pipeline import IDLE
from shared.arrays import Bool, Int64


@dataclass(slots=True)
class Dispatcher:
    """Works on one table and one fleet."""

    _table: RequestTable
    _fleet: Fleet
    _policy: Policy
    _encoder: JobEncoder
    _decisions: DecisionLog | None
    _lookahead: int

    def place(self, now_s: float) -> None:
        """Place the idle requests that have no instance, may move, or must move.

        A request must leave a draining instance at its next recompute step, when moving costs nothing, or at the end of
        the drain time.
        """
        table, fleet = self._table, self._fleet
        if not len(table):
            return
        rows = ((table.ticket != 0) & (table.pipeline.state == IDLE)).nonzero()[0]
        instances = table.instance[rows]
        closed = (instances != NOWHERE) & ~fleet.open[instances]
        may_move = self._may_move(rows)
        if np.count_nonzero(closed):
            must_move = closed & (self._recomputes(rows) | (fleet.drain_until_s[instances] <= now_s))
            for row in rows[must_move].tolist():
                self.remove(row)
            may_move = must_move | (may_move & ~closed)
        rows = rows[may_move | (instances == NOWHERE)]
        rows = rows[may_find_room(rows, table, fleet)] if len(rows) else rows
        if not len(rows):
            return
        rows = table.in_order(rows)
        instances = self._policy.place(rows, table, fleet)
        moves = instances != table.instance[rows]
        for row, index in zip(rows[moves].tolist(), instances[moves].tolist(), strict=True):
            self.remove(row)
            table.instance[row] = index
            table.placement[row] = table.entry(row).place(fleet.instance_id(index))
            fleet.add_load(index, int(table.tokens[row]), requests=1)

    def send(self, now_s: float) -> list[SendJobs]:
        """Send the next step of each idle request with an instance, and with lookahead also the step after it."""
        table, pipeline = self._table, self._table.pipeline
        rows = ((table.ticket != 0) & (pipeline.state == IDLE) & (table.instance != NOWHERE)).nonzero()[0]
        choice = None
        if len(rows):
            choice = self._policy.choose(rows, table, self._fleet, now_s)
            pipeline.send(rows, choice.thresholds, self._encoder.kinds(rows), now_s)
            if self._decisions is not None:
                self._decisions.record(rows, choice, now_s)
        ahead = self._send_ahead(now_s, rows, choice) if self._lookahead and self._stays_in_block() else rows[:0]
        return self._encoder.encode(rows, ahead, now_s)

    def remove(self, row: int) -> None:
        """Take a request off its instance, if it has one; the instance may forget it."""
        table, index = self._table, int(self._table.instance[row])
        if index == NOWHERE:
            return
        self._encoder.drop(index, int(table.ticket[row]))
        self._fleet.add_load(index, -int(table.tokens[row]), requests=-1)
        table.instance[row] = table.state_instance[row] = NOWHERE

    def _may_move(self, rows: Int64) -> Bool:
        """Whether the policy may move each request to another instance for its next step. Shapes: [n] -> [n]."""
        moves = self._policy.moves
        if moves == MigrationPolicy.AT_RECOMPUTE:
            return self._recomputes(rows)
        return np.full(len(rows), moves == MigrationPolicy.AT_ANY_STEP)

    def _recomputes(self, rows: Int64) -> Bool:
        """Whether each request's next step is a recompute step on every instance. Shapes: [n] -> [n]."""
        at_start: Bool = self._table.block_masks_left[rows] == self._table.block_length[rows]
        return at_start | (not self._table.pipeline.caching)

    def _send_ahead(self, now_s: float, sent: Int64, chosen: ThresholdChoice | None) -> Int64:
        """Send the successor of each step in flight, so that the instance need not wait for the scheduler.

        `chosen` is this cycle's choice for the rows `sent`; it also holds for their successors. A successor binds the
        request to its instance for one more step. The first step of the next block is sent along if the request cannot
        move there, and its tokens alone show whether the text has ended. Returns: the rows.
        """
        table, pipeline = self._table, self._table.pipeline
        rows = pipeline.without_successor()
        rows = rows[self._fleet.open[table.instance[rows]]]
        stays = self._policy.moves is MigrationPolicy.NEVER or np.count_nonzero(self._fleet.open) == 1
        has_next_block = table.block[rows] + 1 < table.num_blocks[rows]
        across = has_next_block & ~table.has_stop_strings[rows] & stays
        may_send = across | (table.block_masks_left[rows] > 1)
        rows = rows[may_send]
        if len(rows):
            if chosen is None or not np.array_equal(rows, sent):
                chosen = self._policy.choose(rows, table, self._fleet, now_s)
            pipeline.send_ahead(rows, chosen.thresholds, across[may_send], now_s)
            if self._decisions is not None:
                self._decisions.record(rows, chosen, now_s, ahead=True)
        return rows

    def _stays_in_block(self) -> bool:
        """Whether a request runs all steps of a block on one instance."""
        moves = self._policy.moves
        at_recompute = moves is MigrationPolicy.AT_RECOMPUTE
        return moves is MigrationPolicy.NEVER or (at_recompute and self._table.pipeline.caching)
