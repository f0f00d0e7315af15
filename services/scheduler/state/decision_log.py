"""Keeps what was decided for each step of each request, so that an outcome can say why it was served as it was."""

import numpy as np

from services.scheduler.policies import ThresholdChoice
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float32, Float64, Int32, Int64, pack_float32, pack_int32
from shared.messages.decisions import MAX_DECISIONS, StepDecisions
from shared.messages.steps import RECOMPUTE

COLUMNS = (
    "at_s", "time_left_s", "thresholds", "allowed", "step_latency_s",
    "blocks", "kinds", "placed_on", "batch_tokens", "batch_requests",
)  # fmt: skip
BLOCK, KIND = COLUMNS.index("blocks"), COLUMNS.index("kinds")
NUM_FLOATS = 5  # of COLUMNS; the others are whole numbers, which float32 holds exactly up to 2^24


class DecisionLog:
    """One run of steps a row of the table, from the row's first step on. Memory is taken up as steps are recorded."""

    def __init__(self, table: RequestTable, fleet: Fleet) -> None:
        self._table = table
        self._fleet = fleet
        self._log = _empty(table.capacity)  # [capacity, MAX_DECISIONS, columns]

    def record(self, rows: Int64, choice: ThresholdChoice, now_s: float, *, ahead: bool = False) -> None:
        """The decisions for the next step of each of `rows`, or for the one `ahead` of it; one for a step sent again
        replaces the first."""
        table, fleet = self._table, self._fleet
        if len(self._log) < table.capacity:
            self._grow()
        slots = table.instance[rows]
        columns: tuple[Float64 | Int32 | Int64, ...] = (
            now_s - table.arrival_s[rows],
            choice.time_left_s,
            choice.thresholds,
            choice.allowed,
            choice.step_latency_s,
            table.block[rows],
            (table.next_kind if ahead else table.kind)[rows],
            table.place[rows],
            fleet.tokens[slots],
            fleet.requests[slots],
        )
        at = table.steps[rows] - table.first_step[rows] + ahead
        values = np.empty((len(rows), len(COLUMNS)), dtype=np.float32)
        for i, column in enumerate(columns):
            values[:, i] = column
        kept = (at < MAX_DECISIONS).nonzero()[0]
        self._log[rows[kept], at[kept]] = values[kept]

    def crossed(self, row: int) -> None:
        """The step that is out was sent ahead, and has turned out to be the first of a block."""
        at = int(self._table.steps[row] - self._table.first_step[row])
        if at < MAX_DECISIONS:
            self._log[row, at, BLOCK] = self._table.block[row]
            self._log[row, at, KIND] = RECOMPUTE

    def read(self, row: int) -> StepDecisions | None:
        """The steps of a row that have run; None where none has."""
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
        """To the table's capacity; what was never recorded is not copied, as that would take up its memory: all beyond
        the step that is out and the one ahead of it."""
        grown, used = _empty(self._table.capacity), int((self._table.steps - self._table.first_step).max()) + 2
        grown[: len(self._log), :used] = self._log[:, :used]
        self._log = grown


def _empty(capacity: int) -> Float32:
    return np.zeros((capacity, MAX_DECISIONS, len(COLUMNS)), dtype=np.float32)
