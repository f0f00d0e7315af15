"""The scheduler's state machine: events in, commands out; no clock, no socket.

A cycle applies all queued events, then places requests and sends their next steps. The policy decides each step's
instance and threshold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from services.scheduler import events as ev
from services.scheduler.algorithms.common_level import steps_at
from services.scheduler.algorithms.refusal import ComputingShare, refusals
from services.scheduler.dispatch import Dispatcher
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import LOAD_CONTROL_INTERVAL_S, Policy
from services.scheduler.state.checkpoints import resume, take_checkpoints
from services.scheduler.state.decision_log import DecisionLog
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.job_encoder import JobEncoder
from services.scheduler.state.output_buffer import MASKED
from services.scheduler.state.request_table import NOWHERE, RequestTable
from services.scheduler.state.result_decoder import AppliedResults, ResultDecoder, group_by_distinct_instances
from services.scheduler.state.serving_stats import serving_stats
from services.scheduler.state.step_estimates import StepEstimates
from services.scheduler.state.step_pipeline import SENT
from services.scheduler.state.suspects import MAX_ATTEMPTS
from services.scheduler.state.totals import Totals
from shared.arrays import Bool, Int32, Int64, pack_int32
from shared.messages.instances import Instance
from shared.messages.requests import ACCEPT_S, ACCEPTED, OutcomeError, OutcomeStatus, Progress, Request
from shared.messages.stats import ClusterLoad
from shared.messages.steps import StepResults

log = structlog.get_logger(__name__)

TIMEOUT_CHECK_INTERVAL_S = 1.0

TextEnded = Callable[[Int32, Request, int], bool]
MakePolicy = Callable[[StepEstimates], Policy]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    epoch: int
    mask_token_id: int
    thresholds: tuple[float, ...]  # candidates, ascending
    tokens_per_step: tuple[float, ...]  # mean tokens unmasked by a step at each threshold
    caching: bool = False  # whether instances keep keys and values between the steps of a block
    exact_cache: bool = False  # whether finished blocks are cached for good
    canvas_steps: int = 0  # as in ModelCard
    granularity: int = 8  # newly unmasked tokens between two estimates of the steps left
    lookahead: int = 0  # steps sent to an instance before the result of the previous step is read: 0 or 1
    end_ids: tuple[int, ...] = ()  # tokens that end a text, as in `text_ended`
    vocab_size: int = 1 << 31  # tokens are below it
    step_timeout_s: float = 60.0  # time after which an unanswered step is sent to another instance
    keeps_records: bool = True  # whether to keep decisions and checkpoints; a simulation needs neither
    learns_difficulty: bool = True  # whether a request's own steps correct its one-shot estimate
    asks_predictor: bool = False  # for estimates of the steps left
    estimate_interval_s: float = 0.0  # minimum time between two requests to the step predictor
    shed: bool = False  # refuse new requests that cannot meet their SLO


class SchedulerCore:
    """Holds every active request and every instance of one cell."""

    def __init__(self, settings: CoreSettings, make_policy: MakePolicy, text_ended: TextEnded) -> None:
        """`text_ended(output_ids, request, checked)`: whether finished blocks [tokens] contain the end of the text; the
        first `checked` tokens alone do not."""
        self.settings = settings
        self.table = RequestTable(
            candidates=len(settings.thresholds),
            caching=settings.caching,
            exact=settings.exact_cache,
            canvas_steps=settings.canvas_steps,
        )
        self.fleet = Fleet(exact=settings.exact_cache)
        self.totals = Totals()
        self._computing_share = ComputingShare()
        candidates, means = np.array(settings.thresholds), np.array(settings.tokens_per_step)
        self.estimates = StepEstimates(
            self.table, self.totals, candidates, means, settings.granularity, settings.learns_difficulty
        )
        self.policy = make_policy(self.estimates)
        self._text_ended = text_ended
        vocabulary = settings.vocab_size, settings.mask_token_id
        self._decoder = ResultDecoder(
            settings.epoch, *vocabulary, candidates, 1 / means, self.table, self.fleet, self.totals
        )
        end_ids = pack_int32(settings.end_ids)
        encoder = JobEncoder(settings.epoch, settings.mask_token_id, end_ids, self.table, self.fleet)
        self._decisions = DecisionLog(self.table, self.fleet) if settings.keeps_records else None
        self._dispatcher = Dispatcher(self.table, self.fleet, self.policy, encoder, self._decisions, settings.lookahead)
        self.load: ClusterLoad | None = None  # at the last run of load control
        self._commands: list[ev.Command] = []
        self._added: list[int] = []  # rows of new requests without an estimate
        self._next_timeout_check_s = 0.0
        self._next_load_control_s = 0.0
        self._next_estimate_s = 0.0

    def cycle(self, events: Sequence[ev.Event], now_s: float) -> list[ev.Command]:
        """Apply `events`, then decide. The results of all instances are applied first, together. Units: now_s is Unix
        time in seconds.
        """
        for results in group_by_distinct_instances(event for event in events if isinstance(event, StepResults)):
            self._apply_results(results, now_s)
        for event in events:
            self._apply(event, now_s)
        self._estimate_added(now_s)
        self._expire(now_s)
        if self.settings.asks_predictor and now_s >= self._next_estimate_s:
            self._commands.extend(self.estimates.request())
            self._next_estimate_s = now_s + self.settings.estimate_interval_s
        if now_s >= self._next_load_control_s:
            self.load = self.policy.control(self.table, self.fleet, now_s)
            self._next_load_control_s = now_s + LOAD_CONTROL_INTERVAL_S
        self._dispatcher.place(now_s)
        self._commands.extend(self._dispatcher.send(now_s))
        commands, self._commands = self._commands, []
        return commands

    def _apply(self, event: ev.Event, now_s: float) -> None:
        match event:
            case ev.StepsLost():
                self._send_again(now_s)
            case ev.RequestArrived():
                self._add_request(event, now_s)
            case ev.RequestCancelled(request_id):
                self._cancel(request_id, now_s)
            case ev.InstanceUpdated(instance):
                self._update_instance(instance, now_s)
            case ev.InstanceLost(instance_id):
                self._lose_instance(instance_id, now_s)
            case ev.InstanceQuarantined(instance_id):
                self._quarantine(instance_id, now_s)
            case ev.EstimatesReceived(tickets, steps, steps_left):
                self.estimates.apply(tickets, steps, steps_left)
            case ev.EstimatesFailed(tickets):
                self.estimates.fall_back(tickets)

    def _send_again(self, now_s: float) -> None:
        """The bus has lost steps: each instance drops the requests that it holds, and gets them again."""
        self.fleet.synchronized.fill(False)
        self.table.state_instance.fill(NOWHERE)
        for row in self.table.pipeline.in_flight().tolist():
            self._retry(row, now_s)

    def _cancel(self, request_id: str, now_s: float) -> None:
        row = self.table.row_of.get(request_id)
        if row is not None:
            self._finish(row, OutcomeStatus.CANCELLED, now_s)

    def _add_request(self, arrived: ev.RequestArrived, now_s: float) -> None:
        row = self.table.add(arrived)
        self._next_load_control_s = 0.0
        if arrived.checkpoint is not None:
            try:
                resume(self.table, row, arrived.checkpoint, self.settings.vocab_size, self.settings.mask_token_id)
                ended = self.table.steps[row] > 0 and self._has_ended(row)
            except Exception as error:
                self._fault(row, error, now_s)
                return
            if self.table.blocks_left[row] == 0 or ended:  # the previous scheduler stopped before it checked
                self._finish(row, OutcomeStatus.COMPLETED, now_s)
                return
        self._added.append(row)

    def _estimate_added(self, now_s: float) -> None:
        """Estimate the steps of the requests that this cycle has added, together: a backlog has thousands."""
        if self._added:
            rows, self._added = np.array(list(dict.fromkeys(self._added))), []  # a cancelled one's row is used again
            rows = rows[self.table.ticket[rows] != 0]  # the others are cancelled already
            self.estimates.use_one_shot(rows)
            self._accept(rows, now_s)

    def _accept(self, added: Int64, now_s: float) -> None:
        """Accept or refuse the added requests that may be refused. One that waited longer than its client does, or that
        an earlier scheduler served, is accepted already."""
        table = self.table
        arrived = [table.entry(row).arrived for row in added.tolist()]
        may_refuse = [each.request.may_refuse and each.checkpoint is None for each in arrived]
        new = added[np.array(may_refuse, dtype=np.bool_) & (now_s - table.arrival_s[added] <= ACCEPT_S)]
        if not len(new):
            return
        if self.settings.shed:
            for row, retry_after_s in self._refusals(new, now_s):
                message = "the request could not meet its SLO even at the lowest threshold"
                error = OutcomeError(message=message, field="slo_s", retry_after_s=retry_after_s)
                self._finish(row, OutcomeStatus.REFUSED, now_s, error)
        new = new[table.ticket[new] != 0]
        self._commands.extend(ev.SendProgress(table.entry(row).request_id, ACCEPTED) for row in new.tolist())

    def _refusals(self, new: Int64, now_s: float) -> list[tuple[int, float]]:
        """As `refusals`."""
        table, candidates = self.table, np.array(self.settings.thresholds)
        rows = table.ticket.nonzero()[0]
        thresholds = np.maximum(table.min_threshold[rows], self.policy.lowest_threshold)
        steps, recompute_steps = (steps_at(left, candidates, thresholds) for left in self.estimates.remaining(rows))
        if max(self.settings.tokens_per_step) <= 1:  # no predictor's card: nothing is known but one step per block
            steps = np.minimum(steps, table.blocks_left[rows])
            recompute_steps = np.minimum(recompute_steps, steps)
        by_deadline = self.policy.moves is MigrationPolicy.FOR_ROOM
        found = refusals(
            new, rows, steps, recompute_steps, by_deadline=by_deadline, computing_share=self._computing_share.value,
            table=table, fleet=self.fleet, now_s=now_s,
        )  # fmt: skip
        return list(found)

    def _apply_results(self, results: Sequence[StepResults], now_s: float) -> None:
        applied = self._decoder.apply(results, now_s)
        if applied is None:
            return
        self._count_migrations(applied)
        self._report_progress(applied)
        ended = applied.rows[applied.ended]
        self.estimates.learn(ended)
        if len(ended):
            self._end_blocks(ended, now_s)
        for row in applied.refused.tolist():
            self._refuse_result(row, now_s)
        if len(applied.missing):
            self._forget_states(applied.missing, now_s)
        for failure in applied.failures:
            [row] = self.table.rows_of_tickets(np.array([failure.ticket])).tolist()
            if row >= 0:
                status = OutcomeStatus.REJECTED if failure.field else OutcomeStatus.FAILED
                self._finish(row, status, now_s, OutcomeError(message=failure.message, field=failure.field))

    def _count_migrations(self, applied: AppliedResults) -> None:
        for row in applied.moved.tolist():
            self.table.migrations[row] += self.table.entry(row).serve(self.fleet.instance_id(self.table.instance[row]))
            self._remember_prefix(row)

    def _remember_prefix(self, row: int) -> None:
        """Its instance has cached the text before its current block."""
        prefixes = self.fleet.prefixes
        prefixes.store(int(self.table.instance[row]), self.table.page_names(row, prefixes))

    def _report_progress(self, applied: AppliedResults) -> None:
        streamed = self.table.streams[applied.rows].nonzero()[0]
        if self.table.canvas_steps:  # only the last step of a block writes
            streamed = streamed[np.diff(applied.ends, prepend=0)[streamed] > 0]
        # First, so that no later scheduler retracts a token
        self._save(applied.rows[streamed], block_ended=applied.ended[streamed])
        for i in streamed.tolist():
            row = int(applied.rows[i])
            positions, tokens, confidences = applied.written(i)
            ended, has_edits = bool(applied.ended[i]), bool(self.table.has_edits[row])
            if ended and has_edits:  # now final: all of them, in case an earlier message was lost
                positions = np.arange(int(self.table.block_start[row]), int(self.table.block_stop(row)), dtype=np.int32)
                tokens, confidences = self.table.output_ids(row)[positions], self.table.confidences(row)[positions]
            request_id, top_tokens = self.table.entry(row).request_id, self.table.entry(row).top_tokens
            message = Progress(
                step=int(self.table.steps[row]) - 1,
                positions=positions.tobytes(),
                tokens=tokens.tobytes(),
                confidences=confidences.tobytes(),
                top_tokens=top_tokens.read(positions) if top_tokens is not None else None,
                is_draft=has_edits and not ended,
            )
            self._commands.append(ev.SendProgress(request_id, message))

    def _end_blocks(self, rows: Int64, now_s: float) -> None:
        table = self.table
        checked = np.where(table.has_pinned[rows], 0, table.block_start[rows])  # whole pinned blocks are skipped
        table.block_start[rows] = table.block_stop(rows)
        table.block[rows] += 1
        table.blocks_left[rows] -= 1
        table.block_masks[rows] = table.block_masks_left[rows] = table.block_length[rows]
        unsaved = list[int]()
        columns = rows, checked, table.masks_left[rows] == 0, table.pipeline.state[rows] == SENT, table.streams[rows]
        for row, done, full, sent, streams in zip(*(column.tolist() for column in columns), strict=True):
            try:
                ended = full or self._has_ended(row, done)
            except Exception as error:
                self._fault(row, error, now_s)
                continue
            if table.has_pinned[row]:
                table.find_block(row)
            elif not full and not table.entry(row).arrived.request.ignore_eos:  # these texts end at their limit
                self.estimates.learn_ending(ended=ended)
            if ended:
                self._finish(row, OutcomeStatus.COMPLETED, now_s)
                continue
            if self._decisions is not None and sent:
                self._decisions.move_to_next_block(row)
            if not streams:  # of the others, the step's checkpoint has the whole block
                unsaved.append(row)
        self._save(np.array(unsaved, dtype=np.int64))

    def _has_ended(self, row: int, checked: int = 0) -> bool:
        """Whether the finished blocks contain the end of the text; the first `checked` tokens alone do not."""
        table = self.table
        written: Int32 = table.output_ids(row)[: table.block_start[row]]  # [tokens]
        return self._text_ended(written, table.entry(row).arrived.request, checked)

    def _forget_states(self, tickets: Int64, now_s: float) -> None:
        """The instances lack the states: send the same steps again, with the states. The new tickets make a second
        report of the same loss late: it would reset the state while its step runs. A step that had its state with it
        is a failed attempt."""
        rows = self.table.rows_of_tickets(tickets)
        rows = rows[(rows >= 0) & (self.table.pipeline.state[rows] >= SENT)]
        self.table.attempts[rows] += self.table.state_instance[rows] != self.table.instance[rows]
        self.table.state_instance[rows] = NOWHERE
        self.fleet.changed[self.table.instance[rows]] = True
        self.table.pipeline.take_back(rows)
        self.table.estimate_pending[rows] = False
        for row in rows.tolist():
            if self.table.attempts[row] < MAX_ATTEMPTS:
                self.table.new_ticket(row)
            else:
                self._retry(row, now_s)

    def _refuse_result(self, row: int, now_s: float) -> None:
        """Run a step again, on another instance if there is one: its result was invalid."""
        index = int(self.table.instance[row])
        request_id, instance_id = self.table.entry(row).request_id, self.fleet.instance_id(index)
        log.warning("invalid step result", request_id=request_id, step=int(self.table.steps[row]), instance=instance_id)
        self.fleet.unresponsive[index] = self.fleet.changed[index] = True
        self._suspect(np.array([row]))
        self._retry(row, now_s)

    def _update_instance(self, instance: Instance, now_s: float) -> None:
        if self.fleet.has_reconnected(instance):  # its last results may be lost
            self._lose_instance(instance.instance_id, now_s, has_failed=False)
        self.fleet.update(instance, now_s)
        self._next_load_control_s = 0.0

    def _lose_instance(self, instance_id: str, now_s: float, *, has_failed: bool = True) -> None:
        table, index = self.table, self.fleet.remove(instance_id)
        if index is None:
            return
        rows = np.flatnonzero((table.ticket != 0) & (table.instance == index))
        table.state_instance[table.state_instance == index] = NOWHERE
        self._next_load_control_s = 0.0
        report = log.warning if len(rows) else log.info  # one that a reconfiguration stops is drained first
        report("instance lost", instance=instance_id, requests=len(rows))
        if has_failed:
            self._suspect(rows[table.pipeline.state[rows] >= SENT])
        for row in rows.tolist():
            self._retry(row, now_s)

    def _quarantine(self, instance_id: str, now_s: float) -> None:
        """Its requests start again elsewhere, except those of which clients have read tokens."""
        table, index = self.table, self.fleet.index_of.get(instance_id)
        if index is None:
            return
        rows = np.flatnonzero((table.ticket != 0) & (table.instance == index) & ~table.streams)
        self._lose_instance(instance_id, now_s, has_failed=False)
        rows = rows[table.ticket[rows] != 0]  # without those that had too many attempts before
        for row in rows.tolist():
            table.restart(row)
        self._save(rows)
        self.estimates.use_one_shot(rows)

    def _expire(self, now_s: float) -> None:
        """Take back steps that were not answered in time."""
        if now_s < self._next_timeout_check_s:
            return
        self._next_timeout_check_s = now_s + TIMEOUT_CHECK_INTERVAL_S
        table = self.table
        rows = table.pipeline.unanswered_since(now_s - self.settings.step_timeout_s)
        for index in set(table.instance[rows].tolist()):
            self._suspect(rows[table.instance[rows] == index])
        for row in rows.tolist():
            request_id, instance_id = table.entry(row).request_id, self.fleet.instance_id(table.instance[row])
            log.warning("step not answered", request_id=request_id, step=int(table.steps[row]), instance=instance_id)
            self.fleet.unresponsive[table.instance[row]] = True
            self._retry(row, now_s)

    def _suspect(self, rows: Int64) -> None:
        """One instance failed during the steps of these rows. One that ran alone is the cause: its attempt counts, also
        for the next scheduler."""
        self.table.suspect[rows] = True
        if len(rows) == 1:
            self.table.attempts[rows] += 1
        self._save(rows)

    def _save(self, rows: Int64, *, block_ended: Bool | bool = False) -> None:
        """Save the states of rows for the next scheduler. `block_ended`: as in `take_checkpoints`."""
        if self.settings.keeps_records and len(rows):
            checkpoints = take_checkpoints(self.table, rows, block_ended=block_ended)
            for row, checkpoint in zip(rows.tolist(), checkpoints, strict=True):
                request_id, is_urgent = self.table.entry(row).request_id, bool(self.table.streams[row])
                self._commands.append(ev.SaveCheckpoint(request_id, checkpoint, is_urgent))

    def _retry(self, row: int, now_s: float) -> None:
        """Take a request from its instance; its unmasked tokens are kept. It fails after MAX_ATTEMPTS."""
        table = self.table
        self._dispatcher.remove(row)
        table.pipeline.take_back(row)
        table.estimate_pending[row] = False
        table.new_ticket(row)
        if table.attempts[row] >= MAX_ATTEMPTS:
            message = f"no instance could run step {table.steps[row]} alone: {MAX_ATTEMPTS} tries had no valid answer"
            self._finish(row, OutcomeStatus.FAILED, now_s, OutcomeError(message=message))

    def _fault(self, row: int, error: Exception, now_s: float) -> None:
        """Fail a request alone whose data raised an unexpected error."""
        log.error("a request raised an error", request_id=self.table.entry(row).request_id, exc_info=error)
        self._finish(row, OutcomeStatus.FAILED, now_s, ev.fault_of(error))

    def _finish(self, row: int, status: OutcomeStatus, now_s: float, error: OutcomeError | None = None) -> None:
        table = self.table
        masked = np.flatnonzero(table.output_ids(row) == MASKED)
        end = masked[0] if len(masked) else None
        output_ids = table.output_ids(row)[:end].copy()
        if status is OutcomeStatus.COMPLETED:
            self._remember_prefix(row)
        entry, stats = table.entry(row), serving_stats(table, row, self.settings.thresholds, now_s)
        decisions = self._decisions.read(row) if self._decisions is not None else None
        first_sent_s = decisions.first_sent_s if decisions is not None else None
        if status is OutcomeStatus.COMPLETED and stats and first_sent_s is not None:
            self._computing_share.record(stats.step_s, stats.latency_s - first_sent_s)
        self.totals.count_finished(status, stats)
        confidences = table.confidences(row)[:end].copy() if entry.arrived.request.logprobs else None
        self._commands.append(
            ev.FinishRequest(
                entry.arrived,
                status,
                output_ids,
                stats,
                decisions,
                error,
                confidences,
                entry.top_tokens,
                entry.choices,
                frozenset(entry.written_by),
            )
        )
        self._dispatcher.remove(row)
        table.remove(row)
