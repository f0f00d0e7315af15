"""The cluster in virtual time: the live scheduler's core on simulated instances.

The scheduler runs a cycle at most once in CYCLE_S and takes in all events of that time together, as a live scheduler
takes in the events that arrived while it was busy. The delay, 1 ms on average in a busy hour of 16 instances, replaces
the time of the scheduler itself and of the bus.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np

from services.scheduler import events as ev
from services.scheduler.core import SchedulerCore
from services.scheduler.state.request_table import ROW_MASK
from shared.arrays import Int64
from shared.messages.instances import Instance
from shared.messages.requests import Request
from shared.messages.steps import StepResults
from shared.profile import LatencyProfile
from simulator.estimates import Predictor
from simulator.instance import HUNDREDTHS, REQUESTS, Batch, FedTokens, SimulatedInstance, joined, read_jobs
from simulator.outputs import SimulatedOutputs
from simulator.result import Records
from simulator.workload import ArrivalTrace

CYCLE_S = 0.005
PREDICTION_S = 0.005  # from a question to the step predictor to its answer


class VirtualClock:
    """Virtual time: runs actions in the order of their times, and of their scheduling at equal times. Time stands still
    between actions."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def __bool__(self) -> bool:
        """Whether an action is left."""
        return bool(self._heap)

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Run `action` at that time, or now if that is past."""
        heapq.heappush(self._heap, (max(time_s, self.now_s), next(self._numbers), action))

    def advance(self, window_s: float) -> None:
        """Run the next action and those that follow within the window; the time is then that of the last."""
        end_s = self._heap[0][0] + window_s
        while self._heap and self._heap[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()


@dataclass
class SimulatedCluster:
    """Serves one workload. Deterministic for a given workload, settings and random source."""

    workload: ArrivalTrace
    records: Records
    _core: SchedulerCore
    _outputs: SimulatedOutputs
    _predictor: Predictor | None  # None: the scheduler's questions get no answer
    _profile: LatencyProfile

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.instances: dict[str, SimulatedInstance] = {}
        self._block_length = self._outputs.model.block_length
        self._events: list[ev.Event] = []  # for the scheduler's next cycle
        self._answers: deque[tuple[float, ev.EstimatesReceived]] = deque()  # with the times they arrive
        # Iterations whose results the scheduler has not received: instance, seconds, batch
        self._ended: list[tuple[str, float, Batch]] = []
        self._idle: dict[str, SimulatedInstance] = {}  # instances that may have an iteration to start
        self._fed = FedTokens(
            self.workload.prompt_tokens + self.workload.output_tokens,
            self.workload.prompt_tokens,
            self._block_length,
            self._core.settings.exact_cache,
        )
        self._request_at: Int64 = np.zeros(self._core.table.capacity, dtype=np.int64)  # by row of the scheduler's table
        self._prompt = np.zeros(int(self.workload.prompt_tokens.max(initial=0)), dtype=np.int32)

    def run(self, on_finished: Callable[[int], None] = lambda _: None) -> Records:
        """Run until nothing more happens; `on_finished` receives the number of requests that each cycle finished."""
        self._arrive_from(0)
        while self.clock:
            if finished := self._cycle():
                on_finished(finished)
        return self.records

    def _cycle(self) -> int:
        """Run one cycle of the scheduler, with all events of its time. Returns: the number of requests it finished."""
        self.clock.advance(CYCLE_S)
        events, self._events = [*self._arrived_answers(), *self._events, *self._step_results()], []
        commands = self._core.cycle(events, self.clock.now_s)
        if jobs := [command for command in commands if isinstance(command, ev.SendJobs)]:
            self._deliver(jobs)
        for command in commands:
            if isinstance(command, ev.RequestEstimates) and self._predictor is not None:
                levels = self._outputs.levels[self._request_at[command.tickets & ROW_MASK]]
                self._answers.append((self.clock.now_s + PREDICTION_S, self._predictor(command, levels)))
        finished = [command for command in commands if isinstance(command, ev.FinishRequest)]
        for finish in finished:
            self._record(finish)
        idle, self._idle = self._idle, {}
        for instance in idle.values():
            if (latency_s := instance.start()) is not None:
                self.clock.at(self.clock.now_s + latency_s, partial(self._end_iteration, instance))
        return len(finished)

    def join(self, instance: Instance) -> None:
        """An instance is ready to serve."""
        cost = self._profile.cost(instance.tp_degree)
        self.instances[instance.instance_id] = SimulatedInstance(instance, cost)
        self.update(instance)
        self._record_instances()

    def update(self, instance: Instance) -> None:
        """An instance has changed its registration."""
        self._events.append(ev.InstanceUpdated(instance))

    def holds_requests(self, instance_id: str) -> bool:
        return bool(self._core.fleet.requests[self._core.fleet.index_of[instance_id]])

    def leave(self, instance_id: str, noticed_after_s: float = 0.0) -> None:
        """An instance stops or dies, at once; the scheduler notices later."""
        self.instances.pop(instance_id, None)
        self._record_instances()
        lost = ev.InstanceLost(instance_id)
        self.clock.at(self.clock.now_s + noticed_after_s, lambda: self._events.append(lost))

    # Clients and instances

    def _arrive_from(self, index: int) -> None:
        """Schedule the arrival of one request, which schedules the next."""
        if index < len(self.workload):
            self.clock.at(float(self.workload.arrival_s[index]), partial(self._arrive, index))

    def _arrive(self, index: int) -> None:
        output = int(self.workload.output_tokens[index])
        request = Request(
            request_id=str(index),
            output_tokens=output,
            block_length=self._block_length,
            priority=int(self.workload.priority[index]),
            key=str(self.workload.key[index]),
            may_refuse=self._core.settings.shed,
        )
        prompt = self._prompt[: self.workload.prompt_tokens[index]]
        arrived = ev.RequestArrived(request, prompt, output, float(self.records.slo_s[index]), self.clock.now_s)
        self._events.append(arrived)
        self._arrive_from(index + 1)

    def _end_iteration(self, instance: SimulatedInstance) -> None:
        instance_id = instance.instance.instance_id
        if self.instances.get(instance_id) is instance:  # else it died during the iteration
            self._ended.append((instance_id, instance.latency_s, instance.finish()))
            self._idle[instance_id] = instance

    def _step_results(self) -> list[StepResults]:
        if not self._ended:
            return []
        instance_ids, latencies_s, batches = zip(*self._ended, strict=True)
        self._ended.clear()
        finished = self._outputs.run_steps(joined(batches))
        self.records.count_unmasked(finished.batch[REQUESTS], finished.batch[HUNDREDTHS], finished.counts)
        self.records.steps_run += len(finished.counts)
        num_steps = [batch.shape[1] for batch in batches]
        return list(finished.by_instance(instance_ids, latencies_s, num_steps))

    # The scheduler's commands

    def _deliver(self, commands: Sequence[ev.SendJobs]) -> None:
        """Send jobs to their instances, except to those that are dead, which the scheduler may not know yet."""
        if len(self._request_at) < self._core.table.capacity:
            self._request_at = np.resize(self._request_at, self._core.table.capacity)
        for command in commands:
            for state in command.jobs.states:
                self._request_at[state.ticket & ROW_MASK] = int(state.request_id)
        commands = [command for command in commands if command.jobs.tickets and command.instance_id in self.instances]
        messages = [command.jobs for command in commands]
        batches = read_jobs(messages, self._request_at, self._outputs.masks_left, self._fed)
        for command, batch in zip(commands, batches, strict=True):
            instance = self._idle[command.instance_id] = self.instances[command.instance_id]
            instance.accept(batch)

    def _arrived_answers(self) -> list[ev.EstimatesReceived]:
        """The predictor's answers that have arrived by now. An answer alone starts no cycle."""
        arrived = []
        while self._answers and self._answers[0][0] <= self.clock.now_s:
            arrived.append(self._answers.popleft()[1])
        return arrived

    # Records

    def _record_instances(self) -> None:
        present = Counter(instance.instance.tp_degree for instance in self.instances.values())
        self.records.instances_at.append((self.clock.now_s, dict(present)))

    def _record(self, finish: ev.FinishRequest) -> None:
        index = int(finish.arrived.request.request_id)
        if finish.stats is None or finish.error:
            return
        for name in ("latency_s", "steps", "mean_threshold", "migrations"):
            getattr(self.records, name)[index] = getattr(finish.stats, name)
