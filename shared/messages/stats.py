"""Statistics that the scheduler publishes once a second."""

import msgspec

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
    step_latency_s: float  # of a recompute step of all its requests, by profile


class ClusterLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load control's inputs (Algorithm 2) in the last cycle. Units: tokens to compute."""

    least_tokens: float  # of all active requests, each at its lowest allowed threshold
    committed_tokens: float  # of all active requests, each at its highest allowed threshold
    capacity_tokens: float  # of the instances within the mean SLO of active requests
    throughput_tokens_per_s: float  # least_tokens / this: seconds of work before a new request


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Leading scheduler -> gateway, console, command line. Subject: dilaserve.<cell>.stats.scheduler. Core NATS, every
    STATS_S; without one for a few seconds, no scheduler leads.

    Totals count from the scheduler's start. Rates, ratios and percentiles are over the last `window_s` seconds; None:
    no request ended, or no token was unmasked, in that time.
    """

    at_s: float  # Unix time, seconds
    epoch: int
    policy: str
    thresholds: list[float]  # candidates, ascending
    tokens_per_step: list[float] = []  # mean at each threshold
    caching: bool = False  # instances have a KV cache
    window_s: float  # WINDOW_S; shorter after the start

    active: int  # running and deferred requests
    deferred: int  # active requests that no instance has room for
    waiting: int = 0  # requests beyond those that the scheduler holds
    steps_in_flight: int

    arrived: int  # also those that wait; this and the following: totals
    completed: int
    failed: int
    cancelled: int
    slo_met: int = 0  # of completed requests
    migrations: int  # of ended requests
    steps: int
    tokens: int  # unmasked
    predictions: int  # estimates by the step predictor
    predictor_fallbacks: int  # one-shot estimates in place of a failed prediction

    rps: float  # arrivals per second
    completed_per_s: float
    tokens_per_s: float
    steps_per_s: float
    slo_attainment: float | None  # of completed and failed requests
    mean_threshold: float | None  # weighted by tokens unmasked
    latency_p50_s: float | None  # of completed requests
    latency_p99_s: float | None
    cycles_per_s: float
    cycle_mean_s: float | None  # duration of a decision cycle
    cycle_max_s: float | None  # longest of the last STATS_S

    load: ClusterLoad | None = None  # None: no load control, or no active request
    instances: list[InstanceLoad] = []
