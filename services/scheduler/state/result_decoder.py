"""Applies the results of whole iterations to the table. Late and duplicate results are dropped here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.invalid_results import check_lengths, invalid_steps, measured_s, read_probabilities
from services.scheduler.state.observations import observe_iterations
from services.scheduler.state.output_buffer import MASKED
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_estimates import candidate_of
from services.scheduler.state.step_pipeline import SENT
from services.scheduler.state.totals import Totals
from shared.arrays import Bool, Float32, Float64, Int32, Int64, unpack_float32, unpack_int32, unpack_int64
from shared.edits import ends_block
from shared.messages.steps import MAX_POST_STEPS, RECOMPUTE, StepChoices, StepFailure, StepResults, StepTopTokens

log = structlog.get_logger(__name__)

STEP_COLUMNS = ("instances", "latency_s", "tickets", "steps", "counts", "stats", "cached")
TOKEN_COLUMNS = ("positions", "tokens", "confidences")


class AppliedResults(NamedTuple):
    """One entry per row that received a result; its unmasked and changed tokens are a slice of the flat arrays."""

    rows: Int64  # [n]
    ended: Bool  # [n], whether the step ended its block
    moved: Int64  # [k], the rows whose previous step ran on another instance, or did not exist
    refused: Int64  # [r], other rows, whose result is invalid or unmasks none of their masks: the instance is faulty
    ends: Int64  # [n], end of each row's slice
    positions: Int32  # [tokens]
    tokens: Int32  # [tokens]
    confidences: Float32  # [tokens]
    missing: Int64  # [m], tickets whose instance lacks the state
    failures: list[StepFailure]

    def written(self, i: int) -> tuple[Int32, Int32, Float32]:
        """Positions, tokens and confidences that the i-th row's step unmasked or changed."""
        part = slice(self.ends[i - 1] if i else 0, self.ends[i])
        return self.positions[part], self.tokens[part], self.confidences[part]


class _Columns(NamedTuple):
    instances: Int64  # indices
    latency_s: Float64  # of the iteration
    tickets: Int64
    steps: Int32
    counts: Int32
    positions: Int32
    tokens: Int32
    confidences: Float32
    stats: Float32  # [n, 5]
    cached: Int32
    missing: Int64

    def complete_latency_s(self, index: Int64) -> Float64:
        """The latency of the iteration of each of these steps, if they are all of its steps, else 0. [n] -> [n]."""
        answered = np.bincount(self.instances)
        selected = np.bincount(self.instances[index], minlength=len(answered))
        latency_s: Float64 = (selected == answered)[self.instances[index]] * self.latency_s[index]
        return latency_s

    def select(self, index: Int64) -> "_Columns":
        """These steps only, in ascending order; `missing` stays."""
        kept = np.zeros(len(self.tickets), dtype=np.bool_)
        kept[index] = True
        tokens = kept.repeat(self.counts)
        steps = {name: getattr(self, name)[index] for name in STEP_COLUMNS}
        return self._replace(**steps, **{name: getattr(self, name)[tokens] for name in TOKEN_COLUMNS})


