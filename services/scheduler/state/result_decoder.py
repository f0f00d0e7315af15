"""Reads instances' results into the table, whole iterations at once. Late and duplicate ones fall out here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from services.scheduler.algorithms.thresholds import candidate_of
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import MASKED, RequestTable
from shared.arrays import Bool, Float32, Float64, Int32, Int64, unpack_float32, unpack_int32, unpack_int64
from shared.messages.steps import RECOMPUTE, StepFailure, StepResults

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AppliedResults:
    """What was taken into the table: one entry a row, its unmasked tokens in a slice of the flat arrays."""

    rows: Int64  # [n]
    newcomers: Int64  # [k], those of `rows` whose instance had not run their step before
    stalled: Int64  # [j], those of `rows` of which nothing was unmasked: never an instance that works
    ends: Int64  # [n], where each row's slice ends
    positions: Int32  # [tokens]
    tokens: Int32  # [tokens]
    confidences: Float32  # [tokens]
    missing: Int64  # [m], tickets whose state their instance lacks
    failures: list[StepFailure]

    def unmasked(self, i: int) -> tuple[Int32, Int32, Float32]:
        """Positions, tokens and confidences of the i-th row."""
        part = slice(self.ends[i - 1] if i else 0, self.ends[i])
        return self.positions[part], self.tokens[part], self.confidences[part]


@dataclass(frozen=True, slots=True)
class _Columns:
    slots: Int64  # of the instance
    latency_s: Float64  # of the iteration
    tickets: Int64
    steps: Int32
    counts: Int32
    positions: Int32
    tokens: Int32
    confidences: Float32
    stats: Float32  # [n, 5]
    missing: Int64

    def of(self, index: Int64) -> "_Columns":
        """Of these steps alone; what is missing stays."""
        starts = self.counts.cumsum() - self.counts
        counts = self.counts[index]
        flat = _ranges(starts[index], counts)
        return _Columns(
            self.slots[index],
            self.latency_s[index],
            self.tickets[index],
            self.steps[index],
            counts,
            self.positions[flat],
            self.tokens[flat],
            self.confidences[flat],
            self.stats[index],
            self.missing,
        )


@dataclass(slots=True)
class StepTotals:
    """What has been taken into the table, from the start."""

    steps: int = 0
    tokens: int = 0
    threshold_tokens: float = 0.0  # sum over the tokens of the threshold used


class ResultDecoder:
    """Applies results of one epoch to the table."""

    def __init__(self, epoch: int, thresholds: Sequence[float], table: RequestTable, fleet: Fleet) -> None:
        """`thresholds` are the candidates, ascending: tokens and steps are counted at each."""
        self._epoch = epoch
        self._thresholds = np.array(thresholds)
        self._table = table
        self._fleet = fleet
        self.done = StepTotals()

    def read(self, messages: Sequence[StepResults]) -> AppliedResults | None:
        """Unmask what iterations of different instances found.

        Returns: None if nothing of it is in force (all late, or malformed).
        """
        good, failures = [], []
        for message in messages:
            if message.epoch != self._epoch or message.instance_id not in self._fleet.slot_of:
                continue
            try:
                _check(message)
            except ValueError as error:
                log.warning("malformed results dropped", instance=message.instance_id, error=str(error))
            else:
                self._fleet.silent[self._fleet.slot_of[message.instance_id]] = False
                good.append(message)
                failures += message.failures
        if not good:
            return None
        columns = self._columns(good)
        rows, of_row = self._in_force(columns)
        return self._apply(columns, rows, of_row, failures)

    def _columns(self, messages: Sequence[StepResults]) -> _Columns:
        """The messages one after the other."""
        numbers = [len(message.tickets) // 8 for message in messages]
        slots = np.array([self._fleet.slot_of[message.instance_id] for message in messages])
        latency_s = np.array([message.latency_s for message in messages])
        return _Columns(
            slots.repeat(numbers),
            latency_s.repeat(numbers),
            unpack_int64(b"".join([message.tickets for message in messages])),
            unpack_int32(b"".join([message.steps for message in messages])),
            unpack_int32(b"".join([message.counts for message in messages])),
            unpack_int32(b"".join([message.positions for message in messages])),
            unpack_int32(b"".join([message.tokens for message in messages])),
            unpack_float32(b"".join([message.confidences for message in messages])),
            unpack_float32(b"".join([message.confidence_stats for message in messages])).reshape(-1, 5),
            unpack_int64(b"".join([message.missing for message in messages])),
        )

    def _in_force(self, columns: _Columns) -> tuple[Int64, Int64]:
        """The rows whose awaited step this is, and where each stands in the columns; a repeated one counts once."""
        table = self._table
        rows = table.rows_of_tickets(columns.tickets)
        awaited = (rows >= 0) & table.in_flight[rows] & (table.instance[rows] == columns.slots)
        awaited &= table.steps[rows] == columns.steps
        index = awaited.nonzero()[0]
        if len(set(rows[index].tolist())) < len(index):
            _, first = np.unique(rows[index], return_index=True)
            index = index[np.sort(first)]
        return rows[index], index

    def _apply(self, columns: _Columns, rows: Int64, index: Int64, failures: list[StepFailure]) -> AppliedResults:
        table = self._table
        if len(index) < len(columns.tickets):
            columns = columns.of(index)
        owner = np.arange(len(rows)).repeat(columns.counts)  # [tokens], which of `rows`
        positions, tokens, confidences = columns.positions, columns.tokens, columns.confidences
        of_tokens = rows[owner]
        good = self._unmaskable(of_tokens, positions)
        newly = columns.counts
        if np.count_nonzero(good) < len(good):
            owner, of_tokens, positions = owner[good], of_tokens[good], positions[good]
            tokens, confidences = tokens[good], confidences[good]
            newly = np.bincount(owner, minlength=len(rows)).astype(np.int32)
        table.output[of_tokens, positions] = tokens
        newcomers, stalled = rows[table.holder[rows] != table.instance[rows]], rows[newly == 0]
        self._advance(rows, newly)
        table.step_s[rows] += columns.latency_s
        table.confidence_stats[rows] = columns.stats
        ends = newly.cumsum(dtype=np.int64)
        return AppliedResults(rows, newcomers, stalled, ends, positions, tokens, confidences, columns.missing, failures)

    def _unmaskable(self, rows: Int64, positions: Int32) -> Bool:
        """Which positions may be unmasked: masked ones of the row's current block."""
        table = self._table
        start = table.block[rows] * table.block_length[rows]
        inside = (positions >= start) & (positions < start + table.block_length[rows])
        safe = np.where(inside, positions, start)
        unmaskable: Bool = inside & (table.output[rows, safe] == MASKED)
        return unmaskable

    def _advance(self, rows: Int64, newly: Int32) -> None:
        table = self._table
        table.masks_left[rows] -= newly
        table.block_masks_left[rows] -= newly
        table.steps[rows] += 1
        table.recompute_steps[rows] += table.kind[rows] == RECOMPUTE
        table.attempts[rows] = 0
        threshold_tokens = table.threshold[rows] * newly
        table.threshold_tokens[rows] += threshold_tokens
        self.done.steps += len(rows)
        self.done.tokens += sum(newly.tolist())
        self.done.threshold_tokens += float(threshold_tokens.sum())
        at = candidate_of(table.threshold[rows], self._thresholds)
        table.steps_at[rows, at] += 1
        table.tokens_at[rows, at] += newly
        table.lowest_threshold[rows] = np.minimum(table.lowest_threshold[rows], table.threshold[rows])
        table.holder[rows] = table.instance[rows]
        self._turn_to_next(rows)

    def _turn_to_next(self, rows: Int64) -> None:
        """The step sent ahead is now the one awaited; where the block has ended, the instance passes it over, and runs
        the first of the next block if that was sent, too."""
        table = self._table
        ahead, ended = table.ahead[rows], table.block_masks_left[rows] == 0
        crossed = ahead & ended & table.crosses[rows]
        table.in_flight[rows] = ahead & (crossed | ~ended)
        if np.count_nonzero(ahead):
            table.threshold[rows] = np.where(ahead, table.next_threshold[rows], table.threshold[rows])
            table.kind[rows] = np.where(ahead & ~crossed, table.next_kind[rows], table.kind[rows])
            table.kind[rows[crossed]] = RECOMPUTE
            table.ahead[rows] = False


