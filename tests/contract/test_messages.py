"""Messages stored by earlier versions stay readable: one sample per type, as first written.

To add a sample, write `encode(message)` to `samples/TYPE.msgpack`. A sample never changes.
"""

import math
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared import messages
from shared.bus.codec import decode, encode
from shared.errors import BadInput
from shared.messages.requests import Cancel, Outcome, Request
from shared.messages.steps import StepResults

MODULES = [import_module(f"{messages.__name__}.{module.name}") for module in pkgutil.iter_modules(messages.__path__)]
FILES = sorted((Path(__file__).parent / "samples").iterdir())
SAMPLES: list[tuple[type[msgspec.Struct], bytes]] = [
    (next(vars(module)[file.stem] for module in MODULES if file.stem in vars(module)), file.read_bytes())
    for file in FILES
]
REMOVED = {"arrival_s": Request, "received_s": StepResults}  # fields that this version does not read
DEEP = b'{"of a later version": ' + b"[" * 300_000 + b"]" * 300_000 + b"}"  # deeper than a reader can follow
of_each_kind = pytest.mark.parametrize(("kind", "stored"), SAMPLES, ids=[file.stem for file in FILES])


def has(value: Any, stored: Any) -> bool:
    """Whether a value has all that was stored; it may have more fields."""
    if isinstance(stored, dict):
        return all(name in value and has(value[name], part) for name, part in stored.items())
    if isinstance(stored, list):
        return len(value) == len(stored) and all(map(has, value, stored))
    return bool(value == stored)


@of_each_kind
def test_a_message_stored_by_an_earlier_version_keeps_its_values(kind: type[msgspec.Struct], stored: bytes) -> None:
    fields = {name: part for name, part in msgspec.msgpack.decode(stored).items() if REMOVED.get(name) is not kind}
    assert fields
    assert has(msgspec.msgpack.decode(encode(decode(stored, kind))), fields)


@of_each_kind
def test_a_reader_ignores_fields_it_does_not_know(kind: type[msgspec.Struct], stored: bytes) -> None:
    later = msgspec.msgpack.encode(msgspec.msgpack.decode(stored) | {"added_later": [1, 2]})
    if kind is Cancel:  # anyone can have the bus send a reply there
        with pytest.raises(BadInput):
            decode(later, kind)
    else:
        assert decode(later, kind) == decode(stored, kind)


@pytest.mark.parametrize("kind", [Request, Outcome])
def test_requests_and_outcomes_are_the_same_in_json(kind: type[msgspec.Struct]) -> None:
    message = decode(dict(SAMPLES)[kind], kind)
    assert decode(encode(message, json=True), kind) == message


@pytest.mark.parametrize("data", [b"", b"\xc1", b"{", b"[]", b"null", b"\x01", b'"x"', b"\x93\x01\x02\x03", DEEP])
def test_an_undecodable_message_is_bad_input(data: bytes) -> None:
    for kind, _ in SAMPLES:
        with pytest.raises(BadInput, match=kind.__name__):
            decode(data, kind)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "a\n"),
        ("seed", 2**63),
        ("slo_s", math.inf),
        ("age_s", math.nan),
        ("age_s", -1.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", -0.5),
        ("presence_penalty", math.nan),
        ("repetition_penalty", 0.0),
    ],
)
def test_a_request_with_an_unusable_value_is_bad_input(field: str, value: object) -> None:
    with pytest.raises(BadInput) as refused:
        decode(msgspec.msgpack.encode({"request_id": "a", "prompt": "x", field: value}), Request)
    assert refused.value.field == field
