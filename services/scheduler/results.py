"""Reads an instance's results into the table, a whole iteration at once. Late and duplicate ones fall out here."""

from dataclasses import dataclass

import numpy as np
import structlog

from services.scheduler.fleet import Fleet
from services.scheduler.table import MASKED, RequestTable
from shared.arrays import Bool, Float32, Int32, Int64, unpack_float32, unpack_int32, unpack_int64
from shared.messages.steps import StepKind, StepResults

RECOMPUTE = int(StepKind.RECOMPUTE)  # members are slow to look up

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Progressed:
    """What was taken into the table: one entry a row, its unmasked tokens in a slice of the flat arrays."""

    rows: Int64  # [n]
    newcomers: Int64  # [k], those of `rows` that this instance ran without having run their step before
    stalled: Int64  # [j], those of `rows` of which nothing was unmasked: never an instance that works
    ends: Int64  # [n], where each row's slice ends
    positions: Int32  # [tokens]
    tokens: Int32  # [tokens]
    confidences: Float32  # [tokens]
    missing: Int64  # [m], tickets whose state the instance lacks

    def unmasked(self, i: int) -> tuple[Int32, Int32, Float32]:
        """Positions, tokens and confidences of the i-th row."""
        part = slice(self.ends[i - 1] if i else 0, self.ends[i])
        return self.positions[part], self.tokens[part], self.confidences[part]


@dataclass(frozen=True, slots=True)
class _Columns:
    tickets: Int64
    steps: Int32
    counts: Int32
    positions: Int32
    tokens: Int32
    confidences: Float32
    stats: Float32  # [n, 5]


@dataclass(slots=True)
class Done:
    """What has been taken into the table, from the start."""

    steps: int = 0
    tokens: int = 0
    threshold_tokens: float = 0.0  # sum over the tokens of the threshold used


class ResultReader:
    """Applies results of one epoch to the table."""

    def __init__(self, epoch: int, table: RequestTable, fleet: Fleet) -> None:
        self._epoch = epoch
        self._table = table
        self._fleet = fleet
        self.done = Done()

    def read(self, results: StepResults) -> Progressed | None:
        """Unmask what an iteration found. Returns: None if nothing of it is in force (all late, or malformed)."""
        slot = self._fleet.slot_of.get(results.instance_id)
        if results.epoch != self._epoch or slot is None:
            return None
        try:
            columns = _columns(results)
            missing = unpack_int64(results.missing)
        except ValueError as error:
            log.warning("malformed results dropped", instance=results.instance_id, error=str(error))
            return None
        rows, of_row = self._in_force(columns, slot)
        self._table.step_s[rows] += results.latency_s
        return self._apply(columns, rows, of_row, slot, missing)

    def _in_force(self, columns: _Columns, slot: int) -> tuple[Int64, Int64]:
        """The rows whose awaited step this is, and where each stands in the message; a repeated one counts once."""
        table = self._table
        rows = table.rows_of_tickets(columns.tickets)
        awaited = (rows >= 0) & table.in_flight[rows] & (table.instance[rows] == slot)
        awaited &= table.steps[rows] == columns.steps
        index = awaited.nonzero()[0]
        if len(set(rows[index].tolist())) < len(index):
            _, first = np.unique(rows[index], return_index=True)
            index = index[np.sort(first)]
        return rows[index], index

    def _apply(self, columns: _Columns, rows: Int64, index: Int64, slot: int, missing: Int64) -> Progressed:
        table = self._table
        starts = np.cumsum(columns.counts) - columns.counts
        owner = np.arange(len(rows)).repeat(columns.counts[index])  # [tokens], which of `rows`
        flat = _ranges(starts[index], columns.counts[index])
        positions, tokens = columns.positions[flat], columns.tokens[flat]
        good = self._unmaskable(rows[owner], positions)
        if not good.all():
            owner, positions, tokens, flat = owner[good], positions[good], tokens[good], flat[good]
        table.output[rows[owner], positions] = tokens
        newly = np.bincount(owner, minlength=len(rows)).astype(np.int32)
        newcomers, stalled = rows[table.holder[rows] != slot], rows[newly == 0]
        self._advance(rows, newly, slot)
        table.confidence_stats[rows] = columns.stats[index]
        confidences = columns.confidences[flat]
        ends = np.cumsum(newly, dtype=np.int64)
        return Progressed(rows, newcomers, stalled, ends, positions, tokens, confidences, missing)

    def _unmaskable(self, rows: Int64, positions: Int32) -> Bool:
        """Which positions may be unmasked: masked ones of the row's current block."""
        table = self._table
        start = table.block[rows] * table.block_length[rows]
        inside = (positions >= start) & (positions < start + table.block_length[rows])
        safe = np.where(inside, positions, start)
        unmaskable: Bool = inside & (table.output[rows, safe] == MASKED)
        return unmaskable

    def _advance(self, rows: Int64, newly: Int32, slot: int) -> None:
        table = self._table
        table.masks_left[rows] -= newly
        table.block_masks_left[rows] -= newly
        table.steps[rows] += 1
        table.recompute_steps[rows] += table.kind[rows] == RECOMPUTE
        table.attempts[rows] = 0
        threshold_tokens = table.threshold[rows] * newly
        table.threshold_tokens[rows] += threshold_tokens
        self.done.steps += len(rows)
        self.done.tokens += int(newly.sum())
        self.done.threshold_tokens += float(threshold_tokens.sum())
        table.lowest_threshold[rows] = np.minimum(table.lowest_threshold[rows], table.threshold[rows])
        table.holder[rows] = slot
        self._turn_to_next(rows)

    def _turn_to_next(self, rows: Int64) -> None:
        """The step sent ahead is now the one awaited; where the block has ended, the instance passes it over."""
        table = self._table
        ahead = table.ahead[rows]
        table.in_flight[rows] = ahead & (table.block_masks_left[rows] > 0)
        table.threshold[rows] = np.where(ahead, table.next_threshold[rows], table.threshold[rows])
        table.kind[rows] = np.where(ahead, table.next_kind[rows], table.kind[rows])
        table.ahead[rows] = False


def _columns(results: StepResults) -> _Columns:
    """Raises: ValueError if columns do not fit together."""
    columns = _Columns(
        unpack_int64(results.tickets),
        unpack_int32(results.steps),
        unpack_int32(results.counts),
        unpack_int32(results.positions),
        unpack_int32(results.tokens),
        unpack_float32(results.confidences),
        unpack_float32(results.confidence_stats).reshape(-1, 5),
    )
    n, total = len(columns.tickets), len(columns.positions)
    if not len(columns.steps) == len(columns.counts) == len(columns.stats) == n:
        raise ValueError("columns of different lengths")
    if not len(columns.tokens) == len(columns.confidences) == total == int(columns.counts.sum()):
        raise ValueError("token columns do not add up to the counts")
    if n and columns.counts.min() < 0:
        raise ValueError("a negative count")
    return columns


def _ranges(starts: Int32, counts: Int32) -> Int64:
    """The concatenation of range(start, start + count) for each pair. Shapes: [n], [n] -> [sum of counts]."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Int64 = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
    return ranges
