"""The scheduler's state machine: events in, commands out; no clock, no socket.

A cycle takes all events that have come, then places requests and sends their next steps. What a request's next
step needs of the model (tokens, text) is decided elsewhere; which instance and which threshold, by the policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from services.scheduler import events as ev
from services.scheduler.dispatch import Dispatcher
from services.scheduler.policies import Policy
from services.scheduler.state.checkpoints import resume, take_checkpoint
from services.scheduler.state.decision_log import DecisionLog
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.job_encoder import JobEncoder
from services.scheduler.state.request_table import MASKED, NOWHERE, RequestTable
from services.scheduler.state.result_decoder import AppliedResults, ResultDecoder, of_different_instances
from services.scheduler.state.serving_stats import serving_stats
from services.scheduler.state.step_estimates import StepEstimates
from shared.arrays import Int32
from shared.messages.requests import OutcomeStatus, Progress
from shared.messages.stats import ClusterLoad
from shared.messages.steps import StepFailure, StepResults

log = structlog.get_logger(__name__)

CONTROL_S = 0.05  # load control judges anew after so long, when requests come, and when instances come or go
EARLY_S = 60.0  # a cancel may come so long before its request, which takes another way, and longer to read
MAX_ATTEMPTS = 5  # a request taken from so many instances that did not answer is given up: it may be their end

TextEnded = Callable[[Int32, Sequence[str]], bool]
MakePolicy = Callable[[StepEstimates], Policy]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    epoch: int
    mask_token_id: int
    thresholds: tuple[float, ...]  # candidates, ascending
    tokens_per_step: tuple[float, ...]  # mean tokens unmasked by a step at each of them
    caching: bool = False  # whether instances keep keys and values between the steps of a block
    granularity: int = 8  # newly unmasked tokens between estimates of the steps left
    lookahead: int = 0  # steps sent to an instance before the result of the step before is there: 0 or 1
    end_ids: tuple[int, ...] = ()  # tokens that end a text, as `text_ended` knows them
    step_timeout_s: float = 60.0  # a step unanswered for so long is given to another instance
    keeps_records: bool = True  # of decisions, for outcomes, and checkpoints; a simulation reads neither
    question_s: float = 0.0  # between two questions to the step predictor


class SchedulerCore:
    """Holds every active request and every instance of one cell."""

    def __init__(self, settings: CoreSettings, make_policy: MakePolicy, text_ended: TextEnded) -> None:
        """`text_ended(output_ids, stop)` tells whether finished blocks [tokens] hold the end of the text."""
        self.settings = settings
        self.table = RequestTable(candidates=len(settings.thresholds))
        self.fleet = Fleet()
        self.estimates = StepEstimates(
            self.table,
            np.array(settings.thresholds),
            np.array(settings.tokens_per_step),
            caching=settings.caching,
            granularity=settings.granularity,
        )
        self.policy = make_policy(self.estimates)
        self._text_ended = text_ended
        self._reader = ResultDecoder(settings.epoch, settings.thresholds, self.table, self.fleet)
        writer = JobEncoder(
            settings.epoch,
            settings.mask_token_id,
            self.table,
            self.fleet,
            caching=settings.caching,
            end_ids=settings.end_ids,
        )
        self._decisions = DecisionLog(self.table, self.fleet) if settings.keeps_records else None
        self._dispatch = Dispatcher(
            self.table,
            self.fleet,
            self.policy,
            writer,
            self._decisions,
            caching=settings.caching,
            lookahead=settings.lookahead,
        )
        self.done = self._reader.done
        self.arrived = 0  # requests, from the start
        self.load: ClusterLoad | None = None  # as load control saw it last
        self._commands: list[ev.Command] = []
        self._early_cancels: dict[str, float] = {}  # of requests not known, and until when they are kept
        self._next_timeout_s = 0.0
        self._next_control_s = 0.0
        self._next_question_s = 0.0

    def cycle(self, events: Sequence[ev.Event], now_s: float) -> list[ev.Command]:
        """Take in `events`, then decide. Units: now_s is Unix time in seconds. Returns: what is to be done.

        Results of all instances are read together, before anything else that has happened.
        """
        done = (event.results for event in events if isinstance(event, ev.StepResultsReceived))
        for results in of_different_instances(done):
            self._take_results(results, now_s)
        for event in events:
            self._take(event, now_s)
        self._expire(now_s)
        if now_s >= self._next_question_s:
            self._ask_estimates()
            self._next_question_s = now_s + self.settings.question_s
        if now_s >= self._next_control_s:
            self.load = self.policy.control(self.table, self.fleet)
            self._next_control_s = now_s + CONTROL_S
        self._dispatch.place(now_s)
        self._commands.extend(self._dispatch.send(now_s))
        commands, self._commands = self._commands, []
        return commands

    # Events

    def _take(self, event: ev.Event, now_s: float) -> None:
        match event:
            case ev.StepsLost():
                self.fleet.in_touch.fill(False)
                self._retry_steps(now_s)
            case ev.RequestArrived():
                self._take_request(event, now_s)
            case ev.RequestCancelled(request_id):
                if request_id in self.table.row_of:
                    self._finish(self.table.row_of[request_id], OutcomeStatus.CANCELLED, now_s)
                else:
                    self._early_cancels[request_id] = now_s + EARLY_S
            case ev.InstanceUpdated(instance):
                self.fleet.update(instance)
                self._next_control_s = 0.0
            case ev.InstanceLost(instance_id):
                self._lose_instance(instance_id, now_s)
            case ev.EstimatesReceived(tickets, steps, steps_left):
                self.estimates.take(tickets, steps, steps_left)
            case ev.EstimatesFailed(tickets):
                self.estimates.lose(tickets)

    def _take_request(self, arrived: ev.RequestArrived, now_s: float) -> None:
        request_id = arrived.request.request_id
        if request_id in self.table.row_of:
            running = self.table.entry(self.table.row_of[request_id]).arrived
            if arrived.delivery != running.delivery:  # else it must stay on the bus until its outcome is stored
                self._commands.append(ev.Acknowledge(arrived.delivery))
            return
        self.arrived += 1
        row = self.table.add(arrived)
        self._next_control_s = 0.0
        if self._early_cancels.pop(request_id, 0.0) > now_s:
            self._finish(row, OutcomeStatus.CANCELLED, now_s)
            return
        if arrived.checkpoint is not None:
            resume(self.table, row, arrived.checkpoint)
            if self._has_ended(row):  # as the scheduler before had not seen
                self._finish(row, OutcomeStatus.COMPLETED, now_s)
                return
        self.estimates.start(row)

    def _take_results(self, results: Sequence[StepResults], now_s: float) -> None:
        progressed = self._reader.read(results)
        if progressed is None:
            return
        self._note_servers(progressed)
        self._report_progress(progressed)
        for row in progressed.rows[self.table.block_masks_left[progressed.rows] == 0].tolist():
            self._end_block(row, now_s)
        for row in progressed.stalled.tolist():
            error = f"instance {self.fleet.name(self.table.instance[row])} ran a step that unmasked nothing"
            self._finish(row, OutcomeStatus.FAILED, now_s, error=error)
        for ticket in progressed.missing.tolist():
            self._forget_state(ticket)
        for failure in progressed.failures:
            self._fail_step(failure, now_s)

    def _note_servers(self, progressed: AppliedResults) -> None:
        for row in progressed.newcomers.tolist():
            self.table.migrations[row] += self.table.entry(row).serve(self.fleet.name(self.table.instance[row]))

    def _report_progress(self, progressed: AppliedResults) -> None:
        for i in self.table.streams[progressed.rows].nonzero()[0].tolist():
            row = int(progressed.rows[i])
            positions, tokens, confidences = progressed.unmasked(i)
            message = Progress(
                step=int(self.table.steps[row]) - 1,
                positions=positions.tobytes(),
                tokens=tokens.tobytes(),
                confidences=confidences.tobytes(),
            )
            self._commands.append(ev.SendProgress(self.table.entry(row).request_id, message))

    def _end_block(self, row: int, now_s: float) -> None:
        table = self.table
        table.block[row] += 1
        table.block_masks_left[row] = table.block_length[row]
        if table.masks_left[row] == 0 or self._has_ended(row):
            self._finish(row, OutcomeStatus.COMPLETED, now_s)
            return
        if self._decisions is not None and table.in_flight[row]:
            self._decisions.crossed(row)
        if self.settings.keeps_records:
            request_id = table.entry(row).request_id
            self._commands.append(ev.SaveCheckpoint(request_id, take_checkpoint(table, row)))

    def _has_ended(self, row: int) -> bool:
        """Whether the finished blocks hold the end of the text."""
        table = self.table
        written: Int32 = table.output[row, : table.block[row] * table.block_length[row]]  # [tokens]
        return self._text_ended(written, table.entry(row).arrived.request.stop)

    def _forget_state(self, ticket: int) -> None:
        """The instance lacks the state: send the same step again, with the state."""
        row = int(self.table.rows_of_tickets(np.array([ticket]))[0])
        if row >= 0 and self.table.in_flight[row]:
            self.table.holder[row] = NOWHERE
            self.table.in_flight[row] = self.table.ahead[row] = False

    def _fail_step(self, failure: StepFailure, now_s: float) -> None:
        row = int(self.table.rows_of_tickets(np.array([failure.ticket]))[0])
        if row >= 0:
            self._finish(row, OutcomeStatus.FAILED, now_s, error=failure.message)

    def _lose_instance(self, instance_id: str, now_s: float) -> None:
        slot = self.fleet.remove(instance_id)
        if slot is None:
            return
        rows = np.flatnonzero((self.table.ticket != 0) & (self.table.instance == slot))
        held = np.flatnonzero((self.table.ticket != 0) & (self.table.holder == slot))
        self.table.holder[held] = NOWHERE
        self._next_control_s = 0.0
        log.warning("instance lost", instance=instance_id, requests=len(rows))
        for row in rows:
            self._retry(int(row), now_s)

    def _expire(self, now_s: float) -> None:
        """Take back steps that were not answered in time, forget cancels whose request has not come; once a second."""
        if now_s < self._next_timeout_s:
            return
        self._next_timeout_s = now_s + 1.0
        self._early_cancels = {name: until_s for name, until_s in self._early_cancels.items() if until_s > now_s}
        table = self.table
        late = table.in_flight & (table.sent_s < now_s - self.settings.step_timeout_s) & (table.ticket != 0)
        for row in np.flatnonzero(late).tolist():
            request_id, instance_id = table.entry(row).request_id, self.fleet.name(table.instance[row])
            log.warning("step not answered", request_id=request_id, step=int(table.steps[row]), instance=instance_id)
            self.fleet.silent[table.instance[row]] = True
            self._retry(row, now_s)

    def _retry_steps(self, now_s: float) -> None:
        """Take back every step under way."""
        for row in np.flatnonzero(self.table.in_flight & (self.table.ticket != 0)):
            self._retry(int(row), now_s)

    def _retry(self, row: int, now_s: float) -> None:
        """Take a request from an instance that does not answer; its unmasked tokens are kept."""
        table = self.table
        if table.in_flight[row]:
            table.attempts[row] += 1
        self._dispatch.leave(row)
        table.in_flight[row] = table.ahead[row] = table.asked[row] = False
        table.new_ticket(row)
        if table.attempts[row] >= MAX_ATTEMPTS:
            error = f"no instance could run step {table.steps[row]}: {MAX_ATTEMPTS} tries went unanswered"
            self._finish(row, OutcomeStatus.FAILED, now_s, error=error)

    # Decisions

    def _ask_estimates(self) -> None:
        question = self.estimates.ask() if self.policy.uses_estimates else None
        if question is not None:
            self._commands.append(question)

    # Ends

    def _finish(self, row: int, status: OutcomeStatus, now_s: float, error: str = "") -> None:
        table = self.table
        masked = np.flatnonzero(table.output_ids(row) == MASKED)
        output_ids = table.output_ids(row)[: masked[0] if len(masked) else None].copy()
        arrived, stats = table.entry(row).arrived, serving_stats(table, row, self.settings.thresholds, now_s)
        decisions = self._decisions.read(row) if self._decisions is not None else None
        self._commands.append(ev.FinishRequest(arrived, status, output_ids, stats, decisions, error))
        self._dispatch.leave(row)
        table.remove(row)
