"""Statistics that the scheduler publishes once a second."""

import msgspec

from shared.messages.numbers import Finite
from shared.messages.versions import FIRST_VERSION

STATS_S = 1.0  # interval of messages
WINDOW_S = 30.0  # window of rates, ratios and percentiles


class InstanceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's load on one instance."""

    instance_id: str
    open: bool  # accepts new requests; false: draining
    requests: int
    max_requests: int
    tokens: int  # prompt and output tokens of its requests
    max_tokens: int
    step_latency_s: Finite  # of a recompute step of all its requests, by profile


class ClusterLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the paper's load control (Algorithm 2) in its last run. Units: tokens to compute."""

    least_tokens: Finite  # of all active requests, each at its lowest allowed threshold
    committed_tokens: Finite  # of all active requests, each at its highest allowed threshold
    capacity_tokens: Finite  # of the instances within the mean SLO of active requests
    throughput_tokens_per_s: Finite


class LastServed(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the last window in which a request ended, as in SchedulerStats."""

    at_s: Finite  # Unix time of the end of that window, seconds
    slo_attainment: Finite | None
    mean_threshold: Finite | None
    latency_p50_s: Finite | None
    latency_p99_s: Finite | None


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Leading scheduler -> gateway, console, command line. Subject: dilaserve.<cell>.stats.scheduler. Core NATS, every
    STATS_S; without one for a few seconds, no scheduler leads.

    Totals count from the scheduler's start. Rates, ratios and percentiles are over the last `window_s` seconds; None:
    no request ended, or no token was unmasked, in that time.
    """

    at_s: Finite  # Unix time, seconds
    version: int = FIRST_VERSION  # of the scheduler's messages (shared/messages/versions.py)
    epoch: int
    leader: str = ""  # its process, as in ServiceHealth
    policy: str
    thresholds: list[Finite]  # candidates, ascending
    shed: bool = False  # the scheduler refuses requests that cannot meet their SLO, if they allow it
    window_s: Finite  # WINDOW_S; shorter after the start

    active: int  # running and deferred requests
    deferred: int  # active requests that no instance has room for
    infeasible: int = 0  # active requests whose SLO no threshold meets, as the policy estimates
    waiting: int = 0  # requests beyond those that the scheduler holds
    slack: Finite = 0.0  # free share of the SLO window or of the places, whichever is smaller; 0 and below: full
    draining: bool = False  # the cell finishes its requests, and gateways send no more to it
    steps_in_flight: int
    oldest_queued_s: Finite = 0.0  # age of the oldest request that no instance runs and whose SLO has passed; 0: none
    stalled_s: Finite = 0.0  # time without a step result while requests are active and an instance is present

    arrived: int  # also those that wait or are rejected; this and the following: totals
    completed: int
    failed: int
    cancelled: int
    rejected: int = 0  # invalid
    refused: int = 0  # could not meet their SLO
    slo_met: int = 0  # of completed requests
    migrations: int  # of ended requests
    steps: int
    tokens: int  # unmasked
    predictions: int  # estimates by the step predictor
    predictor_fallbacks: int  # one-shot estimates in place of a failed prediction

    rps: Finite  # arrivals per second
    completed_per_s: Finite
    tokens_per_s: Finite
    steps_per_s: Finite
    slo_attainment: Finite | None  # of completed and failed requests
    mean_threshold: Finite | None  # weighted by tokens unmasked
    latency_p50_s: Finite | None  # of completed requests
    latency_p99_s: Finite | None
    last: LastServed | None = None  # None: no request has ended since the start
    cycles_per_s: Finite
    cycle_mean_s: Finite | None  # duration of a decision cycle
    cycle_max_s: Finite | None  # longest of the last STATS_S

    load: ClusterLoad | None = None  # None: the policy does not count tokens, or no request is active
    instances: list[InstanceLoad] = []
