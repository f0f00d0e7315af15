"""The bytes of tokens."""

import re
from collections.abc import Mapping
from functools import cache

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel

from shared.errors import BadInput


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """By token id, the bytes that it adds to a text; empty: none, as a special token.

    Raises: BadInput if the tokenizer is not byte-level.
    """
    if not isinstance(tokenizer.decoder, ByteLevel):
        raise BadInput("patterns need a byte-level tokenizer (its decoder is ByteLevel); this model has another one")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    found = [b""] * (max(vocabulary.values(), default=-1) + 1)  # some ids may have no token
    for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
        found[number] = byte_level_bytes(token)
    for number, added in tokenizer.get_added_tokens_decoder().items():
        found[number] = added_bytes(added)
    return found


def byte_level_bytes(token: str) -> bytes:
    """Those of a token of a byte-level vocabulary."""
    return bytes(map(byte_of_character().__getitem__, token))


def other_bytes(token: str) -> bytes:
    """Those of a token of another vocabulary, which writes a space as U+2581 and a lone byte as <0x0A>."""
    byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes.fromhex(byte[1]) if byte else token.replace("\u2581", " ").encode()


def added_bytes(token: AddedToken) -> bytes:
    """Those of a token outside of the vocabulary; empty if it is special."""
    return b"" if token.special else token.content.encode()


@cache
def byte_of_character() -> Mapping[str, int]:
    """The byte for each character of a byte-level vocabulary. Source: GPT-2's encoder, whose printable bytes have their
    own characters, and the others those from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
