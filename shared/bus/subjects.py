"""Declares every subject, stream, bucket and durable consumer (see docs/nats-api.md).

`Bus.set_up` creates the streams and buckets; services only bind to them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    ObjectStoreConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from shared.bus.storage_limits import DISK_BYTES, INSTANCES_BYTES, SMALL_BYTES, STEP_BYTES, max_bytes
from shared.messages.plans import MAX_PLANS

HEARTBEAT_S = 1.0  # interval of an instance's heartbeats and a leader's lease renewals
INSTANCE_TTL_S = 5.0  # silence after which an instance is lost
NO_TTL_S = 0.0  # messages do not expire
MAX_UNRENEWED_S = 20.0  # silence of an instance or a leader that is connected, after which health checks fail
LEASE_TTL_S = 3.0  # silence after which a leader's lease expires
ARRIVAL_AGE_S = 24 * 3600.0  # retention of arrivals
OUTCOME_AGE_S = 24 * 3600.0  # retention of outcomes
FILE_AGE_S = 30 * 24 * 3600.0  # retention of files and batches
MAX_BATCHES = 8  # running batches of a cell
BATCH_ACK_WAIT_S = 10.0  # silence of a gateway after which another one takes over its batches
CHECKPOINT_AGE_S = 3600.0  # retention of checkpoints; an older request restarts after a crash
REQUEST_ACK_WAIT_S = 24 * 3600.0  # upper bound only: a new scheduler's consumer receives all requests immediately
MAX_UNFINISHED_REQUESTS = 100_000  # messages of REQUESTS; the stream refuses further ones
PREDICTORS = "predictor"  # the queue group of the subject `predict`
STEP_AGE_S = 60.0  # retention of step messages
NO_DUPLICATES_S = 0.1  # NATS's shortest time of deduplication by Nats-Msg-Id, instead of two minutes


@dataclass(frozen=True, slots=True)
class _Name:
    """A name within a cell."""

    template: str

    def __get__(self, subjects: "Subjects", _owner: type) -> str:
        return self.template.format(cell=subjects.cell)


@dataclass(frozen=True, slots=True)
class _NameOf:
    """A name within a cell that ends in a given token, such as a request or an instance."""

    template: str

    def __get__(self, subjects: "Subjects", _owner: type) -> Callable[[str], str]:
        prefix = self.template.format(cell=subjects.cell)
        return lambda token: prefix + token


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects, buckets and streams of one cell."""

    cell: str

    requests = _Name("dilaserve.{cell}.requests")
    arrivals = _Name("dilaserve.{cell}.arrivals")
    predict = _Name("dilaserve.{cell}.predict")
    batches = _Name("dilaserve.{cell}.batches")
    probes = _Name("dilaserve.{cell}.probes")
    config = _Name("dilaserve.{cell}.config")
    key_use = _Name("dilaserve.{cell}.key-use")
    unfinished = _Name("dilaserve.{cell}.unfinished")
    nothing = _Name("dilaserve.{cell}.nothing")  # no message has it

    cancel = _NameOf("dilaserve.{cell}.cancel.")  # + request
    lookup = _NameOf("dilaserve.{cell}.lookup.")  # + request
    producer_requests = _NameOf("dilaserve.{cell}.requests.")  # + named producer
    progress = _NameOf("dilaserve.{cell}.progress.")  # + request
    guesses = _NameOf("dilaserve.{cell}.guesses.")  # + request
    outcomes = _NameOf("dilaserve.{cell}.outcomes.")  # + request
    request_messages = _NameOf("dilaserve.{cell}.*.")  # + request: progress, guesses, outcome, …, by `message_kind`
    checkpoints = _NameOf("dilaserve.{cell}.checkpoints.")  # + request
    steps = _NameOf("dilaserve.{cell}.steps.")  # + instance
    step_results = _NameOf("dilaserve.{cell}.step-results.")  # + instance
    control = _NameOf("dilaserve.{cell}.control.")  # + instance
    plans = _NameOf("dilaserve.{cell}.plans.")  # + plan
    stats = _NameOf("dilaserve.{cell}.stats.")  # + service
    health = _NameOf("dilaserve.{cell}.health.")  # + service

    instances_bucket = _Name("instances-{cell}")
    leases_bucket = _Name("leases-{cell}")
    claims_bucket = _Name("claims-{cell}")
    models_bucket = _Name("models-{cell}")
    conversations_bucket = _Name("conversations-{cell}")
    batches_bucket = _Name("batches-{cell}")
    drain_bucket = _Name("drain-{cell}")
    files_store = _Name("files-{cell}")

    def launch(self, node: str) -> str:
        return f"dilaserve.{self.cell}.launch.{node.replace('.', '_')}"

    def stream(self, kind: str) -> str:
        """The name of the stream `kind`, one of those in `streams`."""
        return f"{kind}-{self.cell}"


