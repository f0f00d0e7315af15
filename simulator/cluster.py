"""The cluster in virtual time: the live scheduler's core, told what instances and clients do, and obeyed.

The scheduler decides at most once in DECISION_S: what happens within that time of one another is taken in together,
as a live scheduler takes in whatever has come while it was busy. Its own time counts as none, the bus likewise.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import numpy as np

from services.scheduler.building import build_policy, candidates
from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.events import (
    AskEstimates,
    EstimatesCame,
    Event,
    Finish,
    InstanceGone,
    InstanceSeen,
    RequestArrived,
    SendJobs,
    StepsDone,
)
from services.scheduler.settings import SchedulerSettings
from shared.arrays import Float64, pack_float32, pack_int32
from shared.messages.instances import Instance
from shared.messages.requests import Request
from shared.messages.steps import StepResults
from shared.profile import LatencyProfile
from simulator.clock import Clock
from simulator.confidences import Confidences
from simulator.denoising import GRID, LEVELS, Denoising
from simulator.estimates import Predictor
from simulator.instance import Batch, SimulatedInstance
from simulator.result import Records
from simulator.workload import Workload

DECISION_S = 0.002
PREDICTION_S = 0.005  # from a question to the step predictor to its answer
EPOCH = 1
GRANULARITY = 8  # newly unmasked tokens between two estimates of a request


class Cluster:
    """Serves one workload. Deterministic for a given workload, settings and random source."""

    def __init__(
        self,
        workload: Workload,
        core: SchedulerCore,
        denoising: Denoising,
        profile: LatencyProfile,
        default_slo_s: float,
        predictor: Predictor | None,
        difficulties: np.random.Generator,
        chance: np.random.Generator,
    ) -> None:
        """`predictor` None: questions are answered by none. Which requests are hard is drawn apart from what comes
        of each step, so that it is the same under every policy."""
        self.clock = Clock()
        self.instances: dict[str, SimulatedInstance] = {}
        self.records = Records.empty(np.where(np.isnan(workload.slo_s), default_slo_s, workload.slo_s))
        self._workload = workload
        self._core = core
        self._denoising = denoising
        self._profile = profile
        self._predictor = predictor
        self._chance = chance
        self._inbox: list[Event] = []
        self._answers: deque[tuple[float, EstimatesCame]] = deque()  # and when they come
        self._waiting: dict[str, SimulatedInstance] = {}  # those that may have an iteration to start
        self._lengths = workload.prompt_tokens + workload.output_tokens
        self._levels = difficulties.integers(LEVELS, size=len(workload))
        self._masks = np.full(len(workload), denoising.block_length)  # left in the current block
        with_confidences = predictor is not None and predictor.needs_confidences
        self._confidences = Confidences(denoising, len(workload)) if with_confidences else None
        self._request_of: dict[int, int] = {}  # ticket: request
        self._prompt = np.zeros(int(workload.prompt_tokens.max(initial=0)), dtype=np.int32)

    def run(self, on_finished: Callable[[int], None] = lambda _: None) -> Records:
        """Until nothing more happens; `on_finished` hears how many requests have ended since it last did."""
        self._arrive_from(0)
        while self.clock:
            self.clock.advance(DECISION_S)
            inbox, self._inbox = [*self._come(), *self._inbox], []
            commands = self._core.cycle(inbox, self.clock.now_s)
            self.records.cycles += 1
            finished = [command for command in commands if isinstance(command, Finish)]
            for command in commands:
                match command:
                    case SendJobs():
                        self._deliver(command)
                    case AskEstimates() if self._predictor is not None:
                        self._ask(command, self._predictor)
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
        self.instances[instance.instance_id] = SimulatedInstance(instance, self._profile, self._denoising.block_length)
        self._inbox.append(InstanceSeen(instance))
        self._note_instances()

    def fail(self, instance_id: str, noticed_after_s: float) -> None:
        """An instance dies with what it was computing; the scheduler hears of it later."""
        self.instances.pop(instance_id, None)
        self._note_instances()
        gone = InstanceGone(instance_id)
        self.clock.at(self.clock.now_s + noticed_after_s, lambda: self._inbox.append(gone))

    # What happens

    def _arrive_from(self, index: int) -> None:
        """The next arrival is set up when the one before has happened."""
        if index < len(self._workload):
            self.clock.at(float(self._workload.arrival_s[index]), partial(self._arrive, index))

    def _arrive(self, index: int) -> None:
        output = int(self._workload.output_tokens[index])
        request = Request(
            request_id=str(index),
            output_tokens=output,
            block_length=self._denoising.block_length,
            priority=int(self._workload.priority[index]),
        )
        prompt = self._prompt[: self._workload.prompt_tokens[index]]
        arrived = RequestArrived(request, prompt, output, float(self.records.slo_s[index]), self.clock.now_s)
        self._inbox.append(arrived)
        self._arrive_from(index + 1)

    def _end_iteration(self, instance: SimulatedInstance) -> None:
        instance_id = instance.instance.instance_id
        if self.instances.get(instance_id) is instance:  # else it died meanwhile
            self._inbox.append(StepsDone(self._unmask(instance.finish(), instance_id)))
            self._waiting[instance_id] = instance

    def _unmask(self, batch: Batch, instance_id: str) -> StepResults:
        """What an iteration did to its requests: masks go in the order of their positions."""
        before, levels = self._masks[batch.requests], self._levels[batch.requests]
        stats = bytes(4 * 5 * len(batch))
        if self._confidences is None:
            counts = self._denoising.unmask(self._chance, levels, batch.hundredths, before)
        else:
            counts, told = self._confidences.unmask(self._chance, batch.requests, levels, batch.hundredths, before)
            stats = pack_float32(told)
        left = before - counts
        block_length = self._denoising.block_length
        self._masks[batch.requests] = np.where(left == 0, block_length, left)
        self.records.tokens_at += np.bincount(batch.hundredths, counts, GRID).astype(np.int64)
        self.records.steps_run += len(batch)
        ends = np.cumsum(counts)
        first = batch.blocks * block_length + block_length - before - (ends - counts)
        positions = np.arange(ends[-1]) + np.repeat(first, counts)
        nothing = bytes(4 * len(positions))
        return StepResults(
            instance_id=instance_id,
            epoch=EPOCH,
            tickets=batch.tickets.tobytes(),
            steps=batch.steps.tobytes(),
            counts=pack_int32(counts),
            positions=pack_int32(positions),
            tokens=nothing,
            confidences=nothing,
            confidence_stats=stats,
        )

    # What the scheduler wants

    def _deliver(self, command: SendJobs) -> None:
        instance = self.instances.get(command.instance_id)
        if instance is None:
            return  # dead, and the scheduler does not know yet
        for state in command.jobs.states:
            self._request_of[state.ticket] = int(state.request_id)
        instance.accept(command.jobs, self._lengths)
        self._waiting[command.instance_id] = instance

    def _start(self, instance: SimulatedInstance) -> None:
        latency_s = instance.start()
        if latency_s is not None:
            self.clock.at(self.clock.now_s + latency_s, partial(self._end_iteration, instance))

    def _note_instances(self) -> None:
        present = Counter(instance.instance.tp_degree for instance in self.instances.values())
        self.records.instances_at.append((self.clock.now_s, dict(present)))

    def _ask(self, question: AskEstimates, predictor: Predictor) -> None:
        requests = np.array([self._request_of[ticket] for ticket in question.tickets.tolist()])
        self._answers.append((self.clock.now_s + PREDICTION_S, predictor.answer(question, self._levels[requests])))

    def _come(self) -> list[EstimatesCame]:
        """Answers that have come by now: no decision waits for one, and none is taken because of one."""
        come = []
        while self._answers and self._answers[0][0] <= self.clock.now_s:
            come.append(self._answers.popleft()[1])
        return come

    def _record(self, end: Finish) -> None:
        if end.stats is None or end.error:
            return
        index, records = int(end.arrived.request.request_id), self.records
        records.latency_s[index] = end.stats.latency_s
        records.steps[index] = end.stats.steps
        records.mean_threshold[index] = end.stats.mean_threshold
        records.migrations[index] = end.stats.migrations


def build_core(settings: SchedulerSettings, tokens_per_step: Callable[[Float64], Float64]) -> SchedulerCore:
    """The live scheduler's core; the mean tokens per step by threshold take the predictor card's place."""
    thresholds = candidates(settings)
    core_settings = CoreSettings(
        epoch=EPOCH,
        mask_token_id=0,
        thresholds=thresholds,
        tokens_per_step=tuple(tokens_per_step(np.array(thresholds)).tolist()),
        caching=settings.cache != "none",
        granularity=GRANULARITY,
        step_timeout_s=settings.step_timeout_s,
    )
    return SchedulerCore(core_settings, lambda estimates: build_policy(settings, estimates), lambda _ids, _stop: False)
