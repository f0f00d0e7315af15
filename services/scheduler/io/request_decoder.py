"""Decodes requests. The id of a named producer's request begins with the producer's name, so that no two collide."""

import re
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from shared.bus.codec import decode, is_json
from shared.bus.subjects import name_in
from shared.bus.users import PRODUCER_NAME
from shared.errors import BadInput
from shared.messages.requests import Request, RequestId

SEPARATOR = "."  # of a producer and its request; no other request's id contains it


JSON_ID = re.compile(rb'"request_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')


class _RequestName(msgspec.Struct):
    """The part of a request that its outcome needs."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    request_id: str
    error: BadInput


def decode_request(subject: str, data: bytes) -> Request | InvalidRequest:
    """The request with its id in the cell, and with its producer as the key if that has a name.

    Raises: BadInput if the message has no valid request id or producer, so that no outcome can answer it.
    """
    producer = name_in(subject)
    if producer and not PRODUCER_NAME.fullmatch(producer):
        raise BadInput(f"{producer!r} is not the name of a producer")
    prefix = producer + SEPARATOR if producer else ""
    try:
        request = decode(data, Request)
    except BadInput as error:
        request_id = _request_id(data)
        if request_id is None:
            raise
        return InvalidRequest(prefix + request_id, error)
    return replace(request, request_id=prefix + request.request_id, key=f"producer:{producer}") if producer else request


def _request_id(data: bytes) -> str | None:
    """The id of an invalid request, also of one that is not valid JSON; None: it has no valid one."""
    with suppress(BadInput):
        return decode(data, _RequestName).request_id
    found = JSON_ID.search(data) if is_json(data) else None
    return found[1].decode() if found else None


def has_producer(request_id: str) -> bool:
    """Whether the request is a named producer's, which cannot read the stream of outcomes."""
    return SEPARATOR in request_id