def message_kind(subject: str) -> str:
    """The third token of a subject: `progress` of dilaserve.cell0.progress.r1."""
    return subject.split(".")[2]


def name_in(subject: str) -> str:
    """The tokens after the third: `alice.r1` of dilaserve.cell0.cancel.alice.r1. Empty if there are none."""
    return ".".join(subject.split(".")[3:])


def streams(subjects: Subjects, disk_bytes: int = DISK_BYTES) -> list[StreamConfig]:
    """The streams of one cell, whose streams and buckets may hold `disk_bytes` on disk."""

    def stream(kind: str, subject: str, description: str, **options: Any) -> StreamConfig:
        defaults: dict[str, Any] = {"storage": StorageType.FILE, "name": subjects.stream(kind), "subjects": [subject]}
        if "max_bytes" not in options:
            defaults["max_bytes"] = max_bytes(kind, disk_bytes)
        return StreamConfig(description=description, **defaults | options)

    work_queue: dict[str, Any] = {"retention": RetentionPolicy.WORK_QUEUE}
    in_memory: dict[str, Any] = {"storage": StorageType.MEMORY, "max_age": STEP_AGE_S, "max_bytes": STEP_BYTES}
    latest: dict[str, Any] = {"max_msgs_per_subject": 1, "allow_direct": True}
    refuses: dict[str, Any] = {"discard": DiscardPolicy.NEW}  # further messages, instead of dropping the oldest
    requests: dict[str, Any] = {**work_queue, **refuses, "max_msgs": MAX_UNFINISHED_REQUESTS}
    requests["duplicate_window"] = NO_DUPLICATES_S  # a producer receives an outcome by sending its request again
    requests["subjects"] = [subjects.requests, subjects.producer_requests("*")]
    outcomes: dict[str, Any] = {**latest, **refuses, "max_age": OUTCOME_AGE_S}
    one_message: dict[str, Any] = {"max_msgs": 1, "max_bytes": SMALL_BYTES}
    return [
        stream("REQUESTS", subjects.requests, "requests without an outcome", **requests),
        stream("ARRIVALS", subjects.arrivals, "arrived requests, for statistics", max_age=ARRIVAL_AGE_S),
        stream("STEPS", subjects.steps("*"), "step jobs that no instance has received", **work_queue, **in_memory),
        stream("STEP_RESULTS", subjects.step_results("*"), "results of iterations", **in_memory),
        stream("OUTCOMES", subjects.outcomes(">"), "outcomes, one per request", **outcomes),
        stream("CHECKPOINTS", subjects.checkpoints(">"), "unfinished requests", **latest, max_age=CHECKPOINT_AGE_S),
        stream("PLANS", subjects.plans("*"), "decisions of the reconfigurator", **latest, max_msgs=MAX_PLANS),
        stream("BATCHES", subjects.batches, "unfinished batches", **work_queue, **refuses),
        stream("PROBES", subjects.probes, "the last probe of a gateway", **one_message),
        stream("CONFIG", subjects.config, "the configuration of the cell", **one_message),
    ]