@dataclass(slots=True)
class ResultDecoder:
    """Applies results of one epoch to the table."""

    _epoch: int
    _vocab_size: int
    _mask_token_id: int
    _thresholds: Float64  # [c], the candidates, ascending; tokens and steps are counted for each
    _steps_per_token: Float64  # [c], the mean of each
    _table: RequestTable
    _fleet: Fleet
    _totals: Totals

    def apply(self, messages: Sequence[StepResults], now_s: float) -> AppliedResults | None:
        """Apply the results of iterations of different instances, received now. All steps at an instance that sent
        malformed results are refused. Returns: None if no message is of this epoch and of a known instance."""
        well_formed, malformed, failures = [], [], []
        for message in messages:
            if message.epoch != self._epoch or message.instance_id not in self._fleet.index_of:
                continue
            try:
                check_lengths(message)
            except ValueError as error:
                log.warning("malformed results", instance=message.instance_id, error=str(error))
                malformed.append(self._fleet.index_of[message.instance_id])
            else:
                self._fleet.unresponsive[self._fleet.index_of[message.instance_id]] = False
                well_formed.append(message)
                failures += message.failures
        if not well_formed and not malformed:
            return None
        columns = self._columns(well_formed)
        rows, index = self._awaited(columns)
        refused = self._in_flight_on(malformed) if malformed else rows[:0]
        invalid = invalid_steps(
            columns.counts,
            columns.positions,
            columns.tokens,
            columns.confidences,
            columns.stats,
            vocab_size=self._vocab_size,
            mask_token_id=self._mask_token_id,
        )
        if invalid is not None:
            refused = np.concatenate([refused, rows[invalid[index]]])
            rows, index = rows[~invalid[index]], index[~invalid[index]]
        if any(message.top_tokens or message.choices for message in well_formed):
            self._keep_probabilities(well_formed, columns, rows, index)
        return self._unmask(columns, rows, index, refused, failures, now_s)

    def _keep_probabilities(
        self, messages: Iterable[StepResults], columns: _Columns, rows: Int64, index: Int64
    ) -> None:
        """Keep the top tokens and the labels' probabilities of the steps at `index` in the columns."""
        steps = zip(columns.instances[index].tolist(), columns.tickets[index].tolist(), rows.tolist(), strict=True)
        row_of = {(instance, ticket): row for instance, ticket, row in steps}
        for message in messages:
            instance = self._fleet.index_of[message.instance_id]
            for top in message.top_tokens:
                if (row := row_of.get((instance, top.ticket))) is not None:
                    self._keep_top_tokens(row, top)
            for choices in message.choices:
                if (row := row_of.get((instance, choices.ticket))) is not None:
                    self._keep_choices(row, choices)

    def _keep_top_tokens(self, row: int, found: StepTopTokens) -> None:
        if (kept := self._table.entry(row).top_tokens) is None:
            return
        try:
            kept.write(found, self._vocab_size)
        except ValueError as error:
            log.warning("malformed top tokens dropped", instance=self._instance_id(row), error=str(error))

    def _keep_choices(self, row: int, found: StepChoices) -> None:
        """Those of the first block, in which all labels are possible."""
        if self._table.block[row]:
            return
        entry = self._table.entry(row)
        probabilities = read_probabilities(found.probabilities, len(entry.arrived.choices))
        if probabilities is None:
            log.warning("malformed choices dropped", instance=self._instance_id(row))
        else:
            entry.choices = probabilities

    def _instance_id(self, row: int) -> str:
        return self._fleet.instance_id(self._table.instance.item(row))

    def _in_flight_on(self, instances: list[int]) -> Int64:
        rows = self._table.pipeline.in_flight()
        return rows[np.isin(self._table.instance[rows], instances)]

    def _columns(self, messages: Sequence[StepResults]) -> _Columns:
        """The columns of all messages, concatenated."""
        counts = np.array([len(message.tickets) // 8 for message in messages], dtype=np.int64)
        instances = [self._fleet.index_of[message.instance_id] for message in messages]
        latency_s = [measured_s(message) for message in messages]
        return _Columns(
            np.array(instances, dtype=np.int64).repeat(counts),
            np.array(latency_s, dtype=np.float64).repeat(counts),
            unpack_int64(b"".join([message.tickets for message in messages])),
            unpack_int32(b"".join([message.steps for message in messages])),
            unpack_int32(b"".join([message.counts for message in messages])),
            unpack_int32(b"".join([message.positions for message in messages])),
            unpack_int32(b"".join([message.tokens for message in messages])),
            unpack_float32(b"".join([message.confidences for message in messages])),
            unpack_float32(b"".join([message.confidence_stats for message in messages])).reshape(-1, 5),
            unpack_int32(b"".join([message.cached or bytes(len(message.steps)) for message in messages])),
            unpack_int64(b"".join([message.missing for message in messages])),
        )

    def _awaited(self, columns: _Columns) -> tuple[Int64, Int64]:
        """The rows whose step in flight is answered, and the index of each in the columns, without repetitions."""
        table = self._table
        rows = table.rows_of_tickets(columns.tickets)
        awaited = (rows >= 0) & (table.pipeline.state[rows] >= SENT) & (table.instance[rows] == columns.instances)
        awaited &= table.steps[rows] == columns.steps
        index = awaited.nonzero()[0]
        if len(set(rows[index].tolist())) < len(index):
            _, first = np.unique(rows[index], return_index=True)
            index = index[np.sort(first)]
        return rows[index], index

    def _unmask(
        self, columns: _Columns, rows: Int64, index: Int64, refused: Int64, failures: list[StepFailure], now_s: float
    ) -> AppliedResults:
        table, received = self._table, columns
        measured_s = columns.latency_s
        if len(index) < len(columns.tickets):
            measured_s = columns.complete_latency_s(index)
            columns = columns.select(index)
        owner = np.arange(len(rows)).repeat(columns.counts)  # [tokens], index into `rows`
        positions, tokens, confidences = columns.positions, columns.tokens, columns.confidences
        of_tokens = rows[owner]
        writable = self._writable(of_tokens, positions)
        written = columns.counts
        if np.count_nonzero(writable) < len(writable):
            owner, of_tokens, positions = owner[writable], of_tokens[writable], positions[writable]
            tokens, confidences = tokens[writable], confidences[writable]
            written = np.bincount(owner, minlength=len(rows)).astype(np.int32)
        at, newly = table.output_start[of_tokens] + positions, written
        if np.count_nonzero(table.has_edits[rows]):
            newly = np.bincount(owner, table.outputs.tokens[at] == MASKED, len(rows)).astype(np.int32)
        stalled = (newly == 0) & (table.block_masks_left[rows] > 0)
        if table.canvas_steps:  # the last step writes the whole block
            is_part = (newly > 0) & (newly < table.block_masks_left[rows])
            stalled = is_part | (stalled & (table.block_steps[rows] + 1 >= table.canvas_steps))
        if np.count_nonzero(stalled):
            refused = np.concatenate([refused, rows[stalled]])
            return self._unmask(received, rows[~stalled], index[~stalled], refused, failures, now_s)
        table.outputs.tokens[at] = tokens
        table.outputs.confidences[at] = confidences
        moved = rows[table.state_instance[rows] != table.instance[rows]]
        cached = columns.cached
        if np.count_nonzero(cached):
            cached = np.clip(cached, 0, table.recompute_tokens(rows)).astype(np.int32)  # output too, of moved requests
            prompts = table.tokens[rows] - table.output_length[rows]
            first = table.steps[rows] == 0  # a later arrival finds the pages that the request itself has written
            table.cached_tokens[rows] = np.where(first, np.minimum(cached, prompts), table.cached_tokens[rows])
        observe_iterations(table, self._fleet, rows, measured_s, cached, now_s)
        ended = self._advance(rows, newly, written - newly)
        table.step_s[rows] += columns.latency_s
        table.confidence_stats[rows] = columns.stats
        ends = written.cumsum(dtype=np.int64)
        return AppliedResults(
            rows, ended, moved, refused, ends, positions, tokens, confidences, columns.missing, failures
        )

    def _writable(self, rows: Int64, positions: Int32) -> Bool:
        """Whether each position may be written: it is masked or may change, and in the row's current block."""
        table = self._table
        start = table.block_start[rows]
        inside = (positions >= start) & (positions < table.block_stop(rows))
        safe = np.where(inside, positions, start)
        is_masked = table.outputs.tokens[table.output_start[rows] + safe] == MASKED
        writable: Bool = inside & (is_masked | table.has_edits[rows])
        return writable

    def _advance(self, rows: Int64, newly: Int32, changes: Int32) -> Bool:
        """Count a finished step of each row, and the tokens that it newly unmasked or changed. Returns: whether the
        step ended its block. Shapes: [n] each."""
        table, pipeline = self._table, self._table.pipeline
        began_without_masks = table.block_masks_left[rows] == 0
        table.masks_left[rows] -= newly
        table.block_masks_left[rows] -= newly
        table.steps[rows] += 1
        table.recompute_steps[rows] += pipeline.kind[rows] == RECOMPUTE
        table.attempts[rows] = 0
        table.suspect[rows] = False
        thresholds = pipeline.threshold[rows]
        at = candidate_of(thresholds, self._thresholds)
        table.lowest_threshold[rows] = np.minimum(table.lowest_threshold[rows], thresholds)
        if table.canvas_steps:
            thresholds = table.count_canvas_step(rows, thresholds, newly > 0)
        threshold_tokens = thresholds * newly
        expected_steps = np.interp(thresholds, self._thresholds, self._steps_per_token) * newly
        table.expected_steps[rows] += expected_steps
        table.threshold_tokens[rows] += threshold_tokens
        self._totals.tokens += sum(newly.tolist())
        self._totals.threshold_tokens += float(threshold_tokens.sum())
        self._totals.steps += len(rows)
        learnt = ~table.reads_choice[rows]
        self._totals.learnt_steps += int(np.count_nonzero(learnt))
        self._totals.expected_steps += float(expected_steps[learnt].sum())
        table.steps_at[rows, at] += 1
        table.tokens_at[rows, at] += newly
        table.state_instance[rows] = table.instance[rows]
        ended: Bool = table.block_masks_left[rows] == 0
        if np.count_nonzero(table.has_edits[rows]):
            table.edits[rows] += changes
            table.post_steps[rows] += began_without_masks
            ends = began_without_masks & ends_block(changes, table.post_steps[rows], MAX_POST_STEPS)
            ended = np.where(table.has_edits[rows], ends, ended)
            table.post_steps[rows[ended]] = 0
        pipeline.complete(rows, ended)
        return ended


def group_by_distinct_instances(messages: Iterable[StepResults]) -> list[list[StepResults]]:
    """The messages, in order, in groups in which no instance occurs twice."""
    groups: list[dict[str, StepResults]] = []
    for message in messages:
        if not groups or message.instance_id in groups[-1]:
            groups.append({})
        groups[-1][message.instance_id] = message
    return [list(group.values()) for group in groups]
