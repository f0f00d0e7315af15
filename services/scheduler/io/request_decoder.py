"""Decodes requests. The id of a named producer's request begins with the producer's name, so that no two collide."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec.structs import replace

from shared.bus.codec import decode, is_json, read_fields
from shared.bus.subjects import name_in
from shared.bus.users import PRODUCER_NAME
from shared.errors import BadInput
from shared.messages.requests import Request

SEPARATOR = "."  # of a producer and its request; no other request's id contains it


SUBJECT_PART = r"[!#-)+-\-/-=?-\[\]-~]{1,255}"  # of a subject; without a quote and a backslash, as in JSON it has none
JSON_ID = re.compile(rf'"request_id"\s*:\s*"({SUBJECT_PART})"'.encode())
MSGPACK_ID = re.compile(rb"\xaarequest_id(?:[\xa1-\xbf]|\xd9.)(%s)(?=[^ -~])" % SUBJECT_PART.encode(), re.DOTALL)


class _RequestName(msgspec.Struct):
    """The part of a request that its outcome needs, and that may itself be invalid."""

    request_id: Annotated[str, msgspec.Meta(pattern=rf"^{SUBJECT_PART}$(?!\n)")] | Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    request_id: str
    error: BadInput


def decode_request(subject: str, data: bytes) -> Request | InvalidRequest:
    """The request with its id in the cell, and with its producer as the key if that has a name.

    Raises: BadInput if the message has no id that a subject can have, or no valid producer: no outcome can answer it.
    """
    producer = name_in(subject)
    if producer and not PRODUCER_NAME.fullmatch(producer):
        raise BadInput(f"{producer!r} is not the name of a producer")
    prefix = producer + SEPARATOR if producer else ""
    try:
        request = _decode(data)
    except BadInput as error:
        request_id = _request_id(data)
        if request_id is None:
            raise
        return InvalidRequest(prefix + request_id, error)
    return replace(request, request_id=prefix + request.request_id, key=f"producer:{producer}") if producer else request


def _decode(data: bytes) -> Request:
    """The request, in which null counts as omitted. Raises: BadInput."""
    try:
        return decode(data, Request)
    except BadInput as error:
        try:
            sent = decode(data, dict)
        except BadInput:
            raise error from None
    return read_fields({name: value for name, value in sent.items() if value is not None}, Request)


def _request_id(data: bytes) -> str | None:
    """The id of an invalid request, also of one that cannot be decoded; None: it has none that a subject can have."""
    with suppress(BadInput):
        return str(decode(data, _RequestName).request_id)
    found = (JSON_ID if is_json(data) else MSGPACK_ID).search(data)
    return found[1].decode() if found else None


def has_producer(request_id: str) -> bool:
    """Whether the request is a named producer's, which cannot read the stream of outcomes."""
    return SEPARATOR in request_id
