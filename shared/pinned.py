"""The pinned tokens of an output: its request gives them, and no step changes them.

The output may be longer than the text: end-of-text tokens may be pinned behind it.
"""

from collections.abc import Collection

import numpy as np

from shared.arrays import INT32_BYTES, Int32, Int64, unpack_int32
from shared.errors import BadInput
from shared.messages.instances import ModelCard
from shared.messages.requests import Request

FREE = -1  # a position that the model writes


def free_positions(pinned: bytes, tokens: int) -> Int64:
    """The positions of the first `tokens` of an output that steps write, ascending."""
    known = unpack_int32(pinned)[:tokens]
    return np.concatenate([np.flatnonzero(known == FREE), np.arange(len(known), tokens)])


def count_pinned(request: Request) -> int:
    """The positions of the output that no step writes; of a damaged request, any number."""
    whole = request.pinned[: len(request.pinned) // INT32_BYTES * INT32_BYTES]
    return int(np.count_nonzero(unpack_int32(whole) != FREE)) if whole else 0


def given_positions(request: Request, end_ids: Collection[int]) -> Int64:
    """The positions of the pinned tokens but `end_ids`, ascending."""
    pinned = unpack_int32(request.pinned)
    return np.flatnonzero((pinned != FREE) & ~np.isin(pinned, list(end_ids)))


def protected_tokens(request: Request, end_ids: Collection[int]) -> int:
    """The tokens of the text up to its last given one: none of them ends the text."""
    if not request.pinned:
        return 0
    given = given_positions(request, end_ids)
    within = given[: np.searchsorted(given, request.max_tokens or len(request.pinned))]
    return int(within[-1]) + 1 if len(within) else 0


def check_pinned(request: Request, output_length: int, card: ModelCard) -> None:
    """`output_length` is in whole blocks. Raises: BadInput if the model cannot fill in this output."""
    if not request.pinned:
        return
    if len(request.pinned) % 4:
        raise BadInput("pinned must be int32 little-endian", "pinned")
    pinned = unpack_int32(request.pinned)
    if len(pinned) > output_length:
        raise BadInput(f"pinned has {len(pinned)} positions; the output has {output_length} tokens", "pinned")
    known = pinned[pinned != FREE]
    if len(known) == output_length:
        raise BadInput(f"pinned leaves none of the {output_length} tokens to the model; -1 leaves one", "pinned")
    if ((known < 0) | (known >= card.vocab_size) | (known == card.mask_token_id)).any():
        raise BadInput(f"pinned must be -1 or in 0..{card.vocab_size - 1}, and not the mask token", "pinned")
    if not card.attends_ahead and has_text_after_hole(pinned):
        raise BadInput(f"pinned has a token after a free position. {NO_TEXT_AFTER.format(card.name)}", "pinned")


NO_TEXT_AFTER = (
    "{} is block-causal: what it writes cannot depend on later text. Text before the free positions is accepted; "
    "models that attend in both directions, such as LLaDA and Dream, fill in anywhere"
)


def has_text_after_hole(pinned: Int32) -> bool:
    """Whether a pinned token follows a free position."""
    free = np.flatnonzero(pinned == FREE)
    return bool(len(free)) and bool((pinned[free[0] :] != FREE).any())
