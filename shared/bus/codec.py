"""Encodes and decodes messages: MessagePack, or JSON from internal producers."""

from typing import Any, TypeVar

import msgspec

from shared.errors import BadInput

M = TypeVar("M", bound=msgspec.Struct)

_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


def is_json(data: bytes) -> bool:
    """Whether `data` is a JSON object. In MessagePack a first byte `{` is a number, never a message."""
    return data.lstrip()[:1] == b"{"


def encode(message: msgspec.Struct, *, json: bool = False) -> bytes:
    return _encode_json(message) if json else _encode_msgpack(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Raises: BadInput if `data` is not a valid `kind`; it names the invalid field, if one is known."""
    decoder: Any = msgspec.json.decode if is_json(data) else msgspec.msgpack.decode
    try:
        message: M = decoder(data, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        field = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else None
        raise BadInput(f"not a valid {kind.__name__}: {text}", field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not a valid {kind.__name__}: {error}") from None
    return message
