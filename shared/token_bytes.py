"""The bytes of each token of a byte-level tokenizer."""

from collections.abc import Mapping

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from shared.errors import BadInput


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """By token id, the bytes that it adds to a text; empty: none, as a special token.

    Raises: BadInput if the tokenizer is not byte-level.
    """
    if not isinstance(tokenizer.decoder, ByteLevel):
        raise BadInput("patterns need a byte-level tokenizer (its decoder is ByteLevel); this model has another one")
    of_character = byte_of_character()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    found = [b""] * (max(vocabulary.values(), default=-1) + 1)  # some ids may have no token
    for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
        found[number] = bytes(of_character[character] for character in token)
    for number, added in tokenizer.get_added_tokens_decoder().items():
        found[number] = b"" if added.special else added.content.encode()
    return found


def byte_of_character() -> Mapping[str, int]:
    """The byte for each character of a byte-level vocabulary. Source: GPT-2's encoder, whose printable bytes have their
    own characters, and the others those from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
