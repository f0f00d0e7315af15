"""What a service says of itself once a second."""

import msgspec

STATS_S = 1.0  # between two messages
WINDOW_S = 30.0  # what rates, shares and percentiles are taken over


class InstanceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler has put on one instance."""

    instance_id: str
    open: bool  # takes new requests; else it drains
    requests: int
    max_requests: int
    tokens: int  # prompt and output tokens of its requests
    max_tokens: int
    step_latency_s: float  # of a recompute step of all its requests, by its profile


class ClusterLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What load control (Algorithm 2) judged by in the last cycle. Units: tokens still to be computed."""

    least_tokens: float  # of all active requests, each at the lowest threshold it may use
    committed_tokens: float  # of all, each at the highest threshold that load control leaves it
    capacity_tokens: float  # that the instances compute within the mean SLO of the active requests
    throughput_tokens_per_s: float  # so least_tokens over this are the seconds of work before a new request


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Leading scheduler -> gateway, console, command line. Subject: dilaserve.<cell>.stats.scheduler. Core NATS, every
    STATS_S; who hears none for a few seconds knows that none leads.

    Totals count from the scheduler's start. Rates and the like are over the last `window_s` seconds; None: nothing to
    say, as nothing ended or was unmasked in them.
    """

    at_s: float  # Unix time, seconds
    epoch: int
    policy: str
    thresholds: list[float]  # candidates, ascending
    tokens_per_step: list[float] = []  # mean that a step unmasks at each of them
    caching: bool = False  # whether instances keep keys and values between the steps of a block
    window_s: float  # WINDOW_S, less in the beginning

    active: int  # requests held: running and deferred
    deferred: int  # of these, those that no instance has room for
    steps_in_flight: int

    arrived: int  # totals
    completed: int
    failed: int
    cancelled: int
    slo_met: int = 0  # of those completed
    migrations: int  # of requests that have ended
    steps: int
    tokens: int  # unmasked
    predictions: int  # estimates that the step predictor gave
    predictor_fallbacks: int  # estimates asked for in vain: the one-shot estimate was used

    rps: float  # arrivals a second
    completed_per_s: float
    tokens_per_s: float
    steps_per_s: float
    slo_attainment: float | None  # of those completed and failed
    mean_threshold: float | None  # weighted by tokens unmasked
    latency_p50_s: float | None  # of those completed
    latency_p99_s: float | None
    cycles_per_s: float
    cycle_mean_s: float | None  # seconds that a decision cycle takes
    cycle_max_s: float | None  # the longest of the last STATS_S

    load: ClusterLoad | None = None  # None: the policy does not control load, or nothing is active
    instances: list[InstanceLoad] = []
