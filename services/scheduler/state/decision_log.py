"""Records the decisions for each step of each request; the outcome contains them."""

from dataclasses import dataclass

import numpy as np

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float32, Float64, Int32, Int64, pack_float32, pack_int32
from shared.messages.decisions import MAX_DECISIONS, StepDecisions

COLUMNS = (
    "at_s", "time_left_s", "thresholds", "allowed", "step_latency_s",
    "blocks", "kinds", "placed_on", "batch_tokens", "batch_requests"
)  # fmt: skip
BLOCK, KIND = COLUMNS.index("blocks"), COLUMNS.index("kinds")
NUM_FLOATS = 5  # the first COLUMNS are fractions; the others are integers, exact in float32 up to 2^24


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """Thresholds chosen for steps, and the values that decided. Shapes: all [n]."""

    thresholds: Float64
    allowed: Float64  # the highest threshold that load control allows
    time_left_s: Float64  # predicted time to the last token at the threshold; NaN without a prediction
    step_latency_s: Float64  # expected on the request's instance, at its present load


class DecisionLog:
    """The decisions of each row of the table, from its first step on.

    The array has room for MAX_DECISIONS steps of each row, 0.4 GB at 20,000 rows, so that recording is one assignment.
    Most requests have far fewer steps, but the operating system maps the zero pages of `np.zeros` lazily: only recorded
    steps use memory.
    """

    def __init__(self, table: RequestTable, fleet: Fleet) -> None:
        self._table = table
        self._fleet = fleet
        self._log = _empty(table.capacity)  # [capacity, MAX_DECISIONS, columns]

    def record(self, rows: Int64, choice: ThresholdChoice, now_s: float, *, ahead: bool = False) -> None:
        """Record the decisions for the step in flight of each of `rows`, or for its successor if `ahead`. If a step is
        sent again, the new record replaces the old one."""
        table, fleet = self._table, self._fleet
        if len(self._log) < table.capacity:
            self._grow()
        instances = table.instance[rows]
        values = np.empty((len(rows), len(COLUMNS)), dtype=np.float32)
        columns: tuple[Float64 | Int32 | Int64 | int, ...] = (
            now_s - table.arrival_s[rows],
            choice.time_left_s,
            choice.thresholds,
            choice.allowed,
            choice.step_latency_s,
            table.block[rows],
            table.pipeline.successor_kind if ahead else table.pipeline.kind[rows],
            table.placement[rows],
            fleet.tokens[instances],
            fleet.requests[instances],
        )
        at = table.steps[rows] - table.first_step[rows] + ahead
        for i, column in enumerate(columns):
            values[:, i] = column
        if at.max(initial=0) >= MAX_DECISIONS:
            kept = (at < MAX_DECISIONS).nonzero()[0]
            rows, at, values = rows[kept], at[kept], values[kept]
        self._log[rows, at] = values

    def move_to_next_block(self, row: int) -> None:
        """Correct the record of the step in flight: it was sent ahead, and is the first step of a block."""
        at = int(self._table.steps[row] - self._table.first_step[row])
        if at < MAX_DECISIONS:
            self._log[row, at, BLOCK] = self._table.block[row]
            self._log[row, at, KIND] = self._table.pipeline.next_block_kind

    def read(self, row: int) -> StepDecisions | None:
        """The decisions for the finished steps of a row; None if no step is finished."""
        first = int(self._table.first_step[row])
        done = min(int(self._table.steps[row]) - first, MAX_DECISIONS)
        if done == 0:
            return None
        values = self._log[row, :done].T
        columns = {
            name: pack_float32(values[i]) if i < NUM_FLOATS else pack_int32(values[i]) for i, name in enumerate(COLUMNS)
        }
        return StepDecisions(first_step=first, instances=list(self._table.entry(row).placed_on), **columns)

    def _grow(self) -> None:
        """Grow to the table's capacity. Steps after the one in flight and its successor are not copied, because a copy
        would use their memory."""
        grown, used = _empty(self._table.capacity), int((self._table.steps - self._table.first_step).max()) + 2
        grown[: len(self._log), :used] = self._log[:, :used]
        self._log = grown


def _empty(capacity: int) -> Float32:
    return np.zeros((capacity, MAX_DECISIONS, len(COLUMNS)), dtype=np.float32)
