"""Places requests on instances and sends their steps. When a request may or must move is decided here; where to, and at
which threshold it steps, the policy decides."""

import numpy as np

from services.scheduler.algorithms.placement import may_find_room
from services.scheduler.events import SendJobs
from services.scheduler.policies import MigrationPolicy, Policy, ThresholdChoice
from services.scheduler.state.decision_log import DecisionLog
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.job_encoder import JobEncoder
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Bool, Int64
from shared.messages.steps import CACHE, RECOMPUTE


class Dispatcher:
    """Works on one table and one fleet."""

    def __init__(
        self,
        table: RequestTable,
        fleet: Fleet,
        policy: Policy,
        writer: JobEncoder,
        decisions: DecisionLog | None,
        *,
        caching: bool,
        lookahead: int,
    ) -> None:
        """`decisions` is told what is decided, and why."""
        self._decisions = decisions
        self._table = table
        self._fleet = fleet
        self._policy = policy
        self._writer = writer
        self._caching = caching
        stays = policy.moves is MigrationPolicy.NEVER or (caching and policy.moves is MigrationPolicy.AT_RECOMPUTE)
        self._looks_ahead = lookahead > 0 and stays  # within a block

    def place(self, now_s: float) -> None:
        """Place what has no instance, what may move, and what must: a draining instance gives its requests away, at
        their next recompute step, when it costs nothing, or when its time is up."""
        table, fleet = self._table, self._fleet
        if not len(table):
            return
        rows = ((table.ticket != 0) & ~table.in_flight).nonzero()[0]
        slots = table.instance[rows]
        closed = (slots != NOWHERE) & ~fleet.open[slots]
        may_move = self._may_move(rows)
        if np.count_nonzero(closed):
            must = closed & (self._recomputes(rows) | (fleet.drain_until_s[slots] <= now_s))
            for row in rows[must].tolist():
                self.leave(row)
            may_move = must | (may_move & ~closed)
        rows = rows[may_move | (slots == NOWHERE)]
        rows = rows[may_find_room(rows, table, fleet)] if len(rows) else rows
        if not len(rows):
            return
        rows = table.in_order(rows)
        slots = self._policy.place(rows, table, fleet)
        new = slots != table.instance[rows]
        for row, slot in zip(rows[new].tolist(), slots[new].tolist(), strict=True):
            self.leave(row)
            table.instance[row] = slot
            table.place[row] = table.entry(row).place(fleet.name(slot))
            fleet.load(slot, int(table.tokens[row]))

    def send(self, now_s: float) -> list[SendJobs]:
        """The next step of all that is placed and waits, and the step after it where instances look ahead."""
        table = self._table
        rows = ((table.ticket != 0) & ~table.in_flight & (table.instance != NOWHERE)).nonzero()[0]
        choice = None
        if len(rows):
            choice = self._policy.choose(rows, table, self._fleet, now_s)
            table.threshold[rows] = choice.thresholds
            table.kind[rows] = self._writer.kinds(rows)
            if self._decisions is not None:
                self._decisions.record(rows, choice, now_s)
            table.in_flight[rows] = True
            table.sent_s[rows] = now_s
        ahead = self._send_ahead(now_s, rows, choice) if self._looks_ahead else rows[:0]
        return self._writer.write(rows, ahead, now_s)

    def leave(self, row: int) -> None:
        """Take a request off its instance, which is told to forget it."""
        table = self._table
        if table.instance[row] == NOWHERE:
            return
        slot = int(table.instance[row])
        self._writer.drop(slot, int(table.ticket[row]))
        self._fleet.load(slot, -int(table.tokens[row]))
        table.instance[row] = table.holder[row] = NOWHERE

    def _stays_for_good(self) -> bool:
        """Whether a request could not begin its next block elsewhere."""
        return self._policy.moves is MigrationPolicy.NEVER or np.count_nonzero(self._fleet.open) == 1

    def _may_move(self, rows: Int64) -> Bool:
        """Which requests the policy may take to another instance for their next step. Shapes: [n] -> [n]."""
        match self._policy.moves:
            case MigrationPolicy.NEVER:
                return np.zeros(len(rows), dtype=np.bool_)
            case MigrationPolicy.AT_RECOMPUTE:
                return self._recomputes(rows)
            case _:
                return np.ones(len(rows), dtype=np.bool_)

    def _recomputes(self, rows: Int64) -> Bool:
        """For which requests the next step is a recompute step wherever it runs. Shapes: [n] -> [n]."""
        at_start: Bool = self._table.block_masks_left[rows] == self._table.block_length[rows]
        return at_start | (not self._caching)

    def _send_ahead(self, now_s: float, sent: Int64, chosen: ThresholdChoice | None) -> Int64:
        """Decide the step after the one that is out, so that the instance need not wait for it. Returns: the rows.

        `chosen` is what was chosen in this cycle for the rows `sent`: for the same rows it still holds.
        It is decided one result early, and binds the request to its instance for one step more. Where the step before
        it ends the block, the instance passes it over, and runs the first of the next block, provided that the request
        could not move there and that its tokens alone tell whether the text has ended.
        """
        table = self._table
        out = np.flatnonzero((table.ticket != 0) & table.in_flight & ~table.ahead)
        out = out[self._fleet.open[table.instance[out]]]
        crosses = (table.block[out] + 1 < table.blocks[out]) & ~table.stops[out] & self._stays_for_good()
        some = crosses | (table.block_masks_left[out] > 1)
        rows = out[some]
        if len(rows):
            table.crosses[rows] = crosses[some]
            if chosen is None or not np.array_equal(rows, sent):
                chosen = self._policy.choose(rows, table, self._fleet, now_s)
            table.next_threshold[rows] = chosen.thresholds
            table.next_kind[rows] = CACHE if self._caching else RECOMPUTE
            if self._decisions is not None:
                self._decisions.record(rows, chosen, now_s, ahead=True)
            table.ahead[rows] = True
            table.sent_s[rows] = now_s
        return rows
