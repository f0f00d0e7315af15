"""Every subject, stream, bucket and durable consumer, declared once (see docs/nats-api.md).

`set_up` of shared.bus.client creates or updates the streams and buckets; services only bind to them.
"""

from dataclasses import dataclass
from datetime import datetime

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

from shared.messages.plans import MAX_PLANS

HEARTBEAT_S = 1.0  # an instance renews its registration, a leader its lease, this often
INSTANCE_TTL_S = 5.0  # an instance not renewed for so long is gone
LEASE_TTL_S = 3.0  # a leader not renewed for so long is gone
ARRIVAL_AGE_S = 24 * 3600.0  # how long one waits to be written down
OUTCOME_AGE_S = 24 * 3600.0  # how long an outcome can be fetched
FILE_AGE_S = 30 * 24 * 3600.0  # how long files and batches are kept
MAX_BATCHES = 8  # of a cell that run at once
BATCH_ACK_WAIT_S = 10.0  # a batch whose gateway is silent for so long goes to another
CHECKPOINT_AGE_S = 3600.0  # a request idle for longer begins anew after a crash
REQUEST_ACK_WAIT_S = 24 * 3600.0  # a new scheduler takes over at once by a new consumer, so this only bounds
MAX_ACTIVE_REQUESTS = 20_000  # requests a scheduler holds; the rest waits in the stream
PREDICTORS = "predictor"  # the queue group that shares the subject `predict`
STEP_AGE_S = 60.0  # step messages older than this are of no use to anyone


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one cell. A method's argument is one subject token."""

    cell: str

    @property
    def root(self) -> str:
        return f"dilaserve.{self.cell}"

    @property
    def requests(self) -> str:
        return f"{self.root}.requests"

    @property
    def arrivals(self) -> str:
        return f"{self.root}.arrivals"

    def cancel(self, request_id: str) -> str:
        return f"{self.root}.cancel.{request_id}"

    def steps(self, instance_id: str) -> str:
        return f"{self.root}.steps.{instance_id}"

    def step_results(self, instance_id: str) -> str:
        return f"{self.root}.step-results.{instance_id}"

    def progress(self, request_id: str) -> str:
        return f"{self.root}.progress.{request_id}"

    def request_messages(self, request_id: str) -> str:
        """All that is said of one request: progress, guesses, outcome, …; `message_kind` tells which."""
        return f"{self.root}.*.{request_id}"

    def guesses(self, request_id: str) -> str:
        return f"{self.root}.guesses.{request_id}"

    def outcomes(self, request_id: str) -> str:
        return f"{self.root}.outcomes.{request_id}"

    @property
    def predict(self) -> str:
        return f"{self.root}.predict"

    def checkpoints(self, request_id: str) -> str:
        return f"{self.root}.checkpoints.{request_id}"

    def control(self, instance_id: str) -> str:
        return f"{self.root}.control.{instance_id}"

    def plans(self, plan_id: str) -> str:
        return f"{self.root}.plans.{plan_id}"

    def launch(self, node: str) -> str:
        return f"{self.root}.launch.{node.replace('.', '_')}"

    def stats(self, service: str) -> str:
        return f"{self.root}.stats.{service}"

    @property
    def instances_bucket(self) -> str:
        return f"instances-{self.cell}"

    @property
    def leases_bucket(self) -> str:
        return f"leases-{self.cell}"

    @property
    def claims_bucket(self) -> str:
        return f"claims-{self.cell}"

    @property
    def batches_bucket(self) -> str:
        return f"batches-{self.cell}"

    @property
    def files_store(self) -> str:
        return f"files-{self.cell}"

    @property
    def batches(self) -> str:
        return f"{self.root}.batches"

    def stream(self, kind: str) -> str:
        """The name of a stream; `kind` is REQUESTS, ARRIVALS, STEPS, STEP_RESULTS, OUTCOMES, CHECKPOINTS or PLANS."""
        return f"{kind}-{self.cell}"


def message_kind(subject: str) -> str:
    """The third part of a subject: `progress` of dilaserve.cell0.progress.r1."""
    return subject.split(".")[2]


