"""Places requests on instances and sends their steps.

The dispatcher decides when a request may or must move, and when an instance gets its next batch; the policy decides
instances, batches and thresholds.
"""

from dataclasses import dataclass

import numpy as np

from services.scheduler.events import SendJobs
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import Policy
from services.scheduler.state.decision_log import DecisionLog
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.job_encoder import JobEncoder
from services.scheduler.state.request_table import NOWHERE, RequestTable
from services.scheduler.state.step_pipeline import IDLE, SENT
from services.scheduler.state.suspects import divide_suspects
from shared.arrays import Bool, Int64
from shared.messages.steps import CACHE, RECOMPUTE


@dataclass(slots=True)
class Dispatcher:
    """Works on one table and one fleet.

    An instance has at most two batches: the one that runs, and with lookahead the next one. Batches of an instance are
    numbered. `pipeline.batch` is that of a request's step in flight; a successor is of the batch after it. The fleet
    has the numbers of the last batch sent and of the last one answered.
    """

    _table: RequestTable
    _fleet: Fleet
    _policy: Policy
    _encoder: JobEncoder
    _decisions: DecisionLog | None
    _lookahead: int
    _some_deferred: bool = False  # at the last placement a request found no room

    def place(self, now_s: float) -> None:
        """Place the idle requests that have no instance, may move, or must move.

        A request must leave a draining instance at its next recompute step, when moving costs nothing, or at the end of
        the drain time.
        """
        table, fleet = self._table, self._fleet
        if not self._policy.moves.balances and not self._some_must_move():
            self._some_deferred = False
            return
        rows = ((table.ticket != 0) & (table.pipeline.state == IDLE)).nonzero()[0]
        instances = table.instance[rows]
        closed = (instances != NOWHERE) & ~fleet.open[instances]
        may_move = self._policy.moves.may_move(self._recomputes(rows), exact=table.pipeline.exact)
        if np.count_nonzero(closed):
            must_move = closed & (self._recomputes(rows) | (fleet.drain_until_s[instances] <= now_s))
            for row in rows[must_move].tolist():
                self.remove(row)
            may_move = must_move | (may_move & ~closed)
        rows = rows[may_move | (instances == NOWHERE)]
        if len(rows):
            self._move(*self._policy.place(rows, table, fleet, now_s))
        self._some_deferred = bool((table.instance[rows] == NOWHERE).any())

    def _some_must_move(self) -> bool:
        """Whether a request waits for an instance, or must leave its own."""
        table, fleet = self._table, self._fleet
        waits = (table.instance == NOWHERE) & (table.ticket != 0)
        return bool(np.count_nonzero(waits) or np.count_nonzero(fleet.requests[~fleet.open]))

    def _move(self, rows: Int64, instances: Int64) -> None:
        """Put each row on its instance; NOWHERE: on none."""
        table, fleet = self._table, self._fleet
        moves = instances != table.instance[rows]
        for row, index in zip(rows[moves].tolist(), instances[moves].tolist(), strict=True):
            self.remove(row)
            if index != NOWHERE:
                table.instance[row] = index
                table.placement[row] = table.entry(row).place(fleet.instance_id(index))
                fleet.add_load(index, int(table.tokens[row]), requests=1)

    def send(self, now_s: float) -> list[SendJobs]:
        """Choose a batch for each changed instance that lacks one: the batch to run now, and with lookahead the one
        after it. An idle request may join a batch that is not running yet. An instance with suspects runs those first,
        one after another."""
        fleet, pipeline = self._fleet, self._table.pipeline
        rows = self._rows_on(fleet.changed.nonzero()[0])
        fleet.changed.fill(False)
        alone, rows = divide_suspects(rows, self._table)
        unanswered = self._unanswered_batches(rows)
        run_now = rows[(pipeline.state[rows] == IDLE) & (unanswered == 0)]
        if len(run_now):
            run_now = run_now[self._policy.select(run_now, run_now[:0], self._table, fleet, now_s)]
        run_now = np.concatenate([alone, run_now])
        if len(run_now):
            instances = self._table.instance[run_now]
            fleet.done_batch[instances] = fleet.sent_batch[instances]  # also those whose requests were all cancelled
            self._begin_batches(run_now)
            self._send(run_now, now_s)
        if not self._sends_ahead():
            return self._encoder.encode(run_now, rows[:0], now_s)
        run_next, ahead = self._join_next_batch(rows, self._unanswered_batches(rows), now_s)
        return self._encoder.encode(np.concatenate([run_now, run_next]), ahead, now_s)

    def _rows_on(self, instances: Int64) -> Int64:
        """The rows of all requests on these instances."""
        if len(instances) == 1:  # most often the results of one instance arrived
            placed = self._table.instance == instances[0]
        else:
            among = np.zeros(len(self._fleet.tokens) + 1, dtype=np.bool_)  # the index NOWHERE, -1, reads the last
            among[instances] = True
            placed = among[self._table.instance]
        rows: Int64 = (placed & (self._table.ticket != 0)).nonzero()[0]
        return rows

    def _join_next_batch(self, rows: Int64, unanswered: Int64, now_s: float) -> tuple[Int64, Int64]:
        """Send steps for the batch after the running one. Returns: the rows of the next steps, and of successors."""
        table, fleet, pipeline = self._table, self._fleet, self._table.pipeline
        state = pipeline.state[rows]
        idle, may_follow = state == IDLE, (state == SENT) & (unanswered == 1)
        may_follow[may_follow] = self._may_send_successor(rows[may_follow])
        may_join = (idle & (unanswered > 0)) | may_follow
        is_joined = (state >= SENT) & (unanswered > 1)
        is_joined &= self._last_batch(rows) == fleet.sent_batch[table.instance[rows]]
        joined = rows[is_joined]
        candidates = rows[may_join]
        if not len(candidates):
            return candidates, candidates
        chosen = self._policy.select(candidates, joined, table, fleet, now_s)
        self._begin_batches(candidates[chosen & (unanswered[may_join] == 1)])
        chosen_idle = candidates[chosen & idle[may_join]]
        self._send(chosen_idle, now_s)
        return chosen_idle, self._send_ahead(candidates[chosen & ~idle[may_join]], now_s)

    def _begin_batches(self, rows: Int64) -> None:
        """Number a new batch on each instance of these rows, once however many rows it has."""
        self._fleet.sent_batch[self._table.instance[rows]] += 1

    def _last_batch(self, rows: Int64) -> Int64:
        """The number of the last batch in which each row has a step: its successor's, if it has one. [n] -> [n]."""
        pipeline = self._table.pipeline
        return pipeline.batch[rows] + (pipeline.state[rows] > SENT)

    def _unanswered_batches(self, rows: Int64) -> Int64:
        """The number of batches at the instance of each row without a result: 0, 1 (it runs), or 2 (and the next).

        Pass all rows of each instance. Shapes: [n] -> [n].
        """
        fleet, instances = self._fleet, self._table.instance[rows]
        waits = self._table.pipeline.state[rows] >= SENT
        if np.count_nonzero(waits) == 0:
            return np.zeros(len(rows), dtype=np.int64)
        waits &= self._last_batch(rows) > fleet.done_batch[instances]  # a late job runs in a further iteration
        unanswered = np.zeros(len(fleet.tokens), dtype=np.int64)
        waited_for = instances[waits]
        unanswered[waited_for] = fleet.sent_batch[waited_for] - fleet.done_batch[waited_for]
        return unanswered[instances]

    def _send(self, rows: Int64, now_s: float) -> None:
        """Send the next step of each idle row."""
        if not len(rows):
            return
        choice = self._policy.choose(rows, self._table, self._fleet, now_s)
        kinds = np.where(self._table.next_recomputes(rows), RECOMPUTE, CACHE).astype(np.int32)
        batches = self._fleet.sent_batch[self._table.instance[rows]]
        self._table.pipeline.send(rows, choice.thresholds, kinds, now_s, batches)
        if self._decisions is not None:
            self._decisions.record(rows, choice, now_s)

    def remove(self, row: int) -> None:
        """Take a request off its instance, if it has one; the instance may forget it."""
        table, index = self._table, int(self._table.instance[row])
        if index == NOWHERE:
            return
        self._encoder.drop(index, int(table.ticket[row]))
        self._fleet.add_load(index, -int(table.tokens[row]), requests=-1)
        table.instance[row] = table.state_instance[row] = NOWHERE

    def _recomputes(self, rows: Int64) -> Bool:
        """Whether each request's next step is a recompute step on every instance. Shapes: [n] -> [n]."""
        return self._table.begins_block(rows) | (not self._table.pipeline.caching)

    def _send_ahead(self, rows: Int64, now_s: float) -> Int64:
        """Send the successor of each step in flight, so that the instance need not wait for the scheduler. It binds the
        request to its instance for one more step. Returns: the rows."""
        if len(rows):
            chosen = self._policy.choose(rows, self._table, self._fleet, now_s)
            self._table.pipeline.send_ahead(rows, chosen.thresholds, self._may_cross(rows), now_s)
            if self._decisions is not None:
                self._decisions.record(rows, chosen, now_s, ahead=True)
        return rows

    def _may_send_successor(self, rows: Int64) -> Bool:
        """Whether the step after the one in flight may be sent ahead. Shapes: [n] -> [n]."""
        table = self._table
        return self._fleet.open[table.instance[rows]] & (
            self._may_cross(rows) | (table.block_masks_left[rows] > 1) | table.has_edits[rows]
        )

    def _may_cross(self, rows: Int64) -> Bool:
        """Whether the first step of the next block may be sent along with a successor: the request cannot move there,
        and has no stop strings, so that the instance knows when its text has ended. Shapes: [n] -> [n]."""
        table, moves = self._table, self._policy.moves
        if moves.balances:
            stays = np.count_nonzero(self._fleet.open) == 1
        else:
            stays = moves is MigrationPolicy.NEVER or not self._some_deferred
        has_next_block = (table.blocks_left[rows] > 1) & ~table.has_pinned[rows]  # which may skip blocks
        crosses: Bool = has_next_block & ~table.has_stop_strings[rows] & stays
        return crosses

    def _sends_ahead(self) -> bool:
        """Whether lookahead is on, and keeps no request from balancing the load within a block."""
        within_block = self._policy.moves is MigrationPolicy.AT_ANY_STEP or not self._table.pipeline.caching
        return self._lookahead > 0 and not (self._policy.moves.balances and within_block)
