"""The permissions of the bus's users, as subjects."""

import pytest

from shared.bus.subjects import Subjects, buckets, object_stores, stream_names, streams
from shared.bus.users import BusUser, inbox_prefix, permissions, read_producers
from shared.errors import BadInput

CELL = "cell0"
NAMES = Subjects(CELL)
PRODUCERS = ("alice", "bob")
ALLOWED = permissions(CELL, PRODUCERS)
LIMITED = {*BusUser, *PRODUCERS} - {BusUser.OPERATOR}


def covers(pattern: str, subject: str) -> bool:
    """Whether a subject, which may have wildcards of its own, is within a pattern."""
    parts, tokens = pattern.split("."), subject.split(".")
    for i, part in enumerate(parts):
        if part == ">":
            return len(tokens) > i
        if i >= len(tokens) or tokens[i] == ">" or (part != "*" and part != tokens[i]):
            return False
    return len(parts) == len(tokens)


def publishers(subject: str) -> set[str]:
    return {user for user in LIMITED if any(covers(pattern, subject) for pattern in ALLOWED[user].publish)}


def subscribers(subject: str) -> set[str]:
    return {user for user in LIMITED if any(covers(pattern, subject) for pattern in ALLOWED[user].subscribe)}


@pytest.mark.parametrize(
    ("subject", "users"),
    [
        (NAMES.requests, {BusUser.GATEWAY, BusUser.PRODUCER}),
        (NAMES.cancel("r"), {BusUser.GATEWAY, BusUser.PRODUCER}),
        (NAMES.outcomes("r"), {BusUser.SCHEDULER}),
        (NAMES.producer_requests("alice"), {"alice"}),
        (NAMES.cancel("alice.r"), {"alice", BusUser.GATEWAY}),
        (NAMES.outcomes("alice.r"), {BusUser.SCHEDULER}),
        (NAMES.progress("alice.r"), {BusUser.SCHEDULER}),
        (NAMES.guesses("alice.r"), {BusUser.WORKER}),
        (NAMES.producer_requests("carol"), set()),
        (NAMES.steps("i"), {BusUser.SCHEDULER}),
        (NAMES.step_results("i"), {BusUser.WORKER}),
        (NAMES.control("i"), {BusUser.RECONFIGURATOR}),
        (NAMES.launch("n"), {BusUser.RECONFIGURATOR}),
        (NAMES.unfinished, {BusUser.GATEWAY}),
        (NAMES.health("scheduler"), {BusUser.SCHEDULER}),
        (f"$KV.{NAMES.leases_bucket}.scheduler", {BusUser.SCHEDULER}),
        (f"$KV.{NAMES.instances_bucket}.i", {BusUser.WORKER}),
        ("dilaserve.other.requests", set()),
    ],
)
def test_only_its_senders_may_publish_on_a_subject(subject: str, users: set[str]) -> None:
    assert publishers(subject) == users


@pytest.mark.parametrize("stream", sorted(stream_names(NAMES)))
def test_no_service_may_delete_a_stream_and_only_files_may_be_purged(stream: str) -> None:
    assert publishers(f"$JS.API.STREAM.DELETE.{stream}") == set()
    assert publishers(f"$JS.API.STREAM.MSG.DELETE.{stream}") == set()
    purging = {BusUser.GATEWAY} if stream == f"OBJ_{NAMES.files_store}" else set()
    assert publishers(f"$JS.API.STREAM.PURGE.{stream}") == purging


@pytest.mark.parametrize("user", sorted(LIMITED - set(PRODUCERS)))
def test_nobody_else_reads_the_replies_to_a_user(user: str) -> None:
    inbox = f"{inbox_prefix(f'nats://{user}:secret@host:4222')}.id.1"
    assert subscribers(inbox) == {user}


@pytest.mark.parametrize("producer", PRODUCERS)
def test_only_a_named_producer_and_the_gateway_read_its_messages(producer: str) -> None:
    assert subscribers(f"_INBOX_{producer}.id.1") == {producer}
    assert subscribers(NAMES.outcomes(f"{producer}.r")) == {producer, BusUser.GATEWAY}
    assert subscribers(NAMES.progress(f"{producer}.r")) == subscribers(NAMES.guesses(f"{producer}.r")) == {producer}


@pytest.mark.parametrize(
    "text", ["Alice", "a.b", "a*", ">", "1a", "a-b", "a,", ",", "a b", "a" * 33, "gateway", "a,b,a"]
)
def test_an_invalid_taken_or_repeated_name_of_a_producer_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--producers"):
        read_producers(text)


def test_names_of_producers_are_a_list() -> None:
    assert read_producers("alice, team_2") == ("alice", "team_2")
    assert read_producers("") == ()


def test_only_gateway_and_producer_read_outcomes() -> None:
    readers: set[str] = {BusUser.GATEWAY, BusUser.PRODUCER}
    assert subscribers(NAMES.outcomes("r")) == readers
    stream = NAMES.stream("OUTCOMES")
    stored = publishers(f"$JS.API.STREAM.MSG.GET.{stream}") | publishers(f"$JS.API.DIRECT.GET.{stream}")
    assert stored == readers | {BusUser.SCHEDULER}


def test_only_trusted_users_can_have_the_server_deliver_messages_that_they_wrote() -> None:
    trusted = {BusUser.GATEWAY, BusUser.SCHEDULER, BusUser.RECONFIGURATOR}
    written = {stream.name: subject for stream in streams(NAMES) for subject in stream.subjects or ()}
    written |= {f"KV_{bucket.bucket}": f"$KV.{bucket.bucket}.key" for bucket in buckets(NAMES)}
    written |= {f"OBJ_{store.bucket}": f"$O.{store.bucket}.M.name" for store in object_stores(NAMES)}
    assert set(written) == stream_names(NAMES)
    for stream, subject in written.items():
        calls = ("DIRECT.GET.{}", "CONSUMER.CREATE.{}", "CONSUMER.DURABLE.CREATE.{}.any", "CONSUMER.MSG.NEXT.{}.any")
        readers = set().union(*(publishers(f"$JS.API.{call.format(stream)}") for call in calls))
        assert readers & publishers(subject.replace("*", "any")) <= trusted


@pytest.mark.parametrize("url", ["nats://h:4222", "h", "nats://someone:secret@h:4222", "[::1]:4222"])
def test_a_connection_of_another_user_has_the_default_inboxes(url: str) -> None:
    assert inbox_prefix(url) == "_INBOX"
    assert inbox_prefix("worker:secret@h:4222") == "_INBOX_worker"  # it needs no scheme
