"""The live planner in virtual time: what arrived in a window makes a plan, and its transition takes its time.

Planning itself takes none. Statistics, planner, and what is to be done next are those of the live reconfigurator.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from services.reconfigurator.execution.transition import StartInstance, StopInstance, next_action
from services.reconfigurator.monitoring.workload_stats import PlanningSettings, RequestSample, class_loads, workload
from services.reconfigurator.nodes import Node, to_placements, to_spec
from services.reconfigurator.planning.plan import Plan
from services.reconfigurator.planning.plan_input import plan_input
from services.reconfigurator.planning.planner import make_plan
from services.reconfigurator.schedule import PlanSchedule, PlanTrigger
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.arrays import Int64
from shared.errors import BadInput
from shared.messages.instances import Instance, InstanceState
from shared.messages.launch import InstanceSpec
from shared.profile import LatencyProfile
from simulator.cluster import SimulatedCluster
from simulator.result import Decided
from simulator.steps_table import StepsTable
from simulator.workload import ArrivalTrace

DEFAULTS = ReconfiguratorSettings()
POLL_S = 0.25  # between two looks at whether a drained instance is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReconfiguration:
    """Defaults are the live reconfigurator's; times are in seconds."""

    gpus_per_node: int = 4
    interval_s: float = DEFAULTS.interval_s  # between two decisions
    window_s: float = DEFAULTS.window_s  # of arrivals that a decision looks at
    rps_buffer: float = DEFAULTS.rps_buffer  # planned for so much more than was seen
    drain_s: float = DEFAULTS.drain_s  # how long a drained instance keeps requests until their next recompute step
    stop_s: float = 2.0  # from an empty instance until its GPUs are free
    load_s: float = 60.0  # from a launch until the instance serves: 16 GB of weights, and warming up
    solve_s: float = DEFAULTS.solve_s  # limit for each stage, in real seconds


@dataclass(frozen=True, slots=True)
class PlanFor:
    """What plans are made from, beside what arrives."""

    profile: LatencyProfile
    steps: StepsTable
    thresholds: Sequence[float]
    cached: bool
    block_length: int = 32


