"""The steps that each request has left at each candidate threshold.

The one-shot estimate is used until the step predictor answers, and while it is unavailable. At the end of each block it
is corrected by the request's difficulty: its own steps so far over the steps expected. The predictor's answers are
corrected by the cell's steps between two answers over those by which the answers fell. Each finished step is subtracted
from the latest estimate.
"""

import math
from dataclasses import dataclass

import numpy as np

from services.scheduler.events import RequestEstimates
from services.scheduler.state.request_table import NOWHERE, RequestTable
from services.scheduler.state.totals import Totals
from shared.arrays import Float64, Int32, Int64
from shared.messages.steps import MAX_POST_STEPS
from shared.predictor_features import state_features

PRIOR_STEPS = 4.0  # weight of the cell's mean difficulty against a request's own steps
MEAN_STEPS = 5000.0  # steps over which the cell's mean difficulty is averaged
FIRST_STEPS = 500.0  # steps at difficulty 1 with which that average begins
MAX_CORRECTION = 4.0  # of the predictor's answers
RESERVE = 1.25  # factor by which too high answers stay so: too low ones cost deadlines
ENDING_WEIGHT = 0.02  # of one block in the moving share of texts that continue


@dataclass(slots=True)
class StepEstimates:
    """Reads and writes the estimate columns of the table."""

    _table: RequestTable
    _totals: Totals
    _candidates: Float64  # [c], the thresholds, ascending
    _tokens_per_step: Float64  # [c], the mean of each
    _granularity: int  # newly unmasked tokens after which a request needs a new estimate
    _learns: bool = True  # False: as in the paper, the one-shot estimate stays as it was at arrival
    _counted: tuple[int, float] = (0, 0.0)  # steps, and steps expected, that the mean difficulty contains
    _recent: tuple[float, float] = (FIRST_STEPS, FIRST_STEPS)  # these of the last steps
    _between: tuple[float, float] = (FIRST_STEPS, FIRST_STEPS)  # between two answers: steps, and fall of the answers
    _continues: float = 1.0  # share of the texts that continue after a block, where further blocks follow

    def request(self) -> list[RequestEstimates]:
        """One command for all requests that need a new estimate; an empty list if none does."""
        table = self._table
        newly_unmasked = table.estimate_masks_left - table.masks_left
        rows: Int64 = (newly_unmasked >= self._granularity).nonzero()[0]
        rows = rows[(table.ticket[rows] != 0) & ~table.estimate_pending[rows]]
        if not len(rows):
            return []
        table.estimate_pending[rows] = True
        table.estimate_masks_left[rows] = table.masks_left[rows]
        block_length, block = self._free_blocks(rows)
        features = state_features(
            output_length=table.free_tokens[rows],
            block_length=block_length,
            steps=table.steps[rows],
            masks_left=table.masks_left[rows],
            block=block,
            block_masks_left=table.block_masks_left[rows],
            confidence_stats=table.confidence_stats[rows],
        )
        masks_left, blocks_left = table.masks_left[rows], table.blocks_left[rows]
        traces = [table.entry(row).arrived.trace for row in rows[table.traced[rows]].tolist()]
        return [RequestEstimates(table.ticket[rows], table.steps[rows], features, masks_left, blocks_left, traces)]

    def apply(self, tickets: Int64, steps: Int32, steps_left: Float64) -> None:
        """Apply the predictor's answer for each request after `steps` steps. Shapes: [n], [n], [n, c]."""
        table = self._table
        rows = table.rows_of_tickets(tickets)
        known = rows >= 0
        rows = rows[known]
        self._totals.predictions += len(rows)
        steps, answer, correction = steps[known], steps_left[known], 1.0
        if self._learns:
            self._learn_correction(rows, steps, answer)
            correction = table.correction[rows] = self.correction
        table.steps_left[rows] = correction * answer + self._closing_steps(rows)[:, None]
        table.estimate_step[rows] = steps
        table.estimate_pending[rows] = table.is_one_shot[rows] = False
        first = rows[table.predicted_steps[rows] == 0]
        if len(first):
            at = candidate_of(table.pipeline.threshold[first], self._candidates)
            table.predicted_steps[first] = table.estimate_step[first] + table.steps_left[first, at]

    def _learn_correction(self, rows: Int64, steps: Int32, answer: Float64) -> None:
        """Compare the steps since the answer before with the fall of the answers. Shapes: [n], [n], [n, c]."""
        table = self._table
        again = ~table.is_one_shot[rows] & ~table.has_edits[rows]
        rows, steps, answer = rows[again], steps[again], answer[again]
        at = candidate_of(table.pipeline.threshold[rows], self._candidates)
        fall = table.steps_left[rows, at] / table.correction[rows] - answer[np.arange(len(rows)), at]
        done = float((steps - table.estimate_step[rows]).sum())
        kept = math.exp(-done / MEAN_STEPS)
        self._between = kept * self._between[0] + done, kept * self._between[1] + float(fall.sum())

    @property
    def correction(self) -> float:
        """The factor on the predictor's answers."""
        done, fall = self._between
        ratio = done / max(fall, 1.0)
        return min(max(ratio, min(RESERVE * ratio, 1.0)), MAX_CORRECTION)

    def fall_back(self, tickets: Int64) -> None:
        """Use the one-shot estimate: the predictor did not answer."""
        rows = self._table.rows_of_tickets(tickets)
        rows = rows[rows >= 0]
        self._totals.predictor_fallbacks += len(rows)
        self.use_one_shot(rows)
        self._table.estimate_pending[rows] = False

    def remaining(self, rows: Int64) -> tuple[Float64, Float64]:
        """Steps left, and how many of these are recompute steps.

        At least one step per block is left, and at most one per mask, or per block of a request with labels; with
        canvases at most `canvas_steps` per block; with
        edits, at least one more per block, and at most MAX_POST_STEPS. The first step of each block is a recompute step
        unless the cache is exact, and so is a step on an instance without the state; without a cache, all are. Blocks
        that probably never run, because the text ends before them, count by their probability.
        Shapes: rows [n] -> [n, c] each.
        """
        table = self._table
        blocks_left = table.blocks_left[rows]
        steps_left: Float64 = table.steps_left.take(rows, axis=0)
        steps_left -= (table.steps[rows] - table.estimate_step[rows])[:, None]
        np.maximum(steps_left, blocks_left[:, None], out=steps_left)
        most = np.where(table.reads_choice[rows], blocks_left, table.masks_left[rows])
        if table.canvas_steps:
            most = np.minimum(most, blocks_left * table.canvas_steps - table.block_steps[rows])
        has_edits = table.has_edits[rows]
        some_edit = bool(np.count_nonzero(has_edits))
        if some_edit:
            most += has_edits * blocks_left * MAX_POST_STEPS
        np.minimum(steps_left, most[:, None], out=steps_left)
        skipped: Float64 | float = 0.0
        if self._continues < 1.0:
            skipped = self._blocks_skipped(rows)
            steps_left -= skipped[:, None]
        if some_edit:
            least = has_edits * (blocks_left - skipped) + self._closing_steps(rows)
            np.maximum(steps_left, least[:, None], out=steps_left)
        if not table.pipeline.caching:
            return steps_left, steps_left
        has_state = table.state_instance[rows] != NOWHERE
        if table.pipeline.exact:
            return steps_left, np.minimum(~has_state[:, None], steps_left)
        has_cache = ~table.begins_block(rows) & has_state
        recompute_left: Float64 = np.minimum((blocks_left - skipped - has_cache)[:, None], steps_left)
        return steps_left, recompute_left

    def _closing_steps(self, rows: Int64) -> Float64:
        """The fewest steps left that only look for edits: with edits, one for each block that has masks and probably
        runs. The predictor does not count them. Shapes: [n] -> [n]."""
        table = self._table
        if not np.count_nonzero(table.has_edits[rows]):
            return np.zeros(len(rows))
        blocks = table.blocks_left[rows] - self._blocks_skipped(rows) - (table.block_masks_left[rows] == 0)
        steps: Float64 = table.has_edits[rows] * np.maximum(blocks, 0.0)
        return steps

    def _free_blocks(self, rows: Int64) -> tuple[Int32, Int32 | Float64]:
        """The length of the current block, and its index; of requests with pinned tokens, as if all blocks had as many
        free tokens as this one. Shapes: [n] -> [n] each."""
        table = self._table
        has_pinned = table.has_pinned[rows]
        if not np.count_nonzero(has_pinned):
            return table.block_length[rows], table.block[rows]
        masks = np.maximum(table.block_masks[rows], 1)
        before = table.free_tokens[rows] - table.masks_left[rows] - (masks - table.block_masks_left[rows])
        lengths = np.where(has_pinned, masks, table.block_length[rows])
        return lengths, np.where(has_pinned, before / masks, table.block[rows])

    def learn_ending(self, *, ended: bool) -> None:
        """Count a finished block that is not the last of its output: the text `ended` in it, or continues."""
        if self._learns:
            self._continues += ENDING_WEIGHT * ((not ended) - self._continues)

    def _blocks_skipped(self, rows: Int64) -> Float64:
        """The expected number of blocks that do not run. A block of padding would take one step. Pinned tokens stand to
        the end of their output, whose text therefore does not end early. Shapes: [n] -> [n]."""
        further, share = (self._table.blocks_left[rows] - 1) * ~self._table.has_pinned[rows], self._continues
        if share == 1.0:
            return np.zeros(len(further))
        return further - share * (1 - share**further) / (1 - share)

    def use_one_shot(self, rows: Int64) -> None:
        """Estimate the steps of the masks left at the mean rate and the learnt difficulty.

        Without learning: those of the whole output at the mean rate; finished steps are subtracted later. Within a
        block this is more accurate than the masks left, because the last masks of a block take longer than its first.
        """
        table = self._table
        table.is_one_shot[rows] = True
        if not self._learns:
            table.steps_left[rows] = table.free_tokens[rows, None] / self._tokens_per_step
            table.estimate_step[rows] = 0
            return
        skipped = self._blocks_skipped(rows)
        masks = table.masks_left[rows] - skipped * table.block_length[rows]
        steps_left = (self._difficulty(rows) * masks)[:, None] / self._tokens_per_step
        table.steps_left[rows] = steps_left + skipped[:, None]  # one step of padding each, which `remaining` subtracts
        table.estimate_step[rows] = table.steps[rows]

    def learn(self, rows: Int64) -> None:
        """Correct the one-shot estimates of the rows whose block has ended."""
        if not self._learns or not len(rows):
            return
        steps, expected = self._totals.learnt_steps, self._totals.expected_steps
        new_steps, new_expected = steps - self._counted[0], expected - self._counted[1]
        self._counted = steps, expected
        kept = math.exp(-new_steps / MEAN_STEPS)
        self._recent = kept * self._recent[0] + new_steps, kept * self._recent[1] + new_expected
        self.use_one_shot(rows[self._table.is_one_shot[rows]])

    def _difficulty(self, rows: Int64) -> Float64:
        """The factor on each request's mean steps: its own, shrunk to the cell's. Shapes: [n] -> [n]."""
        table, (steps, expected) = self._table, self._recent
        prior_steps, own_steps = PRIOR_STEPS * (steps / expected), table.steps[rows] - table.first_step[rows]
        return (prior_steps + own_steps) / (PRIOR_STEPS + table.expected_steps[rows])


def candidate_of(thresholds: Float64, candidates: Float64) -> Int64:
    """The index of the candidate that each threshold counts as: the next higher one, or the highest. Shapes: thresholds
    [n], candidates [c], ascending -> [n]."""
    return np.minimum(candidates.searchsorted(thresholds), len(candidates) - 1)