def streams(subjects: Subjects) -> list[StreamConfig]:
    """The streams of one cell."""
    return [
        StreamConfig(
            name=subjects.stream("REQUESTS"),
            description="requests, until their outcome is stored",
            subjects=[subjects.requests],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
        ),
        StreamConfig(
            name=subjects.stream("ARRIVALS"),
            description="requests as they arrived, for the workload's statistics",
            subjects=[subjects.arrivals],
            storage=StorageType.FILE,
            max_age=ARRIVAL_AGE_S,
        ),
        StreamConfig(
            name=subjects.stream("STEPS"),
            description="batches of step jobs, until an instance takes them",
            subjects=[subjects.steps("*")],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.MEMORY,
            max_age=STEP_AGE_S,
        ),
        StreamConfig(
            name=subjects.stream("STEP_RESULTS"),
            description="results of iterations",
            subjects=[subjects.step_results("*")],
            storage=StorageType.MEMORY,
            max_age=STEP_AGE_S,
        ),
        StreamConfig(
            name=subjects.stream("OUTCOMES"),
            description="how requests ended, one message a request",
            subjects=[subjects.outcomes("*")],
            storage=StorageType.FILE,
            max_msgs_per_subject=1,
            max_age=OUTCOME_AGE_S,
            allow_direct=True,
        ),
        StreamConfig(
            name=subjects.stream("CHECKPOINTS"),
            description="requests at their last block boundary",
            subjects=[subjects.checkpoints("*")],
            storage=StorageType.FILE,
            max_msgs_per_subject=1,
            max_age=CHECKPOINT_AGE_S,
            allow_direct=True,
        ),
        StreamConfig(
            name=subjects.stream("PLANS"),
            description="what the reconfigurator decided, one message a decision",
            subjects=[subjects.plans("*")],
            storage=StorageType.FILE,
            max_msgs_per_subject=1,
            max_msgs=MAX_PLANS,
            allow_direct=True,
        ),
        StreamConfig(
            name=subjects.stream("BATCHES"),
            description="batches that have not ended",
            subjects=[subjects.batches],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
        ),
    ]


def buckets(subjects: Subjects) -> list[KeyValueConfig]:
    """The key-value buckets of one cell."""
    return [
        KeyValueConfig(bucket=subjects.instances_bucket, ttl=INSTANCE_TTL_S, storage=StorageType.MEMORY),
        KeyValueConfig(bucket=subjects.leases_bucket, ttl=LEASE_TTL_S, storage=StorageType.FILE),
        KeyValueConfig(bucket=subjects.claims_bucket, ttl=OUTCOME_AGE_S, storage=StorageType.FILE),
        KeyValueConfig(bucket=subjects.batches_bucket, ttl=FILE_AGE_S, storage=StorageType.FILE),
    ]


def object_stores(subjects: Subjects) -> list[ObjectStoreConfig]:
    """The object stores of one cell."""
    return [ObjectStoreConfig(bucket=subjects.files_store, ttl=FILE_AGE_S, storage=StorageType.FILE)]


def request_consumer(epoch: int) -> ConsumerConfig:
    """The scheduler's consumer of REQUESTS. One an epoch: whoever leads deletes those before and so has every
    unacknowledged request delivered again at once, while a superseded leader's acknowledgements go nowhere."""
    return ConsumerConfig(
        durable_name=f"scheduler-{epoch}",
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=REQUEST_ACK_WAIT_S,
        max_ack_pending=MAX_ACTIVE_REQUESTS,
    )


def consumer_epoch(name: str) -> int:
    """The epoch that `request_consumer` named a consumer for."""
    return int(name.rpartition("-")[2])


def result_consumer(epoch: int, since: datetime) -> ConsumerConfig:
    """The scheduler's consumer of STEP_RESULTS: what came `since` its epoch began; older results belong to nobody.
    Made again after a loss, it misses none."""
    return ConsumerConfig(
        durable_name=f"scheduler-{epoch}",
        deliver_policy=DeliverPolicy.BY_START_TIME,
        opt_start_time=since,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=STEP_AGE_S,
        mem_storage=True,
    )


def step_consumer(subjects: Subjects, instance_id: str) -> ConsumerConfig:
    """An instance's consumer of its own step jobs. An instance id lives as long as its process, so jobs are
    acknowledged when taken: after a crash nobody could run them."""
    return ConsumerConfig(
        durable_name=f"worker-{instance_id}",
        filter_subject=subjects.steps(instance_id),
        ack_policy=AckPolicy.EXPLICIT,
        inactive_threshold=STEP_AGE_S,
        max_ack_pending=-1,
    )


def batch_consumer() -> ConsumerConfig:
    """The gateways' consumer of BATCHES: one that falls silent gives its batches to the others."""
    return ConsumerConfig(
        durable_name="gateway", ack_policy=AckPolicy.EXPLICIT, ack_wait=BATCH_ACK_WAIT_S, max_ack_pending=MAX_BATCHES
    )


def monitor_consumer() -> ConsumerConfig:
    """The workload monitor's consumer of a stream that it writes down: ARRIVALS, OUTCOMES or PLANS."""
    return ConsumerConfig(
        durable_name="monitor",
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=60,
        max_ack_pending=10_000,
    )