def buckets(subjects: Subjects, disk_bytes: int = DISK_BYTES) -> list[KeyValueConfig]:
    """The key-value buckets of one cell. A full bucket refuses new keys, and lets those that it has change."""

    def bucket(name: str, ttl_s: float, limit: int, storage: StorageType = StorageType.FILE) -> KeyValueConfig:
        return KeyValueConfig(bucket=name, ttl=ttl_s, storage=storage, max_bytes=limit)

    return [
        bucket(subjects.instances_bucket, INSTANCE_TTL_S, INSTANCES_BYTES, StorageType.MEMORY),
        bucket(subjects.leases_bucket, LEASE_TTL_S, SMALL_BYTES),
        bucket(subjects.models_bucket, NO_TTL_S, SMALL_BYTES),
        bucket(subjects.drain_bucket, NO_TTL_S, SMALL_BYTES),
        bucket(subjects.claims_bucket, OUTCOME_AGE_S, max_bytes("claims", disk_bytes)),
        bucket(subjects.conversations_bucket, OUTCOME_AGE_S, max_bytes("conversations", disk_bytes)),
        bucket(subjects.batches_bucket, FILE_AGE_S, max_bytes("batches", disk_bytes)),
    ]


def object_stores(subjects: Subjects, disk_bytes: int = DISK_BYTES) -> list[ObjectStoreConfig]:
    """The object stores of one cell."""
    limit = max_bytes("files", disk_bytes)
    return [ObjectStoreConfig(bucket=subjects.files_store, ttl=FILE_AGE_S, storage=StorageType.FILE, max_bytes=limit)]


def stream_names(subjects: Subjects) -> set[str]:
    """The names of the streams that hold the streams, buckets and object stores of one cell."""
    return {
        *(str(stream.name) for stream in streams(subjects)),
        *(f"KV_{bucket.bucket}" for bucket in buckets(subjects)),
        *(f"OBJ_{store.bucket}" for store in object_stores(subjects)),
    }


def request_consumer(epoch: int) -> ConsumerConfig:
    """The scheduler's consumer of REQUESTS, one per epoch. A new leader deletes the earlier ones: the bus then delivers
    every unacknowledged request again, and ignores the acknowledgements of a superseded leader. It receives
    all requests of the stream, so that it serves the best of them first."""
    return ConsumerConfig(
        durable_name=f"scheduler-{epoch}",
        ack_wait=REQUEST_ACK_WAIT_S,
        max_ack_pending=MAX_UNFINISHED_REQUESTS,
        mem_storage=True,  # a lost one is created again, and unacknowledged requests are still in the stream
    )


def consumer_epoch(name: str) -> int:
    """The epoch of a consumer that `request_consumer` named; 0 for one of somebody else."""
    owner, _, epoch = name.rpartition("-")
    return int(epoch) if owner == "scheduler" and epoch.isdecimal() else 0


def result_consumer(epoch: int, since: datetime) -> ConsumerConfig:
    """The scheduler's consumer of STEP_RESULTS: results `since` the start of its epoch. Created again
    after a loss, it misses none."""
    return ConsumerConfig(
        durable_name=f"scheduler-{epoch}",
        deliver_policy=DeliverPolicy.BY_START_TIME,
        opt_start_time=since,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=STEP_AGE_S,
        mem_storage=True,
    )


def step_consumer(subjects: Subjects, instance_id: str) -> ConsumerConfig:
    """An instance's consumer of its step jobs. An instance id is used by one process only, so that jobs are
    acknowledged on receipt: after a crash no process could run them."""
    return ConsumerConfig(
        durable_name=f"worker-{instance_id}",
        filter_subject=subjects.steps(instance_id),
        inactive_threshold=STEP_AGE_S,
        max_ack_pending=-1,
    )


def batch_consumer() -> ConsumerConfig:
    """The consumer of BATCHES that all gateways share: other gateways take over the batches of a silent one."""
    return ConsumerConfig(durable_name="gateway", ack_wait=BATCH_ACK_WAIT_S, max_ack_pending=MAX_BATCHES)


def monitor_consumer() -> ConsumerConfig:
    """The workload monitor's consumer of a stream that it stores in Postgres: ARRIVALS, OUTCOMES or PLANS."""
    return ConsumerConfig(durable_name="monitor", ack_wait=60, max_ack_pending=10_000)
