"""The reconfigurator's decisions and their progress."""

import enum

import msgspec

from shared.messages.launch import InstanceSpec
from shared.messages.numbers import Finite

MAX_PLANS = 1000  # decisions on the bus; Postgres keeps all


class PlanState(enum.StrEnum):
    STAYED = "stayed"  # no change
    RUNNING = "running"  # stopping and starting instances
    DONE = "done"
    REPLACED = "replaced"  # a later plan took over before the end
    FAILED = "failed"  # an instance did not start, or the plan no longer fits; the running instances are consistent


class ReconfiguratorStats(msgspec.Struct, frozen=True, kw_only=True):
    """Reconfigurator -> gateway: it runs. Subject: dilaserve.<cell>.stats.reconfigurator. Core NATS, every STATS_S."""

    changes_instances: bool  # false: without a launcher, it only records the workload
    interval_s: Finite  # between two decisions


class ClassLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Workload of one request class. Token counts are means."""

    name: str
    rps: float  # arrivals per second
    prompt_tokens: float
    output_tokens: float  # requested
    unmasked_tokens: float
    slo_s: float


class PlanAction(enum.StrEnum):
    """The part of a plan that an event reports of one instance; a failure or the end of a plan has none."""

    DRAIN = "drain"
    STOP = "stop"
    START = "start"
    SERVE = "serve"  # the instance serves from now on


class PlanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a plan."""

    at_s: float  # Unix time, seconds
    text: str  # for people
    action: PlanAction | None = None
    instance: str = ""  # name of the instance; empty without an action


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Reconfigurator -> any subscriber: one decision, published at each change of its state.

    Subject: dilaserve.<cell>.plans.<plan_id>. Stream: PLANS (file, last one per subject, the newest MAX_PLANS).
    Unique by plan_id; ids ascend with time.
    """

    plan_id: str
    decided_s: float  # Unix time, seconds
    state: PlanState
    reason: str  # reason of the decision
    status: str = ""  # optimal, feasible or fallback; empty: no plan
    mean_threshold: float | None = None  # as planned
    slack_s: float | None = None  # as planned: sum over classes of RPS_k (SLO_k - t_k)
    solve_s: float | None = None  # of all of it
    stage1_s: float | None = None  # of the number of instances
    stage2_s: float | None = None  # of their GPUs
    classes: list[ClassLoad] = []  # observed workload
    tokens_per_step: dict[float, float] = {}  # by threshold
    before: list[InstanceSpec] = []  # running instances, at the decision or when the plan takes over from another
    target: list[InstanceSpec] = []  # planned instances; without a change: proposed ones
    events: list[PlanEvent] = []
    ended_s: float | None = None  # Unix time, seconds
    traceparent: str = ""  # W3C context of its trace; empty: not traced
