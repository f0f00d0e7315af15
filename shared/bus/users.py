"""The users of the bus, and the subjects that each may publish and subscribe to (see docs/security.md). Pure.

The server does not check the subject to which a user lets it send replies and messages of a stream. So only the users
whose messages are trusted everywhere, GATEWAY, SCHEDULER and RECONFIGURATOR, may both write a stream and read its raw
messages. Any other reply is JSON that its sender does not choose: it can cancel a request or disturb a bucket.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from shared.bus.subjects import Subjects, batch_consumer, monitor_consumer, stream_names
from shared.errors import BadInput
from shared.urls import server_urls

API = "$JS.API"
DEFAULT_INBOX = "_INBOX"  # of the clients that choose none
ALL = ">"
PRODUCER_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")  # one token of a subject; in capitals, part of a variable's name


class BusUser(StrEnum):
    """A user of the bus: a service with its name, or as commented."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    PREDICTOR = "predictor"
    RECONFIGURATOR = "reconfigurator"
    WORKER = "worker"
    SUPERVISOR = "supervisor"  # starts and stops the workers of a node
    STATUS = "status"  # `dilaserve status` and `dilaserve doctor`
    PRODUCER = "producer"  # a trusted program that sends requests without the gateway, with any client
    OPERATOR = "operator"  # a person: everything


