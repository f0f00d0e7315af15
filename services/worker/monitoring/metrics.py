"""The worker's Prometheus metrics, updated once per message and once per iteration."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.worker.engine.engine import Engine
from services.worker.engine.self_check import CanaryFaultKind
from shared.messages.instances import Instance
from shared.messages.steps import StepJobs, StepResults
from shared.metrics_server import SIZE_BUCKETS, TIME_BUCKETS

NAME = "dilaserve_worker"
INT32, INT64 = 4, 8  # bytes of an entry in a message's columns


class WorkerMetrics(Collector):
    """The metrics of one instance, in their own registry."""

    def __init__(self, instance: Instance) -> None:
        self.registry = CollectorRegistry()
        labels = {"worker": instance.instance_id, "node": instance.node, "tp_degree": str(instance.tp_degree)}
        Info(NAME, "Which instance this is", registry=self.registry).info(labels)
        self._step = self._histogram("step_seconds", "Time of an iteration: a step of each request in it", TIME_BUCKETS)
        self._requests = self._histogram("batch_requests", "Requests of an iteration", SIZE_BUCKETS)
        self._tokens = self._histogram("batch_tokens", "Tokens computed by an iteration", SIZE_BUCKETS)
        self._delay = self._histogram("jobs_delay_seconds", "Delay of step jobs from the scheduler", TIME_BUCKETS)
        self._unmasked = Counter(f"{NAME}_unmasked_tokens", "Tokens unmasked", registry=self.registry)
        self._resident = self._gauge("held_requests", "Resident requests: the instance keeps their canvas and cache")
        self._quarantined = Gauge(
            f"{NAME}_quarantined",
            "1 if the instance computes wrong and runs nothing",
            ["reason"],
            registry=self.registry,
        )
        for kind in CanaryFaultKind:
            self._quarantined.labels(kind)
        self._size = self._gauge("kv_cache_tokens", "Tokens that the KV cache has room for")
        self._used = self._gauge("kv_cache_used_tokens", "Tokens whose keys and values are cached")
        self._prefixes = self._gauge("prefix_cache_used_tokens", "Tokens of prefixes cached for later requests")
        self._engine: Engine | None = None
        self.registry.register(self)

    def watch(self, engine: Engine) -> None:
        """Export the engine's requests and cache from now on."""
        self._resident.set_function(lambda: engine.num_resident)
        self._size.set(engine.cache_tokens)
        self._used.set_function(lambda: engine.used_cache_tokens)
        self._prefixes.set_function(lambda: engine.prefixes.used_tokens)
        self._engine = engine

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counters of the engine."""
        prefixes = self._engine.prefixes if self._engine else None
        wanted, cached = (prefixes.wanted_tokens, prefixes.loaded_tokens) if prefixes else (0, 0)
        faults = self._engine.num_faults if self._engine else 0
        yield CounterMetricFamily(f"{NAME}_request_faults", "Requests that failed for an unexpected error", faults)
        meanings = "Tokens that arriving requests may find cached", "Tokens that arriving requests found cached"
        yield CounterMetricFamily(f"{NAME}_prefix_wanted_tokens", meanings[0], wanted)
        yield CounterMetricFamily(f"{NAME}_prefix_cached_tokens", meanings[1], cached)

    def quarantined(self, kind: CanaryFaultKind) -> None:
        """Export that the instance is quarantined."""
        self._quarantined.labels(kind).set(1)

    def jobs_received(self, jobs: StepJobs, received_s: float) -> None:
        """Record the delay of a message, at least 0 since clocks differ. Units: received_s is Unix time in seconds."""
        if jobs.sent_s:
            self._delay.observe(max(0.0, received_s - jobs.sent_s))

    def iteration_finished(self, results: StepResults) -> None:
        """Record an iteration, if a step ran in it."""
        if results.tickets:
            self._step.observe(results.latency_s)
            self._requests.observe(len(results.tickets) // INT64)
            self._tokens.observe(results.batch_tokens)
            self._unmasked.inc(len(results.positions) // INT32)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{NAME}_{name}", help_text, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"{NAME}_{name}", help_text, registry=self.registry)
