"""The worker's metrics, as Prometheus reads them: observed once a message and once an iteration."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from services.worker.engine.engine import Engine
from shared.messages.instances import Instance
from shared.messages.steps import StepJobs, StepResults
from shared.metrics import SIZE_BUCKETS, TIME_BUCKETS

NAME = "dilaserve_worker"
INT32, INT64 = 4, 8  # bytes of an entry in a message's columns


class WorkerMetrics:
    """One registry for each instance."""

    def __init__(self, instance: Instance) -> None:
        self.registry = CollectorRegistry()
        labels = {"worker": instance.instance_id, "node": instance.node, "tp_degree": str(instance.tp_degree)}
        Info(NAME, "Which instance this is", registry=self.registry).info(labels)
        self._step = self._histogram("step_seconds", "Time of an iteration: a step of each request in it", TIME_BUCKETS)
        self._requests = self._histogram("batch_requests", "Requests of an iteration", SIZE_BUCKETS)
        self._tokens = self._histogram("batch_tokens", "Tokens computed by an iteration", SIZE_BUCKETS)
        self._delay = self._histogram(
            "jobs_delay_seconds", "From the scheduler's sending step jobs to here", TIME_BUCKETS
        )
        self._unmasked = Counter(f"{NAME}_unmasked_tokens", "Tokens unmasked", registry=self.registry)
        self._held = self._gauge("held_requests", "Requests that the instance holds")
        self._size = self._gauge("kv_cache_tokens", "Tokens that the KV cache has room for")
        self._used = self._gauge("kv_cache_used_tokens", "Tokens whose keys and values are cached")

    def watch(self, engine: Engine) -> None:
        """Show what the engine holds from now on."""
        self._held.set_function(lambda: engine.num_held)
        self._size.set(engine.cache_tokens)
        self._used.set_function(lambda: engine.cache_tokens - engine.free_cache_tokens)

    def jobs_received(self, jobs: StepJobs, received_s: float) -> None:
        """Clocks of different machines may differ; a delay is never below 0. Units: Unix time."""
        if jobs.sent_s:
            self._delay.observe(max(0.0, received_s - jobs.sent_s))

    def ran(self, results: StepResults) -> None:
        """One iteration; of one in which no step ran there is nothing to tell."""
        if results.tickets:
            self._step.observe(results.latency_s)
            self._requests.observe(len(results.tickets) // INT64)
            self._tokens.observe(results.batch_tokens)
            self._unmasked.inc(len(results.positions) // INT32)

    def _histogram(self, name: str, told: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{NAME}_{name}", told, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, told: str) -> Gauge:
        return Gauge(f"{NAME}_{name}", told, registry=self.registry)
