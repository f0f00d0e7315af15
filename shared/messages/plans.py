"""What the reconfigurator decided, and how far it has come with it."""

import enum

import msgspec

from shared.messages.launch import InstanceSpec

MAX_PLANS = 1000  # decisions that the bus keeps; Postgres keeps all


class PlanState(enum.StrEnum):
    STAYED = "stayed"  # decided against a change
    RUNNING = "running"  # instances are being stopped and started
    DONE = "done"
    FAILED = "failed"  # an instance could not be started, or the plan no longer fits; what runs is consistent


class ClassLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one request class. Means in tokens and seconds."""

    name: str
    rps: float  # arrivals per second
    prompt_tokens: float
    output_tokens: float  # asked for
    unmasked_tokens: float
    slo_s: float


class PlanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done."""

    at_s: float  # Unix time, seconds
    text: str


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Reconfigurator -> anyone: one decision, published again at each change.

    Subject: dilaserve.<cell>.plans.<plan_id>. Stream: PLANS (file, last one per subject, the newest MAX_PLANS).
    Unique by plan_id; ids ascend with time.
    """

    plan_id: str
    decided_s: float  # Unix time, seconds
    state: PlanState
    reason: str  # why it was taken, or not
    status: str = ""  # of the plan: optimal, feasible or fallback; empty: none was made
    mean_threshold: float | None = None  # as planned
    slack_s: float | None = None  # as planned: the sum over classes of RPS_k (SLO_k - t_k)
    solve_s: float | None = None
    classes: list[ClassLoad] = []  # the workload as it was seen
    tokens_per_step: dict[float, float] = {}  # by threshold
    before: list[InstanceSpec] = []  # what ran
    target: list[InstanceSpec] = []  # what is to run; of a decision to stay: what was proposed
    events: list[PlanEvent] = []
    ended_s: float | None = None  # Unix time, seconds
