"""Encodes and decodes messages: MessagePack, or JSON from internal producers."""

import re
from codecs import BOM_UTF8
from typing import Any, TypeVar

import msgspec

from shared.errors import BadInput

M = TypeVar("M")

_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def is_json(data: bytes) -> bool:
    """Whether `data` is meant as JSON. In MessagePack a first byte of ASCII is a number, never a message."""
    return b"" < data.removeprefix(BOM_UTF8)[:1] < b"\x80"


def encode(message: msgspec.Struct, *, json: bool = False) -> bytes:
    return _encode_json(message) if json else _encode_msgpack(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Raises: BadInput if `data` is not a valid `kind`; it names the invalid field, if one is known."""
    decoder: Any = msgspec.json.decode if is_json(data) else msgspec.msgpack.decode
    try:
        message: M = decoder(data.removeprefix(BOM_UTF8), type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(kind, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        half = half_pair(data) if is_json(data) else ""
        raise BadInput(f"not a valid {kind.__name__}: {half or error}") from None
    return message


def read_fields(fields: dict[str, Any], kind: type[M]) -> M:
    """As `decode`, of decoded fields. In those of MessagePack, keys and bytes may also be the texts that JSON has."""
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _invalid(kind, error) from None


def _invalid(kind: type[M], error: msgspec.ValidationError) -> BadInput:
    text = str(error)
    field = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else None
    return BadInput(f"not a valid {kind.__name__}: {text}", field)


def half_pair(json: bytes) -> str:
    """Names the first escape in a JSON text that is half of a surrogate pair, and no character; empty: it has none."""
    half = next((found[1] for found in _ESCAPE.finditer(json) if found[1]), b"").decode(errors="replace")
    return f"\\{half} is half of a surrogate pair, such as a cut emoji" if half else ""
