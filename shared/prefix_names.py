"""Names of the pages of a text, by which requests with the same beginning find each other's cached keys and values.

A page's name is a hash of its tokens and of the name of the page before it, so it names the whole text up to its end.
"""

from collections.abc import Iterator
from hashlib import blake2b

from shared.arrays import Int32

DIGEST_BYTES = 16


def first_name(salt: str, block_length: int) -> bytes:
    """The name before the first page. Texts of other salts or other block lengths share no page: the keys and values of
    a block-causal model depend on its blocks."""
    return blake2b(f"{block_length}/{salt}".encode(), digest_size=DIGEST_BYTES).digest()


def page_names(tokens: Int32, page_tokens: int, before: bytes) -> Iterator[bytes]:
    """The names of the whole pages of `tokens` [T], the first of which follows the page named `before`."""
    for start in range(0, len(tokens) - page_tokens + 1, page_tokens):
        before = blake2b(before + tokens[start : start + page_tokens].tobytes(), digest_size=DIGEST_BYTES).digest()
        yield before