def _check(results: StepResults) -> None:
    """Raises: ValueError if columns do not fit together."""
    n, odd = divmod(len(results.tickets), 8)
    if odd or not len(results.steps) == len(results.counts) == len(results.confidence_stats) / 5 == 4 * n:
        raise ValueError("columns of different lengths")
    total = 4 * sum(memoryview(results.counts).cast("I"))  # unsigned, so that a negative count is far too many
    if not len(results.positions) == len(results.tokens) == len(results.confidences) == total:
        raise ValueError("token columns do not add up to the counts")
    if len(results.missing) % 8:
        raise ValueError("missing tickets are not whole numbers")


def of_different_instances(messages: Iterable[StepResults]) -> list[list[StepResults]]:
    """The messages, in their order, in groups in which no instance occurs twice: to be read one after another."""
    groups: list[dict[str, StepResults]] = []
    for message in messages:
        if not groups or message.instance_id in groups[-1]:
            groups.append({})
        groups[-1][message.instance_id] = message
    return [list(group.values()) for group in groups]


def _ranges(starts: Int32, counts: Int32) -> Int64:
    """The concatenation of range(start, start + count) for each pair. Shapes: [n], [n] -> [sum of counts]."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + (starts - (ends - counts)).astype(np.int64).repeat(counts)
