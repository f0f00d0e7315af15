"""Runs the live planner in virtual time and carries out its plans on a simulated cluster.

Planning itself takes no virtual time. The statistics, the decision and the order of a transition are the live code's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import msgspec
import numpy as np

from services.reconfigurator.execution.transition import StartInstance, StopInstance, next_action
from services.reconfigurator.nodes import Node
from services.reconfigurator.planning.decision import Planner, PlanningContext
from services.reconfigurator.planning.workload_stats import RequestSample
from services.reconfigurator.schedule import PlanSchedule, PlanTrigger
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.arrays import Int64
from shared.errors import BadInput
from shared.messages.instances import Instance, InstanceState
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanState
from shared.profile import LatencyProfile
from simulator.cluster import SimulatedCluster
from simulator.result import SimulatedDecision

DEFAULTS = ReconfiguratorSettings()
POLL_S = 0.25  # between two checks whether a drained instance is empty
STOP_S = 2.0  # from an empty instance until its GPUs are free


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReconfiguration:
    """Defaults are the live reconfigurator's; times are in seconds."""

    gpus_per_node: int = 4
    interval_s: float = DEFAULTS.interval_s  # between two decisions
    window_s: float = DEFAULTS.window_s  # length of the window of arrivals that a decision reads
    load_s: float = 60.0  # from a launch until the instance serves: 16 GB of weights, and warming up


@dataclass
class SimulatedReconfigurator:
    _settings: SimulatedReconfiguration
    _planner: Planner
    _profile: LatencyProfile
    _cluster: SimulatedCluster
    _make_instance: Callable[[int], Instance]

    def __post_init__(self) -> None:
        settings, self._clock, self._trace = self._settings, self._cluster.clock, self._cluster.workload
        self._schedule = PlanSchedule(settings.interval_s, settings.window_s, DEFAULTS.rps_buffer, self._clock.now_s)
        self._running: dict[InstanceSpec, str] = {}  # instance ids; empty while the instance loads
        self._target: list[InstanceSpec] | None = None  # None: no transition is in progress
        self._stopping: InstanceSpec | None = None  # the transition's current action
        self._loads: dict[InstanceSpec, int] = {}  # instances that load, with the number of their launch
        self._launches = count()

    def start(self, specs: Iterable[InstanceSpec]) -> None:
        """Start the first instances, which serve at once, and plan until the last request has arrived."""
        for spec in specs:
            self._serve(spec)
        self._check_later()

    def _check_later(self) -> None:
        wait_s = self._schedule.next_check_in_s(self._clock.now_s)
        self._later(wait_s or self._schedule.recent_s, self._check)

    def _check(self) -> None:
        self._forget_dead()
        recent = len(self._arrived(self._schedule.recent_s))
        if trigger := self._schedule.due(self._clock.now_s, recent):
            self._decide(trigger)
        if self._clock.now_s < self._trace.arrival_s[-1]:
            self._check_later()

    def _arrived(self, span_s: float) -> Int64:
        """The requests that arrived in the last `span_s` seconds."""
        now_s, arrival_s = self._clock.now_s, self._trace.arrival_s
        return np.flatnonzero((arrival_s > now_s - span_s) & (arrival_s <= now_s))

    def _decide(self, trigger: PlanTrigger) -> None:
        record = self._planner.decide(self._context(trigger), self._clock.now_s)
        self._schedule.decided(trigger, sum(load.rps for load in record.classes))
        decision = SimulatedDecision(
            t_s=self._clock.now_s,
            take=record.state is PlanState.RUNNING,
            reason=record.reason,
            status=record.status,
            instances_per_tp=dict(sorted(Counter(spec.tp for spec in record.target).items())),
        )
        self._cluster.records.decisions.append(decision)
        if decision.take:
            self._target = record.target
            self._advance()

    def _context(self, trigger: PlanTrigger) -> PlanningContext:
        trace, slo_s = self._trace, self._cluster.records.slo_s
        return PlanningContext(
            requests=[
                RequestSample(int(trace.prompt_tokens[i]), int(trace.output_tokens[i]), float(slo_s[i]))
                for i in self._arrived(trigger.span_s)
            ],
            threshold_uses=[],
            trigger=trigger,
            running=[spec for spec in self._running if spec != self._stopping],
            target=self._target,
            nodes_up={node.name for node in self._planner.nodes},
            profile=self._profile,
            known_tokens_per_step={},
        )

    # The transition

    def _advance(self) -> None:
        """Do the next actions of the transition up to one that takes time; its end calls this again."""
        if self._target is None or self._stopping is not None:
            return
        self._forget_dead()
        serving = [spec for spec, instance_id in self._running.items() if instance_id]
        match next_action(self._target, list(self._running), serving):
            case None:
                self._target = None
            case StopInstance(spec):
                self._stopping = spec
                self._drain(spec)
            case StartInstance(spec):
                self._running[spec] = ""
                self._loads[spec] = number = next(self._launches)
                self._later(self._settings.load_s, partial(self._loaded, spec, number))
                self._advance()

    def _loaded(self, spec: InstanceSpec, number: int) -> None:
        """A launch has ended, unless the instance was stopped before."""
        if self._loads.get(spec) == number:
            del self._loads[spec]
            self._serve(spec)
            self._advance()

    def _serve(self, spec: InstanceSpec) -> None:
        instance = self._make_instance(spec.tp)
        self._running[spec] = instance.instance_id
        self._cluster.join(instance)

    def _drain(self, spec: InstanceSpec) -> None:
        instance_id = self._running[spec]
        if self._loads.pop(spec, None) is not None:  # it holds no request
            self._later(STOP_S, partial(self._stopped, spec))
            return
        instance = self._cluster.instances[instance_id].instance
        self._cluster.update(msgspec.structs.replace(instance, state=InstanceState.DRAINING, drain_s=DEFAULTS.drain_s))
        self._later(POLL_S, partial(self._stop_when_empty, spec, instance_id))

    def _stop_when_empty(self, spec: InstanceSpec, instance_id: str) -> None:
        if instance_id in self._cluster.instances and self._cluster.holds_requests(instance_id):
            self._later(POLL_S, partial(self._stop_when_empty, spec, instance_id))
        else:
            self._cluster.leave(instance_id)
            self._later(STOP_S, partial(self._stopped, spec))

    def _stopped(self, spec: InstanceSpec) -> None:
        self._running.pop(spec, None)
        self._stopping = None
        self._advance()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._clock.at(self._clock.now_s + seconds, action)

    def _forget_dead(self) -> None:
        for spec, instance_id in list(self._running.items()):
            if instance_id and instance_id not in self._cluster.instances:
                del self._running[spec]


def place(degrees: Iterable[int], gpus_per_node: int) -> list[InstanceSpec]:
    """Place instances in order, each on the first node with room. Raises: BadInput if one is larger than a node."""
    used: list[int] = []
    specs = []
    for tp in degrees:
        if tp > gpus_per_node:
            raise BadInput(f"an instance of tp {tp} does not fit a node of --gpus-per-node {gpus_per_node}")
        number = next((i for i, gpus in enumerate(used) if gpus + tp <= gpus_per_node), len(used))
        if number == len(used):
            used.append(0)
        specs.append(InstanceSpec(node=f"node{number}", gpus=tuple(range(used[number], used[number] + tp))))
        used[number] += tp
    return specs


def nodes_of(specs: Sequence[InstanceSpec], gpus_per_node: int) -> tuple[Node, ...]:
    return tuple(Node(name=name, gpus=gpus_per_node) for name in dict.fromkeys(spec.node for spec in specs))
