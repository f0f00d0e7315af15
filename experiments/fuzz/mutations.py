"""Damages valid messages and JSON bodies at random. Pure, given the random generator."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

NUMBERS = (0, 1, -1, 2, 63, 2**16, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63), 2**64 - 1)
FLOATS = (0.0, -0.0, -1.0, 0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "a", "\n", "\0", "a.b", "*", ">", "ü" * 70, "x" * 5000, "-", "1", "\U0010ffff")
WORDS = (-1, 0, 1, 2**31 - 1, -(2**31), 0x7FC00000, 0x7F800000)  # int32; the last two are a float's NaN and infinity
MAX_CHANGES = 3
RAW_SHARE = 0.2  # of the messages whose bytes are damaged, instead of their values

Path = tuple[Any, ...]


def mutated_message(plain: dict[str, Any], rng: random.Random) -> bytes:
    """The message with one to three damages, as MessagePack or JSON. `plain` is its content as builtin types."""
    damaged = mutated(plain, rng)
    encode = msgspec.json.encode if rng.random() < 0.2 else msgspec.msgpack.encode
    return damaged_bytes(encode(damaged), rng)


def mutated_body(plain: dict[str, Any], rng: random.Random) -> bytes:
    """The JSON body with one to three damages. It may contain NaN, which is no JSON."""
    return damaged_bytes(json.dumps(mutated(plain, rng), default=str).encode(), rng)


def mutated(plain: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy in which one to three values, at any depth, are replaced or removed."""
    damaged = copy.deepcopy(plain)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        paths = list(_paths(damaged))
        if not paths:
            break
        *parents, key = rng.choice(paths)
        container: Any = damaged
        for parent in parents:
            container = container[parent]
        if rng.random() < 0.1:
            del container[key]
        else:
            container[key] = _other_value(container[key], rng)
    return damaged


def _paths(value: Any, prefix: Path = ()) -> Iterator[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*prefix, key)
        yield from _paths(part, (*prefix, key))


def _other_value(value: Any, rng: random.Random) -> Any:
    """A value of the same type in four of five cases."""
    choices: list[Any] = [None, {}, [], 0]
    if rng.random() < 0.2:
        choices = [None, True, rng.choice(NUMBERS), rng.choice(FLOATS), rng.choice(TEXTS), b"\0", [], {}, [0]]
    elif isinstance(value, bool):
        choices = [not value]
    elif isinstance(value, int):
        choices = [*NUMBERS, (value + 1) % 2**64, max(value - 1, -1)]
    elif isinstance(value, float):
        choices = [*FLOATS, value * 1e9, -value]
    elif isinstance(value, str):
        choices = list(TEXTS)
    elif isinstance(value, bytes):
        choices = [_other_bytes(value, rng)]
    elif isinstance(value, list):
        choices = [[], value * 2, value[:-1]]
    return rng.choice(choices)


def _other_bytes(value: bytes, rng: random.Random) -> bytes:
    """Another length, or another number at one place of a column."""
    if value and rng.random() < 0.6:
        at = 4 * rng.randrange((len(value) + 3) // 4)
        return (value[:at] + (rng.choice(WORDS) & 0xFFFFFFFF).to_bytes(4, "little") + value[at + 4 :])[: len(value)]
    return rng.choice([b"", value[:-1], value + b"\0", value[:-4], value * 2, value + value[:4], rng.randbytes(24)])


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """The bytes, cut, doubled or with another byte in RAW_SHARE of the cases. `data` is not empty."""
    if rng.random() > RAW_SHARE:
        return data
    at = rng.randrange(len(data))
    return rng.choice([data[:at], data[:at] + rng.randbytes(1) + data[at + 1 :], rng.randbytes(at), data * 2])
