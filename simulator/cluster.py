"""The cluster in virtual time: the live scheduler's core, told what instances and clients do, and obeyed.

The scheduler decides at most once in DECISION_S: what happens within that time of one another is taken in together,
as a live scheduler takes in whatever has come while it was busy. That delay, 1 ms on average in a busy hour of 16
instances, stands for the scheduler's own time and the bus's, which count as none. Where messages are said to take time,
that stands for both: the scheduler then decides whenever one comes.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.events import (
    EstimatesReceived,
    Event,
    FinishRequest,
    InstanceLost,
    InstanceUpdated,
    RequestArrived,
    RequestEstimates,
    SendJobs,
    StepResultsReceived,
)
from services.scheduler.factory import build_policy, candidates
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.request_table import ROW_MASK
from shared.arrays import Float32, Float64, Int64, pack_float32, pack_int32
from shared.messages.instances import Instance
from shared.messages.requests import Request
from shared.messages.steps import StepResults
from shared.profile import LatencyProfile
from simulator.clock import Action, VirtualClock
from simulator.confidences import Confidences
from simulator.estimates import Predictor
from simulator.instance import HUNDREDTHS, REQUESTS, STEPS, TICKETS, Batch, SimulatedInstance, joined, read_jobs
from simulator.result import Records
from simulator.trace_replay import RecordedConfidences
from simulator.unmasking_model import UnmaskingModel
from simulator.workload import ArrivalTrace

DECISION_S = 0.005
QUESTION_S = 0.05  # between questions to the step predictor, half a step: a live scheduler may ask in every cycle
PREDICTION_S = 0.005  # from a question to the step predictor to its answer
EPOCH = 1


class SimulatedCluster:
    """Serves one workload. Deterministic for a given workload, settings and random source."""

    def __init__(
        self,
        workload: ArrivalTrace,
        core: SchedulerCore,
        pace: UnmaskingModel,
        confidences: Confidences | RecordedConfidences | None,
        profile: LatencyProfile,
        default_slo_s: float,
        predictor: Predictor | None,
        difficulties: np.random.Generator,
        chance: np.random.Generator,
        message_s: float = 0.0,
        shared_launch_s: float = 0.0,
    ) -> None:
        """`predictor` None: questions are answered by none; it may need the `confidences`. Which requests are hard is
        drawn apart from what comes of each step, so that it is the same under every policy. Units: message_s, what each
        message takes, in seconds.
        """
        self.clock = VirtualClock()
        self.instances: dict[str, SimulatedInstance] = {}
        self.records = Records.empty(np.where(np.isnan(workload.slo_s), default_slo_s, workload.slo_s))
        self._workload = workload
        self._core = core
        self._pace = pace
        self._profile = profile
        self._predictor = predictor
        self._chance = chance
        self._message_s = message_s
        self._shared_launch_s = shared_launch_s
        self._inbox: list[Event] = []
        self._answers: deque[tuple[float, EstimatesReceived]] = deque()  # and when they come
        self._ended: list[tuple[str, Batch]] = []  # iterations that have, and are not yet told of; by instance
        self._waiting: dict[str, SimulatedInstance] = {}  # those that may have an iteration to start
        self._lengths = workload.prompt_tokens + workload.output_tokens
        self._levels = difficulties.integers(pace.levels, size=len(workload))
        self._left = workload.output_tokens.copy()  # masks
        self._confidences = confidences
        self._request_at: Int64 = np.zeros(core.table.capacity, dtype=np.int64)  # by row of the scheduler's table
        self._prompt = np.zeros(int(workload.prompt_tokens.max(initial=0)), dtype=np.int32)

    def run(self, on_finished: Callable[[int], None] = lambda _: None) -> Records:
        """Until nothing more happens; `on_finished` hears how many requests have ended since it last did."""
        self._arrive_from(0)
        while self.clock:
            self.clock.advance(0.0 if self._message_s else DECISION_S)
            inbox, self._inbox = [*self._come(), *self._inbox, *self._unmask()], []
            commands = self._core.cycle(inbox, self.clock.now_s)
            self.records.cycles += 1
            if jobs := [command for command in commands if isinstance(command, SendJobs)]:
                self._deliver(jobs)
            for command in commands:
                if isinstance(command, RequestEstimates) and self._predictor is not None:
                    self._ask(command, self._predictor)
            finished = [command for command in commands if isinstance(command, FinishRequest)]
            for end in finished:
                self._record(end)
            waiting, self._waiting = self._waiting, {}
            for instance in waiting.values():
                self._start(instance)
            if finished:
                on_finished(len(finished))
        return self.records

    def join(self, instance: Instance) -> None:
        """An instance is ready to serve."""
        self.instances[instance.instance_id] = SimulatedInstance(
            instance, self._profile, self._pace.block_length, self._shared_launch_s
        )
        self._inbox.append(InstanceUpdated(instance))
        self._note_instances()

    def tell(self, instance: Instance) -> None:
        """An instance has changed what it says of itself."""
        self._inbox.append(InstanceUpdated(instance))

    def holds_requests(self, instance_id: str) -> bool:
        """Whether the scheduler has requests on the instance."""
        return bool(self._core.fleet.requests[self._core.fleet.slot_of[instance_id]])

    def leave(self, instance_id: str) -> None:
        """An instance ends in order, and says so."""
        self.fail(instance_id, noticed_after_s=0.0)

    def fail(self, instance_id: str, noticed_after_s: float) -> None:
        """An instance dies with what it was computing; the scheduler hears of it later."""
        self.instances.pop(instance_id, None)
        self._note_instances()
        gone = InstanceLost(instance_id)
        self.clock.at(self.clock.now_s + noticed_after_s, lambda: self._inbox.append(gone))

    # What happens

    def _send(self, receive: Action) -> None:
        """A message: received at once where messages take no time."""
        if self._message_s:
            self.clock.at(self.clock.now_s + self._message_s, receive)
        else:
            receive()

    def _arrive_from(self, index: int) -> None:
        """The next arrival is set up when the one before has happened."""
        if index < len(self._workload):
            self.clock.at(float(self._workload.arrival_s[index]), partial(self._arrive, index))

    def _arrive(self, index: int) -> None:
        output = int(self._workload.output_tokens[index])
        request = Request(
            request_id=str(index),
            output_tokens=output,
            block_length=self._pace.block_length,
            priority=int(self._workload.priority[index]),
        )
        prompt = self._prompt[: self._workload.prompt_tokens[index]]
        arrived = RequestArrived(request, prompt, output, float(self.records.slo_s[index]), self.clock.now_s)
        self._send(lambda: self._inbox.append(arrived))
        self._arrive_from(index + 1)

    def _end_iteration(self, instance: SimulatedInstance) -> None:
        instance_id = instance.instance.instance_id
        if self.instances.get(instance_id) is instance:  # else it died meanwhile
            self._send(partial(self._ended.append, (instance_id, instance.finish())))
            self._waiting[instance_id] = instance

    def _unmask(self) -> list[StepResultsReceived]:
        """What the ended iterations did to their requests: masks go in the order of their positions."""
        if not self._ended:
            return []
        names, batches = zip(*self._ended, strict=True)
        self._ended.clear()
        batch = joined(batches)
        requests = batch[REQUESTS]
        left = self._left[requests]
        counts, stats = self._denoise(batch, left)
        ends = counts.cumsum()
        done = self._workload.output_tokens[requests] - left
        self._left[requests] = left - counts
        np.add.at(self.records.tokens_at, batch[HUNDREDTHS], counts)
        self.records.steps_run += len(requests)
        positions = np.arange(int(ends[-1])) + (done - ends + counts).repeat(counts)
        unmasked = _Unmasked(batch, counts, ends, positions, stats)
        return [
            StepResultsReceived(results) for results in unmasked.by_instance(names, [part.shape[1] for part in batches])
        ]

    def _denoise(self, batch: Batch, left: Int64) -> tuple[Int64, Float32]:
        """Tokens unmasked by each step, and the confidence statistics after it; `left` [n] are the masks before it.
        Shapes: [n], [n, 5]."""
        requests, hundredths = batch[REQUESTS], batch[HUNDREDTHS]
        levels = self._levels[requests]
        if self._confidences is not None:
            return self._confidences.unmask(self._chance, requests, levels, hundredths, left)
        counts = self._pace.unmask(self._chance, levels, hundredths, left)
        return counts, np.zeros((len(requests), 5), dtype=np.float32)

    # What the scheduler wants

    def _deliver(self, commands: Sequence[SendJobs]) -> None:
        """Give instances their jobs; one may be dead, and the scheduler does not know yet."""
        if len(self._request_at) < self._core.table.capacity:
            self._request_at = np.resize(self._request_at, self._core.table.capacity)
        for command in commands:
            for state in command.jobs.states:
                self._request_at[state.ticket & ROW_MASK] = int(state.request_id)
        commands = [command for command in commands if command.jobs.tickets and command.instance_id in self.instances]
        messages = [command.jobs for command in commands]
        batches = read_jobs(messages, self._request_at, self._lengths, self._pace.block_length)
        for command, batch in zip(commands, batches, strict=True):
            self._send(partial(self._accept, self.instances[command.instance_id], batch))

    def _accept(self, instance: SimulatedInstance, batch: Batch) -> None:
        instance.accept(batch)
        self._waiting[instance.instance.instance_id] = instance

    def _requests_of(self, tickets: Int64) -> Int64:
        requests: Int64 = self._request_at[tickets & ROW_MASK]
        return requests

    def _start(self, instance: SimulatedInstance) -> None:
        latency_s = instance.start()
        if latency_s is not None:
            self.clock.at(self.clock.now_s + latency_s, partial(self._end_iteration, instance))

    def _note_instances(self) -> None:
        present = Counter(instance.instance.tp_degree for instance in self.instances.values())
        self.records.instances_at.append((self.clock.now_s, dict(present)))

    def _ask(self, question: RequestEstimates, predictor: Predictor) -> None:
        levels = self._levels[self._requests_of(question.tickets)]
        self._answers.append((self.clock.now_s + PREDICTION_S, predictor.answer(question, levels)))

    def _come(self) -> list[EstimatesReceived]:
        """Answers that have come by now: no decision waits for one, and none is taken because of one."""
        come = []
        while self._answers and self._answers[0][0] <= self.clock.now_s:
            come.append(self._answers.popleft()[1])
        return come

    def _record(self, end: FinishRequest) -> None:
        index, records = int(end.arrived.request.request_id), self.records
        if end.stats is None or end.error:
            return
        records.latency_s[index] = end.stats.latency_s
        records.steps[index] = end.stats.steps
        records.mean_threshold[index] = end.stats.mean_threshold
        records.migrations[index] = end.stats.migrations


@dataclass(frozen=True, slots=True)
class _Unmasked:
    """What steps did, in the order of their batch."""

    batch: Batch
    counts: Int64
    ends: Int64  # of counts: where the positions of each end
    positions: Int64  # [sum of counts]
    stats: Float32  # [n, 5]

    def by_instance(self, names: Sequence[str], steps: Sequence[int]) -> Iterator[StepResults]:
        """The messages of instances that ran so many of the steps each, one after the other."""
        tickets, numbers, counts = self.batch[TICKETS].tobytes(), pack_int32(self.batch[STEPS]), pack_int32(self.counts)
        positions, stats = pack_int32(self.positions), pack_float32(self.stats)
        nothing = bytes(len(positions))
        start = first = 0
        for name, number in zip(names, steps, strict=True):
            end = start + number
            last = int(self.ends[end - 1])
            yield StepResults(
                instance_id=name,
                epoch=EPOCH,
                tickets=tickets[8 * start : 8 * end],
                steps=numbers[4 * start : 4 * end],
                counts=counts[4 * start : 4 * end],
                positions=positions[4 * first : 4 * last],
                tokens=nothing[4 * first : 4 * last],
                confidences=nothing[4 * first : 4 * last],
                confidence_stats=stats[20 * start : 20 * end],
            )
            start, first = end, last


def build_core(
    settings: SchedulerSettings, tokens_per_step: Callable[[Float64], Float64], granularity: int
) -> SchedulerCore:
    """The live scheduler's core; what the predictor's card tells is given: the mean tokens per step by threshold, and
    how many newly unmasked tokens lie between two estimates of a request."""
    thresholds = candidates(settings)
    core_settings = CoreSettings(
        epoch=EPOCH,
        mask_token_id=0,
        thresholds=thresholds,
        tokens_per_step=tuple(tokens_per_step(np.array(thresholds)).tolist()),
        caching=settings.cache != "none",
        granularity=granularity,
        step_timeout_s=settings.step_timeout_s,
        keeps_records=False,
        question_s=QUESTION_S,
    )
    return SchedulerCore(core_settings, lambda estimates: build_policy(settings, estimates), lambda _ids, _stop: False)
