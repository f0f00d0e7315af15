"""The output of a request: whole blocks after its prompt, as many as the model's maximum length allows; or around a
suffix, or of a template with holes, that the client gives."""

import re
from dataclasses import dataclass

import numpy as np

from shared.arrays import Int32, pack_int32
from shared.errors import BadInput, TooLong
from shared.messages.instances import ModelCard
from shared.messages.requests import DEFAULT_BLOCK_LENGTH, MAX_BLOCK_LENGTH, MAX_OUTPUT_TOKENS
from shared.pinned import FREE, NO_TEXT_AFTER, has_text_after_hole
from shared.text import TextModel, round_up_to_blocks

HOLE = re.compile(r"<mask:([^<>]*)>")
DEFAULT_HOLE_TOKENS = 32  # between a prompt and a suffix


class OutputRoom:
    """The output's blocks. `offset`: prompt tokens within the first one. `tokens`: the longest output."""

    def __init__(
        self, card: ModelCard, prompt_tokens: int, block_length: int | None, label_tokens: int, prompt_field: str
    ) -> None:
        """`block_length`: the client's; None: the model's. `label_tokens`: of the longest label of a choice with its
        end token; 0: no choice. Raises: TooLong for `prompt_field`."""
        block_length = block_length or card.block_length
        if not block_length:
            block_length = DEFAULT_BLOCK_LENGTH
            if label_tokens > block_length:  # labels within one block take one step
                block_length = min(label_tokens, MAX_BLOCK_LENGTH)
        self.prompt_tokens, self.block_length = prompt_tokens, block_length
        self.offset = card.block_offset(prompt_tokens, block_length)
        room = min(card.max_length - prompt_tokens, MAX_OUTPUT_TOKENS)
        self.tokens = (room + self.offset) // block_length * block_length - self.offset
        if self.tokens < 1:
            raise TooLong(
                f"{prompt_field} has {prompt_tokens} tokens; the model's maximum is {card.max_length} with the output, "
                f"which has at least one block of {block_length}",
                prompt_field,
            )

    def whole_blocks(self, tokens: int) -> int:
        """`tokens` rounded up to whole blocks, at most the longest output."""
        return min(round_up_to_blocks(tokens, self.block_length, self.offset), self.tokens)


@dataclass(frozen=True, slots=True)
class InfillOutput:
    """An output in whole blocks, of which the text is the first `text_tokens`."""

    tokens: int
    text_tokens: int
    pinned: bytes  # as in Request


def infill_output(
    template: str | None, suffix: str | None, limit: tuple[str, int | None], text: TextModel, room: OutputRoom
) -> InfillOutput | None:
    """None: no part of the output is given. `limit`: of the tokens of holes, and its field. Raises: BadInput."""
    if template is not None:
        field, given = "template", _template(template, limit, text)
        text_tokens = len(given)
    elif suffix is not None:
        field, end = "suffix", text.encode_text(suffix, "suffix")
        text_tokens = max(min(limit[1] or DEFAULT_HOLE_TOKENS, room.tokens - len(end)), 1)
        given = np.concatenate([_hole(text_tokens), end])
    else:
        return None
    if len(given) > room.tokens:
        with_holes = f"{field} has {len(given)} tokens with its holes"
        raise TooLong(f"{with_holes}; after a prompt of {room.prompt_tokens} the output can have {room.tokens}", field)
    tokens = room.whole_blocks(len(given))
    if text.card.attends_ahead:
        given = np.concatenate([given, np.full(tokens - len(given), text.card.eos_token_id, dtype=np.int32)])
    elif has_text_after_hole(given):
        raise BadInput(f"{field}: {NO_TEXT_AFTER.format(text.card.name)}", field)
    else:  # it may end its text as usual
        given = given[: np.flatnonzero(given == FREE)[0]]
    return InfillOutput(tokens, text_tokens, pack_int32(given))


def _template(template: str, limit: tuple[str, int | None], text: TextModel) -> Int32:
    """Its tokens, FREE in holes. `limit`: of the tokens of holes, and its field. Raises: BadInput."""
    parts = HOLE.split(template)  # texts and lengths take turns
    if not (holes := [_length(part) for part in parts[1::2]]):
        raise BadInput("template has no hole; <mask:N> is a hole of N tokens", "template")
    if sum(holes) > MAX_OUTPUT_TOKENS:
        raise TooLong(f"the holes of template have {sum(holes)} tokens; at most {MAX_OUTPUT_TOKENS}", "template")
    name, most = limit
    if most is not None and sum(holes) > most:
        raise BadInput(f"the holes of template have {sum(holes)} tokens; {name} allows {most}", name)
    texts = [text.encode_text(part, "template") if part else _hole(0) for part in parts[::2]]
    pieces = [piece for own, hole in zip(texts, holes, strict=False) for piece in (own, _hole(hole))]
    return np.concatenate([*pieces, texts[-1]])


def _length(hole: str) -> int:
    """Raises: BadInput."""
    if not re.fullmatch("[0-9]{1,5}", hole) or not 1 <= int(hole) <= MAX_OUTPUT_TOKENS:
        raise BadInput(f"a hole of template is <mask:N>, with N from 1 to {MAX_OUTPUT_TOKENS}", "template")
    return int(hole)


def _hole(tokens: int) -> Int32:
    return np.full(tokens, FREE, dtype=np.int32)
