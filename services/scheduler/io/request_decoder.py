"""Decodes requests. The id of a named producer's request begins with the producer's name, so that no two collide."""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from shared.bus.codec import decode
from shared.bus.subjects import name_in
from shared.bus.users import PRODUCER_NAME
from shared.errors import BadInput
from shared.messages.requests import Request, RequestId

SEPARATOR = "."  # of a producer and its request; no other request's id contains it


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
        try:
            return InvalidRequest(prefix + decode(data, _RequestName).request_id, error)
        except BadInput:
            raise error from None
    return replace(request, request_id=prefix + request.request_id, key=f"producer:{producer}") if producer else request


def has_producer(request_id: str) -> bool:
    """Whether the request is a named producer's, which cannot read the stream of outcomes."""
    return SEPARATOR in request_id
