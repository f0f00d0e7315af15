"""Statistics that the scheduler publishes once a second."""

import msgspec

STATS_S = 1.0  # interval of messages
WINDOW_S = 30.0  # window of rates, ratios and percentiles
CURVE_TOKENS = tuple(32 * 2**i * j // 2 for i in range(10) for j in (2, 3))  # batch tokens, 32 to 24,576, of the curves


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
    """The inputs of the paper's load control (Algorithm 2) in its last run. Units: tokens to compute."""

    least_tokens: float  # of all active requests, each at its lowest allowed threshold
    committed_tokens: float  # of all active requests, each at its highest allowed threshold
    capacity_tokens: float  # of the instances within the mean SLO of active requests
    throughput_tokens_per_s: float


class InstanceClass(msgspec.Struct, frozen=True, kw_only=True):
    """The open instances with one latency profile and TP degree. The costs are corrected by what is observed."""

    instances: int
    requests: int  # on all of them
    fewest_requests: int  # on one of them
    max_requests: int  # the room of one of them
    max_tokens: int
    recompute_s: list[float]  # seconds of an iteration of recompute steps with each of CURVE_TOKENS
    cache_s: list[float]  # seconds of an iteration of cache steps with each of CURVE_TOKENS


class WorkGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Active requests with equal priority, similar deadlines and similar steps left. Lengths and steps are means."""

    requests: int
    steps: float  # left at the lowest threshold that the policy and the quality floor allow
    recompute_steps: float  # of these
    tokens: float  # prompt and output
    block_length: float
    due_in_s: float  # seconds from the message to the latest deadline; below 0: all are late
    priority: int


class ClusterWork(msgspec.Struct, frozen=True, kw_only=True):
    """The basis of a latency forecast, under every policy."""

    classes: list[InstanceClass]
    groups: list[WorkGroup]
    by_deadline: bool  # requests due earlier come first; false: all requests on an instance share its iterations
    lowest_threshold: float  # that the policy uses
    mean_steps_share: float  # steps of ended requests over those of a whole output at the mean rate
    least_steps_share: float  # the same of easy requests; 0: unknown, at least one step runs
    computing_share: float  # of the time since a request's first step, the share in which its iterations run


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
    oldest_queued_s: float = 0.0  # age of the oldest request that no instance runs and whose SLO has passed; 0: none
    stalled_s: float = 0.0  # time without a step result while requests are active and an instance is present

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

    load: ClusterLoad | None = None  # None: the policy does not count tokens, or no request is active
    work: ClusterWork | None = None  # None: no instance is open
    instances: list[InstanceLoad] = []