class Reconfigurator:
    """Plans for one cluster and carries the plans out."""

    def __init__(
        self,
        settings: SimulatedReconfiguration,
        basis: PlanFor,
        cluster: SimulatedCluster,
        arriving: ArrivalTrace,
        make_instance: Callable[[InstanceSpec], Instance],
    ) -> None:
        self._settings = settings
        self._basis = basis
        self._cluster = cluster
        self._arriving = arriving
        self._make_instance = make_instance
        self._agenda = PlanSchedule(settings.interval_s, settings.window_s, settings.rps_buffer, cluster.clock.now_s)
        self._nodes: tuple[Node, ...] = ()
        self._running: dict[InstanceSpec, str] = {}  # by name; those that load included
        self._loading: set[InstanceSpec] = set()
        self._target: list[InstanceSpec] | None = None  # None: no transition is under way

    def start(self, degrees: Iterable[int]) -> None:
        """Put the first instances on nodes, where they serve at once, and plan while requests arrive.

        Raises: BadInput if an instance is larger than a node.
        """
        places = place(degrees, self._settings.gpus_per_node)
        self._nodes = tuple(Node(name=name, gpus=self._settings.gpus_per_node) for name in _names(places))
        for spec in places:
            self._serve(spec, self._make_instance(spec))
        self._look_later()

    def _look_later(self) -> None:
        now_s = self._cluster.clock.now_s
        self._later(self._agenda.look_in_s(now_s) or self._agenda.recent_s, self._look)

    def _look(self) -> None:
        """Decide if it is due; a transition that is under way is awaited."""
        now_s = self._cluster.clock.now_s
        self._forget_dead()
        if self._target is None and (occasion := self._agenda.due(now_s, len(self._seen(self._agenda.recent_s)))):
            self._decide(occasion)
        if now_s < self._arriving.arrival_s[-1]:
            self._look_later()

    def _seen(self, span_s: float) -> Int64:
        """The requests that arrived in the last `span_s`."""
        now_s, arrival_s = self._cluster.clock.now_s, self._arriving.arrival_s
        return np.flatnonzero((arrival_s > now_s - span_s) & (arrival_s <= now_s))

    def _decide(self, occasion: PlanTrigger) -> None:
        seen = self._seen(occasion.span_s)
        self._agenda.decided(occasion, len(seen) / occasion.span_s)
        if not len(seen):
            return
        plan = self._plan(seen, occasion)
        self._cluster.records.decisions.append(
            Decided(
                t_s=self._cluster.clock.now_s,
                take=plan.decision.take,
                reason=occasion.explain(plan.decision.reason),
                status=plan.status,
                instances_per_tp=plan.instances_per_tp,
            )
        )
        if plan.decision.take:
            self._target = [to_spec(instance, self._nodes) for instance in plan.instances]
            self._advance()

    def _plan(self, seen: Int64, occasion: PlanTrigger) -> Plan:
        arriving, basis, slo_s = self._arriving, self._basis, self._cluster.records.slo_s
        requests = [
            RequestSample(int(arriving.prompt_tokens[i]), int(arriving.output_tokens[i]), float(slo_s[i])) for i in seen
        ]
        degrees = [tp for tp in basis.profile.tp_degrees if tp <= self._settings.gpus_per_node]
        rps_buffer = occasion.buffer(self._settings.rps_buffer)
        planning = PlanningSettings(basis.thresholds, degrees, DEFAULTS.batch_sizes, rps_buffer, basis.block_length)
        tokens = {c: float(basis.steps.tokens_at(np.array(c))) for c in basis.thresholds}
        gpus = [node.gpus for node in self._nodes]
        asked = workload(class_loads(requests, occasion.span_s), tokens, planning, gpus)
        names = [node.name for node in self._nodes]
        current = to_placements(self._running, self._nodes, names)
        p = plan_input(asked, basis.profile, cached=basis.cached)
        return make_plan(p, current, time_limit_s=self._settings.solve_s, growing=occasion.growing)

    # The transition

    def _advance(self) -> None:
        """Do what is next; whatever takes time comes back here."""
        assert self._target is not None, "a transition is under way"
        self._forget_dead()
        serving = [spec for spec in self._running if spec not in self._loading]
        match next_action(self._target, list(self._running), serving):
            case None:
                self._target = None
            case StopInstance(spec):
                self._drain(spec)
            case StartInstance(spec):
                self._running[spec] = ""
                self._loading.add(spec)
                self._later(self._settings.load_s, lambda: self._loaded(spec))
                self._advance()

    def _loaded(self, spec: InstanceSpec) -> None:
        self._loading.discard(spec)
        self._serve(spec, self._make_instance(spec))
        self._advance()

    def _serve(self, spec: InstanceSpec, instance: Instance) -> None:
        self._running[spec] = instance.instance_id
        self._cluster.join(instance)

    def _drain(self, spec: InstanceSpec) -> None:
        name = self._running[spec]
        until_s = self._cluster.clock.now_s + self._settings.drain_s
        instance = self._cluster.instances[name].instance
        self._cluster.tell(msgspec.structs.replace(instance, state=InstanceState.DRAINING, drain_until_s=until_s))
        self._later(POLL_S, lambda: self._stop_when_empty(spec, name))

    def _stop_when_empty(self, spec: InstanceSpec, name: str) -> None:
        if name in self._cluster.instances and self._cluster.holds_requests(name):
            self._later(POLL_S, lambda: self._stop_when_empty(spec, name))
            return
        self._cluster.leave(name)
        self._later(self._settings.stop_s, lambda: self._stopped(spec))

    def _stopped(self, spec: InstanceSpec) -> None:
        self._running.pop(spec, None)
        self._advance()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._cluster.clock.at(self._cluster.clock.now_s + seconds, action)

    def _forget_dead(self) -> None:
        for spec, name in list(self._running.items()):
            if spec not in self._loading and name not in self._cluster.instances:
                del self._running[spec]


def place(degrees: Iterable[int], gpus_per_node: int) -> list[InstanceSpec]:
    """Instances on as many nodes as they need, in their order, each where there is room first.

    Raises: BadInput if one is larger than a node.
    """
    used: list[int] = []
    places = []
    for tp in degrees:
        if tp > gpus_per_node:
            raise BadInput(f"an instance of tp {tp} does not fit a node of --gpus-per-node {gpus_per_node}")
        number = next((i for i, gpus in enumerate(used) if gpus + tp <= gpus_per_node), len(used))
        if number == len(used):
            used.append(0)
        gpus = tuple(range(used[number], used[number] + tp))
        places.append(InstanceSpec(node=f"node{number}", gpus=gpus))
        used[number] += tp
    return places


def _names(places: Sequence[InstanceSpec]) -> list[str]:
    return list(dict.fromkeys(spec.node for spec in places))
