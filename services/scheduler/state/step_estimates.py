"""Steps that each request has left at each candidate threshold: the latest estimate, brought up to date.

An estimate comes from the step predictor when it answers, from the one-shot estimate until then and whenever the
predictor is away. Between answers every step done takes one off.
"""

import numpy as np

from services.scheduler.algorithms.thresholds import candidate_of
from services.scheduler.events import RequestEstimates
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int32, Int64
from shared.features import state_features


class StepEstimates:
    """Reads and writes the estimate columns of the table."""

    def __init__(
        self, table: RequestTable, candidates: Float64, tokens_per_step: Float64, *, caching: bool, granularity: int
    ) -> None:
        """`tokens_per_step` [c] is the mean at each of `candidates` [c], thresholds, ascending; `granularity` is how
        many newly unmasked tokens make a request due for a new estimate."""
        self._table = table
        self._candidates = candidates
        self._tokens_per_step = tokens_per_step
        self.caching = caching
        self._granularity = granularity
        self.fallbacks = 0  # estimates asked for that never came

    def start(self, row: int) -> None:
        """The one-shot estimate of a new request."""
        self._one_shot(np.array([row]))

    def ask(self) -> RequestEstimates | None:
        """The question about all requests that are due for a new estimate, which then count as asked."""
        table = self._table
        if not len(table):
            return None
        unmasked = table.asked_masks - table.masks_left
        rows: Int64 = ((table.ticket != 0) & ~table.asked & (unmasked >= self._granularity)).nonzero()[0]
        if not len(rows):
            return None
        table.asked[rows] = True
        table.asked_masks[rows] = table.masks_left[rows]
        features = state_features(
            output_length=table.output_length[rows],
            block_length=table.block_length[rows],
            steps=table.steps[rows],
            masks_left=table.masks_left[rows],
            block=table.block[rows],
            block_masks_left=table.block_masks_left[rows],
            confidence_stats=table.confidence_stats[rows],
        )
        return RequestEstimates(
            table.ticket[rows],
            table.steps[rows],
            features,
            table.masks_left[rows],
            self.blocks_left(rows),
            table.entry(int(rows[0])).arrived.trace,
        )

    def take(self, tickets: Int64, steps: Int32, steps_left: Float64) -> None:
        """The predictor's answer for requests as they were after so many steps. Shapes: [n], [n], [n, c]."""
        table = self._table
        rows = table.rows_of_tickets(tickets)
        known = rows >= 0
        rows = rows[known]
        table.steps_left[rows] = steps_left[known]
        table.estimate_step[rows] = steps[known]
        table.asked[rows] = False
        first = rows[table.predicted_steps[rows] == 0]
        if len(first):
            at = candidate_of(table.threshold[first], self._candidates)
            table.predicted_steps[first] = table.estimate_step[first] + table.steps_left[first, at]

    def lose(self, tickets: Int64) -> None:
        """No answer: fall back to the one-shot estimate."""
        rows = self._table.rows_of_tickets(tickets)
        rows = rows[rows >= 0]
        self.fallbacks += len(rows)
        self._one_shot(rows)
        self._table.asked[rows] = False

    def left(self, rows: Int64) -> tuple[Float64, Float64]:
        """Steps left, and of these the ones that recompute.

        At least one step a block is left; at most one a mask. One recomputes for each block not begun, and one where
        the state is nowhere; all of them without a cache. Shapes: rows [n] -> [n, c] each.
        """
        table = self._table
        blocks_left = self.blocks_left(rows)
        steps_left: Float64 = table.steps_left.take(rows, axis=0)
        steps_left -= (table.steps[rows] - table.estimate_step[rows])[:, None]
        np.maximum(steps_left, blocks_left[:, None], out=steps_left)
        np.minimum(steps_left, table.masks_left[rows][:, None], out=steps_left)
        if not self.caching:
            return steps_left, steps_left
        begun = table.block_masks_left[rows] < table.block_length[rows]
        kept = begun & (table.holder[rows] != NOWHERE)
        recompute_left: Float64 = np.minimum((blocks_left - kept)[:, None], steps_left)
        return steps_left, recompute_left

    def blocks_left(self, rows: Int64) -> Int32:
        """Blocks with masks, the current one included. Shapes: [n] -> [n]."""
        return self._table.blocks[rows] - self._table.block[rows]

    def _one_shot(self, rows: Int64) -> None:
        """The whole output at the mean pace, counted down by the steps done: nearer than masks left at the mean pace,
        since the last masks of a block go slower than its first."""
        table = self._table
        table.steps_left[rows] = table.output_length[rows, None] / self._tokens_per_step
        table.estimate_step[rows] = 0