@dataclass(frozen=True, slots=True)
class Permissions:
    """The subjects, with wildcards, that a user may use; it may use no others."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def joined(self, other: "Permissions") -> "Permissions":
        """Those of either."""
        publish, subscribe = self.publish + other.publish, self.subscribe + other.subscribe
        return Permissions(publish=tuple(dict.fromkeys(publish)), subscribe=tuple(dict.fromkeys(subscribe)))


def read_producers(text: str) -> tuple[str, ...]:
    """The names of producers in a comma-separated list. Raises: BadInput if one is invalid, taken or repeated."""
    found = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    for name in found:
        if not PRODUCER_NAME.fullmatch(name):
            accepted = "a lower-case letter, then at most 31 lower-case letters, digits and _"
            raise BadInput(f"--producers {text}: {name!r} is not a name; accepted: {accepted}")
        if name in set(BusUser):
            raise BadInput(f"--producers {text}: {name} is a user of the bus already; choose another name")
        if found.count(name) > 1:
            raise BadInput(f"--producers {text}: {name} is there more than once")
    return found


def permissions(cell: str, producers: Iterable[str] = (), more_cells: Sequence[str] = ()) -> dict[str, Permissions]:
    """The permissions of each user, and of each named producer, in one cell or together in several. With several,
    producers receive the messages of their requests without naming the cell."""
    producers = tuple(producers)
    found = _of_cell(Subjects(cell), producers)
    for more in more_cells:
        found = {user: found[user].joined(allowed) for user, allowed in _of_cell(Subjects(more), producers).items()}
    if more_cells:
        any_cell = Subjects("*")
        for user in (BusUser.PRODUCER, *producers):
            allowed = _producer(any_cell) if user == BusUser.PRODUCER else _named_producer(any_cell, user)
            found[user] = found[user].joined(Permissions(publish=(), subscribe=allowed.subscribe))
    return found


def _of_cell(names: Subjects, producers: Iterable[str]) -> dict[str, Permissions]:
    return {
        BusUser.GATEWAY: _gateway(names),
        BusUser.SCHEDULER: _scheduler(names),
        BusUser.PREDICTOR: Permissions(
            publish=(_inboxes(BusUser.SCHEDULER), names.health("predictor"), *_read(names.stream("CONFIG"))),
            subscribe=(names.predict, names.stats("scheduler"), _inboxes(BusUser.PREDICTOR)),
        ),
        BusUser.RECONFIGURATOR: _reconfigurator(names),
        BusUser.WORKER: _worker(names),
        BusUser.SUPERVISOR: Permissions(
            publish=(_inboxes(BusUser.RECONFIGURATOR),), subscribe=(names.launch("*"), _inboxes(BusUser.SUPERVISOR))
        ),
        BusUser.STATUS: _status(names),
        BusUser.PRODUCER: _producer(names),
        BusUser.OPERATOR: Permissions(publish=(ALL,), subscribe=(ALL,)),
        **{name: _named_producer(names, name) for name in producers},
    }


def inbox_prefix(url: str) -> str:
    """The prefix of the inboxes of a connection to `url`: that of the first server's user, if it is one of the bus's
    users, so that no other one can read the replies."""
    first = server_urls(url)[0]
    user = urlsplit(first if "://" in first else f"nats://{first}").username
    return f"{DEFAULT_INBOX}_{user}" if user in set(BusUser) else DEFAULT_INBOX


def _gateway(names: Subjects) -> Permissions:
    requests, outcomes, plans = map(names.stream, ("REQUESTS", "OUTCOMES", "PLANS"))
    batches, files = names.stream("BATCHES"), f"OBJ_{names.files_store}"
    claims, all_batches = f"KV_{names.claims_bucket}", f"KV_{names.batches_bucket}"
    conversations = f"KV_{names.conversations_bucket}"
    return Permissions(
        publish=(
            *(names.requests, names.cancel(">"), names.lookup(">"), names.unfinished),
            *(names.batches, names.probes, names.key_use, names.health("gateway")),
            *(f"$KV.{names.claims_bucket}.>", f"$KV.{names.conversations_bucket}.>"),
            *(f"$KV.{names.batches_bucket}.>", f"$O.{names.files_store}.>"),
            f"{API}.STREAM.NAMES",  # the object store searches for its stream
            *_describe(requests, outcomes, plans, batches, claims, conversations, all_batches, files),
            *_read(claims, conversations, all_batches, files, names.stream("CONFIG")),
            *_read_raw(outcomes, plans, files),
            *_scan(outcomes, all_batches, files),
            f"{API}.STREAM.PURGE.{files}",
            *_consume(batches, str(batch_consumer().durable_name)),
        ),
        subscribe=(
            *(names.request_messages("*"), names.outcomes(">"), f"$KV.{names.instances_bucket}.>"),
            *(names.key_use, names.health("*")),
            _inboxes(BusUser.GATEWAY),
        ),
    )


def _scheduler(names: Subjects) -> Permissions:
    streams = sorted(stream_names(names))
    requests, arrivals, results = map(names.stream, ("REQUESTS", "ARRIVALS", "STEP_RESULTS"))
    outcomes, checkpoints = map(names.stream, ("OUTCOMES", "CHECKPOINTS"))
    return Permissions(
        publish=(
            *(names.arrivals, names.outcomes(">"), names.progress(">"), names.checkpoints(">"), names.steps("*")),
            *(names.stats("scheduler"), names.health("scheduler"), names.predict, names.config),
            f"$KV.{names.leases_bucket}.>",
            _inboxes(BusUser.GATEWAY),  # answers `lookup` and `unfinished`
            f"{API}.STREAM.NAMES",
            *(f"{API}.STREAM.{action}.{stream}" for stream in streams for action in ("CREATE", "UPDATE")),
            *_describe(*streams),
            *_read(requests, arrivals, names.stream("CONFIG"), f"KV_{names.leases_bucket}", f"KV_{names.drain_bucket}"),
            *_read_raw(outcomes, checkpoints),
            *_scan(arrivals, f"KV_{names.claims_bucket}"),
            *(f"{API}.CONSUMER.{action}.{requests}" for action in ("LIST", "NAMES")),  # LIST: the version before
            *_consume(requests, "*"),  # the names of its consumers contain the epoch
            *_consume(results, "*"),
        ),
        subscribe=(
            *(names.cancel(">"), names.lookup(">"), names.unfinished, f"$KV.{names.instances_bucket}.>"),
            _inboxes(BusUser.SCHEDULER),
        ),
    )


def _reconfigurator(names: Subjects) -> Permissions:
    requests, arrivals, outcomes, plans = map(names.stream, ("REQUESTS", "ARRIVALS", "OUTCOMES", "PLANS"))
    monitor = str(monitor_consumer().durable_name)
    return Permissions(
        publish=(
            *(names.plans("*"), names.control("*"), names.launch("*"), names.stats("reconfigurator")),
            names.health("reconfigurator"),
            *_describe(requests, arrivals, outcomes, plans),  # REQUESTS: for the bus's clock
            *_read(arrivals, names.stream("CONFIG")),
            *_read_raw(plans),
            *_consume(arrivals, monitor),
            *_consume(outcomes, monitor),
            *_consume(plans, monitor),
        ),
        subscribe=(f"$KV.{names.instances_bucket}.>", names.stats("scheduler"), _inboxes(BusUser.RECONFIGURATOR)),
    )


def _worker(names: Subjects) -> Permissions:
    steps, models = names.stream("STEPS"), f"KV_{names.models_bucket}"
    return Permissions(
        publish=(
            *(names.step_results("*"), names.guesses(">")),
            *(f"$KV.{names.instances_bucket}.>", f"$KV.{names.models_bucket}.>"),
            *_describe(steps, f"KV_{names.instances_bucket}", models),
            *_read(models, names.stream("CONFIG")),
            *_consume(steps, "*"),  # a wildcard cannot limit a worker to the names of its own consumers
        ),
        subscribe=(names.control("*"), names.stats("scheduler"), _inboxes(BusUser.WORKER)),
    )


def _status(names: Subjects) -> Permissions:
    instances = f"KV_{names.instances_bucket}"
    return Permissions(
        publish=(f"{API}.INFO", *_describe(instances), *_read(instances, names.stream("CONFIG")), *_scan(instances)),
        subscribe=(names.stats("scheduler"), _inboxes(BusUser.STATUS)),
    )


def _producer(names: Subjects) -> Permissions:
    outcomes = names.stream("OUTCOMES")
    return Permissions(
        publish=(names.requests, names.cancel("*"), *_describe(outcomes), *_read(outcomes), *_read_raw(outcomes)),
        subscribe=(
            *(names.outcomes("*"), names.progress("*"), names.guesses("*"), names.stats("scheduler")),
            *(f"{DEFAULT_INBOX}.>", _inboxes(BusUser.PRODUCER)),
        ),
    )


def _named_producer(names: Subjects, producer: str) -> Permissions:
    """It sends requests, so it may not read the stream of outcomes: it could have the server deliver an outcome of its
    own as that of another producer."""
    own = f"{producer}.*"
    return Permissions(
        publish=(names.producer_requests(producer), names.cancel(own)),
        subscribe=(names.outcomes(own), names.progress(own), names.guesses(own), _inboxes(producer)),
    )


def _inboxes(user: str) -> str:
    """The subjects of replies to a user."""
    return f"{DEFAULT_INBOX}_{user}.>"


def _describe(*streams: str) -> list[str]:
    """Read the state of streams, buckets and object stores."""
    return [f"{API}.STREAM.INFO.{stream}" for stream in streams]


def _read(*streams: str) -> list[str]:
    """Read single messages of streams, within JSON."""
    return [f"{API}.STREAM.MSG.GET.{stream}" for stream in streams]


def _read_raw(*streams: str) -> list[str]:
    """Read single messages of streams that allow it."""
    return [f"{API}.DIRECT.GET.{stream}{end}" for stream in streams for end in ("", ".>")]


def _scan(*streams: str) -> list[str]:
    """Read many messages of streams with temporary consumers, without acknowledgement."""
    kinds = ("CREATE.{}", "CREATE.{}.>", "MSG.NEXT.{}.*", "INFO.{}.*")
    return [f"{API}.CONSUMER.{kind.format(stream)}" for stream in streams for kind in kinds]


def _consume(stream: str, consumer: str) -> list[str]:
    """Create and delete a durable consumer of a stream, and receive and acknowledge its messages."""
    own = f"{stream}.{consumer}"
    calls = [f"{API}.CONSUMER.{kind}.{own}" for kind in ("DURABLE.CREATE", "DELETE", "MSG.NEXT", "INFO")]
    return [*calls, f"$JS.ACK.{own}.>"]
